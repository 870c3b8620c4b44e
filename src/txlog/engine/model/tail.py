"""The tail: rows of ledgers that are still only in journal frames.

It is an index of runs (consecutive rows of one ledger from one frame), and turns slices of runs
into Arrow tables. The rows themselves stay in the journal. The row of a marker is built from its
op: it has no bytes of its own.

The tail reads, checks and decodes rows on demand, in one of two ways. A single frame becomes a
record batch over its own bytes, and a few batches are cached. Rows that came with their frames,
already read and checked, are *packed*: one call of Arrow makes one table of many small frames, and
the rows of a frame are a range of it. A checkpoint reads every row since the last one and packs
them: 2 us per frame instead of 20.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa

from txlog.base.ids import txn_halves
from txlog.base.startup import compute as pc
from txlog.engine.model import ops as watermark_ops
from txlog.engine.model.ops import (
    UNREADABLE,
    Appended,
    BufferAborted,
    BufferAppended,
    BufferCommitted,
    BufferWatermark,
    CommitMarker,
    Op,
    WatermarkIdled,
    WatermarkSet,
    WatermarkSnapshot,
)
from txlog.engine.model.schema import (
    EVENT_TIME,
    INSTANT,
    KIND_DATA,
    MESSAGE,
    ONE_ROW,
    TXN_ABORT,
    TXN_COMMIT,
    W_IDLE,
    W_SET,
    W_SNAPSHOT,
    Row,
    batch_of,
    decode_row,
    decode_rows,
    frame_schema,
)
from txlog.engine.storage import segment_reader
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.columns import nulls_of, schema_of
from txlog.engine.storage.frame import JournalFile, JournalName, RawFrame, decode_header, is_genuine
from txlog.errors import Corruption

if TYPE_CHECKING:
    from txlog.engine.storage.segment_reader import Span

BATCHES_KEPT_MAX = 256
BATCH_BYTES_KEPT_MAX = 32 << 20
# A table is packed from frames within this many bytes: until then the buffers they were read into
# stay in memory. Rows of a single frame of ROWS_UNCOPIED_BYTES stay in their buffer.
PACK_BYTES = 1 << 20
ROWS_UNCOPIED_BYTES = 256 << 10
# Runs moved by a checkpoint that each frame frees: freeing all at once takes 30 ms.
FREED_A_FRAME = 64
BESIDE_BYTES = 1 << 20  # for frames of this size together, rows are assumed to be equally large
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


# --- the rows of frames ----------------------------------------------------------------------


class FrameRef(msgspec.Struct, frozen=True, gc=False):
    """A frame with rows: its place in a journal file, the place of the rows, their column mask."""

    journal: JournalName
    offset: int
    total_bytes: int
    rows_offset: int
    rows_bytes: int
    columns: int
    lsn: int
    time_ms: int


class JournalFiles(Protocol):
    """An object with open journal files: a journal, or a reader of frames of its own."""

    @property
    def salt(self) -> bytes:
        """The salt of the store."""

    def file(self, name: JournalName) -> JournalFile:
        """An open file by name; raises MissingFile."""


class FrameRows:
    """The rows of frames, with a small cache of batches and the packed tables."""

    __slots__ = ("_batches", "_journal", "_kept_bytes", "_packed", "_unpacked")

    def __init__(self, journal: JournalFiles) -> None:
        self._journal = journal
        self._batches: OrderedDict[int, tuple[pa.RecordBatch | Row, int]] = OrderedDict()
        self._kept_bytes = 0
        self._packed: dict[int, tuple[pa.Table, int]] = {}  # lsn -> (table, its first row there)
        self._unpacked: list[tuple[FrameRef, memoryview]] = []  # of one shape

    def pack(self, ref: FrameRef, rows: memoryview) -> None:
        """Take over the checked rows of a frame; they stay as long as this object."""
        if self._unpacked:
            first = self._unpacked[0][0]
            span = ref.offset + ref.total_bytes - first.offset
            if first.columns != ref.columns or span > PACK_BYTES:
                self._finish_pack()
        self._unpacked.append((ref, rows))

    def _finish_pack(self) -> None:
        """Decode the waiting rows as one stream: a schema, then the messages as in the frames."""
        frames, self._unpacked = self._unpacked, []
        mask = frames[0][0].columns
        if mask & ONE_ROW:
            values = [_row(ref, rows) for ref, rows in frames]
            table = pa.Table.from_batches([batch_of(mask, values)])
            self._packed.update((ref.lsn, (table, at)) for at, (ref, _) in enumerate(frames))
            return
        schema = frame_schema(mask)
        if len(frames) == 1:
            rows = frames[0][1]
            data = rows if len(rows) >= ROWS_UNCOPIED_BYTES else bytes(rows)
            batches = [pa.ipc.read_record_batch(data, schema)]
            table = pa.Table.from_batches(batches)
        else:
            messages = [schema.serialize(), *(rows for _, rows in frames), _STREAM_END]
            with pa.ipc.open_stream(b"".join(messages)) as reader:
                batches = list(reader)
            if len(batches) != len(frames):
                first, last = frames[0][0], frames[-1][0]
                raise Corruption(
                    f"{first.journal.path}: {len(frames)} frames with rows from LSN {first.lsn} "
                    f"hold {len(batches)} record batches",
                    path=first.journal.path,
                    offset=first.offset,
                    lsn=first.lsn,
                    last_lsn=last.lsn,
                    code=602,
                )
            table = pa.Table.from_batches(batches).combine_chunks(pa.system_memory_pool())
        at = 0
        for (ref, _), batch in zip(frames, batches, strict=True):
            self._packed[ref.lsn] = (table, at)
            at += batch.num_rows

    def packed(self) -> dict[int, tuple[pa.Table, int]]:
        """By LSN, the table with a frame's packed rows, and the first of its rows there."""
        if self._unpacked:
            self._finish_pack()
        return self._packed

    def read(self, ref: FrameRef) -> pa.RecordBatch | Row:
        """The user columns of a frame, checked; with ONE_ROW as values. Raises Corruption."""
        cached = self._batches.get(ref.lsn)
        if cached is not None:
            self._batches.move_to_end(ref.lsn)
            return cached[0]
        journal = self._journal.file(ref.journal)
        data = journal.file.pread(ref.offset, ref.total_bytes)
        header = decode_header(data)
        if header is None or not is_genuine(
            header, memoryview(data), self._journal.salt, ref.offset
        ):
            raise Corruption(
                f"{ref.journal.path} is damaged, bytes {ref.offset} to "
                f"{ref.offset + ref.total_bytes} (LSN {ref.lsn})",
                hint=HINT,
                code=602,
                path=ref.journal.path,
                offset=ref.offset,
                lsn=ref.lsn,
            )
        at = ref.rows_offset - ref.offset
        rows: pa.RecordBatch | Row
        if ref.columns & ONE_ROW:
            rows = _row(ref, data[at : at + ref.rows_bytes])
        else:
            rows = decode_rows(ref.columns, pa.py_buffer(data).slice(at, ref.rows_bytes))
        self._keep(ref.lsn, rows, ref.rows_bytes)
        return rows

    def _keep(self, lsn: int, rows: pa.RecordBatch | Row, size: int) -> None:
        """Keep the rows of a frame: a caller is likely to need the next slice of the frame soon.

        The last one stays whatever its size, or a reader of few rows would read it for each call.
        """
        self._batches[lsn] = (rows, size)
        self._kept_bytes += size
        while len(self._batches) > 1 and (
            len(self._batches) > BATCHES_KEPT_MAX or self._kept_bytes > BATCH_BYTES_KEPT_MAX
        ):
            _, (_, dropped) = self._batches.popitem(last=False)
            self._kept_bytes -= dropped

    def drop_through(self, lsn: int) -> None:
        """Drop the cached rows of frames whose rows are in files by now."""
        for number in [number for number in self._batches if number <= lsn]:
            self._kept_bytes -= self._batches.pop(number)[1]
        self._packed = {number: entry for number, entry in self._packed.items() if number > lsn}


# --- runs ------------------------------------------------------------------------------------


class TailRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive rows of a ledger, from `first` on, which are row_start.. of a frame's batch.

    txn: (coordinator, sequence); first_index: the index of the first row in it; count: of a marker
    made: the user columns of a row that is not data but has some
    """

    first: int
    rows: int
    kind: int
    frame: FrameRef
    row_start: int = 0
    producer: str | None = None
    txn: tuple[int, int] | None = None
    first_index: int = 0
    count: int | None = None
    made: pa.RecordBatch | None = None


Slice = tuple[TailRun, int, int]  # rows start..stop, counted within the run


def repeat_runs(
    values: Sequence[object],
    run_ends: Sequence[int],
    kind: pa.DataType,
    ends: pa.Array | None = None,
) -> pa.Array:
    """Each value repeated up to its run end: a column that is constant within a run, without a
    loop.

    ends: the run ends as int32, if the caller has them
    """
    first = values[0]
    if values.count(first) == len(values):
        if first is None:
            return pa.nulls(run_ends[-1], kind)
        return pa.repeat(pa.scalar(first, kind), run_ends[-1])
    if ends is None:
        ends = pa.array(run_ends, pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))


def _stops(slices: list[Slice]) -> list[int]:
    """For each slice the row after its last, counted from the start of the first slice."""
    return list(accumulate([stop - start for _, start, stop in slices]))


class Tail:
    """The runs of every ledger."""

    __slots__ = ("_moved", "_rows", "runs")

    def __init__(self, journal: JournalFiles) -> None:
        self._rows = FrameRows(journal)
        self._moved: list[list[TailRun]] = []  # to be freed
        self.runs: dict[int, list[TailRun]] = {}

    def note(self, raw: RawFrame, ops: list[Op]) -> None:
        """Index the rows of a frame."""
        if self._moved:
            self._let_go()
        ref: FrameRef | None = None
        runs, makers = self.runs, _RUNS
        for op in ops:
            kind = type(op)
            if kind not in makers:
                continue
            if ref is None:
                ref = _ref(raw)
            ledger: int = op.ledger  # type: ignore[union-attr]  # each of _RUNS has one
            of_ledger = runs.get(ledger)
            if of_ledger is None:
                of_ledger = runs[ledger] = []
            of_ledger.append(makers[kind](op, ref))

    def pack(self, raw: RawFrame) -> None:
        """Take over the checked rows of a frame that `note` has indexed."""
        if raw.rows is not None:
            self._rows.pack(_ref(raw), raw.rows)

    def drop_through(self, lsn: int) -> None:
        """Forget runs that a checkpoint has moved into part files."""
        self._rows.drop_through(lsn)
        for ledger, runs in list(self.runs.items()):
            moved = bisect_right(runs, lsn, key=lambda run: run.frame.lsn)
            if moved == len(runs):
                del self.runs[ledger]
            else:
                self.runs[ledger] = runs[moved:]
            self._moved.append(runs)

    def _let_go(self) -> None:
        """Free some of the moved runs; only some, as a writer waits for this."""
        budget = FREED_A_FRAME
        while budget > 0 and self._moved:
            runs = self._moved[-1]
            budget -= len(runs)
            del runs[-FREED_A_FRAME:]
            if not runs:
                self._moved.pop()

    def slices(self, ledger: int, start: int, stop: int) -> list[Slice]:
        """The slices of runs that contain rows start..stop of the ledger."""
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

    def is_single(self, ledger: int, row: int) -> bool:
        """True when a row is data, and the only row that its producer has in its frame here.

        False also when the row is not here, and so has to be read.
        """
        slices = self.slices(ledger, max(0, row - 1), row + 2)
        frames = [(run.frame.lsn, run.producer) for run, _, _ in slices]
        return any(
            run.first == row
            and run.rows == 1
            and run.kind == KIND_DATA
            and frames.count(frame) == 1
            for (run, _, _), frame in zip(slices, frames, strict=True)
        )

    def end_beside(self, ledger: int, row: int) -> int:
        """The row after the last of a row's run."""
        slices = self.slices(ledger, row, row + 1)
        return slices[0][0].first + slices[0][0].rows if slices else row

    def beside(self, ledger: int, row: int) -> tuple[int, int, int]:
        """A row and those after it in a few runs: the row, the end, about the bytes of one row."""
        runs = self.runs.get(ledger, [])
        at = max(0, bisect_right(runs, row, key=lambda run: run.first) - 1)
        stop, size = row, 0
        while at < len(runs) and size < BESIDE_BYTES:
            stop, size = runs[at].first + runs[at].rows, size + runs[at].frame.rows_bytes
            at += 1
        return row, max(stop, row + 1), size // max(1, stop - row)

    def user_tables(self, slices: list[Slice]) -> list[pa.Table]:
        """The user columns of the slices; consecutive slices of one shape share a table."""
        packed = self._rows.packed()
        if not packed:
            return self._loose(slices)
        out: list[pa.Table] = []
        table: pa.Table | None = None
        shifts: list[int | None] = []  # the row in the table minus the row of the answer
        first = at = 0
        for here, (run, start, stop) in enumerate(slices):
            if run.kind == KIND_DATA:
                frame_table, base = packed.get(run.frame.lsn, _UNPACKED)
                if frame_table is not table:
                    out.extend(self._group(table, slices[first:here], shifts))
                    table, first, at, shifts = frame_table, here, 0, []
                shifts.append(base + run.row_start + start - at)
            elif run.made is not None:
                out.extend(self._group(table, slices[first:here], shifts))
                out.extend(self._loose(slices[here : here + 1]))
                table, first, at, shifts = None, here + 1, 0, []
                continue
            else:  # a marker has no user columns: it joins its neighbours
                shifts.append(None)
            at += stop - start
        out.extend(self._group(table, slices[first:], shifts))
        return out

    def _group(
        self, table: pa.Table | None, slices: list[Slice], shifts: list[int | None]
    ) -> list[pa.Table]:
        """The rows of slices in one packed table, or in frames to be read one by one."""
        if table is None:
            return self._loose(slices)
        ends = _stops(slices)
        if shifts[0] is not None and shifts.count(shifts[0]) == len(shifts):
            return [table.slice(shifts[0], ends[-1])]
        shift = repeat_runs(shifts, ends, pa.int64())
        rows = pc.add(pa.arange(0, ends[-1]), shift)
        # the default pool clears huge pages for memory used once, which doubles a checkpoint's time
        return [pc.take(table, rows, boundscheck=False, memory_pool=pa.system_memory_pool())]

    def _loose(self, slices: list[Slice]) -> list[pa.Table]:
        """The rows of slices whose frames are read one by one."""
        out: list[pa.Table] = []
        group: list[Any] = []  # batches, or with ONE_ROW rows
        columns = -1
        for run, spans in _by_frame(slices):
            batches: list[Any]
            if run.kind == KIND_DATA:
                rows, shape = self._rows.read(run.frame), run.frame.columns
                is_one = isinstance(rows, tuple)
                batches = [rows] * len(spans) if is_one else _cut(rows, spans)
            elif run.made is not None:
                batches, shape = [run.made], _SHAPES[run.made.num_columns]
            else:
                batches, shape = [_NO_VALUE] * len(spans), 0
            if shape != columns and group:
                out.append(_group_table(columns, group))
                group = []
            columns = shape
            group += batches
        if group:
            out.append(_group_table(columns, group))
        return out

    def columns(self, runs: Sequence[TailRun]) -> set[str]:
        """The columns of MESSAGE that have a value in some row of the runs.

        A frame names the columns of all its rows, which may belong to several ledgers: so this
        reads the rows.
        """
        sure = {"kind", "entry", "lsn", "publish_time"}
        sure.update(name for name, has in _SELDOM.items() if any(map(has, runs)))
        candidates = {
            name for run in runs if run.made is not None for name in run.made.schema.names
        }
        masks = {run.frame.columns for run in runs if run.kind == KIND_DATA}
        candidates.update(name for mask in masks for name in frame_schema(mask).names)
        for run in runs:
            if not candidates:
                break
            table = self.user_tables([(run, 0, run.rows)])[0]
            for name in candidates.intersection(table.column_names):
                if table.column(name).null_count < table.num_rows:
                    candidates.discard(name)
                    sure.add(name)
        return sure

    def message_table(
        self, slices: list[Slice], names: Sequence[str] = tuple(MESSAGE.names)
    ) -> pa.Table:
        """The slices as stored rows, in their order, with these columns of MESSAGE."""
        if not slices:
            return MESSAGE.empty_table().select(names)
        if _MADE.issuperset(names):
            user = frame_schema(0).empty_table().select([])  # no frame is read
        else:
            users = self.user_tables(slices)
            user = (
                users[0] if len(users) == 1 else pa.concat_tables(users, promote_options="default")
            )
        stops = _stops(slices)
        total, begins = stops[-1], [0, *stops[:-1]]
        ends = pa.array(stops, pa.int32()) if len(stops) > 1 else None
        runs = [run for run, _, _ in slices]
        txns: list[tuple[int, int] | None] | None = None
        arrays: list[pa.Array | pa.ChunkedArray] = []
        nulls = nulls_of(total)
        for name in names:
            index = user.schema.get_field_index(name)
            kind = MESSAGE.field(name).type
            if index >= 0:
                arrays.append(user.column(index))
            elif name in _COUNTED:
                values = _COUNTED[name](slices, begins)
                column = pc.add(pa.arange(0, total), repeat_runs(values, stops, pa.int64(), ends))
                arrays.append(column if kind == pa.int64() else column.cast(kind))
            elif name in _HALVES:
                if txns is None:
                    txns = [run.txn and txn_halves(*run.txn) for run in runs]
                half = _HALVES[name]
                arrays.append(repeat_runs([txn and txn[half] for txn in txns], stops, kind, ends))
            elif name in _CONSTANT:
                arrays.append(repeat_runs(_CONSTANT[name](runs), stops, kind, ends))
            else:
                arrays.append(nulls(kind))
        return pa.Table.from_arrays(arrays, schema=schema_of(tuple(names)))


def _group_table(mask: int, group: list[Any]) -> pa.Table:
    """Batches of one mask as a table, or with ONE_ROW rows."""
    if mask & ONE_ROW:
        return pa.Table.from_batches([batch_of(mask, group)])
    return pa.Table.from_batches(group, frame_schema(mask))


def _row(ref: FrameRef, data: bytes | memoryview) -> Row:
    """The single row of a frame; raises Corruption: its writer was not this program."""
    try:
        return decode_row(ref.columns, data)
    except UNREADABLE as error:
        raise Corruption(
            f"{ref.journal.path}: the row of the frame with LSN {ref.lsn} cannot be read: {error}",
            path=ref.journal.path,
            offset=ref.rows_offset,
            lsn=ref.lsn,
            code=602,
        ) from error


def _by_frame(slices: list[Slice]) -> Iterator[tuple[TailRun, list[Span]]]:
    """Consecutive slices of one frame as spans of its rows: each frame is read once."""
    first: TailRun | None = None
    spans: list[Span] = []
    for run, start, stop in slices:
        is_same = first is not None and run.frame.lsn == first.frame.lsn and run.kind == first.kind
        if not is_same or run.made is not None:  # a made row stands alone
            if first is not None:
                yield first, spans
            first, spans = run, []
        spans.append((run.row_start + start, run.row_start + stop))
    if first is not None:
        yield first, spans


def _cut(batch: pa.RecordBatch, spans: list[Span]) -> list[pa.RecordBatch]:
    """The rows of spans, in their order: long ones as slices, without a copy."""
    if segment_reader.are_long(spans):
        return [batch.slice(start, stop - start) for start, stop in spans]
    return [batch.take(segment_reader.rows_of(spans))]


def _buffered(op: BufferAppended, ref: FrameRef) -> TailRun:
    return TailRun(
        op.first_entry,
        op.rows,
        KIND_DATA,
        ref,
        op.row_start,
        op.producer,
        (op.coordinator, op.sequence),
        op.first_index,
    )


def _appended(op: Appended, ref: FrameRef) -> TailRun:
    return TailRun(op.first_entry, op.rows, KIND_DATA, ref, op.row_start, op.producer)


def _marker(op: CommitMarker, ref: FrameRef) -> TailRun:
    row = _watermark_row(watermark_ops.encode_effects(op.watermarks)) if op.watermarks else None
    txn = (op.coordinator, op.sequence)
    return TailRun(op.entry, 1, TXN_COMMIT, ref, 0, None, txn, 0, op.count, row)


def _committed(op: BufferCommitted, ref: FrameRef) -> TailRun:
    return TailRun(op.entry, 1, TXN_COMMIT, ref, 0, None, (op.coordinator, op.sequence))


def _aborted(op: BufferAborted, ref: FrameRef) -> TailRun:
    return TailRun(op.entry, 1, TXN_ABORT, ref, 0, None, (op.coordinator, op.sequence))


def _watermark_run(op: Op, ref: FrameRef) -> TailRun:
    if isinstance(op, WatermarkSnapshot):
        return TailRun(op.entry, 1, W_SNAPSHOT, ref, made=_watermark_row(op.payload))
    if isinstance(op, WatermarkIdled):
        row = _watermark_row(op.by.encode())
        return TailRun(op.entry, 1, W_IDLE, ref, 0, op.producer, made=row)
    assert isinstance(op, WatermarkSet | BufferWatermark)
    row = _watermark_row(None, op.event_time)
    if isinstance(op, WatermarkSet):
        return TailRun(op.entry, 1, W_SET, ref, 0, op.producer, made=row)
    kind = W_IDLE if op.event_time is None else W_SET
    return TailRun(op.entry, 1, kind, ref, 0, op.producer, (op.coordinator, op.sequence), made=row)


def _watermark_row(value: bytes | None, event_time: int | None = None) -> pa.RecordBatch:
    """The user columns of a row that is not data."""
    columns = [pa.array([value], pa.binary())]
    if event_time is not None:
        columns.append(pa.array([event_time], pa.int64()).cast(INSTANT))
    return pa.RecordBatch.from_arrays(columns, schema=frame_schema(_SHAPES[len(columns)]))


def _ref(raw: RawFrame) -> FrameRef:
    return FrameRef(
        raw.journal,
        raw.offset,
        raw.total_bytes,
        raw.rows_offset,
        raw.rows_bytes,
        raw.columns,
        raw.lsn,
        raw.time_ms,
    )


# Columns that are the same for a whole run, and columns that count up within a run.
_CONSTANT: dict[str, Callable[[list[TailRun]], list[object]]] = {
    "kind": lambda runs: [run.kind for run in runs],
    "lsn": lambda runs: [run.frame.lsn for run in runs],
    "publish_time": lambda runs: [run.frame.time_ms for run in runs],
    "producer": lambda runs: [run.producer for run in runs],
    "count": lambda runs: [run.count for run in runs],
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
# Columns that few rows have.
_SELDOM: dict[str, Callable[[TailRun], object]] = {
    "producer": lambda run: run.producer is not None,
    "count": lambda run: run.count is not None,
    "txn_index": lambda run: run.first_index,
    "txn_most": lambda run: run.txn,
    "txn_least": lambda run: run.txn,
}
_HALVES = {"txn_most": 0, "txn_least": 1}
_MADE = frozenset([*_CONSTANT, *_COUNTED, *_HALVES])  # built from ops alone
# The run of an op, by its type: a chain of isinstance would cost more than the run.
_RUNS: dict[type, Callable[[Any, FrameRef], TailRun]] = {
    BufferAppended: _buffered,
    Appended: _appended,
    CommitMarker: _marker,
    BufferCommitted: _committed,
    BufferAborted: _aborted,
    WatermarkSet: _watermark_run,
    WatermarkIdled: _watermark_run,
    WatermarkSnapshot: _watermark_run,
    BufferWatermark: _watermark_run,
}
_SHAPES = {1: 0, 2: EVENT_TIME}  # by number of columns: the mask of a row that is not data
_UNPACKED: tuple[None, int] = (None, 0)
_NO_VALUE = pa.RecordBatch.from_arrays([pa.nulls(1, pa.binary())], schema=frame_schema(0))
