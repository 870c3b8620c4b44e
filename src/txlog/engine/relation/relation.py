"""Owns Relation: the files and rows with the committed messages of a topic at one LSN.

It is a plain value. The committed messages of a partition are its data rows and the sidecar rows of
transactions with a marker; so a relation has these sources, each with one rule:

    direct   sealed files of partitions, clean ones of sidecars     kind = 0
    unclean  sealed files of sidecars that hold other rows too      kind = 0, joined with markers
    open     parts of partitions, and of sidecars                   as direct, as unclean
    large    large messages without their values                    as they are
    tail     rows that are only in journal frames                   as they are
    frames   the same, to be read a piece at a time                 as they are

A topic that was compacted by key has another source, `compacted`: the newest message of each key up
to some position. These are copies of messages of the log, which may have been trimmed since.

With isolation `uncommitted` there is one more, `hidden`: messages that no marker makes visible.
With `everything`, rows have the storage columns, and rows that are not messages are included.

A message has the same ledger, entry, visible time and LSN in every source. A message of a
transaction takes them from its marker.

A RelationFilter selects a span of each partition. Its bounds may be a position, count, time,
subscription or LSN, because order in a partition is also order by LSN. A position is (ledger,
entry, index); a plain message has index 0, and messages of a transaction count from 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.base.message_columns import PLACED
from txlog.base.ranges import Range
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Buffer, Marker
from txlog.engine.folds.catalog import SchemaVersion, Topic, number_of
from txlog.engine.model.ops import Mark
from txlog.engine.model.schema import INSTANT
from txlog.engine.plan.reading import ranges
from txlog.engine.plan.records import schema_in
from txlog.engine.relation.frames import RowsInFrames
from txlog.engine.storage.columns import schema_of
from txlog.engine.storage.remote import check_named, is_far
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import View
from txlog.errors import InvalidArgument

# --- spans ----------------------------------------------------------------------------------------


# (ledger of a marker, the marker, the location of its rows: ledger, first row, rows, first index)
PlacedMarker = tuple[int, Marker, tuple[int, int, int, int]]
_ALL_ENTRIES: Final = 1 << 62


class Span(NamedTuple):
    """Positions from start up to, but not including, stop."""

    start: Mark
    stop: Mark

    @property
    def is_empty(self) -> bool:
        """True when it holds no position."""
        return self.start >= self.stop

    @property
    def cuts_markers(self) -> bool:
        """True when it may hold some but not all messages of a transaction."""
        return self.start[2] > 1 or self.stop[2] > 1

    def entries(self, ledger: int, entries: int) -> tuple[int, int]:
        """The entries of a ledger in the span, if the ledger has this many: the first and the end.

        An entry counts even if only some of its messages are in the span.
        """
        low = self.start[1] if self.start[0] == ledger else 0
        high = self.stop[1] + (self.stop[2] > 1) if self.stop[0] == ledger else entries
        if not self.start[0] <= ledger <= self.stop[0]:
            return 0, 0
        return low, max(low, min(high, entries))

    def indexes(self, ledger: int, entry: int, count: int) -> tuple[int, int]:
        """The messages of a marker in the span: the first index and the end."""
        low = max(1, self.start[2]) if self.start[:2] == (ledger, entry) else 1
        high = max(1, self.stop[2]) if self.stop[:2] == (ledger, entry) else count + 1
        return low, max(low, min(high, count + 1))


@dataclass(frozen=True, slots=True)
class RelationFilter:
    """The part of a topic that a reader asks for; by default all committed messages.

    partitions: by index; None: all
    range:      as in spec/cli 6, except `unacked`, which is not one range
    at_lsn:     the topic at this LSN, as far as it still exists
    spans:      positions by partition, instead of range and at_lsn; other partitions are left out
    """

    partitions: Sequence[int] | None = None
    range: Range = Range()  # noqa: RUF009  # a frozen value
    at_lsn: int | None = None
    spans: Mapping[int, Span] | None = None

    @property
    def is_all(self) -> bool:
        """True when there is no bound within a partition."""
        return self.spans is None and self.at_lsn is None and self.range == Range()

    @property
    def has_end(self) -> bool:
        """True when it reaches the end of the log, where uncommitted messages follow."""
        stop = self.range.stop
        return self.spans is None and self.at_lsn is None and (stop is None or stop.kind == "end")


def spans_of(
    view: View, topic: Topic, selection: RelationFilter, indexes: list[int]
) -> dict[int, Span]:
    """The selected range of each partition in `indexes`; partitions without one are left out.

    raises: InvalidArgument, MessageNotFound, SubscriptionNotFound; PartitionUnavailable for a time
    cost:   for a time or an LSN, one column of a ledger in each partition
    """
    if selection.spans is not None:
        return {index: selection.spans[index] for index in indexes if index in selection.spans}
    if selection.range.kind == "compacted":
        raise InvalidArgument("a relation has the log, not its compacted messages", code=203)
    if selection.range.kind == "unacked":
        raise InvalidArgument(
            "unacknowledged messages are not a stretch of the log",
            code=203,
            hint="start=Bound('sub', NAME) starts where the subscription does",
        )
    if selection.at_lsn is not None and not 0 <= selection.at_lsn <= view.lsn:
        raise InvalidArgument(
            f"there is no LSN {selection.at_lsn}, the last one is {view.lsn}", code=203
        )
    out: dict[int, Span] = {}
    for index, read_range in ranges.resolve_range(view, topic, selection.range, indexes).items():
        stop = ranges.end_of(view, topic, index) if read_range.stop is None else read_range.stop
        if selection.at_lsn is not None:
            stop = min(stop, above_lsn(view, number_of(topic, index), selection.at_lsn))
        out[index] = Span(ranges.stop_after(read_range.after), stop)
    return out


def above_lsn(view: View, number: int, lsn: int) -> Mark:
    """The first position of a partition written by a later frame than this."""
    above = ranges.stop_after(ranges.start_of(view, number))
    for end in view.topic(number).ledgers:
        if end.entries and last_lsn(view, end.ledger) > lsn:
            at = 0
            for table in view.rows([(end.ledger, 0, end.entries)], ["lsn"]):
                row = pc.index(pc.greater(table.column("lsn"), pa.scalar(lsn)), True).as_py()
                if row >= 0:
                    return (end.ledger, at + row, 0)
                at += table.num_rows
        above = (end.ledger, end.entries, 0)
    return above


def last_lsn(view: View, ledger: int) -> int:
    """The LSN of the last row of a ledger that has rows."""
    runs = view.tail.runs.get(ledger)
    if runs:
        return runs[-1].frame.lsn
    return max((ref.lsn_last for ref in view.files.of(ledger)), default=0)


def share(span: Span | None, role: str, ref: FileRef, rows: dict[int, int]) -> int:
    """How many rows of a file may be selected; rows: by sidecar ledger, how many are selected."""
    if span is None:
        return ref.rows
    if role == "s":
        return min(ref.rows, rows.get(ref.ledger, 0))
    low, high = span.entries(ref.ledger, ref.last + 1)
    return max(0, min(high, ref.last + 1) - max(low, ref.first))


def placed(buffer: Buffer, span: Span | None) -> Iterator[PlacedMarker]:
    """(ledger of the marker, marker, location of its rows) of the selected messages, in order."""
    for number in sorted(buffer.markers):
        markers = buffer.markers[number]
        if span is not None:
            if not span.start[0] <= number <= span.stop[0]:
                continue
            low, high = span.entries(number, _ALL_ENTRIES)
            markers = markers[
                bisect_left(markers, low, key=_entry) : bisect_left(markers, high, key=_entry)
            ]
        for marker in markers:
            if span is None or not span.cuts_markers:
                for at in marker.ranges:
                    yield number, marker, at
                continue
            first, last = span.indexes(number, marker.entry, marker.count)
            for ledger, row, rows, index in marker.ranges:
                start, stop = max(first, index), min(last, index + rows)
                if start < stop:
                    yield number, marker, (ledger, row + start - index, stop - start, start)


def _entry(marker: Marker) -> int:
    return marker.entry


# --- relations ------------------------------------------------------------------------------------


# A committed message without derived columns: its topic, id as text, and size.
COMMITTED: Final = schema_of((*PLACED, "schema_version"))
LARGE: Final = pa.schema(
    [f for f in COMMITTED if f.name != "value"]
    + [("path", pa.string()), ("bytes", pa.int64()), ("crc", pa.int64())]
)
MARKERS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("marker_ledger", pa.int64()),
        ("marker_entry", pa.int64()),
        ("rows", pa.int64()),
        ("visible_time", INSTANT),
        ("lsn", pa.int64()),
        ("first_lsn", pa.int64()),
    ]
)
ALL: Final = RelationFilter()


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file of a partition (role p), of its sidecar (s), or of its compacted rows (c).

    within: only these positions of a file of `direct` or `open` are selected
    """

    partition: int
    role: str
    ref: FileRef
    within: Span | None = None


def source_of(partition: int, role: str, ref: FileRef, within: Span | None = None) -> FileSource:
    """A FileSource; a file outside the store must be in a place that this user has named.

    raises: DiskFailed: this user has not named the place of the file
    """
    if is_far(ref.path):
        check_named(ref.path)
    return FileSource(partition, role, ref, within)


@dataclass(frozen=True, slots=True)
class Relation:
    """The committed messages of a topic at an LSN; paths are below the store.

    first_ledger: by partition, the first ledger that is not trimmed; 0 where the partition is left
        out
    unavailable:  partitions that are left out
    markers:      of transactions with rows in `unclean` or `open`; no frame below first_lsn has
                  such a row
    spans: by partition the selected positions, if not all; rows elsewhere are in no source, except
                  rows of a file with `within`, and messages of a marker that a span cuts
    hidden:       messages of open and aborted transactions, as HIDDEN; none with isolation
                  committed
    schemas:      every schema that the topic has or had; with one, messages have a column `record`
    everything:   tail, large and hidden have the columns LOCATED; tail and hidden have
                  rows of all kinds
    frames:       rows that are not in tail, with the same columns; its journal files are open
    compacted: files of compacted rows, if requested; compacted_rows: the rows of such files that
                  SQL cannot read
    """

    store: str
    generation: int
    lsn: int
    topic: str
    partitions: int
    first_ledger: list[int]
    unavailable: list[int]
    direct: list[FileSource]
    unclean: list[FileSource]
    open: list[FileSource]
    large_files: list[FileSource]
    large: pa.Table
    markers: pa.Table
    tail: pa.Table
    spans: dict[int, Span]
    hidden: pa.Table
    everything: bool
    compacted: Sequence[FileSource] = ()
    compacted_rows: pa.Table | None = None
    schemas: Sequence[SchemaVersion] = ()
    frames: RowsInFrames | None = None

    @property
    def record(self) -> int:
        """The version whose type `record` has; 0: there is no such column."""
        newest = self.schemas[-1] if self.schemas else None
        return 0 if newest is None or newest.deleted else newest.version

    @property
    def record_type(self) -> pa.StructType:
        """The type of `record`, which must exist."""
        kind: pa.StructType = schema_in(self.schemas[self.record - 1]).arrow
        return kind


@dataclass(frozen=True, slots=True)
class RelationContent:
    """A relation, and from the same view the rows of its open parts; empty if not requested."""

    relation: Relation
    name: str  # tenant/namespace/topic
    partition_parts: pa.Table
    sidecar_parts: pa.Table


def adopted_lsns(sources: Sequence[FileSource]) -> dict[int, int]:
    """By ledger, the LSN of all rows of an adopted file: these rows do not store their own."""
    adopted = (source.ref for source in sources if source.ref.form == "adopted")
    return {ref.ledger: ref.lsn_first for ref in adopted}
