"""The tail: rows of ledgers that still lie in journal frames only.

Owns an index of runs (consecutive rows of one ledger from one frame) and turns slices of them into
Arrow tables. The rows themselves stay in the journal and are read, checked and decoded on demand;
a few decoded batches are kept. One row of a marker is made from its op: it has no bytes of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txlog.engine.model.ops import (
    Appended,
    BufferAborted,
    BufferAppended,
    BufferCommitted,
    CommitMarker,
    Op,
)
from txlog.engine.model.schema import (
    KIND_DATA,
    MESSAGE,
    TXN_ABORT,
    TXN_COMMIT,
    decode_rows,
    frame_schema,
)
from txlog.engine.storage.frame import decode_header, is_genuine
from txlog.engine.storage.journal import Journal
from txlog.engine.storage.journal_file import JournalName, RawFrame
from txlog.errors import Corruption, FormatMismatch
from txlog.ids import TxnId

BATCHES_KEPT_MAX = 256
BATCH_BYTES_KEPT_MAX = 32 << 20


class FrameRef(msgspec.Struct, frozen=True, gc=False):
    """Where a frame with rows lies."""

    journal: JournalName
    offset: int
    total_bytes: int
    rows_offset: int
    rows_bytes: int
    columns: int
    lsn: int
    time_ms: int


class TailRun(msgspec.Struct, frozen=True, gc=False):
    """Rows first..first+rows of a ledger; txn is (coordinator, sequence); index of the first."""

    first: int
    rows: int
    kind: int
    frame: FrameRef
    row_start: int = 0
    producer: str | None = None
    txn: tuple[int, int] | None = None
    first_index: int = 0
    count: int | None = None


RowOp = Appended | BufferAppended | CommitMarker | BufferCommitted | BufferAborted
_WITH_ROWS = frozenset(get_args(RowOp))
Slice = tuple[TailRun, int, int]  # rows start..stop, counted within the run


def repeat_runs(values: Sequence[object], run_ends: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Each value repeated up to its run end: a column that is constant a run, without a loop."""
    if len(values) == 1:
        if values[0] is None:
            return pa.nulls(run_ends[0], kind)
        return pa.repeat(pa.scalar(values[0], kind), run_ends[0])
    encoded = pa.RunEndEncodedArray.from_arrays(
        pa.array(run_ends, pa.int32()), pa.array(values, kind)
    )
    return pc.run_end_decode(encoded)


class Tail:
    """The runs of every ledger, and a small cache of decoded batches."""

    __slots__ = ("_batches", "_journal", "_kept_bytes", "runs")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._batches: OrderedDict[int, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._kept_bytes = 0
        self.runs: dict[int, list[TailRun]] = {}

    def note(self, raw: RawFrame, ops: list[Op]) -> None:
        """Index the rows of a frame."""
        ref: FrameRef | None = None
        for op in ops:
            if type(op) not in _WITH_ROWS:
                continue
            assert isinstance(op, RowOp)
            if ref is None:
                ref = FrameRef(
                    raw.journal, raw.offset, raw.total_bytes, raw.rows_offset, raw.rows_bytes,
                    raw.columns, raw.lsn, raw.time_ms,
                )  # fmt: skip
            if isinstance(op, Appended):
                run = TailRun(op.first_entry, op.rows, KIND_DATA, ref, op.row_start, op.producer)
            elif isinstance(op, BufferAppended):
                run = TailRun(
                    op.first_entry, op.rows, KIND_DATA, ref, op.row_start, op.producer,
                    (op.coordinator, op.sequence), op.first_index,
                )  # fmt: skip
            else:
                kind = TXN_ABORT if isinstance(op, BufferAborted) else TXN_COMMIT
                count = op.count if isinstance(op, CommitMarker) else None
                txn = (op.coordinator, op.sequence)
                run = TailRun(op.entry, 1, kind, ref, txn=txn, count=count)
            self.runs.setdefault(op.ledger, []).append(run)

    def _keep(self, lsn: int, batch: pa.RecordBatch, size: int) -> None:
        """Keep a decoded batch: the next slice of the frame is likely to be asked for soon."""
        if size > BATCH_BYTES_KEPT_MAX // 4:
            return
        self._batches[lsn] = (batch, size)
        self._kept_bytes += size
        while len(self._batches) > BATCHES_KEPT_MAX or self._kept_bytes > BATCH_BYTES_KEPT_MAX:
            _, (_, dropped) = self._batches.popitem(last=False)
            self._kept_bytes -= dropped

    def drop_through(self, lsn: int) -> None:
        """Forget runs that a checkpoint has moved into part files."""
        for ledger in list(self.runs):
            left = [run for run in self.runs[ledger] if run.frame.lsn > lsn]
            if left:
                self.runs[ledger] = left
            else:
                del self.runs[ledger]

    def slices(self, ledger: int, start: int, stop: int) -> list[Slice]:
        """The slices of runs that hold rows start..stop of the ledger."""
        runs = self.runs.get(ledger, [])
        at = max(0, bisect_right(runs, start, key=lambda run: run.first) - 1)
        out: list[Slice] = []
        for run in runs[at:]:
            if run.first >= stop:
                break
            low, high = max(start, run.first) - run.first, min(stop - run.first, run.rows)
            if low < high:
                out.append((run, low, high))
        return out

    def batch(self, ref: FrameRef) -> pa.RecordBatch:
        """The user columns of a frame, checked; raises Corruption."""
        found = self._batches.get(ref.lsn)
        if found is not None:
            self._batches.move_to_end(ref.lsn)
            return found[0]
        journal = self._journal.file(ref.journal)
        data = journal.file.pread(ref.offset, ref.total_bytes)
        header = decode_header(data)
        if header is None or not is_genuine(
            header, memoryview(data), self._journal.salt, ref.offset
        ):
            raise Corruption(
                f"{ref.journal.path} is damaged, bytes {ref.offset} to "
                f"{ref.offset + ref.total_bytes} (LSN {ref.lsn})",
                hint="restore the file from a copy of the store", code=602,
                path=ref.journal.path, offset=ref.offset, lsn=ref.lsn,
            )  # fmt: skip
        at = ref.rows_offset - ref.offset
        rows = pa.py_buffer(data).slice(at, ref.rows_bytes)
        try:
            batch = decode_rows(ref.columns, rows)
        except IndexError as exc:
            raise FormatMismatch(
                f"the frame of LSN {ref.lsn} has columns this version does not know",
                hint="use the txlog that wrote it, or a newer one", lsn=ref.lsn,
            ) from exc  # fmt: skip
        self._keep(ref.lsn, batch, ref.rows_bytes)
        return batch

    def user_tables(self, slices: list[Slice]) -> list[pa.Table]:
        """The user columns of data slices; consecutive ones of one shape share a table."""
        out: list[pa.Table] = []
        group: list[pa.RecordBatch] = []
        columns = -1
        for run, start, stop in slices:
            if run.kind == KIND_DATA:
                batch = self.batch(run.frame).slice(run.row_start + start, stop - start)
                shape = run.frame.columns
            else:
                batch, shape = _NO_VALUE, 0
            if shape != columns and group:
                out.append(pa.Table.from_batches(group, frame_schema(columns)))
                group = []
            columns = shape
            group.append(batch)
        if group:
            out.append(pa.Table.from_batches(group, frame_schema(columns)))
        return out

    def message_table(
        self, slices: list[Slice], names: Sequence[str] = tuple(MESSAGE.names)
    ) -> pa.Table:
        """The slices as stored rows, in the order given, with these columns of MESSAGE."""
        total = sum(stop - start for _, start, stop in slices)
        if not total:
            return MESSAGE.empty_table().select(names)
        users = self.user_tables(slices)
        user = users[0] if len(users) == 1 else pa.concat_tables(users, promote_options="default")
        ends, begins, at = [], [], 0
        for _, start, stop in slices:
            begins.append(at)
            at += stop - start
            ends.append(at)
        made: list[pa.Array | pa.ChunkedArray] = []
        for name in names:
            place = user.schema.get_field_index(name)
            kind = MESSAGE.field(name).type
            if place >= 0:
                made.append(user.column(place))
            elif name in _COUNTED:
                values = _COUNTED[name](slices, begins)
                column = pc.add(pa.arange(0, total), repeat_runs(values, ends, pa.int64()))
                made.append(column if kind == pa.int64() else column.cast(kind))
            elif name in _CONSTANT:
                of = _CONSTANT[name]
                made.append(repeat_runs([of(run) for run, _, _ in slices], ends, kind))
            else:
                made.append(pa.nulls(total, kind))
        return pa.Table.from_arrays(made, schema=pa.schema([MESSAGE.field(n) for n in names]))


def _most(run: TailRun) -> int | None:
    return None if run.txn is None else TxnId(*run.txn).most


def _least(run: TailRun) -> int | None:
    return None if run.txn is None else TxnId(*run.txn).least


# Columns that are the same for a whole run, and columns that count on within one.
_CONSTANT: dict[str, Callable[[TailRun], object]] = {
    "kind": lambda run: run.kind,
    "lsn": lambda run: run.frame.lsn,
    "publish_time": lambda run: run.frame.time_ms,
    "producer": lambda run: run.producer,
    "txn_most": _most,
    "txn_least": _least,
    "count": lambda run: run.count,
}
_COUNTED: dict[str, Callable[[list[Slice], list[int]], list[int | None]]] = {
    "entry": lambda slices, begins: [
        run.first + start - begin for (run, start, _), begin in zip(slices, begins, strict=True)
    ],
    "txn_index": lambda slices, begins: [
        run.first_index + start - begin if run.first_index else None
        for (run, start, _), begin in zip(slices, begins, strict=True)
    ],
}
_NO_VALUE = pa.RecordBatch.from_arrays([pa.nulls(1, pa.binary())], schema=frame_schema(0))
