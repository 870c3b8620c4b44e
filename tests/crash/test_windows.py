"""The crash windows K1 to K12 of spec/transactions 13, one test each, on the disk in memory.

Every docstring says where the process or the machine dies, what remains, and what the next caller
gets. `test_windows_killed.py` has the same windows with real processes.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

import pytest

from tests.crash.world import START_MS, after_reboot, new_disk, open_client, read_messages
from tests.disk.memory import Killed, MemoryDisk
from txlog.base.ids import TxnId
from txlog.base.settings import Settings
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.storage.manifest import generations, read_manifest
from txlog.errors import (
    ExpiredTransaction,
    InvalidTxnStatus,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    TransactionTimedOut,
)

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = int(os.environ.get("TXLOG_IMAGES", "3")) * 8
SETTINGS = Settings(coordinators=2, txn_ids_reserved=64, reader_grace_ms=0)


class Stage:
    """A store with a topic, a message in each partition, a subscription; and its only process."""

    def __init__(self) -> None:
        self.disk = new_disk(SETTINGS)
        self.clock = ManualClock(START_MS)
        self.client = open_client(self.disk, self.clock)
        self.client.create_topic("t", 2)
        self.client.create_subscription("t", "s")
        for partition in (0, 1):
            self.client.producer("t").send(b"in%d" % partition, partition=partition)

    def fill(self, timeout_ms: int | None = None) -> TxnId:
        """An open transaction: a message to each partition, one acknowledgement."""
        txn = self.client.begin(timeout_ms)["txn"]
        assert isinstance(txn, TxnId)
        for partition in (0, 1):
            self.client.producer("t").send(b"out%d" % partition, partition=partition, txn=txn)
        first = read_messages(self.client, "t")[0].message_id
        assert first is not None
        self.client.acknowledge("t", "s", [first], txn=txn)
        return txn

    def die(
        self,
        op: str,
        part: str,
        nth: int = 1,
        *,
        written: int = 0,
        at_death: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the process die before the nth call of this kind, or within it after
        `written` bytes.
        """
        count = 0

        fatal_op = op

        def hook(op: str, path: str, **info: int) -> None:
            nonlocal count
            count += op == fatal_op and part in path
            if op == fatal_op and part in path and count == nth:
                at_death()
                raise Killed(min(written, info.get("length", 1) - 1))

        self.disk.step = hook

    def other(self, clock: ManualClock | None = None, *, read_only: bool = False) -> Client:
        """Another process on the same machine."""
        return open_client(self.disk.process(read_only=read_only), clock or self.clock)

    def cuts(self) -> list[MemoryDisk]:
        """Disks that a power cut at this moment may leave."""
        return list(self.disk.images(random.Random(SEED), IMAGES))


class Calls:
    """A hook that counts the calls with an effect, and kills the process in the nth."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.count = 0

    def __call__(self, op: str, path: str, **info: int) -> None:
        """Count."""
        self.count += 1
        if self.count == self.nth:
            raise Killed(info.get("length", 1) // 2)


def state(client: Client, txn: TxnId) -> tuple[str, str | None]:
    """(status, reason) of a transaction."""
    described = client.show_transaction(txn)
    return described["state"], described["reason"]


def is_visible(client: Client) -> bool:
    """True when all of the transaction of `fill` is visible; a part alone is an error (I-6)."""
    seen = sorted(m.value or b"" for m in read_messages(client, "t"))
    with client.consumer("t", "s") as consumer:
        unread = consumer.receive_batch(100).column("value").to_pylist()
    if b"out0" in seen:
        assert seen == [b"in0", b"in1", b"out0", b"out1"]
        assert b"in0" not in unread
        return True
    assert seen == [b"in0", b"in1"]
    return False


def settled(disk: MemoryDisk, clock: ManualClock) -> Client:
    """The next writer, after its recovery."""
    client = open_client(disk, clock)
    client.flush()
    return client


def files_nobody_names(client: Client) -> set[str]:
    """Segment and state files on the disk that neither of the kept manifests names.

    Manifests do not name the README in the directory of a topic, and it stays.
    """
    disk = client.store.disk
    assert isinstance(disk, MemoryDisk)
    referenced: set[str] = set()
    for generation in generations(disk):
        manifest = read_manifest(disk, generation, client.store.identity.salt)
        referenced |= {ref.path for refs in manifest.files.values() for ref in refs}
        referenced |= {ref.path for ref in manifest.dumps}
        referenced |= {path for path, _ in manifest.dropped}
    stored = {p for p in disk.files() if p.startswith(("topics/", "state/"))}
    return {p for p in stored if not p.endswith("/_README")} - referenced


@pytest.mark.parametrize("written", [1, 63, 64, 150])
def test_k1_before_the_frame_is_complete(written: int) -> None:
    """K1: a torn tail is cut into quarantine; nothing happened, and open transactions go on."""
    stage = Stage()
    txn = stage.fill()
    stage.die("pwrite", ".journal", written=written)
    with pytest.raises(Killed):
        stage.client.commit(txn)
    assert not any(m.value == b"out0" for m in read_messages(stage.other(read_only=True), "t"))
    client = stage.other()
    client.flush()
    assert state(client, txn) == ("open", None)
    assert len(client.store.disk.listdir("quarantine")) == 1
    assert client.commit(txn)["already"] is False
    assert is_visible(client)


# Before the witness announced the flush, and within the flush: then the tail is written anew.
NOT_FLUSHED = [("pwrite", "witness"), ("datasync", ".journal")]


@pytest.mark.parametrize("at", NOT_FLUSHED, ids=["unannounced", "flushing"])
def test_k2_written_and_not_flushed(at: tuple[str, str]) -> None:
    """K2: the process dies; the next writer rolls the frame forward, and a repeat answers
    `already`.
    """
    stage = Stage()
    txn = stage.fill()
    readers: list[bool] = []
    stage.die(
        *at,
        at_death=lambda: readers.append(
            any(m.value == b"out0" for m in read_messages(stage.other(read_only=True), "t"))
        ),
    )
    with pytest.raises(Killed):
        stage.client.commit(txn)
    assert readers == [False]  # readers see durable frames only
    answer = stage.other().commit(txn)
    cuts = stage.cuts()
    assert (answer["state"], answer["already"], answer["messages"]) == ("committed", True, 2)
    assert is_visible(stage.other())
    for image in cuts:  # `already` is an answer, too, so from now on the commit is durable
        assert state(settled(image, after_reboot()), txn) == ("committed", None)


@pytest.mark.parametrize("at", NOT_FLUSHED, ids=["unannounced", "flushing"])
def test_k2_a_send_and_its_sequence(at: tuple[str, str]) -> None:
    """K2: a repeated send is a duplicate, with the first id."""
    stage = Stage()
    producer = stage.client.producer("t", "p")
    stage.die(*at)
    with pytest.raises(Killed):
        producer.send(b"x", partition=0, sequence_id=7)
    client = stage.other()
    repeated = client.producer("t", "p").send(b"x", partition=0, sequence_id=7)
    cuts = stage.cuts()
    assert repeated.duplicate
    (stored,) = [m for m in read_messages(client, "t") if m.value == b"x"]
    assert stored.message_id == repeated.message_id
    for image in cuts:
        late = settled(image, after_reboot())
        assert [m.message_id for m in read_messages(late, "t") if m.value == b"x"] == [
            repeated.message_id
        ]


@pytest.mark.parametrize("how", ["conflict", "timeout", "timeout of another", "fenced"])
def test_a_reported_end_of_a_transaction_is_durable(how: str) -> None:
    """5.2: durable before answered.

    This covers an error that reports an end, and an end found on the way.
    """
    stage = Stage()
    client = stage.client
    for _ in range(2):  # both coordinators have reserved a block, the partition has a sidecar
        client.abort(stage.fill())
    holder = client.begin(1000, coordinator=0)["txn"]
    [message_id] = [m.message_id for m in read_messages(client, "t") if m.value == b"in0"]
    assert message_id is not None
    client.acknowledge("t", "s", [message_id], txn=holder)
    if how == "conflict":
        ended = client.begin(coordinator=1)["txn"]
        with pytest.raises(TransactionConflict):
            client.acknowledge("t", "s", [message_id], txn=ended)
    elif how == "fenced":
        first = client.begin(key="k")
        client.begin(key="k", epoch=first["epoch"])
        ended, client = first["txn"], stage.other()
        with pytest.raises(ExpiredTransaction):
            client.commit(ended)
    else:
        ended = holder
        stage.clock.advance(1001)
        with pytest.raises(TransactionTimedOut) if how == "timeout" else nullcontext():
            if how == "timeout":
                client.commit(ended)
            else:  # it finds the message free
                client.acknowledge("t", "s", [message_id], txn=client.begin(coordinator=1)["txn"])
    reason = how.split()[0]
    for image in stage.cuts():
        assert state(settled(image, after_reboot()), ended) == ("aborted", reason)


def test_a_delivered_watermark_is_durable_with_its_acknowledgements() -> None:
    """spec/watermarks 4, invariant 6: the acknowledgements below a watermark are flushed
    with it.
    """
    stage = Stage()
    producer = stage.client.producer("t", "w")
    producer.new_watermark().event_time(10).send()
    consumer = stage.client.consumer("t", "s", enable_watermarking=True)
    assert consumer.receive() is not None and consumer.receive() is not None
    for message in read_messages(stage.client, "t"):
        assert message.message_id is not None
        consumer.acknowledge(message.message_id)
    assert consumer.receive() is None
    assert consumer.get_last_watermark() is not None
    for image in stage.cuts():
        late = settled(image, after_reboot())
        assert late.subscriptions()[0]["backlog"] == 0
        with late.consumer("t", "s", enable_watermarking=True) as reopened:
            assert reopened.receive() is None
            assert reopened.get_last_watermark() == (10, 1)


def test_k3_power_fails_before_the_flush() -> None:
    """K3: whole, torn or absent, as in K1 or K2; open transactions are aborted."""
    stage = Stage()
    txn, bystander = stage.fill(), stage.client.begin()["txn"]
    images: list[MemoryDisk] = []
    stage.die("datasync", ".journal", at_death=lambda: images.extend(stage.cuts()))
    with pytest.raises(Killed):
        stage.client.commit(txn)
    outcomes = set()
    for image in images:
        clock = after_reboot()
        client = settled(image, clock)
        outcomes.add(is_visible(client))
        expected = ("committed", None) if is_visible(client) else ("aborted", "recovery")
        with suppress(TransactionNotFound):  # its OPEN went with the power
            assert state(client, txn) == expected
        assert client.transactions() == []
        for txn_id, commit in ((txn, expected[0] == "committed"), (bystander, False)):
            for _ in range(2):
                if commit:
                    assert client.commit(txn_id)["already"]
                    continue
                with pytest.raises((InvalidTxnStatus, TransactionNotFound)):
                    client.commit(txn_id)
    assert outcomes == {True, False}, f"seed {SEED}: not every kind of loss was met"


@pytest.mark.parametrize("where", ["witness", "answer"])
def test_k4_flushed_and_not_answered(where: str) -> None:
    """K4: the decision survives the death of the process and a power cut."""
    stage = Stage()
    txn = stage.fill()
    images: list[MemoryDisk] = []
    # The writer marks the witness before the flush and raises it afterwards; the last call is
    # unlock.
    op, part, nth = ("pwrite", "witness", 2) if where == "witness" else ("unlock", "flush.lock", 1)
    stage.die(op, part, nth, at_death=lambda: images.extend(stage.cuts()))
    with pytest.raises(Killed):
        stage.client.commit(txn)
    assert stage.other().commit(txn)["already"]
    assert is_visible(stage.other())
    assert images
    for image in images:
        client = settled(image, after_reboot())
        assert state(client, txn) == ("committed", None)
        assert client.commit(txn)["already"]
        assert is_visible(client)


@pytest.mark.parametrize("dies", [False, True])
def test_k5_the_flush_fails(dies: bool) -> None:
    """K5: OutcomeUnknown has the id of the transaction; the answer for that id never changes
    afterwards.
    """
    stage = Stage()
    txn, bystander = stage.fill(), stage.client.begin()["txn"]
    failed = False

    def fail(op: str, path: str, **info: int) -> None:
        nonlocal failed
        if op == "datasync" and path.endswith(".journal") and not failed:
            failed = True
            raise OSError(errno.EIO, "Input/output error")

    stage.disk.step = fail
    with pytest.raises(OutcomeUnknown) as caught:
        stage.client.commit(txn)
    assert caught.value.fields["txn"] == txn
    assert caught.value.exit == 10
    if dies:
        stage.disk.kill()
    client = stage.other()
    client.flush()
    first = state(client, txn)
    assert first in (("committed", None), ("aborted", "recovery"))
    assert state(client, bystander) == ("aborted", "recovery")
    assert is_visible(client) == (first[0] == "committed")
    for image in list(client.store.disk.images(random.Random(SEED), IMAGES)):  # type: ignore[attr-defined]
        late = settled(image, after_reboot())
        assert state(late, txn) == first
        assert is_visible(late) == (first[0] == "committed")


def test_k6_an_id_was_given_out_and_its_opening_is_lost() -> None:
    """K6: the id is skipped and answers `ended and forgotten`; none of its messages is visible."""
    stage = Stage()
    for _ in range(2):  # both coordinators have reserved a block, the partition has a sidecar
        stage.client.abort(stage.fill())
    txn = stage.client.transaction().id
    stage.client.producer("t").send(b"out0", partition=0, txn=txn)
    codes = set()
    for image in stage.cuts():
        client = settled(image, after_reboot())
        with pytest.raises((TransactionNotFound, InvalidTxnStatus)) as caught:
            client.commit(txn)
        codes.add(caught.value.code)
        assert not is_visible(client)
        fresh = [client.begin()["txn"] for _ in range(4)]
        assert all(new_txn.sequence > txn.sequence for new_txn in fresh)
    assert codes == {305, 402}, f"seed {SEED}: not every kind of loss was met"


def test_k6_the_first_id_of_a_block() -> None:
    """R10: the reservation is durable before the first id of the block is given out."""
    stage = Stage()
    txn = stage.client.begin(coordinator=1)["txn"]
    for image in stage.cuts():
        next_txn = settled(image, after_reboot()).begin(coordinator=1)["txn"]
        assert next_txn.sequence > txn.sequence


def test_k7_a_client_dies_with_an_open_transaction() -> None:
    """K7: after the time-out, its acknowledged messages come again, and no reader sees its rows."""
    stage = Stage()
    txn = stage.fill(1000)
    stage.disk.kill()
    client = stage.other()
    with client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(10).column("value").to_pylist() == [b"in1"]
    stage.clock.advance(1001)
    with client.consumer("t", "s") as consumer:
        table = consumer.receive_batch(10)
        assert table.column("value").to_pylist() == [b"in0", b"in1"]
        # the close of the consumer gave in1 back
        assert table.column("redelivery_count").to_pylist() == [1, 1]
    assert state(client, txn) == ("aborted", "timeout")
    with pytest.raises(TransactionTimedOut):
        client.commit(txn)
    assert not is_visible(client)


@pytest.mark.deep
def test_k8_decided_and_waiting() -> None:
    """K8: any death while a partition comes back leaves all of its frame or nothing, and it can be
    repeated.
    """
    points = [
        ("pwrite", ".journal", 0),
        ("pwrite", ".journal", 150),
        ("datasync", ".journal", 0),
        ("pwrite", "witness", 0),
        ("unlock", "lock", 0),
    ]
    for op, part, written in points:
        stage = Stage()
        txn = stage.fill()
        stage.client.admin.set_offline("t/1")
        assert stage.client.commit(txn)["state"] == "committing"
        images: list[MemoryDisk] = []
        stage.die(op, part, written=written, at_death=lambda i=images, s=stage: i.extend(s.cuts()))  # type: ignore[misc]
        with pytest.raises(Killed):
            stage.client.admin.set_online("t/1")
        check_half_way(stage.other(), txn)
        for image in images:
            check_half_way(open_client(image, after_reboot()), txn)


def check_half_way(client: Client, txn: TxnId) -> None:
    """The partition is offline and the commit waits, or it is online and the commit complete."""
    client.flush()
    repeated = client.commit(txn)
    assert repeated["already"]
    with pytest.raises(InvalidTxnStatus):
        client.abort(txn)
    away = client.describe_topic("t")["partition_list"][1]["online"] is False
    assert (repeated["state"] == "committing") == away
    assert (repeated["waiting_list"] == ["t/1"]) == away
    back = client.admin.set_online("t/1")
    assert (back["changed"], back["finished_list"]) == ((True, [txn]) if away else (False, []))
    assert is_visible(client)
    assert client.commit(txn)["state"] == "committed"


@pytest.mark.deep
def test_k9_published_and_not_named() -> None:
    """K9: a checkpoint dies at any of its calls: manifest g or g + 1 remains, and leftovers are
    swept.
    """
    nth, left_over = 1, 0
    while True:
        stage = Stage()
        txn = stage.fill()
        stage.client.commit(txn)
        messages_before = [(m.message_id, m.value) for m in read_messages(stage.client, "t")]
        calls = Calls(nth)
        stage.disk.step = calls
        with suppress(Killed):
            stage.client.checkpoint(roll_all=True)
        client = stage.other()
        assert [(m.message_id, m.value) for m in read_messages(client, "t")] == messages_before
        client.flush()
        left_over += bool(files_nobody_names(client))
        client.checkpoint(roll_all=True)
        client.checkpoint()
        assert files_nobody_names(client) == set()
        assert [(m.message_id, m.value) for m in read_messages(client, "t")] == messages_before
        assert client.commit(txn)["already"]
        if calls.count < nth:
            break
        nth += 3
    assert nth > 60
    assert left_over > 5


def test_k10_a_consumer_dies_with_messages_in_hand() -> None:
    """K10: the next receive finds the free lock and returns the leased messages."""
    stage = Stage()
    consumer = stage.client.consumer("t", "s")
    got = consumer.receive_batch(10).column("value").to_pylist()
    stage.disk.kill()
    client = stage.other()
    with client.consumer("t", "s") as next_one:
        assert next_one.receive_batch(10).column("value").to_pylist() == got == [b"in0", b"in1"]


@pytest.mark.parametrize("first", ["commit", "expiry"])
def test_k11_expiry_races_a_commit(first: str) -> None:
    """K11: the first frame decides, flushed or not; the loser gets the answer of the table."""
    stage = Stage()
    txn = stage.fill(1000)
    late = ManualClock(START_MS)
    late.advance(1001)
    stage.die("datasync", ".journal")
    if first == "commit":
        with pytest.raises(Killed):
            stage.client.commit(txn)
        client = stage.other(late)
        client.expire()
        assert client.commit(txn)["already"]
        assert is_visible(client)
        return
    stage.clock.advance(1001)
    with pytest.raises(Killed):
        stage.client.expire()
    client = stage.other(ManualClock(START_MS))  # a client whose clock has not reached the time-out
    with pytest.raises(TransactionTimedOut):
        client.commit(txn)
    assert not is_visible(client)


def deaths(act: Callable[[MemoryDisk], None], start: MemoryDisk) -> Iterator[MemoryDisk]:
    """The disk after each death within an act, from its first call with an effect to its last."""
    nth = 1
    while True:
        disk, calls = start.copy(), Calls(nth)
        disk.step = calls
        with suppress(Killed):
            act(disk)
        yield disk.copy()
        if calls.count < nth:
            return
        nth += 1


@pytest.mark.parametrize("kind", ["recovery", "sweep"])
def test_k12_during_recovery_or_sweep(kind: str) -> None:
    """K12: a prefix of its frames remains; a repeat ends in the same outcome."""
    stage = Stage()
    stage.client.admin.set_offline("t/1")
    waiting = stage.client.begin(1000)["txn"]
    stage.client.admin.set_online("t/1")
    stage.client.producer("t").send(b"waits", partition=1, txn=waiting)
    txns = [stage.fill(1000), stage.client.begin(1000)["txn"]]
    done = stage.client.begin()["txn"]
    stage.client.admin.set_offline("t/1")
    stage.client.commit(done)
    stage.client.abort(waiting)
    clock = after_reboot() if kind == "recovery" else ManualClock(START_MS)
    clock.advance(1001)

    def act(disk: MemoryDisk) -> None:
        client = open_client(disk, clock)
        client.expire()
        client.admin.set_online("t/1")
        client.close()

    reason = "recovery" if kind == "recovery" else "timeout"
    count = 0
    for disk in deaths(act, stage.disk):
        count += 1
        act(disk)
        client = open_client(disk, clock)
        assert [state(client, txn) for txn in txns] == [("aborted", reason)] * 2
        assert state(client, done) == ("committed", None)
        assert state(client, waiting) == ("aborted", "user")
        assert not is_visible(client)
        client.flush()
        lsn = client.wait_for_change(0)
        swept = client.expire()
        assert (swept["expired"], swept["rolled_forward"], swept["rolled_back"]) == (0, 0, 0)
        assert client.wait_for_change(0) == lsn
        client.close()
    assert count > 8
