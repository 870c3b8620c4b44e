"""Dispatch: which visible messages follow a position, and their rows.

`plan` alone decides visibility, for consumers and readers: the data rows of the partition, and at
each commit marker the sidecar rows of its transaction, in the order (marker, index). A plan uses
the folds alone, so it never reads rows that a caller does not need.

A plan leaves out ids by one bitmap per ledger, so a million rows cost microseconds:

    planned = range - acknowledged - pending - leased - waiting - (future - released)

It walks only the remaining entries, run by run, and only the remaining messages of a marker.

A batch has a bound in bytes, so that large messages do not fill the memory. The bytes of a large
message are known. All others count with the mean of their ledger or transaction; the error is
bounded, since a ledger has no more than ledger_bytes_max.

`fetch` reads messages by their ids, as runs, to move them elsewhere or deliver them again. Before,
`taken_apart` replaces a whole marker by its messages, so that each row has the id of one message.
Source: spec/transactions 8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base import message_columns
from txlog.base.message_columns import USER
from txlog.base.settings import RECEIVE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.buffer import Marker, find_marker
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.idset import Id, IdSet, covers
from txlog.engine.model.ops import Mark, Run
from txlog.engine.model.schema import INSTANT
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.ack_sets import above_mark, is_trimmed, subtract
from txlog.engine.storage.columns import FEW_ROWS, conform, constant, schema_of
from txlog.engine.view import Request, View

# --- how much fits a batch ------------------------------------------------------------------------


class BatchBytes:
    """How many bytes still fit a batch of one partition: `left`, below 0 after a larger message."""

    __slots__ = ("_partition", "_view", "left")

    def __init__(self, view: View, partition: int, bytes_max: int) -> None:
        self._view = view
        self._partition = partition
        self.left = bytes_max

    def fit(
        self, ledger: int, marker: Marker | None, index: int, requested: int, *, is_first: bool
    ) -> tuple[int, int]:
        """(how many of the next `requested` messages fit, bytes of each); 0: the batch is full.

        index: of the first message in its transaction; is_first: the batch is empty and takes one
            in any case
        """
        count, each = (
            self._plain(ledger, requested)
            if marker is None
            else self._in_txn(marker, index, requested)
        )
        if count * each <= self.left:
            return count, each
        return max(self.left // max(1, each), int(is_first)), each

    def _plain(self, ledger: int, requested: int) -> tuple[int, int]:
        ends = self._view.topic(self._partition).ledgers
        end = ends[bisect_left(ends, ledger, key=lambda ledger_end: ledger_end.ledger)]
        each = end.payload_bytes // max(1, end.messages)
        if requested * each <= self.left:
            return requested, each
        # exclude markers, because a few large transactions must not raise the mean of the other
        # messages
        markers = self._view.buffer(self._partition).markers.get(ledger, ())
        size = end.payload_bytes - sum([marker.payload_bytes for marker in markers])
        messages = end.messages - sum([marker.count for marker in markers])
        return requested, max(0, size) // max(1, messages)

    def _in_txn(self, marker: Marker, index: int, requested: int) -> tuple[int, int]:
        chunked = self._view.buffer(self._partition).chunked
        if not chunked or marker.payload_bytes <= self.left:
            return requested, marker.payload_bytes // max(1, marker.count)
        large = {part[3]: chunked[part[0]] for part in marker.ranges if part[0] in chunked}
        if index in large:
            return 1, large[index].payload_bytes
        next_large = min((at for at in large if at > index), default=index + requested)
        size = marker.payload_bytes - sum(
            large_message.payload_bytes for large_message in large.values()
        )
        return min(requested, next_large - index), size // max(1, marker.count - len(large))


# --- the ids that a plan leaves out ---------------------------------------------------------------


class IdsExcept(NamedTuple):
    """Ids that are left out, except those in `but`."""

    ids: IdSet
    but: IdSet


Skip: TypeAlias = tuple[IdSet | IdsExcept, ...]


def entries_left(skip: Skip, ledger: int, first: int, stop: int) -> BitMap64 | None:
    """The entries first..stop-1 of a ledger outside all skip sets; None: all of them.

    A marker is included unless all its messages are left out together.
    cost: O(containers of the bitmaps)
    """
    remaining: BitMap64 | None = None
    for skipped in skip:
        bits = _entries_of(skipped, ledger)
        if not bits:
            continue
        if remaining is None:
            if not bits.range_cardinality(first, stop):
                continue
            remaining = BitMap64(range(first, stop))
        remaining -= bits
    return remaining


def _entries_of(skipped: IdSet | IdsExcept, ledger: int) -> BitMap64 | None:
    if isinstance(skipped, IdSet):
        return skipped.entries.get(ledger)
    bits = skipped.ids.entries.get(ledger)
    if not bits:
        return None
    back = skipped.but.entries.get(ledger)
    bits = bits - back if back else bits
    if skipped.but.inner:
        partial_entries = BitMap64(
            [entry for number, entry in skipped.but.inner if number == ledger]
        )
        bits = bits - partial_entries
    return bits


def runs_left(bits: BitMap64, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The runs of a bitmap, as (first, last); it has no bit outside first..stop-1.

    cost: O(1) a run, whatever its length
    """
    holes: BitMap64 | None = None
    position = first
    while position < stop:
        for low in bits.iter_equal_or_larger(position):
            if low + 1 not in bits:  # where there are many runs, most have one entry
                yield low, low
                continue
            if holes is None:
                holes = BitMap64.flip(bits, first, stop)
            position = holes.next_set_bit(low) if holes and holes[-1] > low else stop
            yield low, position - 1
            break
        else:
            return


def indexes_left(
    skip: Skip, ledger: int, entry: int, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """The runs of indexes first..last of a marker that are not left out."""
    remaining: BitMap | None = None
    for skipped in skip:
        ids = skipped if isinstance(skipped, IdSet) else skipped.ids
        bits = ids.inner.get((ledger, entry))
        if isinstance(skipped, IdsExcept):
            bits = _indexes_of(skipped, ledger, entry, first, last)
        if bits:
            if remaining is None:
                remaining = BitMap(range(first, last + 1))
            remaining -= bits
    if remaining is None:
        yield first, last
        return
    holes = BitMap.flip(remaining, first, last + 1)
    count, position = len(remaining), first
    while count:
        low = remaining.next_set_bit(position)
        position = holes.next_set_bit(low) if holes and holes[-1] > low else last + 1
        count -= position - low
        yield low, position - 1


def _indexes_of(
    skipped: IdsExcept, ledger: int, entry: int, first: int, last: int
) -> BitMap | None:
    """The messages of a marker that are left out; the set may have the marker as a whole."""
    bits = skipped.ids.inner.get((ledger, entry))
    whole = skipped.ids.entries.get(ledger)
    if whole is not None and entry in whole:
        bits = BitMap(range(first, last + 1))
    if bits is None:
        return None
    back = skipped.but.entries.get(ledger)
    if back is not None and entry in back:
        return None
    released = skipped.but.inner.get((ledger, entry))
    return bits if released is None else bits - released


# --- plans ----------------------------------------------------------------------------------------


RECEIVED = schema_of(message_columns.RECEIVED)
# Shared: it takes a third of a millisecond to build, and readers at the end need it all the time.
NO_MESSAGES = RECEIVED.empty_table()
NO_MATTER = 1 << 62  # a plan whose rows are not read has no bound in bytes
STORED = (*USER, "producer", "sequence_id", "txn_most", "txn_least", "schema_version")
_NAMES = RECEIVED.names
_STORED_SCHEMA = schema_of(STORED)
_COUNT_AT = RECEIVED.get_field_index("redelivery_count")
_COUNT_FIELD = RECEIVED.field(_COUNT_AT)
_NO_INDEX = pa.scalar(None, pa.int64())
_FEW_INDEXES = pa.array(range(FEW_ROWS), pa.int32())
_WINDOW_LEAST, _WINDOW_MOST = 64, 1 << 16  # entries per step of a walk from the end
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
    """The messages to deliver; after: the position of the last one checked; bytes: an estimate."""

    pieces: list[Piece]
    messages: int
    after: Mark
    bytes: int = 0


def plan(
    view: View,
    partition: int,
    start: Mark,
    limit: int,
    skip: Skip = (),
    stop: Mark | None = None,
    bytes_max: int = RECEIVE_BYTES_MAX,
) -> Plan:
    """The next messages after a position, at most limit; those in a skip set are left out.

    It ends where bytes_max is reached (`BatchBytes`), but has at least one message if there is one.
    stop: the first position that it must not reach
    cost: O(pieces), not O(messages), and not O(ids left out)
    """
    silent = view.watermark(partition).silent
    if silent:  # rows that are not data are never delivered
        skip = (*skip, IdSet(silent))
    pieces: list[Piece] = []
    total = 0
    at = start
    budget = BatchBytes(view, partition, bytes_max)
    for run, marker in _candidates(view, partition, start, stop, skip):
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
        at = _last(view, partition, start, stop)
    return Plan(pieces, total, at, bytes_max - budget.left)


def position_followed_by(
    view: View, partition: int, count: int, start: Mark, skip: Skip = (), stop: Mark | None = None
) -> Mark | None:
    """The position after the message that `count` messages follow; None if there are too few.

    start: only messages after this position and before `stop` count; skip: ids that do not count
    cost: O(pieces after the result), independent of the log before it
    """
    silent = view.watermark(partition).silent
    if silent:
        skip = (*skip, IdSet(silent))
    missing, window = count + 1, max(_WINDOW_LEAST, min(count + 1, _WINDOW_MOST))
    for end in reversed(view.topic(partition).ledgers):
        ledger, high = end.ledger, end.entries
        if ledger < start[0]:
            return None
        if stop is not None and ledger >= stop[0]:
            high = min(high, stop[1] + (stop[2] > 1)) if ledger == stop[0] else 0
        first = start[1] + (start[2] == 0) if ledger == start[0] else 0
        while high > first:
            low = max(first, high - window)
            begin = start if ledger == start[0] and low == first else (ledger, low - 1, 0)
            until = (ledger, high, 0) if stop is None else min((ledger, high, 0), stop)
            candidates = list(_candidates(view, partition, begin, until, skip))
            for (_, entry, last, index_first, index_last), marker in reversed(candidates):
                size = last - entry + 1 if marker is None else index_last - index_first + 1
                if size < missing:
                    missing -= size
                elif marker is None:
                    return (ledger, last - missing + 1, 0)
                else:
                    index = index_last - missing + 1
                    return (ledger, entry, 0 if index == marker.count else index)
            high, window = low, min(2 * window, _WINDOW_MOST)
    return None


def _candidates(
    view: View, partition: int, start: Mark, stop: Mark | None, skip: Skip
) -> Iterator[tuple[Run, Marker | None]]:
    """Visible messages between two positions and outside `skip`: (run, its marker if any)."""
    markers = view.buffer(partition).markers
    for end in _ledgers_from(view, partition, start[0]):
        ledger, entries = end.ledger, end.entries
        if stop is not None and ledger >= stop[0]:
            if ledger > stop[0]:
                return
            entries = min(entries, stop[1] + (stop[2] > 1))
        entry = start[1] + (start[2] == 0) if ledger == start[0] else 0
        if entry >= entries:
            continue
        remaining = entries_left(skip, ledger, entry, entries)
        runs = [(entry, entries - 1)] if remaining is None else runs_left(remaining, entry, entries)
        for run, marker in _apart(ledger, runs, markers.get(ledger, [])):
            if marker is None:
                yield run, None
                continue
            first, last = 1, marker.count
            if run[:2] == start[:2]:
                first = start[2] + 1
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
            number += 1  # the next marker is near, or far away after a range that is left out
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


def _last(view: View, partition: int, start: Mark, stop: Mark | None) -> Mark:
    """The last position before the stop, or `start` when there is none."""
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
            return start if covers(start, mark) else mark
        if ledger <= start[0]:
            break
    return start


def last_position(view: View, partition: int) -> Mark:
    """The last position of a partition; (0, -1, 0) or lower when it has none."""
    return _last(view, partition, BEFORE_ALL, None)


def part_of(piece: Piece, first: int, last: int) -> Piece:
    """The messages of a piece from one offset to another, both included."""
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
    """(ledger, first row, row after the last) where the rows of pieces are stored, in order."""
    return [request for piece in pieces for request in _requests(piece)]


def _requests(piece: Piece) -> list[Request]:
    """(ledger, first row, row after the last) where the rows of a piece are stored, in order."""
    if piece.marker is None:
        return [(piece.ledger, piece.entry, piece.entry + piece.rows)]
    out: list[Request] = []
    first, last = piece.index, piece.index + piece.rows - 1
    for ledger, row, rows, index in piece.marker.ranges:
        low, high = max(first, index), min(last, index + rows - 1)
        if low <= high:
            out.append((ledger, row + low - index, row + high - index + 1))
    return out


class PiecePlace(NamedTuple):
    """The id of the first message of a piece, and when it became visible; no row stores this.

    The messages of a marker have its entry, and their index counts up. The entries of plain
    messages count up, and each became visible when it was published.
    """

    ledger: int
    entry: int
    first_index: int | None  # None: plain
    time_ms: int | None  # None: as each was published
    txn_state: str | None


def place_of(piece: Piece) -> PiecePlace:
    """The id, time and state that the messages of a piece share, or count up from."""
    marker = piece.marker
    if marker is None:
        return PiecePlace(piece.ledger, piece.entry, None, None, None)
    return PiecePlace(piece.ledger, marker.entry, piece.index, marker.time_ms, COMMITTED)


class Rows(NamedTuple):
    """The messages of a plan in order, before they become a table or Message objects.

    times: the redelivery count of every message, None for a reader
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
        """The bytes of memory that their values take."""
        return int(self.stored.column("value").nbytes)

    def columns(self) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """The stored columns, by name."""
        return zip(STORED, self.stored.columns, strict=True)

    def part(self, start: int, stop: int) -> Rows:
        """Messages start..stop-1."""
        pieces: list[Piece] = []
        at = 0
        for piece in self.pieces:
            first, last = max(start - at, 0), min(stop - at, piece.rows) - 1
            if first <= last:
                pieces.append(part_of(piece, first, last))
            at += piece.rows
        return self._replace(pieces=pieces, stored=self.stored.slice(start, stop - start))

    def table(self) -> pa.Table:
        """The messages as RECEIVED."""
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
    """The messages of a non-empty plan.

    names: the stored columns to read, the others are null; None: all
    times: as in Rows
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

    partition_number: in the topic; partition: in the store
    redelivered: redelivery counts of the subscription by id, None for a reader
    names:       as in `rows_of`
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
    """The columns with the place and time at which the messages of pieces became visible.

    ends: the number of rows up to each piece; sent: the column publish_time
    """
    total = ends[-1]
    places = [place_of(piece) for piece in pieces]
    bases = [
        (common.entry if common.first_index is None else common.first_index) - end + piece.rows
        for common, piece, end in zip(places, pieces, ends, strict=True)
    ]
    if len(pieces) == 1:
        each: _Each = partial(_same, total)
        count = pa.arange(bases[0], bases[0] + total)
    else:
        each = partial(_each, total, repeat_runs(range(len(pieces)), ends, pa.int32()))
        count = pc.add(pa.arange(0, total), each(bases, pa.int64()))
    placed = {"ledger": each([common.ledger for common in places], pa.int64()), "entry": count}
    inner = [common.first_index is not None for common in places]
    if not any(inner):
        placed["index"] = constant(None, pa.int32(), total)
        return placed | {"visible_time": sent, "txn_state": constant(None, pa.string(), total)}
    entries = [common.entry if is_in else None for common, is_in in zip(places, inner, strict=True)]
    entry = each(entries, pa.int64())
    placed["entry"] = entry
    time = each([common.time_ms for common in places], INSTANT)
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
    """Numbers from `first` on; small ones are sliced from a shared array."""
    if first + total > FEW_ROWS:
        return pa.arange(first, first + total).cast(pa.int32())
    return _FEW_INDEXES.slice(first, total)


def _same(total: int, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The first value in each row: all pieces have the same."""
    return pa.repeat(pa.scalar(values[0], kind), total)


def _each(total: int, number: pa.Array, values: list[Any], kind: pa.DataType) -> pa.Array:
    """For each row the value of its piece; number: the piece of each row."""
    if values.count(values[0]) == len(values):
        return _same(total, values, kind)
    return pa.array(values, kind).take(number)


def _stored(view: View, pieces: list[Piece], names: Sequence[str] | None) -> pa.Table:
    """The stored rows of pieces; columns that the caller does not need are null."""
    columns: Sequence[str] = STORED if names is None else [name for name in STORED if name in names]
    columns = columns or STORED[3:4]  # one column is needed to count rows
    tables = view.rows(requests_of(pieces), columns)
    rows = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    return rows if len(columns) == len(STORED) else conform(rows, _STORED_SCHEMA)


def _counts(redelivered: dict[Id, int], pieces: list[Piece]) -> list[int]:
    """How often each message was redelivered."""
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
    """The position of the last entry of a partition; (ledger, -1, 0): the last ledger is empty."""
    last = view.topic(partition).ledgers[-1]
    return (last.ledger, last.entries - 1, 0)


# --- fetching by id -------------------------------------------------------------------------------


def taken_apart(view: View, partition: int, runs: Iterable[Run]) -> list[Run]:
    """The same messages, with the messages of a marker in place of its entry.

    Trimmed messages and rows that are not data are left out.
    """
    silent = view.watermark(partition).silent
    if silent:
        rows = IdSet(silent)
        runs = [part for run in runs for part in subtract(view, partition, run, rows)]
    out: list[Run] = []
    for run in runs:
        ledger, first, last, index_first, _ = run
        if is_trimmed(view, partition, ledger):
            continue
        if index_first:
            out.append(run)
            continue
        markers = view.buffer(partition).markers.get(ledger, [])
        for at in range(
            bisect_left(markers, first, key=lambda marker_: marker_.entry), len(markers)
        ):
            marker = markers[at]
            if marker.entry > last:
                break
            if marker.entry > first:
                out.append((ledger, first, marker.entry - 1, 0, 0))
            if marker.count:
                out.append((ledger, marker.entry, marker.entry, 1, marker.count))
            first = marker.entry + 1
        if first <= last:
            out.append((ledger, first, last, 0, 0))
    return out


def first_of(runs: Iterable[Run], limit: int) -> list[Run]:
    """The first messages of runs without whole markers, at most limit."""
    out: list[Run] = []
    for ledger, first, last, index_first, index_last in runs:
        if limit <= 0:
            break
        if index_first:
            index_last = min(index_last, index_first + limit - 1)
            limit -= index_last - index_first + 1
        else:
            last = min(last, first + limit - 1)
            limit -= last - first + 1
        out.append((ledger, first, last, index_first, index_last))
    return out


def fetch(
    view: View,
    topic: str,
    index: int,
    partition: int,
    runs: Iterable[Run],
    redelivered: dict[tuple[int, int, int], int] | None = None,
) -> pa.Table:
    """The messages of runs without whole markers as RECEIVED, in the order of the runs.

    index:       of the partition in its topic
    redelivered: counts of the subscription, None for a reader
    """
    pieces = pieces_of(view, partition, runs)
    return received(view, topic, index, partition, pieces, redelivered)


def pieces_of(view: View, partition: int, runs: Iterable[Run]) -> list[Piece]:
    """Runs without whole markers as pieces of a plan."""
    pieces: list[Piece] = []
    for ledger, first, last, index_first, index_last in runs:
        if index_first:
            marker = buffers.find_marker(view.buffer(partition), ledger, first)
            assert marker is not None
            rows = index_last - index_first + 1
            pieces.append(Piece(ledger, first, rows, index_first, marker))
        else:
            pieces.append(Piece(ledger, first, last - first + 1, 0, None))
    return pieces


def still_pending(view: View, partition: int, cursor: Cursor, runs: Iterable[Run]) -> list[Run]:
    """The part of the runs that is not acknowledged, trimmed, or held by a transaction."""
    out: list[Run] = []
    for run in runs:
        if is_trimmed(view, partition, run[0]):
            continue
        above = above_mark(view, partition, run, cursor.mark_delete)
        out += without(view, partition, without(view, partition, above, cursor.acked), cursor.held)
    return out


def without(view: View, partition: int, runs: Iterable[Run], ids: IdSet) -> list[Run]:
    """The part of the runs that is not in the set."""
    return [part for run in runs for part in subtract(view, partition, run, ids)]


def rows_in(view: View, partition: int, table: pa.Table, runs: Iterable[Run]) -> pa.Table:
    """The rows of RECEIVED whose ids are in runs without whole markers."""
    ids = IdSet()
    for run in runs:
        ids.add(run)
    columns = [table.column(name).to_pylist() for name in ("ledger", "entry", "index")]
    is_in = [
        not without(view, partition, [(ledger, entry, entry, index or 0, index or 0)], ids)
        for ledger, entry, index in zip(*columns, strict=True)
    ]
    return table if all(is_in) else table.filter(pa.array(is_in, pa.bool_()))
