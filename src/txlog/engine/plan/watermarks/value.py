"""The watermark at a position: where a subscription is, and what producers had asserted there.

    tracking_position   the greatest position up to which everything is acknowledged, or no data
    WatermarkGenerator  the state at a position, sought forwards and backwards; it reads only rows
                        that can change it, and never more than lie between two snapshots

Source: apache/pulsar#12267 "watermark generator"; spec/watermarks 6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from txlog.engine.folds.watermark import START, Position, State, Watermark, read_snapshot
from txlog.engine.model.ops import read_effects
from txlog.engine.model.schema import TXN_COMMIT, W_IDLE, W_SET
from txlog.engine.plan.ack_sets import advanced
from txlog.engine.view.files import Request
from txlog.engine.view.view import View

_COLUMNS = ("kind", "producer", "event_time", "value", "publish_time")


def tracking_position(view: View, subscription: int, partition: int) -> Position:
    """The greatest position such that all messages up to it are DELETED on the subscription."""
    cursor = view.cursor(subscription, partition)
    ledger, entry, index = advanced(view, subscription, partition, cursor.mark_delete)
    return (ledger, entry - 1) if index else (ledger, entry)


class WatermarkGenerator:
    """The value at a position of a partition, for one subscription in this process; never stored.

    rows_folded: rows that were read for it so far
    """

    __slots__ = ("_state", "partition", "position", "rows_folded")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.position: Position = START
        self.rows_folded = 0
        self._state = State()

    @property
    def status(self) -> str:
        """unknown, active or idle."""
        return self._state.status

    @property
    def state(self) -> State:
        """The producers at this position."""
        return self._state

    def get_watermark(self) -> int | None:
        """The least time of an active producer at this position, None without one."""
        return self._state.value

    def seek(self, view: View, position: Position) -> None:
        """Move to a position; values passed on the way do not count."""
        self._state = self._at(view, view.watermark(self.partition), position)
        self.position = position

    def _at(self, view: View, known: Watermark, position: Position) -> State:
        if not known.state.seen:
            return State()
        if not any(moves_between(known, position, None)):
            return known.state.copy()  # nothing after it changes anything: as at the end
        nearest = next(_snapshots(known, position), START)
        if nearest <= self.position <= position and self.position != START:
            start, state = self.position, self._state  # forwards, and nearer than any snapshot
        else:
            start, state = self._read_last(view, _snapshots(known, position))
            same = self._read_next(view, known, position) if start == START else None
            if same is not None:
                return same.copy()
        state = state.copy()
        self._fold(view, state, [*moves_between(known, start, position)])
        return state

    def _read_last(self, view: View, before: Iterator[Position]) -> tuple[Position, State]:
        """The first of these snapshots that can be read, and its state."""
        for ledger, last in before:
            (table,) = view.rows([(ledger, last + 1, last + 2)], ["value"])
            self._count(view, 1)
            found = read_snapshot(table.column(0)[0].as_py())
            if found is not None:
                return (ledger, last), found.state
        return START, State()

    def _read_next(self, view: View, known: Watermark, position: Position) -> State | None:
        """The state of the next snapshot if nothing moves up to it; None: there is none.

        An adopted ledger begins with none, and nothing in it moves: if those before it were
        trimmed, the state at any of its rows is that after it.
        """
        after = _next_snapshot(known, position)
        if after is None or any(moves_between(known, position, after)):
            return None
        at, state = self._read_last(view, iter([after]))
        return None if at == START else state

    def _count(self, view: View, rows: int) -> None:
        self.rows_folded += rows
        view.files.tally.rows_folded[self.partition] += rows

    def _fold(self, view: View, state: State, requests: list[Request]) -> None:
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


def _snapshots(known: Watermark, position: Position) -> Iterator[Position]:
    """What the snapshots that serve a position are as of: the place before their rows; last first.

    The row itself may be the next one after the position.
    """
    for ledger in sorted(known.snapshots, reverse=True):
        if ledger <= position[0]:
            rows = known.snapshots[ledger]
            most = rows.rank(position[1] + 1) if ledger == position[0] else len(rows)
            for at in range(most - 1, -1, -1):
                yield (ledger, rows[at] - 1)


def _next_snapshot(known: Watermark, position: Position) -> Position | None:
    """What the first snapshot in a ledger after a position is as of."""
    for ledger in sorted(known.snapshots):
        if ledger > position[0]:
            return (ledger, known.snapshots[ledger][0] - 1)
    return None


def moves_between(known: Watermark, after: Position, last: Position | None) -> Iterator[Request]:
    """The rows of `moves` after a position, up to and including another, as runs."""
    ledgers = sorted(known.moves)
    for ledger in ledgers[bisect_right(ledgers, after[0] - 1) :]:
        if last is not None and ledger > last[0]:
            return
        entries = known.moves[ledger]
        low = entries.rank(after[1]) if ledger == after[0] and after[1] >= 0 else 0
        high = len(entries)
        if last is not None and ledger == last[0]:
            high = entries.rank(last[1]) if last[1] >= 0 else 0
        for at in range(low, high):
            yield ledger, entries[at], entries[at] + 1
