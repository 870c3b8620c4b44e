"""Dispatch: which visible messages follow a position, and their rows.

One function decides visibility for consumers and readers alike: the data rows of the partition, and
at each commit marker the sidecar rows of its transaction, in the order (marker, index). A plan is
made from the folds alone, so rows that are not wanted are never read.
Source: spec/transactions 8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from txlog.base.settings import RECEIVE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Marker, find_marker
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.idset import Id, IdSet, covers
from txlog.engine.model.ops import Mark, Run
from txlog.engine.model.schema import INSTANT, PROPERTY_MAP
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.reading.batch_bytes import BatchBytes
from txlog.engine.plan.reading.skip_sets import Skip, entries_left, indexes_left, runs_left
from txlog.engine.storage.columns import FEW_ROWS, conform, constant
from txlog.engine.view.files import Request
from txlog.engine.view.view import View

RECEIVED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("index", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTY_MAP),
        ("publish_time", INSTANT),
        ("event_time", INSTANT),
        ("deliver_at", INSTANT),
        ("visible_time", INSTANT),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("txn_state", pa.string()),
        ("redelivery_count", pa.int32()),
        ("schema_version", pa.int32()),
    ]
)
# One for all: making it takes a third of a millisecond, and readers at the end ask all the time.
NO_MESSAGES = RECEIVED.empty_table()
NO_MATTER = 1 << 62  # a plan whose rows are not read has no bound in bytes
STORED = (
    "key", "value", "properties", "publish_time", "event_time", "deliver_at", "producer",
    "sequence_id", "txn_most", "txn_least", "schema_version",
)  # fmt: skip
_NAMES = RECEIVED.names
_STORED_SCHEMA = pa.schema([RECEIVED.field(name) for name in STORED])
_COUNT_AT = RECEIVED.get_field_index("redelivery_count")
_COUNT_FIELD = RECEIVED.field(_COUNT_AT)
_NO_INDEX = pa.scalar(None, pa.int64())
_FEW_INDEXES = pa.array(range(FEW_ROWS), pa.int32())
_WINDOW_LEAST, _WINDOW_MOST = 64, 1 << 16  # entries that a walk from the end looks at together
COMMITTED: Final = "committed"
_COMMITTED, _NO_STATE = pa.scalar(COMMITTED, pa.string()), pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive messages: `rows` plain ones from entry on, or messages of one marker."""

    ledger: int
    entry: int
    rows: int
    index: int  # of the first message in its transaction; 0: plain messages
    marker: Marker | None


class Plan(NamedTuple):
    """What to deliver; after: the position after the last message looked at; bytes: about."""

    pieces: list[Piece]
    messages: int
    after: Mark
    bytes: int = 0


def plan(
    view: View,
    partition: int,
    after: Mark,
    limit: int,
    skip: Skip = (),
    stop: Mark | None = None,
    bytes_max: int = RECEIVE_BYTES_MAX,
) -> Plan:
    """The next messages after a position, at most limit; those in a skip set are left out.

    It ends before, but never empty, where bytes_max is reached (`batch_bytes`).
    stop: a position that is not passed, itself left out
    cost: O(pieces), not O(messages), nor O(what is left out)
    """
    silent = view.watermark(partition).silent
    if silent:  # what is not data is never delivered
        skip = (*skip, IdSet(silent))
    pieces: list[Piece] = []
    total = 0
    at = after
    budget = BatchBytes(view, partition, bytes_max)
    for run, marker in _candidates(view, partition, after, stop, skip):
        ledger, first, last, index_first, index_last = run
        while total < limit and first <= last and index_first <= index_last:
            size = last - first + 1 if marker is None else index_last - index_first + 1
            room, each = budget.fit(
                ledger, marker, index_first, min(size, limit - total), is_first=not total
            )
            if not room:
                return Plan(pieces, total, at, bytes_max - budget.left)
            pieces.append(Piece(ledger, first, room, index_first, marker))
            total += room
            budget.left -= room * each
            if marker is None:
                first += room
                at = (ledger, first - 1, 0)
            else:
                index_first += room
                at = (ledger, first, 0 if index_first > marker.count else index_first - 1)
        if total >= limit:
            break
    else:
        at = _last(view, partition, after, stop)
    return Plan(pieces, total, at, bytes_max - budget.left)


def position_followed_by(
    view: View, partition: int, count: int, after: Mark, skip: Skip = (), stop: Mark | None = None
) -> Mark | None:
    """The position after the message that `count` others follow; None if there are too few.

    after: only messages after this position count, and before `stop`; skip: those in it do not
    cost:   O(pieces of what follows), whatever lies before it
    """
    silent = view.watermark(partition).silent
    if silent:
        skip = (*skip, IdSet(silent))
    wanted, window = count + 1, max(_WINDOW_LEAST, min(count + 1, _WINDOW_MOST))
    for end in reversed(view.topic(partition).ledgers):
        ledger, high = end.ledger, end.entries
        if ledger < after[0]:
            return None
        if stop is not None and ledger >= stop[0]:
            high = min(high, stop[1] + (stop[2] > 1)) if ledger == stop[0] else 0
        first = after[1] + (after[2] == 0) if ledger == after[0] else 0
        while high > first:
            low = max(first, high - window)
            begin = after if ledger == after[0] and low == first else (ledger, low - 1, 0)
            until = (ledger, high, 0) if stop is None else min((ledger, high, 0), stop)
            found = list(_candidates(view, partition, begin, until, skip))
            for (_, entry, last, index_first, index_last), marker in reversed(found):
                size = last - entry + 1 if marker is None else index_last - index_first + 1
                if size < wanted:
                    wanted -= size
                elif marker is None:
                    return (ledger, last - wanted + 1, 0)
                else:
                    index = index_last - wanted + 1
                    return (ledger, entry, 0 if index == marker.count else index)
            high, window = low, min(2 * window, _WINDOW_MOST)
    return None


def _candidates(
    view: View, partition: int, after: Mark, stop: Mark | None, skip: Skip
) -> Iterator[tuple[Run, Marker | None]]:
    """What is visible between two positions and not left out: plain messages, and of markers."""
    markers = view.buffer(partition).markers
    for end in _ledgers_from(view, partition, after[0]):
        ledger, entries = end.ledger, end.entries
        if stop is not None and ledger >= stop[0]:
            if ledger > stop[0]:
                return
            entries = min(entries, stop[1] + (stop[2] > 1))
        entry = after[1] + (after[2] == 0) if ledger == after[0] else 0
        if entry >= entries:
            continue
        left = entries_left(skip, ledger, entry, entries)
        runs = [(entry, entries - 1)] if left is None else runs_left(left, entry, entries)
        for run, marker in _apart(ledger, runs, markers.get(ledger, [])):
            if marker is None:
                yield run, None
                continue
            first, last = 1, marker.count
            if run[:2] == after[:2]:
                first = after[2] + 1
            if stop is not None and run[:2] == stop[:2]:
                last = min(last, stop[2] - 1)
            if first <= last:
                for low, high in indexes_left(skip, ledger, marker.entry, first, last):
                    yield (ledger, marker.entry, marker.entry, low, high), marker


def _apart(
    ledger: int, runs: Iterable[tuple[int, int]], markers: list[Marker]
) -> Iterator[tuple[Run, Marker | None]]:
    """Runs of entries as plain messages and markers, each separate."""
    number = 0
    for low, last in runs:
        if number < len(markers) and markers[number].entry < low:
            number += 1  # the next one is near, or far after what is left out
            if number < len(markers) and markers[number].entry < low:
                number = bisect_left(markers, low, number, key=_entry_of)
        while low <= last:
            marker = markers[number] if number < len(markers) else None
            if marker is None or marker.entry > last:
                yield (ledger, low, last, 0, 0), None
                break
            if marker.entry > low:
                yield (ledger, low, marker.entry - 1, 0, 0), None
            yield (ledger, marker.entry, marker.entry, 0, 0), marker
            low = marker.entry + 1
            number += 1


def _entry_of(marker: Marker) -> int:
    return marker.entry


def _ledgers_from(view: View, partition: int, ledger: int) -> Iterable[LedgerEnd]:
    """The ledgers of a partition from one on; most calls are in the last."""
    ends = view.topic(partition).ledgers
    if ends[-1].ledger <= ledger:
        return ends[-1:] if ends[-1].ledger == ledger else ()
    return islice(ends, bisect_left(ends, ledger, key=_ledger_of), None)


def _ledger_of(end: LedgerEnd) -> int:
    return end.ledger


def _last(view: View, partition: int, after: Mark, stop: Mark | None) -> Mark:
    """The last position before the stop, or `after` when there is none."""
    for end in reversed(view.topic(partition).ledgers):
        ledger, entries, index = end.ledger, end.entries, 0
        if stop is not None and ledger >= stop[0]:
            if ledger > stop[0]:
                continue
            if stop[1] < entries:
                entries = stop[1] + (stop[2] > 1)
                marker = find_marker(view.buffer(partition), ledger, stop[1])
                if stop[2] > 1 and marker is not None and stop[2] <= marker.count:
                    index = stop[2] - 1
        if entries:
            mark = (ledger, entries - 1, index)
            return after if covers(after, mark) else mark
        if ledger <= after[0]:
            break
    return after


def part_of(piece: Piece, first: int, last: int) -> Piece:
    """The stretch of a piece from one offset to another."""
    if (first, last) == (0, piece.rows - 1):
        return piece
    index = piece.index + first if piece.index else 0
    entry = piece.entry if piece.index else piece.entry + first
    return Piece(piece.ledger, entry, last - first + 1, index, piece.marker)


def id_of(piece: Piece, offset: int) -> Id:
    """The id of a message of a piece."""
    if piece.marker is None:
        return (piece.ledger, piece.entry + offset, 0)
    return (piece.ledger, piece.entry, piece.index + offset)


def requests_of(pieces: list[Piece]) -> list[Request]:
    """Where the rows of a plan lie, in order."""
    return [request for piece in pieces for request in _requests(piece)]


def _requests(piece: Piece) -> list[Request]:
    """Where the rows of a piece lie."""
    if piece.marker is None:
        return [(piece.ledger, piece.entry, piece.entry + piece.rows)]
    out: list[Request] = []
    first, last = piece.index, piece.index + piece.rows - 1
    for ledger, row, rows, index in piece.marker.ranges:
        low, high = max(first, index), min(last, index + rows - 1)
        if low <= high:
            out.append((ledger, row + low - index, row + high - index + 1))
    return out


class Place(NamedTuple):
    """Where the first message of a piece is, and when it became visible: what no row has stored.

    The messages of a marker have its entry and an index that counts on; the entries of plain ones
    count on, and they became visible when they were published.
    """

    ledger: int
    entry: int
    first_index: int | None  # None: plain
    time_ms: int | None  # None: as each was published
    txn_state: str | None


def place_of(piece: Piece) -> Place:
    """What the messages of a piece have in common."""
    marker = piece.marker
    if marker is None:
        return Place(piece.ledger, piece.entry, None, None, None)
    return Place(piece.ledger, marker.entry, piece.index, marker.time_ms, COMMITTED)


class Rows(NamedTuple):
    """The messages of a plan in order, before they become a table or Message objects.

    times: how often each of them came again, None for a reader
    """

    topic: str
    partition: int  # of the topic
    pieces: list[Piece]
    stored: pa.Table
    times: int | None = None

    @property
    def num_rows(self) -> int:
        """How many messages."""
        return len(self.stored)

    @property
    def value_bytes(self) -> int:
        """What their values take in memory."""
        return int(self.stored.column("value").nbytes)

    def columns(self) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """What is stored of them, by name."""
        return zip(STORED, self.stored.columns, strict=True)

    def part(self, start: int, stop: int) -> Rows:
        """The messages start..stop-1 of these."""
        pieces: list[Piece] = []
        at = 0
        for piece in self.pieces:
            first, last = max(start - at, 0), min(stop - at, piece.rows) - 1
            if first <= last:
                pieces.append(part_of(piece, first, last))
            at += piece.rows
        return self._replace(pieces=pieces, stored=self.stored.slice(start, stop - start))

    def table(self) -> pa.Table:
        """They as RECEIVED."""
        ends = list(accumulate(piece.rows for piece in self.pieces))
        total = ends[-1]
        columns = _placed(self.pieces, ends, self.stored.column("publish_time"))
        columns["topic"] = constant(self.topic, pa.string(), total)
        columns["partition"] = constant(self.partition, pa.int32(), total)
        columns["redelivery_count"] = constant(self.times, pa.int32(), total)
        columns.update(self.columns())
        return pa.Table.from_arrays([columns[name] for name in _NAMES], schema=RECEIVED)


def rows_of(
    view: View,
    topic: str,
    partition_number: int,
    pieces: list[Piece],
    names: Sequence[str] | None = None,
    times: int | None = None,
) -> Rows:
    """The messages of a plan that has some.

    names: the stored columns that are wanted, the others are null; None: all
    times: as of Rows
    """
    stored = _stored(view, pieces, names)
    assert len(stored) == sum([piece.rows for piece in pieces])
    return Rows(topic, partition_number, pieces, stored, times)


def received(
    view: View,
    topic: str,
    partition_number: int,
    partition: int,
    pieces: list[Piece],
    redelivered: dict[tuple[int, int, int], int] | None = None,
    names: Sequence[str] | None = None,
) -> pa.Table:
    """The messages of a plan as RECEIVED, in order.

    redelivered: counts of the subscription, None for a reader
    names:       as of `rows_of`
    """
    if not pieces:
        return NO_MESSAGES
    never = None if redelivered is None else 0
    first = pieces[0]
    if len(pieces) > 1 or first.marker is not None:
        table = rows_of(view, topic, partition_number, pieces, names, never).table()
    else:

        def make(start: int, stop: int) -> pa.Table:
            piece = Piece(first.ledger, start, stop - start, 0, None)
            return rows_of(view, topic, partition_number, [piece], names, never).table()

        shape = (topic, partition_number, never, None if names is None else tuple(names))
        start, stop = first.entry, first.entry + first.rows
        table = view.files.cut(first.ledger, start, stop, shape, make)
    if redelivered and any(counts := _counts(redelivered, pieces)):
        return table.set_column(_COUNT_AT, _COUNT_FIELD, pa.array(counts, pa.int32()))
    return table


_Each = Callable[[list[Any], pa.DataType], pa.Array]


def _placed(
    pieces: list[Piece], ends: list[int], sent: pa.ChunkedArray
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """The columns that say where and when the messages of pieces became visible.

    A piece has one value of each, or counts on; few rows cost what the kernels cost.
    """
    total = ends[-1]
    places = [place_of(piece) for piece in pieces]
    bases = [
        (one.entry if one.first_index is None else one.first_index) - end + piece.rows
        for one, piece, end in zip(places, pieces, ends, strict=True)
    ]
    if len(pieces) == 1:
        each: _Each = partial(_same, total)
        count = pa.arange(bases[0], bases[0] + total)
    else:
        each = partial(_each, total, repeat_runs(range(len(pieces)), ends, pa.int32()))
        count = pc.add(pa.arange(0, total), each(bases, pa.int64()))
    placed = {"ledger": each([one.ledger for one in places], pa.int64()), "entry": count}
    inner = [one.first_index is not None for one in places]
    if not any(inner):
        placed["index"] = constant(None, pa.int32(), total)
        return placed | {"visible_time": sent, "txn_state": constant(None, pa.string(), total)}
    entries = [one.entry if is_in else None for one, is_in in zip(places, inner, strict=True)]
    entry = each(entries, pa.int64())
    placed["entry"] = entry
    time = each([one.time_ms for one in places], INSTANT)
    if all(inner):
        placed["index"] = _indexes(bases[0], total) if len(pieces) == 1 else count.cast(pa.int32())
        state = constant(COMMITTED, pa.string(), total)
        return placed | {"visible_time": time, "txn_state": state}
    is_inner = entry.is_valid()
    placed["entry"] = pc.coalesce(entry, count)
    placed["index"] = pc.if_else(is_inner, count, _NO_INDEX).cast(pa.int32())
    placed["visible_time"] = pc.coalesce(time, sent)
    placed["txn_state"] = pc.if_else(is_inner, _COMMITTED, _NO_STATE)
    return placed


def _indexes(first: int, total: int) -> pa.Array:
    """Numbers from the first on; few of them are cut out of those that are there."""
    if first + total > FEW_ROWS:
        return pa.arange(first, first + total).cast(pa.int32())
    return _FEW_INDEXES.slice(first, total)


def _same(total: int, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The only value, in each row."""
    return pa.repeat(pa.scalar(values[0], kind), total)


def _each(total: int, number: pa.Array, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The value of the piece that a row is of, as `number` says."""
    if values.count(values[0]) == len(values):
        return _same(total, values, kind)
    return pa.array(values, kind).take(number)


def _stored(view: View, pieces: list[Piece], names: Sequence[str] | None) -> pa.Table:
    """The rows of pieces as they are stored; what is not wanted is null."""
    known: Sequence[str] = STORED if names is None else [name for name in STORED if name in names]
    known = known or STORED[3:4]  # one is needed to count rows
    tables = view.rows(requests_of(pieces), known)
    found = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    return found if len(known) == len(STORED) else conform(found, _STORED_SCHEMA)


def _counts(redelivered: dict[Id, int], pieces: list[Piece]) -> list[int]:
    """How often each message came again."""
    out: list[int] = []
    for piece in pieces:
        for step in range(piece.rows):
            if piece.marker is None:
                out.append(redelivered.get((piece.ledger, piece.entry + step, 0), 0))
            else:
                key = (piece.ledger, piece.entry, piece.index + step)
                whole = redelivered.get((piece.ledger, piece.entry, 0), 0)
                out.append(redelivered.get(key, 0) + whole)
    return out


def visible_end(view: View, partition: int) -> Mark:
    """The position of the last entry of the partition; (ledger, -1, 0) when it is empty."""
    last = view.topic(partition).ledgers[-1]
    return (last.ledger, last.entries - 1, 0)
