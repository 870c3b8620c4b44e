"""Law 1: the ops of format 3 lead to the state that the ops of format 2 gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog.engine.folds.coordinator import COMMITTED, COMMITTING, OPEN
from txlog.engine.model.ops import (
    CATALOG,
    FILES,
    BufferAppended,
    BufferCommitted,
    BufferWatermark,
    CommitMarker,
    DelaysCounted,
    Op,
    PartitionAdded,
    PendingAcked,
    PendingCommitted,
    StatusUpdated,
    SubscriptionAdded,
    TxnEnded,
    TxnOpened,
    decode_ops,
    encode_ops,
    merged,
)
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.frame import frame_nowhere
from txlog.engine.view import FOLDS, View

LSN, TIME_MS = 20, 55


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


def places(view: View, partition: int) -> tuple[int, int, int, int]:
    """The open ledgers of a sidecar and its partition, with their next entries."""
    side, ledger = view.buffer(partition).ledgers[-1], view.topic(partition).ledgers[-1]
    return side.ledger, side.entries, ledger.ledger, ledger.entries


def frame(view: View) -> list[Op]:
    """A transaction with messages in two partitions and acknowledgements in one, as in format 2."""
    number = view.coordinator(0).next_sequence
    pair = (0, number)
    ops: list[Op] = [TxnOpened(*pair, 1000, "ana", 1000, 10, "boot", 10)]
    ends: list[Op] = []
    markers = []
    for partition in (1, 2):
        side, first, ledger, entry = places(view, partition)
        ops += [
            PartitionAdded(*pair, partition),
            BufferAppended(partition, side, first, 0, 2, 20, *pair, 1),
        ]
        ends += [
            CommitMarker(partition, ledger, entry, *pair, 2, 20),
            BufferCommitted(partition, *pair, side, first + 2, ledger, entry),
        ]
        markers.append((partition, ledger, entry, 2))
    first = view.topic(1).ledgers[0].ledger
    ops += [
        SubscriptionAdded(*pair, 1, 1),
        PendingAcked(1, 1, *pair, [(first, 0, 0, 0, 0)], None, 1),
    ]
    ops.append(StatusUpdated(*pair, OPEN, COMMITTING, None, 4, 1, markers))
    ops += [*ends, PendingCommitted(1, 1, *pair, [], (first, 0, 0))]
    ops.append(StatusUpdated(*pair, COMMITTING, COMMITTED))
    return ops


def in_format_3(ops: list[Op]) -> list[Op]:
    """The same frame with one op for the transaction."""
    out: list[Op] = []
    for op in ops:
        if isinstance(op, StatusUpdated) and op.expected == OPEN:
            counts = (op.messages, op.acks, op.markers)
            out.append(TxnEnded(op.coordinator, op.sequence, COMMITTED, op.reason, *counts, []))
        elif not isinstance(op, StatusUpdated):
            out.append(op)
    return merged(out)


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


def watermarked(ops: list[Op], partition: int) -> list[Op]:
    """The frame with a row of a watermark behind one of its appends."""
    out: list[Op] = []
    for op in ops:
        if getattr(op, "partition", 0) != partition:
            pass
        elif isinstance(op, CommitMarker):
            op = msgspec.structs.replace(op, watermarks=[("p", False, 40)])
        elif isinstance(op, BufferCommitted):
            op = msgspec.structs.replace(op, entry=op.entry + 1)
        out.append(op)
        if isinstance(op, BufferAppended) and op.partition == partition:
            row = op.first_entry + 2
            pair = (op.coordinator, op.sequence)
            out.append(BufferWatermark(partition, op.ledger, row, *pair, "p", 40))
    return out


def dumps(view: View) -> dict[object, bytes]:
    return {key: FOLDS[key[0]].dump(view.component(key)) for key in sorted(view.known())}


FORMS: dict[str, Callable[[list[Op], int], list[Op]]] = {
    "plain": lambda ops, _: ops,
    "split": split,
    "delayed": delayed,
    "watermarked": watermarked,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_loaded", [True, False])
def test_folds_end_in_the_same_state_by_both_encodings(
    bench: Bench, form: str, is_loaded: bool
) -> None:
    """Law 1: format 3 against the ops of format 2, taken one by one by their folds."""
    with fresh(bench) as whole, fresh(bench) as single:
        for view in (whole, single):
            view.take(view.journal.read_durable())
            if is_loaded or view is single:
                for key in sorted(view.known()):
                    view.component(key)
        ops = FORMS[form](frame(single), 2)
        new_ops = decode_ops(encode_ops(in_format_3(ops)), lsn=LSN)
        assert len(new_ops) == len(ops) - 5
        for view in (whole, single):
            view.take_ops(LSN - 1, TIME_MS, [DelaysCounted(9)])  # the newest change so far
        whole.take_ops(LSN, TIME_MS, new_ops)
        for op in ops:
            for key in op.components():
                assert key is not FILES
                FOLDS[key[0]].apply(single.component(key), LSN, TIME_MS, op)
        assert dumps(whole) == dumps(single)
        changed = {key for op in ops for key in op.components()}
        # its op only counts transactions
        assert whole.changed_since(LSN - 1) == changed - {CATALOG}


def test_rows_are_indexed_alike_by_both_encodings(bench: Bench) -> None:
    """A reader finds the markers of the partitions and of the sidecars."""
    indexes = []
    for encode in (in_format_3, list[Op]):
        with fresh(bench) as view:
            view.take(view.journal.read_durable())
            ops = encode(frame(view))
            view.take_frame(frame_nowhere(view.journal.current.name, view.lsn + 1, TIME_MS), ops)
            indexes.append({ledger: list(runs) for ledger, runs in view.tail.runs.items()})
    assert indexes[0] == indexes[1]


def test_a_writer_makes_the_new_ops_only(bench: Bench) -> None:
    """One op for a whole transaction; one for the end, where another frame has the beginning."""
    client = bench.client
    lsn = client.store.refresh()
    for write_through in (False, True):
        for is_commit in (True, False):
            txn = client.transaction(write_through=write_through)
            client.producer("t").send(b"x", key=b"k", txn=txn)
            if is_commit:
                txn.commit()
            else:
                txn.abort()
    with fresh(bench) as view:
        kinds = [
            [type(op).__name__ for op in decode_ops(raw.ops, lsn=raw.lsn)]
            for raw in view.journal.read_durable()
            if raw.lsn > lsn
        ]
    opening = ["TxnOpened", "PartitionAdded", "BufferAppended"]
    ends = ["CommitMarker", "BufferCommitted"]
    assert kinds == [
        ["BufferAppended", "TxnEnded", *ends],
        ["TxnOpened"],  # an abort needs an id, although no call has written
        ["TxnEnded"],
        opening,
        ["TxnEnded", *ends],
        opening,
        ["TxnEnded", "BufferAborted"],
    ]
