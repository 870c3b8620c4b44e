"""Two processes write one store in memory: one flushes while the other appends, at every step.

`a` sends a message that must be durable before the answer. At one of its calls to the disk, `b`
sends a message in the same way; then `a` dies there, or the power fails. `b` waits for no lock, so
the store may refuse it, or answer that the outcome is unknown. Answered messages must survive.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator

import pytest

from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.disk import memory
from tests.disk.memory import Killed, MemoryDisk
from tests.engine_kit import client_on
from tests.tiers import graded
from txlog.base.settings import Settings
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import messages
from txlog.engine.storage.journal import FLUSH_LOCK, WRITTEN_TIMEOUT_MS
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.upkeep.verify.verify import verify
from txlog.errors import (
    AlreadyExists,
    OutcomeUnknown,
    StoreLocked,
    TransactionNotFound,
    TryAgain,
)

SETTINGS = Settings(durability="sync", free_bytes_min=0)
IMAGES_MAX = 12
CALLS_MAX = 12  # calls of one durable send; a test counts them


def patient(disk: MemoryDisk) -> Client:
    """A client that waits for locks."""
    return client_on(disk, ManualClock(START_MS), lock_timeout_ms=60_000)


def writers() -> tuple[MemoryDisk, MemoryDisk, Client, Client]:
    """Two processes of a new store; each has sent, so its next send makes the usual calls."""
    disk = new_disk(SETTINGS)
    with open_client(disk.process()) as client:
        client.create_topic("t")
    disk_of_a, disk_of_b = disk.process(), disk.process()
    a, b = open_client(disk_of_a), open_client(disk_of_b)
    for _ in range(2):
        send(a, "a0")
        send(b, "b0")
    send(a, "a0")
    return disk_of_a, disk_of_b, a, b


def send(client: Client, value: str) -> bool:
    """Send a message that is durable on return.

    returns: True if it was answered, False if it was refused; OutcomeUnknown is raised as it is
    """
    try:
        client.producer("t").send(value.encode())
    except StoreLocked:
        return False
    return True


def sent(disk: MemoryDisk, clock: ManualClock | None = None) -> list[str]:
    """The values that a fresh process reads after a write of its own; the store is whole."""
    with open_client(disk.process(), clock) as client:
        send(client, "last")
        values = [m.value.decode() for t in client.read("t") for m in messages(t) if m.value]
    findings = Findings()
    verify(disk.process(), (clock or ManualClock(START_MS)).now(), findings)
    assert not findings.errors, findings.problems
    assert values[-1] == "last"
    once = [value for value in values if value not in ("a0", "b0")]
    assert len({*once}) == len(once), values
    return values


class Between:
    """A hook of `a`: at its n-th call `b` sends once; then the hook may raise."""

    def __init__(self, b: Client, call: int, error: BaseException | None = None) -> None:
        self._b, self._call, self._error = b, call, error
        self.calls = 0
        self.answered: bool | None = None  # None: unknown
        self.has_run = False

    def __call__(self, op: str, path: str, **info: int) -> None:
        self.calls += 1
        if self.calls != self._call:
            return
        self.has_run = True
        try:
            self.answered = send(self._b, "b1")
        except OutcomeUnknown:
            self.answered = None
        if self._error is not None:
            raise self._error


def test_how_many_calls_there_are() -> None:
    """Guards the ranges below: lock, frame, unlock; lock, mark, flush, raise, unlock."""
    disk_of_a, _, a, b = writers()
    disk_of_a.step = hook = Between(b, 0)
    assert send(a, "a1")
    assert 7 < hook.calls <= CALLS_MAX


@pytest.mark.parametrize("call", graded(range(1, CALLS_MAX + 1), range(2, 12, 3)))
def test_the_other_comes_in_between_and_both_go_on(call: int) -> None:
    """Guards against a flush or a witness that misreads the frame of the other process."""
    disk_of_a, disk_of_b, a, b = writers()
    disk_of_a.step = hook = Between(b, call)
    is_sent = send(a, "a1")
    assert is_sent
    values = sent(disk_of_b)
    assert "a1" in values
    assert ("b1" in values) in ({True} if hook.answered else {False, hook.answered is None})
    assert send(b, "b2")
    assert send(a, "a2")


@pytest.mark.parametrize("call", graded(range(1, CALLS_MAX + 1), range(2, 12, 3)))
def test_a_death_in_between_keeps_answered_messages(call: int) -> None:
    """Guards against a living writer's frame lost with the dead one's, and a lock that
    stays held.
    """
    disk_of_a, disk_of_b, a, b = writers()
    disk_of_a.step = hook = Between(b, call, Killed())
    try:
        send(a, "a1")
    except Killed:
        assert hook.has_run
    assert send(b, "b2")
    values = sent(disk_of_b)
    assert "b2" in values
    assert not hook.answered or "b1" in values


@pytest.mark.parametrize("call", graded(range(1, CALLS_MAX + 1), range(2, 12, 3)))
def test_a_power_cut_in_between_keeps_answered_messages(call: int) -> None:
    """Guards against an answer before the flush that covers it, and a witness above the flushed
    bytes.
    """
    disk_of_a, disk_of_b, a, b = writers()
    disk_of_a.step = hook = Between(b, call, Killed())
    try:
        send(a, "a1")
    except Killed:
        assert hook.has_run
    for image in disk_of_b.images(random.Random(1), IMAGES_MAX):
        values = sent(image, after_reboot())
        assert not hook.answered or "b1" in values


@pytest.fixture
def two() -> Iterator[tuple[MemoryDisk, MemoryDisk, Client, Client]]:
    """Two processes that wait for locks."""
    disk = new_disk(SETTINGS)
    with open_client(disk.process()) as client:
        client.create_topic("t")
    disk_of_a, disk_of_b = disk.process(), disk.process()
    a, b = patient(disk_of_a), patient(disk_of_b)
    send(a, "a0")
    send(b, "b0")
    send(a, "a0")
    yield disk_of_a, disk_of_b, a, b


def appended_before(
    two: tuple[MemoryDisk, MemoryDisk, Client, Client], error: OSError | None
) -> tuple[list[str], list[str], list[str]]:
    """Let `b` append between the append of `a` and its flush, which may fail.

    returns: the answered values, those with an unknown outcome, and the processes that flushed the
    journal, in order
    """
    disk_of_a, disk_of_b, a, b = two
    waits, has_begun = threading.Event(), threading.Event()
    answered: list[str] = []
    unknown: list[str] = []
    flushed: list[str] = []

    def call(client: Client, value: str) -> None:
        try:
            send(client, value)
            answered.append(value)
        except OutcomeUnknown:
            unknown.append(value)

    thread = threading.Thread(target=call, args=(b, "b1"))

    def of_a(op: str, path: str, **info: int) -> None:
        if (op, path) == ("lock", FLUSH_LOCK) and not thread.ident:
            thread.start()
            assert waits.wait(60)
        if op == "datasync" and path.startswith("journal/"):
            flushed.append("a")
            has_begun.set()
            if error is not None:
                raise error

    def of_b(op: str, path: str, **info: int) -> None:
        if (op, path) == ("lock", FLUSH_LOCK) and not waits.is_set():
            waits.set()
            assert has_begun.wait(60)
        if op == "datasync" and path.startswith("journal/") and "witness" not in path:
            flushed.append("b")

    disk_of_a.step, disk_of_b.step = of_a, of_b
    call(a, "a1")
    thread.join(60)
    return sorted(answered), unknown, flushed


def test_one_flush_is_enough_for_two(
    two: tuple[MemoryDisk, MemoryDisk, Client, Client],
) -> None:
    """Guards against two flushes where the first already covers both frames."""
    assert appended_before(two, None) == (["a1", "b1"], [], ["a"])
    assert {"a1", "b1"} <= {*sent(two[1])}


def test_a_writer_waiting_for_a_failed_flush_rolls_forward_first(
    two: tuple[MemoryDisk, MemoryDisk, Client, Client],
) -> None:
    """Guards against a second flush of the bytes whose first flush failed (R13)."""
    error = OSError(errno.EIO, "Input/output error")
    answered, unknown, flushed = appended_before(two, error)
    assert (answered, unknown) == (["b1"], ["a1"])
    assert flushed[0] == "a"
    journals = [path for path in two[1].files() if path.endswith(".journal")]
    assert any(".r" in path or not path.endswith("1.journal") for path in journals)
    for image in two[1].images(random.Random(1), IMAGES_MAX):
        assert "b1" in sent(image, after_reboot())


def processes(count: int) -> list[tuple[MemoryDisk, Client]]:
    """Processes of a new store; each has sent."""
    disk = new_disk(SETTINGS)
    with open_client(disk.process()) as client:
        client.create_topic("t")
    disks = [disk.process() for _ in range(count)]
    out = [(process, open_client(process)) for process in disks]
    for _, client in [*out, *out]:
        send(client, "a0")
    return out


def drop_pages(disk: MemoryDisk, path: str) -> None:
    """Let the kernel drop the pages of a failed flush, so that reads get the bytes of the disk."""
    node = disk.find(path)
    assert node is not None
    for sector, value in node.old.items():
        if isinstance(sector, int) and isinstance(value, bytes):
            at = sector * 512
            node.data[at : at + 512] = value[: len(node.data) - at]


def test_a_writer_whose_frame_a_failed_flush_lost_gets_no_answer() -> None:
    """Guards against a frame judged durable by its LSN, which by now is the LSN of another frame
    (R13).
    """
    (disk_of_a, a), (disk_of_b, b), (_, c) = processes(3)

    def of_b(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path.endswith(".journal"):
            drop_pages(disk_of_b, path)
            raise OSError(errno.EIO, "Input/output error")

    def of_a(op: str, path: str, **info: int) -> None:
        if (op, path) == ("lock", FLUSH_LOCK):  # the frame of `a` is in the journal
            disk_of_a.step, disk_of_b.step = lambda *_, **__: None, of_b
            with pytest.raises(OutcomeUnknown):
                send(b, "b1")
            assert send(c, "c1")
            assert send(c, "c2")

    disk_of_a.step = of_a
    with pytest.raises(OutcomeUnknown, match="may be lost"):
        send(a, "a1")
    values = sent(disk_of_b.process())
    assert {"c1", "c2"} <= {*values}
    assert "a1" not in values
    assert send(a, "a2")


class Handled(Exception):
    """The exception that a signal handler raises."""


def test_a_frame_read_while_waiting_and_taken_back_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against a decision on a frame that was lost, whose LSN a rolled-forward frame now has.

    `f` waits for the write lock and reads the frame that `w` has appended. A signal handler of `w`
    raises. `k` dies in its flush, so `p` rolls forward, and its own frame replaces the frame of
    `w`.
    """
    (of_k, k), (of_w, w), (_, p), (disk, f) = processes(4)
    real = memory.MemoryFile.pwrite
    has_raised = False

    def follow() -> None:
        f.store._mutex.run(f.store._follow_ahead)

    def pwrite(self: memory.MemoryFile, offset: int, data: bytes) -> None:
        nonlocal has_raised
        real(self, offset, data)
        if self._disk is of_w and self.path.endswith(".journal") and not has_raised:
            has_raised = True
            follow()
            of_k.kill()
            raise Handled

    def in_its_flush(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path.endswith(".journal"):
            of_k.step = lambda *_, **__: None
            with pytest.raises(OutcomeUnknown):
                w.create_topic("x")
            raise Killed

    monkeypatch.setattr(memory.MemoryFile, "pwrite", pwrite)
    of_k.step = in_its_flush
    with pytest.raises(Killed):
        send(k, "k1")
    assert has_raised
    assert send(p, "p1")
    follow()
    assert send(f, "f1")
    assert [topic["topic"] for topic in f.topics()] == ["t"]
    assert {"k1", "p1", "f1"} <= {*sent(disk.process())}


def test_a_read_does_not_wait_for_a_process_stopped_in_a_flush() -> None:
    """Guards against `txlog admin locks` waiting for the very process that it should report."""
    (of_k, k), (disk, f) = processes(2)
    waits: list[tuple[str, int]] = []
    has_asked = False

    def blocked(path: str, timeout_ms: int) -> bool:
        waits.append((path, timeout_ms))
        return False

    def in_its_flush(op: str, path: str, **info: int) -> None:
        nonlocal has_asked
        if op == "datasync" and path.endswith(".journal") and not has_asked:
            has_asked = True
            disk.blocked = blocked
            assert f.topics()[0]["messages"] == 4
            assert len([m for t in f.read("t") for m in messages(t)]) == 4
            assert not waits
            f.store.lock_timeout_asked_ms = 7
            f.store.reload()
            with pytest.raises(OutcomeUnknown):
                send(f, "f1")
            # giving up after 7 ms would leave the outcome of a written frame unknown for nothing
            assert waits == [(FLUSH_LOCK, WRITTEN_TIMEOUT_MS)]

    of_k.step = in_its_flush
    assert send(k, "k1")
    assert has_asked
    assert {"k1", "f1"} <= {*sent(disk.process())}


def test_a_question_shows_what_a_dead_writer_left_unflushed() -> None:
    """R22: without another write, the message would stay hidden until the next write."""
    (of_k, k), (_, f) = processes(2)

    def in_its_flush(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path.endswith(".journal"):
            raise Killed

    of_k.step = in_its_flush
    with pytest.raises(Killed):
        send(k, "k1")
    assert [m.value for t in f.read("t") for m in messages(t)][-1] == b"k1"


def test_a_refusal_waits_until_its_reason_is_durable() -> None:
    """Guards against the answer `it exists already` for a topic that a power cut takes back."""
    (of_k, k), (disk, f) = processes(2)

    def fails(op: str, path: str, **info: int) -> None:
        if op == "datasync":
            raise OSError(errno.EIO, "Input/output error")

    def before_its_flush(op: str, path: str, **info: int) -> None:
        if (op, path) == ("lock", FLUSH_LOCK):
            of_k.step, disk.step = lambda *_, **__: None, fails
            with pytest.raises(TryAgain):
                f.create_topic("x")
            disk.step = lambda *_, **__: None

    of_k.step = before_its_flush
    k.create_topic("x")
    with pytest.raises(AlreadyExists):
        f.create_topic("x")


def test_a_frame_lost_in_a_failed_flush_is_no_damage() -> None:
    """Guards against Corruption for a frame that was answered before its flush, as R9 allows."""
    (of_k, k), (_, f) = processes(2)
    for _ in range(f.store.settings.coordinators + 1):  # the last needs no new ids, so no flush
        txn = f.begin()["txn"]

    def fails(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path.endswith(".journal"):
            drop_pages(of_k, path)
            raise OSError(errno.EIO, "Input/output error")

    of_k.step = fails
    with pytest.raises(OutcomeUnknown):
        send(k, "k1")
    of_k.step = lambda *_, **__: None
    assert send(f, "f1")
    with pytest.raises(TransactionNotFound):
        f.commit(txn)
    assert send(k, "k2")
    assert {"f1", "k2"} <= {*sent(of_k.process())}
