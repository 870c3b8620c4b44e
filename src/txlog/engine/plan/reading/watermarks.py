"""Watermarks: how far a partition is in event time.

To add up sales by the hour, you must know when an hour is complete. Messages arrive late and out of
order, so the arrival of a message from 10:03 says nothing about 9:59. Only producers know what they
are still going to send. A watermark is their word: "nothing older than T will come from me". The
watermark of a partition is the least such T of its active producers.

    a producer asserts T      a row W_SET in every partition of the topic, in one frame
    a producer goes away      a row W_IDLE: it holds nothing back any more

The rows are in the log, between the messages, and that is the whole point. A consumer is somewhere
in the log; the producers are ahead of it. For the consumer, only assertions *up to its own
position* count:

    position      1     2            3     4            5     6            7            8
    partition     m1    W(A,10:00)   m2    W(B,09:58)   m3    W(A,10:05)   W(B,10:04)   m4

    A said        –     10:00        10:00 10:00        10:00 10:05        10:05        10:05
    B said        –     –            –     09:58        09:58 09:58        10:04        10:04
    watermark     –     10:00        10:00 09:58        09:58 09:58        10:04        10:04
                                           ▲
                                           a subscription that has acknowledged m1 and m2 is here

Using the producers' newest word instead would be the obvious mistake. The newest is 10:04; m3 may
be from 10:01, and a window that ends at 10:03 would be closed before m3 has been read.

The position that counts is the greatest one up to which *everything* is acknowledged. A message
that is leased, or negatively acknowledged and waiting, holds the watermark back: it may be
processed late, but it must not find its window closed. An acknowledgement in a transaction that is
still open does not count either.

In a transaction the rows go to the sidecar like any message, and take effect at the commit marker,
all together, or never. Otherwise a watermark could overtake the messages that it was asserted
after.

The value at a position (`WatermarkGenerator`) is a function of the rows up to it. Reading them all
each time would cost the length of the log. So each ledger that is begun after the first assertion
opens with a snapshot of all producers:

    ledger 7: S  m  m  W  m  W  m  m      ledger 8: S  m  W  m  m  m  W  m
              │                                     │        ▲
              └─ trimmed one day                    └────────┘ from the snapshot to the position

A look starts at the nearest snapshot at or before the position, or at its last position if that is
nearer. It folds the few rows that move the watermark. Which rows those are is known from
the fold: messages are not read at all. Since each ledger has its snapshot, trimming the log needs
no care, and a seek in either direction costs no more than the way between two snapshots.

The rules, and the failure without each:

 1. A producer that has asserted once holds the watermark back until it is idle. Otherwise a
    producer that restarts would let the others run ahead, and its messages would all be late. If it
    dies without a word, the watermark stands still; that is why a policy can declare it idle after
    a silence (`engine/decide/sending/watermark`), by an ordinary row, so that all processes see the
    same.
 2. The greatest time of a producer wins. An assertion below its last one counts as fallen, and
    changes only the time of its last assertion.
 3. A partition with no active producer has no value. If it has never had one it is *unknown*, and
    holds back every consumer that reads it: perhaps the producers have not started yet. If every
    producer went idle it is *idle*, and the other partitions decide.
 4. A delivered value never falls. A new producer may lower the value at a position, but an
    application that has closed a window cannot open it again. So the value that a subscription
    received is kept as a clamp, in a frame that is durable before the application sees the value
    (`engine/decide/consuming/watermark_offer`). The clamp holds until a seek begins a new epoch: a
    seek means to count again.
 5. A consumer of several partitions has the least of their values. An unavailable partition cannot
    be read, so there is no value while it is away.

Because the value is never stored for a reader, it needs no upkeep and cannot go stale: the same
rows give the same value in every process, after every crash, and in a copy of the store.

A message is *late* if its event time is below the watermark that its own partition had just before
it (`Lateness`). That is not stored either; it is computed from columns when asked for.

Source: apache/pulsar#12267; spec/watermarks 2, 4 to 8, 10.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.folds.watermark import START, Position, Watermark, WatermarkState, read_snapshot
from txlog.engine.model.ops import Effect, Mark, read_effects
from txlog.engine.model.schema import TXN_COMMIT, W_IDLE, W_SET
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.ack_sets import advanced
from txlog.engine.plan.reading.dispatch import NO_MATTER, Piece, plan, requests_of
from txlog.engine.view import Request, View

# --- the rows that move it, and late messages -----------------------------------------------------

ROWS_AT_ONCE = 100_000
_MOVES = ("kind", "producer", "event_time", "publish_time", "lsn", "txn_most", "txn_least")


class StoredWatermark(NamedTuple):
    """A row that moves the watermark, or a commit marker with its effects; times in ms."""

    where: Position
    kind: int
    producer: str | None
    event_time: int | None
    time_ms: int
    lsn: int
    txn: tuple[int, int] | None  # the halves of its id
    by: str | None  # of W_IDLE: producer or timeout
    effects: list[Effect]

    def take(self, state: WatermarkState) -> None:
        """Apply the row to the state, which changes in place."""
        if self.kind == W_SET:
            assert self.producer is not None and self.event_time is not None
            state.raise_to(self.producer, self.event_time, self.where, self.time_ms)
        elif self.kind == W_IDLE:
            assert self.producer is not None
            state.leave(self.producer)
        else:
            state.take_marker(self.effects, self.where, self.time_ms)


def read_rows(view: View, requests: Sequence[Request]) -> Iterator[StoredWatermark]:
    """The rows of some ledgers, in order; values are read of markers and W_IDLE rows only."""
    if not requests:
        return
    places = [(ledger, row) for ledger, low, high in requests for row in range(low, high)]
    tables = view.rows(requests, _MOVES)
    columns = [[cell for table in tables for cell in _cells(table, name)] for name in _MOVES]
    with_value = [
        position
        for position, kind in zip(places, columns[0], strict=True)
        if kind in (TXN_COMMIT, W_IDLE)
    ]
    requests_of_values = [(ledger, row, row + 1) for ledger, row in with_value]
    cells = [
        cell
        for table in view.rows(requests_of_values, ("value",))
        for cell in table.column("value").to_pylist()
    ]
    values: dict[Position, bytes | None] = dict(zip(with_value, cells, strict=True))
    for where, kind, producer, event_time, time_ms, lsn, most, least in zip(
        places, *columns, strict=True
    ):
        value = values.get(where)
        yield StoredWatermark(
            where,
            kind,
            producer,
            event_time,
            time_ms,
            lsn,
            None if most is None else (most, least),
            value.decode() if kind == W_IDLE and value is not None else None,
            read_effects(value) if kind == TXN_COMMIT and value is not None else [],
        )


def _cells(table: pa.Table, name: str) -> list[object]:
    column = table.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast("int64")
    return list(column.to_pylist())


class Lateness:
    """How many messages of a partition were late, up to a position, found step by step.

    greatest: the greatest event time in ms; None: no message had one
    late:     messages with an event time below the watermark just before them
    """

    __slots__ = ("_after", "_folded", "_last", "_state", "greatest", "late", "partition")

    def __init__(self, partition: int, last: Position) -> None:
        self.partition = partition
        self.greatest: int | None = None
        self.late = 0
        self._last = last
        self._after: Mark = (*START, 0)
        self._folded: Position = START  # the state has the rows of moves up to here
        self._state = WatermarkState()

    def step(self, view: View) -> bool:
        """Look at the next messages; returns whether there may be more.

        It may be repeated after a failure: it changes nothing before everything is read.
        cost: reads the event times of at most ROWS_AT_ONCE messages, and the moves between them
        """
        number, stop = self.partition, (self._last[0], self._last[1] + 1, 0)
        planned = plan(view, number, self._after, ROWS_AT_ONCE, (), stop, NO_MATTER)
        if not planned.pieces:
            return False
        values, state, folded = self._values(view, planned.pieces)
        tables = view.rows(requests_of(planned.pieces), ("event_time",))
        times = pa.concat_tables(tables).column("event_time").cast(pa.int64())
        greatest = pc.max(times).as_py()
        if greatest is not None and (self.greatest is None or greatest > self.greatest):
            self.greatest = greatest
        self.late += _older(times, planned.pieces, values)
        self._after, self._state, self._folded = planned.after, state, folded
        return True

    def _values(
        self, view: View, pieces: list[Piece]
    ) -> tuple[list[int | None], WatermarkState, Position]:
        """The watermark just before each piece; the assertions of a marker take effect after it."""
        first = view.topic(self.partition).ledgers[0].ledger
        folded = self._folded
        if folded[0] < first:  # at the beginning, or that much was trimmed meanwhile
            generator = WatermarkGenerator(self.partition)
            folded = (first, -1)
            generator.seek(view, folded)
            state = generator.state.copy()
        else:
            state = self._state.copy()
        last = (pieces[-1].ledger, pieces[-1].entry - 1)
        watermark = view.watermark(self.partition)
        moves = read_rows(view, [*moves_between(watermark, folded, last)])
        move, value = next(moves, None), state.value
        values: list[int | None] = []
        for piece in pieces:
            changed = False
            while move is not None and move.where < (piece.ledger, piece.entry):
                move.take(state)
                folded, move, changed = move.where, next(moves, None), True
            value = state.value if changed else value
            values.append(value)
        return values, state, folded


def _older(times: pa.ChunkedArray, pieces: list[Piece], values: list[int | None]) -> int:
    """How many of the event times are below the value of their piece."""
    if not any(value is not None for value in values):
        return 0
    ends, total = [], 0
    for piece in pieces:
        total += piece.rows
        ends.append(total)
    older = pc.less(times, repeat_runs(values, ends, pa.int64()))
    return int(pc.sum(older).as_py() or 0)


# --- its value at a position ----------------------------------------------------------------------

_COLUMNS = ("kind", "producer", "event_time", "value", "publish_time")


def tracking_position(view: View, subscription: int, partition: int) -> Position:
    """The greatest position such that all messages up to it are DELETED on the subscription."""
    cursor = view.cursor(subscription, partition)
    ledger, entry, index = advanced(view, subscription, partition, cursor.mark_delete)
    return (ledger, entry - 1) if index else (ledger, entry)


class WatermarkGenerator:
    """The value at a position of a partition, for one subscription in this process; never stored.

    rows_folded: how many rows it has read so far
    """

    __slots__ = ("_state", "partition", "position", "rows_folded")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.position: Position = START
        self.rows_folded = 0
        self._state = WatermarkState()

    @property
    def status(self) -> str:
        """The status at this position: unknown, active or idle."""
        return self._state.status

    @property
    def state(self) -> WatermarkState:
        """The producers at this position."""
        return self._state

    def get_watermark(self) -> int | None:
        """The least time of an active producer at this position, in ms; None without one."""
        return self._state.value

    def seek(self, view: View, position: Position) -> None:
        """Move to a position; values passed on the way do not count."""
        self._state = self._at(view, view.watermark(self.partition), position)
        self.position = position

    def _at(self, view: View, watermark: Watermark, position: Position) -> WatermarkState:
        if not watermark.state.seen:
            return WatermarkState()
        if not any(moves_between(watermark, position, None)):
            # no later row changes the value, so it is the value at the end
            return watermark.state.copy()
        nearest = next(_snapshots(watermark, position), START)
        if nearest <= self.position <= position and self.position != START:
            start, state = self.position, self._state  # forwards, and nearer than any snapshot
        else:
            start, state = self._read_last(view, _snapshots(watermark, position))
            same = self._read_next(view, watermark, position) if start == START else None
            if same is not None:
                return same.copy()
        state = state.copy()
        self._fold(view, state, [*moves_between(watermark, start, position)])
        return state

    def _read_last(
        self, view: View, snapshots: Iterator[Position]
    ) -> tuple[Position, WatermarkState]:
        """The first snapshot that can be read, and its state."""
        for ledger, last in snapshots:
            (table,) = view.rows([(ledger, last + 1, last + 2)], ["value"])
            self._count(view, 1)
            snapshot = read_snapshot(table.column(0)[0].as_py())
            if snapshot is not None:
                return (ledger, last), snapshot.state
        return START, WatermarkState()

    def _read_next(
        self, view: View, watermark: Watermark, position: Position
    ) -> WatermarkState | None:
        """The state of the next snapshot if nothing moves up to it; None: there is none.

        An adopted ledger has no snapshot, and none of its rows moves the value. If the ledgers
        before it were trimmed, it has the state of the next snapshot.
        """
        next_snapshot = _next_snapshot(watermark, position)
        if next_snapshot is None or any(moves_between(watermark, position, next_snapshot)):
            return None
        at, state = self._read_last(view, iter([next_snapshot]))
        return None if at == START else state

    def _count(self, view: View, rows: int) -> None:
        self.rows_folded += rows
        view.files.tally.rows_folded[self.partition] += rows

    def _fold(self, view: View, state: WatermarkState, requests: list[Request]) -> None:
        """Fold rows of `moves`, in order."""
        if not requests:
            return
        places = [(ledger, row) for ledger, low, high in requests for row in range(low, high)]
        self._count(view, len(places))
        rows: Iterator[tuple[int, str, int, bytes, int]] = (
            row
            for table in view.rows(requests, _COLUMNS)
            for row in zip(
                table.column("kind").to_pylist(),
                table.column("producer").to_pylist(),
                table.column("event_time").cast("int64").to_pylist(),
                table.column("value").to_pylist(),
                table.column("publish_time").cast("int64").to_pylist(),
                strict=True,
            )
        )
        for where, (kind, producer, event_time, value, time_ms) in zip(places, rows, strict=True):
            if kind == W_SET:
                state.raise_to(producer, event_time, where, time_ms)
            elif kind == W_IDLE:
                state.leave(producer)
            else:
                assert kind == TXN_COMMIT
                state.take_marker(read_effects(value), where, time_ms)


def _snapshots(watermark: Watermark, position: Position) -> Iterator[Position]:
    """The positions of the snapshots usable for a position: each just before its row, the last
    first.

    The row itself may be the next one after the position.
    """
    for ledger in sorted(watermark.snapshots, reverse=True):
        if ledger <= position[0]:
            rows = watermark.snapshots[ledger]
            most = rows.rank(position[1] + 1) if ledger == position[0] else len(rows)
            for at in range(most - 1, -1, -1):
                yield (ledger, rows[at] - 1)


def _next_snapshot(watermark: Watermark, position: Position) -> Position | None:
    """The position of the first snapshot in a later ledger than a position."""
    for ledger in sorted(watermark.snapshots):
        if ledger > position[0]:
            return (ledger, watermark.snapshots[ledger][0] - 1)
    return None


def moves_between(
    watermark: Watermark, start: Position, last: Position | None
) -> Iterator[Request]:
    """The rows of `moves` after a position, up to and including another, as runs."""
    ledgers = sorted(watermark.moves)
    for ledger in ledgers[bisect_right(ledgers, start[0] - 1) :]:
        if last is not None and ledger > last[0]:
            return
        entries = watermark.moves[ledger]
        low = entries.rank(start[1]) if ledger == start[0] and start[1] >= 0 else 0
        high = len(entries)
        if last is not None and ledger == last[0]:
            high = entries.rank(last[1]) if last[1] >= 0 else 0
        for at in range(low, high):
            yield ledger, entries[at], entries[at] + 1
