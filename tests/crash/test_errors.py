"""Every call of a workload fails once: the error is true, and no message is lost.

Call k of those with an effect fails with an errno, for every k until a run ends without a fault.
Exit 1 or 5 means that the call did nothing, 10 that its outcome is unknown; a repeat works.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import pytest

from tests.crash.world import (
    START_MS,
    TOPIC,
    Model,
    Workload,
    after_reboot,
    differs,
    new_disk,
    observe,
    open_client,
    read_messages,
)
from tests.disk.memory import MemoryDisk
from tests.tiers import graded
from txlog.base.ranges import Bound
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.errors import (
    DiskFailed,
    NoResources,
    OutcomeUnknown,
    ReadOnlyStore,
    StoreFull,
    TxlogError,
)

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
STRIDE = int(os.environ.get("TXLOG_STRIDE", "4"))
STEPS = (
    "create create send begin txn_send ack txn_ack send begin txn_send commit abort begin "
    "txn_send checkpoint roll commit joined send connect key_begin txn_send connect key_delete "
    "joined"
).split()
SPACE_STEPS = (
    "create create begin txn_send begin txn_send commit abort begin txn_send compact trim "
    "checkpoint commit compact"
).split()
BULK_STEPS = "create create send bulk connect key_begin txn_send bulk bulk_again checkpoint".split()
CLASSES: dict[int, tuple[type[TxlogError], ...]] = {
    errno.EIO: (DiskFailed, OutcomeUnknown),
    errno.ENOSPC: (StoreFull, DiskFailed, OutcomeUnknown),  # a flush that fails is a disk that did
    errno.EMFILE: (NoResources, DiskFailed, OutcomeUnknown),
    errno.EROFS: (ReadOnlyStore, DiskFailed, OutcomeUnknown),
}


@dataclass
class Fault:
    """A hook that lets call `at` fail once."""

    at: int
    number: int
    written: int = 0
    count: int = 0
    hit: str = ""

    def __call__(self, op: str, path: str, **info: int) -> None:
        """Count the call, and fail it if it is the one."""
        self.count += 1
        if self.count == self.at:
            self.hit = f"{op} {path}"
            error = OSError(self.number, os.strerror(self.number))
            error.written = self.written  # type: ignore[attr-defined]
            raise error


def run_with(fault: Fault, *, is_read: bool, steps: Sequence[str] = tuple(STEPS)) -> bool:
    """One run; False when it ended before the fault."""
    disk = new_disk()
    work = Workload(open_client(disk))
    if is_read:
        disk.look = fault
    else:
        disk.step = fault
    rng = random.Random(f"{SEED} errors")
    for number, step in enumerate(steps):
        act = getattr(work, step)(deepcopy(work.models[-1]), rng)
        if act is None:
            continue
        try:
            work.attempt(step, *act)
        except TxlogError as error:
            where = f"seed {SEED}, call {fault.at}, {fault.hit}, step {number} {step}: {error!r}"
            check_error(fault, error, where)
            check_after(disk, work, step, act, error, where)
            return True
        except OSError as error:
            raise AssertionError(f"{fault.hit}: a bare {error!r}") from error
    if not fault.hit:
        return False
    # The fault does not concern the caller, as when a temporary file cannot be removed.
    assert not differs(observe(work.client), [work.models[-1]]), fault.hit
    return True


def check_error(fault: Fault, error: TxlogError, where: str) -> None:
    """The error has the class and the exit code of the table in spec/reliability 4."""
    assert isinstance(error, CLASSES[fault.number]), where
    if fault.hit.startswith("datasync journal/0"):
        assert isinstance(error, OutcomeUnknown), where
    if isinstance(error, OutcomeUnknown):
        assert error.exit == 10, where


def check_after(
    disk: MemoryDisk,
    work: Workload,
    step: str,
    act: tuple[Model, object],
    error: TxlogError,
    where: str,
) -> None:
    """Check that the handle still works, the error is true, and a repeat does the step."""
    model_before, model = work.models[-1], act[0]
    allowed = [model_before, model_before.recovered()]
    if error.exit == 10:
        allowed += [model, model.recovered()]
    else:
        allowed = allowed[:1]
    client = work.client
    client.store.flush()
    wrong = differs(observe(client), allowed)
    assert not wrong, f"{where}: {wrong}"
    other = open_client(disk.process())
    assert not differs(observe(other), allowed), f"{where}: another process differs"

    if step not in ("begin", "connect", "key_begin", "joined", "bulk") or error.exit != 10:
        try:
            act[1]()  # type: ignore[operator]
            allowed = [model, model.recovered()]
        except TxlogError as second:
            # recovery aborted the transaction meanwhile, or the key is deleted already
            assert error.exit == 10, f"{where}: the repeat raised {second!r}"
            assert second.exit in (3, 4), f"{where}: the repeat raised {second!r}"
    seen = observe(client)
    wrong = differs(seen, allowed)
    assert not wrong, f"{where}, repeated: {wrong}"
    client.store.flush()
    final = [m.recovered() for m in allowed if m.shape() == seen]
    # after a power cut: the state before, or the whole new one
    for image in disk.images(random.Random(SEED), 2):
        late = open_client(image, after_reboot())
        late.store.flush()
        wrong = differs(observe(late), final)
        assert not wrong, f"{where}, then the power was cut: {wrong}"
        late.close()


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        pytest.param("EIO", 12 * STRIDE, id="some"),
        *(
            pytest.param(name, STRIDE, id=name, marks=pytest.mark.deep)
            for name in ("EIO", "ENOSPC")
        ),
        *(
            pytest.param(name, 3 * STRIDE, id=name, marks=pytest.mark.deep)
            for name in ("EMFILE", "EROFS")
        ),
    ],
)
def test_each_call_with_an_effect_fails_once(name: str, stride: int) -> None:
    """Each call fails once (see the module); a failed write leaves some of its bytes."""
    at = 1 + SEED % stride
    while run_with(Fault(at, getattr(errno, name), written=at % 90), is_read=False):
        at += stride
    assert at > 100  # calls


@pytest.mark.parametrize(("name", "times"), graded([("EIO", 12), ("EIO", 3), ("ENOSPC", 3)], 1))
def test_each_call_of_a_compaction_or_a_trim_fails_once(name: str, times: int) -> None:
    """Giving space back changes no visible message, except those that a trim should remove."""
    stride = times * STRIDE
    at = 1 + SEED % stride
    fault = Fault(at, getattr(errno, name), written=at % 90)
    while run_with(fault, is_read=False, steps=SPACE_STEPS):
        at += stride
        fault = Fault(at, getattr(errno, name), written=at % 90)
    assert at > 100  # calls


@pytest.mark.parametrize(("name", "times"), graded([("EIO", 10), ("EIO", 2), ("ENOSPC", 2)], 1))
def test_each_call_of_a_batch_fails_once(name: str, times: int) -> None:
    """Staging and adopting: the batch is absent unless the error says that it may exist."""
    stride = times * STRIDE
    at = 1 + SEED % stride
    while run_with(
        Fault(at, getattr(errno, name), written=at % 90), is_read=False, steps=BULK_STEPS
    ):
        at += stride
    assert at > 100  # calls


@pytest.mark.parametrize("times", graded([20, 5], 1))
def test_each_read_of_a_batch_fails_once(times: int) -> None:
    """An EIO while the program compares and names files changes nothing."""
    at, stride = 1, times * STRIDE
    while run_with(Fault(at, errno.EIO), is_read=True, steps=BULK_STEPS):
        at += stride
    assert at > 100  # calls


@pytest.mark.parametrize("times", graded([30, 15], 1))
def test_each_read_of_a_compaction_or_a_trim_fails_once(times: int) -> None:
    """An EIO while the program gathers rows changes nothing."""
    at, stride = 1, times * STRIDE
    while run_with(Fault(at, errno.EIO), is_read=True, steps=SPACE_STEPS):
        at += stride
    assert at > 100  # calls


@pytest.mark.parametrize("times", graded([20, 5], 1))
def test_each_read_fails_once(times: int) -> None:
    """An EIO of a read is an error, never an end of file, and never a wrong answer."""
    at, stride = 1, times * STRIDE
    while run_with(Fault(at, errno.EIO), is_read=True):
        at += stride
    assert at > 100  # calls


@pytest.mark.parametrize("written", [0, 1, 64, 100])
def test_a_full_disk_cuts_back_to_the_start_of_the_frame(written: int) -> None:
    """R30: no byte of the frame stays, and the next frame begins at the same offset."""
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    path = "journal/00000000000000000001.journal"
    journal_before = disk.read(path)

    def fail(op: str, path: str, **info: int) -> None:
        if op == "pwrite" and path.endswith(".journal"):
            disk.step = lambda op, path, **info: None
            error = OSError(errno.ENOSPC, "No space left on device")
            error.written = written  # type: ignore[attr-defined]
            raise error

    disk.step = fail
    # the first is freed by the reserve only for calls without rows
    with pytest.raises(StoreFull) as caught:
        client.producer(TOPIC).send(b"x")
    assert caught.value.exit == 5
    assert caught.value.retryable
    assert disk.read(path) == journal_before
    client.producer(TOPIC).send(b"y")
    assert [m.value for m in read_messages(open_client(disk), TOPIC)] == [b"y"]
    assert disk.listdir("quarantine") == []


@pytest.mark.whole_reserve
def test_abort_commit_and_acknowledge_work_on_a_full_disk() -> None:
    """R30: the store refuses sends; the reserve gives its blocks to calls that end transactions."""
    disk = new_disk(Settings(coordinators=1, free_bytes_min=0))
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    client.create_subscription(TOPIC, "s")
    producer = client.producer(TOPIC)
    first, second = client.begin()["txn"], client.begin()["txn"]
    producer.send(b"in", txn=first)
    producer.send(b"out", txn=second)
    disk.machine.free_bytes = 0
    sent = 0
    with pytest.raises(StoreFull):
        while True:
            producer.send(bytes(8000))
            sent += 1
    stored = read_messages(client, TOPIC)
    ids = [m.message_id for m in stored if m.message_id is not None]
    assert len(ids) == sent > 50  # the preallocated bytes can be used
    while disk.exists("reserve"):  # until the journal is full
        client.begin()
    client.acknowledge(TOPIC, "s", ids[:40:2])
    client.abort(second)
    client.commit(first)
    assert not disk.exists("reserve")
    assert read_messages(open_client(disk), TOPIC)[-1].value == b"in"
    disk.machine.free_bytes = 1 << 30
    client.checkpoint()
    assert disk.exists("reserve")
    producer.send(b"again")
    assert read_messages(open_client(disk), TOPIC)[-1].value == b"again"


@pytest.mark.whole_reserve
@pytest.mark.parametrize("is_old", [True, False])
def test_a_full_disk_has_room_for_the_journal_file_that_must_be_new(
    is_old: bool,
) -> None:
    """R30: the reserve also frees a store of an old format, and a store whose flush died."""
    settings = Settings(coordinators=1, free_bytes_min=0)
    disk = new_disk(settings, of_format=1) if is_old else new_disk(settings)
    client = open_client(disk)
    if not is_old:

        def fail(op: str, path: str, **info: int) -> None:
            if op == "datasync":
                raise OSError(errno.EIO, "Input/output error")

        disk.step = fail
        with pytest.raises(OutcomeUnknown):
            client.create_topic(TOPIC, 1)
        disk.step = lambda op, path, **info: None
    disk.machine.free_bytes = 0
    assert client.abort(client.begin()["txn"])["state"] == "aborted"
    assert not disk.exists("reserve")
    assert len(disk.listdir("journal")) == 3


def test_a_trim_gives_space_back_at_once_on_a_full_disk() -> None:
    """R18, R30: a full disk has no room for a checkpoint, so the frame of the trim frees files at
    once.

    The grace period for readers does not delay this.
    """
    disk = new_disk(Settings(coordinators=1, free_bytes_min=1 << 20))
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    client.producer(TOPIC).send(bytes(300_000))
    client.checkpoint(roll_all=True)
    client.producer(TOPIC).send(b"kept")
    disk.machine.free_bytes = 0
    client.checkpoint_automatically = True
    assert client.admin.trim(TOPIC, Bound("skip", 1), force_unacked=True)["messages"] == 1
    assert not [path for path in disk.files() if path.endswith(".parquet")]
    for boot in (ManualClock(START_MS), after_reboot()):
        late = open_client(disk.copy(), boot)
        assert [m.value for m in read_messages(late, TOPIC)] == [b"kept"]
    disk.machine.free_bytes = 1 << 30
    client.checkpoint()
    assert [m.value for m in read_messages(open_client(disk), TOPIC)] == [b"kept"]


def test_a_failed_checkpoint_does_not_fail_the_commit_before_it() -> None:
    """The caller gets `committed` for a durable commit; the checkpoint is retried later."""
    disk = new_disk(Settings(coordinators=1, checkpoint_frames=1))
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    client.checkpoint_automatically = True
    txn = client.begin()["txn"]
    client.producer(TOPIC).send(b"x", txn=txn)

    def fail(op: str, path: str, **info: int) -> None:
        if path.startswith(("state/", "topics/", "manifest/")):
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.step = fail
    assert client.commit(txn)["state"] == "committed"
    disk.step = lambda op, path, **info: None
    assert [m.value for m in read_messages(open_client(disk), TOPIC)] == [b"x"]
    client.checkpoint()
    client.close()


def test_a_read_error_behind_a_commit_does_not_deny_it() -> None:
    """The commit is durable; a failed read afterwards may not be answered as `nothing was done`."""
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    txn = client.begin()["txn"]
    client.producer(TOPIC).send(b"x", txn=txn)

    def arm(op: str, path: str, **info: int) -> None:
        if op == "unlock":
            disk.look = fail

    def fail(op: str, path: str, **info: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk.step = arm
    with pytest.raises(OutcomeUnknown) as caught:
        client.commit(txn)
    assert caught.value.fields["txn"] == txn
    disk.step = disk.look = lambda op, path, **info: None
    recovered = open_client(disk.process(), ManualClock(START_MS))
    assert recovered.commit(txn)["already"] is True


def test_the_number_of_a_failed_checkpoint_is_not_used_again() -> None:
    """R16: the next checkpoint takes a new number, whatever files the failed one left.

    Guards against a choice of the number that looks at state files alone.
    """
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 2)
    for partition in range(2):
        client.producer(TOPIC).send(b"v", partition=partition)

    def fail(op: str, path: str, **info: int) -> None:
        if op == "link" and path.startswith("manifest/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.step = fail
    with pytest.raises(DiskFailed):
        client.checkpoint()
    disk.step = lambda op, path, **info: None
    parts = [path for path in disk.files() if path.endswith(".arrow")]
    assert len(parts) >= 2
    for path in [path for path in disk.files() if path.endswith(".state")]:
        disk.damage(path, None)  # as a sweep does that was cut short
    assert client.checkpoint()["generation"] == 2
    assert len(read_messages(client, TOPIC)) == 2


@pytest.mark.parametrize("kind", ["manifest/", "journal/", "topics/"])
def test_a_published_checkpoint_does_not_fail_over_old_files(kind: str) -> None:
    """R4: a file that cannot be removed becomes a note in the reports.

    Guards against an exit code of 6 or 1 after the manifest was published.
    """
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    for _ in range(3):
        client.producer(TOPIC).send(b"v")
        client.checkpoint(roll_all=True)
    client.reports()

    def fail(op: str, path: str, **info: int) -> None:
        if op == "unlink" and path.startswith(kind) and ".tmp-" not in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.step = fail
    client.producer(TOPIC).send(b"v")
    before = client.status()["checkpoint"]["generation"]
    assert not client.checkpoint(roll_all=True)["skipped"]
    assert client.status()["checkpoint"]["generation"] > before
    assert any("cannot remove" in line and kind in line for line in client.reports())
    disk.step = lambda op, path, **info: None
    assert len(read_messages(client, TOPIC)) == 4
    assert len(read_messages(open_client(disk.process()), TOPIC)) == 4
