"""Owns spans: the range of each partition that a reader of files asks for, as two positions.

Bounds may be a position, count, time, subscription or LSN. Each of them becomes a range of a
partition, because order in a partition is also order by LSN. A position is (ledger, entry, index);
a plain message has index 0, and messages of a transaction count from 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.base.ranges import Range
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Buffer, Marker
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model.ops import Mark
from txlog.engine.plan.reading import ranges
from txlog.engine.storage.segment import FileRef
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument

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
    """The selected range of each of these partitions; partitions without one are left out.

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
    """How many rows of a file may be selected; rows: selected rows of each ledger of the
    sidecar.
    """
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
