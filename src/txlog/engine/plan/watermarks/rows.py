"""The rows of a partition that move its watermark, one by one, and the messages that came late.

    read_rows   watermark rows and markers as stored, to fold or to list
    Lateness    the greatest event time, and how many messages were older than the watermark that
                their own partition had just before them: a function of its rows up to a place

Messages are read as columns. A plan tells between which moves they are, so one value is compared
with a whole run of messages. None of it is stored. Source: spec/watermarks 2, 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.folds.watermark import START, Position, WatermarkState
from txlog.engine.model.ops import Effect, Mark, read_effects
from txlog.engine.model.schema import TXN_COMMIT, W_IDLE, W_SET
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.reading.dispatch import NO_MATTER, Piece, plan, requests_of
from txlog.engine.plan.watermarks.value import WatermarkGenerator, moves_between
from txlog.engine.view import Request, View

ROWS_AT_ONCE = 100_000
_COLUMNS = ("kind", "producer", "event_time", "publish_time", "lsn", "txn_most", "txn_least")


class StoredWatermark(NamedTuple):
    """A watermark row, or a marker; by: producer or timeout; effects: those in a marker; times in
    ms.
    """

    where: Position
    kind: int
    producer: str | None
    event_time: int | None
    time_ms: int
    lsn: int
    txn: tuple[int, int] | None  # the halves of its id
    by: str | None
    effects: list[Effect]

    def take(self, state: WatermarkState) -> None:
        """Fold it into the state before it."""
        if self.kind == W_SET:
            assert self.producer is not None and self.event_time is not None
            state.raise_to(self.producer, self.event_time, self.where, self.time_ms)
        elif self.kind == W_IDLE:
            assert self.producer is not None
            state.leave(self.producer)
        else:
            state.take_marker(self.effects, self.where, self.time_ms)


def read_rows(view: View, requests: Sequence[Request]) -> Iterator[StoredWatermark]:
    """The rows of some ledgers, in order; their values are read unless they are a message's."""
    if not requests:
        return
    places = [(ledger, row) for ledger, low, high in requests for row in range(low, high)]
    tables = view.rows(requests, _COLUMNS)
    columns = [[cell for table in tables for cell in _cells(table, name)] for name in _COLUMNS]
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
    """The event times of a partition's messages, up to a position.

    greatest: of the event times, None without one
    late:     messages that were older than the watermark just before them; one without an event
              time is never late
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
