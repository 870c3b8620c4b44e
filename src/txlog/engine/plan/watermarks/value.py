"""The watermark at a position: where a subscription is, and the assertions of producers up to
there.

    tracking_position   the greatest position up to which everything is acknowledged, or no data
    WatermarkGenerator  the state at a position, sought forwards and backwards; it reads only rows
                        that can change it, and never more than lie between two snapshots

Source: apache/pulsar#12267 "watermark generator"; spec/watermarks 6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from txlog.engine.folds.watermark import START, Position, Watermark, WatermarkState, read_snapshot
from txlog.engine.model.ops import read_effects
from txlog.engine.model.schema import TXN_COMMIT, W_IDLE, W_SET
from txlog.engine.plan.ack_sets import advanced
from txlog.engine.view import Request, View

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
        """unknown, active or idle."""
        return self._state.status

    @property
    def state(self) -> WatermarkState:
        """The producers at this position."""
        return self._state

    def get_watermark(self) -> int | None:
        """The least time of an active producer at this position, None without one."""
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
        """The first of these snapshots that can be read, and its state."""
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
        before it were trimmed, its state is that of the next snapshot.
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
