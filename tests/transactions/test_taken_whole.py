"""A frame that opens, fills and ends a transaction is applied at once; Law 1: as op by op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog.engine.folds import buffer
from txlog.engine.folds.coordinator import COMMITTED, COMMITTING, OPEN
from txlog.engine.model.ops import (
    CATALOG,
    FILES,
    BufferAppended,
    BufferCommitted,
    CommitMarker,
    DelaysCounted,
    LedgerRolled,
    Op,
    PartitionAdded,
    PendingAcked,
    PendingCommitted,
    StatusUpdated,
    SubscriptionAdded,
    TxnOpened,
)
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.view import FOLDS, View

LSN, TIME_MS = 20, 55
APPENDED = BufferAppended(1, 8, 4, 0, 3, 30, 0, 3, 1, "p", 7)
COMMIT = BufferCommitted(1, 0, 3, 8, 7, 5, 2)
# Values of each field that do not fit the others, or do: then the result is as op by op.
OTHERS = {
    "ledger": (7, 9), "first_entry": (0, 3, 5), "rows": (1, 4), "coordinator": (1,),
    "sequence": (2, 4), "first_index": (0, 2), "entry": (4, 6, 8), "marker_ledger": (6, 4),
    "marker_entry": (0, 1, 3), "payload_bytes": (0,), "producer": (None,), "row_start": (5,),
    "partition": (), "last_sequence": (9,), "times": (),
}  # fmt: skip


def sidecar() -> buffer.Buffer:
    """A sidecar with a marker at 5:1, and an open transaction 0:2 that has a message."""
    state: buffer.Buffer = buffer.FOLD.new()
    for op in (
        LedgerRolled(1, "s", 0, 8),
        BufferAppended(1, 8, 0, 0, 2, 20, 0, 1, 1),
        BufferCommitted(1, 0, 1, 8, 2, 5, 1),
        BufferAppended(1, 8, 3, 0, 1, 10, 0, 2, 1),
    ):
        buffer.FOLD.apply(state, 10, 50, op)
    return state


def test_a_sidecar_takes_an_append_and_its_commit_at_once() -> None:
    """With each field changed: where it does not fit the others, no op is applied."""
    pairs = [(APPENDED, COMMIT)]
    for name, values in OTHERS.items():
        for value in values:
            if name in BufferAppended.__struct_fields__:
                pairs.append((msgspec.structs.replace(APPENDED, **{name: value}), COMMIT))
            if name in BufferCommitted.__struct_fields__:
                pairs.append((APPENDED, msgspec.structs.replace(COMMIT, **{name: value})))
    replace = msgspec.structs.replace
    pairs += [  # both at another end, and of the transaction that already has a message
        (replace(APPENDED, ledger=9), replace(COMMIT, ledger=9)),
        (replace(APPENDED, first_entry=5), replace(COMMIT, entry=8)),
        (replace(APPENDED, sequence=2), replace(COMMIT, sequence=2)),
    ]
    count = 0
    for appended, committed in pairs:
        state, single = sidecar(), sidecar()
        dump_before = buffer.FOLD.dump(state)
        if buffer.take_whole(state, LSN, TIME_MS, appended, committed):
            count += 1
            for op in (appended, committed):
                buffer.FOLD.apply(single, LSN, TIME_MS, op)
            assert buffer.FOLD.dump(state) == buffer.FOLD.dump(single)
        else:
            assert buffer.FOLD.dump(state) == dump_before
    assert (
        count == 8
    )  # unchanged, and with five fields that do not affect others (two values of two)


def test_an_empty_sidecar_takes_nothing_at_once() -> None:
    state = buffer.FOLD.new()
    assert not buffer.take_whole(state, LSN, TIME_MS, APPENDED, COMMIT)
    assert buffer.FOLD.dump(state) == buffer.FOLD.dump(buffer.FOLD.new())


# --- a whole frame ---------------------------------------------------------------------------


def rows_over(partitions: int, each: int) -> pa.RecordBatch:
    """Messages in several partitions."""
    numbers = [number for number in range(partitions) for _ in range(each)]
    return pa.record_batch(
        {"value": pa.array([b"x"] * len(numbers), pa.binary()), "partition": numbers}
    )


@contextmanager
def fresh(bench: Bench) -> Iterator[View]:
    """A view of the store that has read no frame yet."""
    disk = PosixDisk(bench.path)
    view = View.open(disk, bench.client.store.identity.salt, bench.clock.now().boot_id)
    try:
        yield view
    finally:
        view.close()
        disk.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path / "store", coordinators=1)
    client = new_bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    client.producer("t").send_batch(rows_over(2, 3))
    with client.transaction() as txn:
        client.producer("t").send_batch(rows_over(2, 3), txn=txn)
    yield new_bench
    new_bench.close()


def frame(view: View) -> list[Op]:
    """A transaction with messages in two partitions and acknowledgements in one, as decided."""
    number = view.coordinator(0).next_sequence
    pair = (0, number)
    opened = TxnOpened(*pair, 1000, "ana", 1000, 10, "boot", 10)
    ops: list[Op] = [opened]
    ends: list[Op] = []
    markers = []
    for partition in (1, 2):
        side, ledger = view.buffer(partition).ledgers[-1], view.topic(partition).ledgers[-1]
        ops += [
            PartitionAdded(*pair, partition),
            BufferAppended(partition, side.ledger, side.entries, 0, 2, 20, *pair, 1),
        ]
        ends += [
            CommitMarker(partition, ledger.ledger, ledger.entries, *pair, 2, 20),
            BufferCommitted(
                partition, *pair, side.ledger, side.entries + 2, ledger.ledger, ledger.entries
            ),
        ]
        markers.append((partition, ledger.ledger, ledger.entries, 2))
    first = view.topic(1).ledgers[0].ledger
    ops += [
        SubscriptionAdded(*pair, 1, 1),
        PendingAcked(1, 1, *pair, [(first, 0, 0, 0, 0)], None, 1),
    ]
    ops.append(StatusUpdated(*pair, OPEN, COMMITTING, None, 4, 1, markers))
    ops += [*ends, PendingCommitted(1, 1, *pair, [], (first, 0, 0))]
    ops.append(StatusUpdated(*pair, COMMITTING, COMMITTED))
    return ops


def split(ops: list[Op], partition: int) -> list[Op]:
    """The frame with one of its appends as two."""
    out: list[Op] = []
    for op in ops:
        if isinstance(op, BufferAppended) and op.partition == partition:
            replace = msgspec.structs.replace
            out.append(replace(op, rows=1, payload_bytes=5))
            op = replace(
                op, rows=1, payload_bytes=15, first_entry=op.first_entry + 1, first_index=2
            )
        out.append(op)
    return out


def delayed(ops: list[Op], partition: int) -> list[Op]:
    """The frame with times in one of its appends."""
    return [
        msgspec.structs.replace(op, times=bytes(16))
        if isinstance(op, BufferAppended) and op.partition == partition
        else msgspec.structs.replace(op, delayed=2)
        if isinstance(op, CommitMarker) and op.partition == partition
        else op
        for op in ops
    ]


def dumps(view: View) -> dict[object, bytes]:
    return {key: FOLDS[key[0]].dump(view.component(key)) for key in sorted(view.known())}


@pytest.mark.parametrize("form", ["plain", "split", "delayed", "not loaded"])
def test_a_frame_taken_at_once_is_as_by_its_ops(bench: Bench, form: str) -> None:
    """Law 1, also where only a part of it can be applied at once, or a fold is not loaded."""
    with fresh(bench) as whole, fresh(bench) as single:
        for view in (whole, single):
            view.take(view.journal.read_durable())
            if form != "not loaded" or view is single:
                for key in sorted(view.known()):
                    view.component(key)
        ops = frame(single)
        if form == "not loaded":
            whole.coordinator(0)
        ops = {"split": split, "delayed": delayed}.get(form, lambda ops, _: ops)(ops, 2)
        for view in (whole, single):
            view.take_ops(LSN - 1, TIME_MS, [DelaysCounted(9)])  # the newest change so far
        whole.take_ops(LSN, TIME_MS, ops)
        for op in ops:
            for key in op.components():
                assert key is not FILES
                FOLDS[key[0]].apply(single.component(key), LSN, TIME_MS, op)
        assert dumps(whole) == dumps(single)
        changed = {key for op in ops for key in op.components()}
        # its op only counts transactions
        assert whole.changed_since(LSN - 1) == changed - {CATALOG}
