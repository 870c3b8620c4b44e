"""Owns StoredRows: every row of a topic, and the claims of folds and manifest about the rows.

An audit compares the two. It reads the rows of files and frames directly, without a fold or a plan
of visibility. `claims`, `ledgers`, `markers`, `counts` and `acks` are the values that the engine
relies on. All of it comes from one view; rows are not read before a caller asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName, txn_halves
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model.schema import MESSAGE
from txlog.engine.model.tail import Slice, Tail
from txlog.engine.plan.participants import check_available
from txlog.engine.relation.frames import PIECE_ROWS, Journals, windows
from txlog.engine.relation.relation import FileSource, source_of
from txlog.engine.storage.disk.protocol import File
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.view import View

ROW_COLUMNS: Final = (
    "kind", "entry", "lsn", "txn_most", "txn_least", "txn_index", "count", "marker_ledger",
    "marker_entry", "producer", "sequence_id", "value",
)  # fmt: skip
ROWS: Final = pa.schema(
    [
        ("role", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("file", pa.string()),
        *(MESSAGE.field(name) for name in ROW_COLUMNS),
    ]
)
_PLACE: Final = ROWS.names[: -len(ROW_COLUMNS)]
LEDGERS: Final = pa.schema(
    [
        ("role", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entries", pa.int64()),
        ("whole", pa.bool_()),
    ]
)
MARKERS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("messages", pa.int64()),
    ]
)
LARGE: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("txn_index", pa.int32()),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("chunks", pa.int64()),
        ("value_bytes", pa.int64()),
    ]
)
ACKS: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("index_last", pa.int64()),
    ]
)


class StoredFrames:
    """Rows in journal frames, read a piece at a time; `file` of ROWS is empty.

    rows: how many
    """

    __slots__ = ("_journals", "_slices", "rows")

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._slices: list[tuple[Mapping[str, object], Slice]] = []
        self.rows = 0

    def add(self, constants: Mapping[str, object], slices: Sequence[Slice]) -> None:
        """Add the next slices; their journal files are open from now on.

        constants: the columns of their ledger, from `place`
        """
        for slice_ in slices:
            self._journals.file(slice_[0].frame.journal)
            self._slices.append((constants, slice_))
            self.rows += slice_[2] - slice_[1]

    def tables(self, names: Sequence[str] = ROWS.names) -> Iterator[pa.Table]:
        """These columns of the rows, in pieces; each frame is checked as it is read.

        raises: Corruption, FormatMismatch
        """
        # of this scan alone, because other threads may have other scans
        tail = Tail(self._journals)
        read = [name for name in ROW_COLUMNS if name in names] or ["kind"]
        for first, window in windows([slice_[0].frame for _, slice_ in self._slices]):
            tail.drop_through(first - 1)
            for constants, piece in _pieces(self._slices[at] for at in window):
                yield placed(tail.message_table(piece, read), constants, names)

    def close(self) -> None:
        """Close the journal files; no row can be read any more."""
        self._journals.close()


def _pieces(
    slices: Iterable[tuple[Mapping[str, object], Slice]],
) -> Iterator[tuple[Mapping[str, object], list[Slice]]]:
    """Slices in pieces of PIECE_ROWS, each of one ledger."""
    piece: list[Slice] = []
    rows, of = 0, None
    for constants, (run, start, stop) in slices:
        for begin in range(start, stop, PIECE_ROWS):
            next_slice = (run, begin, min(begin + PIECE_ROWS, stop))
            count = next_slice[2] - next_slice[1]
            if of is not None and (rows + count > PIECE_ROWS or of is not constants):
                yield of, piece
                piece, rows = [], 0
            of = constants
            piece.append(next_slice)
            rows += count
    if of is not None:
        yield of, piece


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a topic, and the claims about them; paths are below the store.

    files:   sealed files of partitions and sidecars; large_files: files of large messages
    parts:   files of rows that are not sealed; `placed` gives them the columns of ROWS
    frames:  rows in journal frames; the caller closes them
    claims:  (partition, file as in ROWS or empty if sealed, its entry in the manifest)
    ledgers: whole: every entry from 0 on is stored, none was left out as dead
    counts:  by partition: how many messages can be read
    acks:    runs of ids acknowledged above the mark-delete positions of subscriptions
    """

    lsn: int
    name: str  # tenant/namespace/topic
    topic: str
    files: list[FileSource]
    large_files: list[FileSource]
    parts: list[FileSource]
    frames: StoredFrames
    claims: list[tuple[int, str, FileRef]]
    ledgers: pa.Table
    markers: pa.Table
    large: pa.Table
    counts: list[int]
    acks: pa.Table


def stored(view: View, topic_names: Collection[str] | None) -> list[StoredRows]:
    """The stored rows of the named topics, by short or full names; None: all topics.

    raises: PartitionUnavailable; MissingFile: a checkpoint has removed a journal file
    cost:   O(files + markers + frames)
    """
    out: list[StoredRows] = []
    journals = Journals(view.disk, view.salt)
    try:
        for topic in sorted(view.catalog.topics.values(), key=lambda topic: topic.name):
            name = TopicName.parse(topic.name)
            if topic_names is None or {name.full, name.short} & set(topic_names):
                out.append(_StoredRowsBuilder(view, topic, journals).stored())
    except BaseException:  # no caller has them yet, so close them here
        journals.close()
        raise
    return out


class _StoredRowsBuilder:
    """Gathers the rows of one topic, partition by partition."""

    def __init__(self, view: View, topic: Topic, journals: Journals) -> None:
        self._view, self._topic = view, topic
        self._files: list[FileSource] = []
        self._large_files: list[FileSource] = []
        self._parts: list[FileSource] = []
        self._frames = StoredFrames(journals)
        self._claims: list[tuple[int, str, FileRef]] = []
        self._ledgers: list[tuple[object, ...]] = []
        self._markers: list[tuple[object, ...]] = []
        self._large: list[tuple[object, ...]] = []
        self._acks: list[tuple[object, ...]] = []

    def stored(self) -> StoredRows:
        """The rows of the whole topic."""
        name = TopicName.parse(self._topic.name)
        counts: list[int] = []
        for index in range(self._topic.partitions):
            number = number_of(self._topic, index)
            check_available(self._view, self._topic, number)
            counts.append(self._view.topic(number).messages)
            self._add_ledgers(index, number)
            self._add_markers(index, number)
            self._add_acks(index, number)
        return StoredRows(
            self._view.lsn,
            name.full,
            name.short,
            self._files,
            self._large_files,
            self._parts,
            self._frames,
            self._claims,
            _table(self._ledgers, LEDGERS),
            _table(self._markers, MARKERS),
            _table(self._large, LARGE),
            counts,
            _table(self._acks, ACKS),
        )

    def _add_ledgers(self, index: int, number: int) -> None:
        buffer = self._view.buffer(number)
        for role, ends in (("p", self._view.topic(number).ledgers), ("s", buffer.ledgers)):
            for end in ends:
                if end.ledger in buffer.chunked:
                    self._add_large(index, number, end.ledger)
                    continue
                whole = role == "p" or not end.sealed
                self._ledgers.append((role, index, end.ledger, end.entries, whole))
                filed = 0
                for ref in self._view.files.of(end.ledger):
                    if ref.form == "part":
                        self._parts.append(source_of(index, role, ref))
                        self._claims.append((index, ref.path, ref))
                    else:
                        self._files.append(source_of(index, role, ref))
                        self._claims.append((index, "", ref))
                    filed += ref.rows
                if not end.sealed and filed < end.entries:
                    self._add_frames(index, role, end.ledger, filed, end.entries)

    def _add_frames(self, index: int, role: str, ledger: int, start: int, stop: int) -> None:
        slices = self._view.tail.slices(ledger, start, stop)
        if sum(high - low for _, low, high in slices) != stop - start:
            self._view.rows([(ledger, start, stop)], ["kind"])  # raises with the missing rows
        self._frames.add(place(role, index, ledger, ""), slices)

    def _add_large(self, index: int, number: int, ledger: int) -> None:
        large_message = self._view.buffer(number).chunked[ledger]
        [ref] = self._view.files.of(ledger)
        sequence = None if large_message.producer is None else large_message.last_sequence
        halves = txn_halves(large_message.coordinator, large_message.sequence)
        self._large_files.append(source_of(index, "s", ref))
        self._large.append(
            (
                index,
                ledger,
                *halves,
                large_message.index,
                large_message.producer,
                sequence,
                ref.rows,
                large_message.value_bytes,
            )
        )

    def _add_markers(self, index: int, number: int) -> None:
        for ledger, markers in self._view.buffer(number).markers.items():
            for marker in markers:
                halves = txn_halves(marker.coordinator, marker.sequence)
                self._markers.append((index, ledger, marker.entry, *halves, marker.count))

    def _add_acks(self, index: int, number: int) -> None:
        for subscription in self._view.catalog.subscriptions.values():
            if subscription.topic != self._topic.number:
                continue
            if not self._view.exists(("cursor", subscription.number, number)):
                continue
            for run in self._view.cursor(subscription.number, number).acked.runs():
                ledger, first, last, _, index_last = run
                self._acks.append((subscription.name, index, ledger, first, last, index_last))


def paths_below(root: str, sources: Sequence[FileSource]) -> Iterator[str]:
    """The full paths of files below `root`, the directory of the store."""
    return (f"{root}/{source.ref.path}" for source in sources)


def part_rows(parts: Sequence[FileSource], open_file: Callable[[str], File]) -> Iterator[pa.Table]:
    """The rows of parts with the columns of ROWS, one part after the other, every byte checked.

    raises: Corruption; MissingFile: removed
    """
    for source in parts:
        ref = source.ref
        file = open_file(ref.path)
        try:
            rows = SegmentReader(file, ref).rows(0, ref.rows, ROW_COLUMNS)
        finally:
            file.close()
        yield placed(rows, place(source.role, source.partition, ref.ledger, ref.path))


def place(role: str, partition: int, ledger: int, path: str) -> dict[str, object]:
    """The columns of ROWS that are constant for a part or ledger."""
    return dict(zip(_PLACE, (role, partition, ledger, path), strict=True))


def placed(
    rows: pa.Table, constants: Mapping[str, object], names: Sequence[str] = ROWS.names
) -> pa.Table:
    """Stored rows as these columns of ROWS."""
    columns = [
        pa.repeat(pa.scalar(constants[name], ROWS.field(name).type), rows.num_rows)
        if name in constants
        else rows.column(name)
        for name in names
    ]
    return pa.table(columns, schema=pa.schema([ROWS.field(name) for name in names]))


def _table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, f.type) for values, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
