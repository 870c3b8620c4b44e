"""Owns counts from the end, `-o -N`: only messages that the reader sees count.

The store counts every committed message. Some messages are not due yet, and `consume` leaves them
out; so with `-o -1` it printed nothing next to a newer message for tomorrow. This module reads a
longer end of each partition, finds the places of the counted messages, and cuts the reading there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.ranges import Bound, Range
from txlog.base.startup import compute as pc

if TYPE_CHECKING:
    from typing import Any

Place = tuple[int, int, int]  # ledger, entry, index
COLUMNS = ["topic", "partition", "ledger", "entry", "index", "deliver_at"]
_GROWTH = 4


class Ends:
    """The places of counts from the end, by topic and partition.

    range: what to read instead; its result goes through `cut`
    read:  returns the tables of a range with COLUMNS, without the messages that are not due
    """

    def __init__(
        self, asked: Range, read: Callable[[Range], Iterable[tuple[pa.Table, pa.Table]]]
    ) -> None:
        most = max(_count(bound) for bound in (asked.start, asked.stop) if _is_count(bound))
        self._starts: dict[tuple[str, int], Place] = {}
        self._stops: dict[tuple[str, int], Place] = {}
        longest = most
        while True:
            seen, stored = _places(read(Range(Bound("last", longest))))
            short = [key for key in stored if len(seen.get(key, ())) < most]
            if not any(stored[key] >= longest for key in short):
                break
            longest *= _GROWTH
        for bound, places in ((asked.start, self._starts), (asked.stop, self._stops)):
            if _is_count(bound):
                for key, line in seen.items():
                    count = _count(bound)
                    places[key] = line[max(0, len(line) - count)] if count else _AFTER_ALL
        start = Bound("last", longest) if _is_count(asked.start) else asked.start
        self.range = Range(start, None if _is_count(asked.stop) else asked.stop)

    def cut(self, table: pa.Table) -> pa.Table:
        """Return the rows between the places; rows without an id stay."""
        if not (self._starts or self._stops) or not len(table):
            return table
        masks = []
        for key in partitions_in(table):
            mask = is_of(table, key)
            if key in self._starts:
                mask = pc.and_(mask, pc.invert(_is_before(table, self._starts[key])))
            if key in self._stops:
                mask = pc.and_(mask, _is_before(table, self._stops[key]))
            masks.append(pc.fill_null(mask, True))
        return table.filter(reduce(pc.or_, masks))


_AFTER_ALL: Place = (1 << 62, 0, 0)


def is_counted(asked: Range) -> bool:
    """Whether a range has a count from the end."""
    return asked.kind == "range" and (_is_count(asked.start) or _is_count(asked.stop))


def _is_count(bound: Bound | None) -> bool:
    return bound is not None and bound.kind == "last"


def _count(bound: Bound | None) -> int:
    return bound.value if bound is not None and isinstance(bound.value, int) else 0


def _places(
    tables: Iterable[tuple[pa.Table, pa.Table]],
) -> tuple[dict[tuple[str, int], list[Place]], dict[tuple[str, int], int]]:
    """The places of the due messages by partition, in order, and how many were read of each."""
    seen: dict[tuple[str, int], list[Place]] = {}
    stored: dict[tuple[str, int], int] = {}
    for whole, due in tables:
        for key in partitions_in(whole):
            stored[key] = stored.get(key, 0) + int(pc.sum(is_of(whole, key)).as_py() or 0)
        for key in partitions_in(due):
            rows = due.filter(is_of(due, key))
            columns = [pc.fill_null(rows[name], 0).to_pylist() for name in COLUMNS[2:5]]
            seen.setdefault(key, []).extend(zip(*columns, strict=True))
    return seen, stored


def partitions_in(table: pa.Table) -> list[tuple[str, int]]:
    pairs = table.select(COLUMNS[:2]).group_by(COLUMNS[:2]).aggregate([])
    return [(row["topic"], row["partition"]) for row in pairs.to_pylist()]


def is_of(table: pa.Table, key: tuple[str, int]) -> pa.ChunkedArray:
    topic, partition = key
    return pc.and_(pc.equal(table["topic"], topic), pc.equal(table["partition"], partition))


def _is_before(table: pa.Table, place: Place) -> Any:
    """Which rows stand before a place; null for a row without an id."""
    ledger, entry, index = place
    rows = [table[name] for name in COLUMNS[2:4]]
    rows.append(pc.fill_null(table["index"], 0))
    at_entry = pc.or_(
        pc.less(rows[1], entry), pc.and_(pc.equal(rows[1], entry), pc.less(rows[2], index))
    )
    return pc.or_(pc.less(rows[0], ledger), pc.and_(pc.equal(rows[0], ledger), at_entry))
