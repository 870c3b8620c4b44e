"""The positions that a session's watermark is computed from, and its clamps.

A clamp is the greatest value handed out in an epoch: no later value may be lower.

    Subscribed   for a durable subscription: the position is the mark-delete, the clamps are stored
    HandedOut    for a reader: the position is the last message handed out, all state is in memory

Source: spec/watermarks 6, 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from txlog.clock import Instant
from txlog.engine.decide.consuming.watermark_offer import Pair, WatermarkOffer, clamp_of, emit
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.watermark import Position
from txlog.engine.model.idset import Id, before
from txlog.engine.model.ops import Mark, Run
from txlog.engine.plan.ack_sets import resting
from txlog.engine.plan.reading.watermarks import tracking_position
from txlog.engine.session.reading.message import Message
from txlog.engine.store.store import Store
from txlog.engine.view import View


class Ground(Protocol):
    """The interface that a WatermarkSession reads.

    moves: counts changes of the position that no frame records
    """

    moves: int

    def assigned(self, view: View) -> Sequence[Pair]:
        """The (subscription, partition) pairs that are assigned to the consumer now."""
        ...

    def epoch(self, view: View, pair: Pair) -> int:
        """The number of the epoch: each seek begins a new one."""
        ...

    def mark(self, view: View, pair: Pair) -> Mark:
        """A value that is cheap to compare: same mark and same rows give the same position."""
        ...

    def position(self, view: View, pair: Pair) -> Position:
        """The greatest position up to which all messages are acknowledged or handed out."""
        ...

    def clamp(self, view: View, pair: Pair) -> int | None:
        """The greatest value handed out in this epoch; None: none yet."""
        ...

    def emit(self, offered: WatermarkOffer) -> bool:
        """Record the value as handed out; False: its inputs have changed, so look again."""
        ...


class Subscribed:
    """One durable subscription, or the subscriptions of a consumer of several topics.

    find: returns the pairs that are assigned to the consumer now
    """

    __slots__ = ("_find", "_store", "moves")

    def __init__(self, store: Store, find: Callable[[View], Sequence[Pair]]) -> None:
        self._store = store
        self._find = find
        self.moves = 0

    def assigned(self, view: View) -> Sequence[Pair]:
        """As Ground."""
        return self._find(view)

    def epoch(self, view: View, pair: Pair) -> int:
        """As Ground: the epoch of the cursor."""
        return view.cursor(*pair).epoch

    def mark(self, view: View, pair: Pair) -> Mark:
        """As Ground: the mark-delete of the cursor."""
        return view.cursor(*pair).mark_delete

    def position(self, view: View, pair: Pair) -> Position:
        """As Ground."""
        return tracking_position(view, *pair)

    def clamp(self, view: View, pair: Pair) -> int | None:
        """As Ground."""
        return clamp_of(view.watermark(pair[1]).clamps, pair[0], view.cursor(*pair).epoch)

    def emit(self, offered: WatermarkOffer) -> bool:
        """As Ground: writes the clamp, which is durable on return, with all it depends on."""

        def decide(view: View, now: Instant) -> Decision[bool]:
            del now
            if [*self._find(view)] != [*offered.standings]:
                return Decision([], answer=False)
            return emit(view, offered)

        return bool(self._store.write(decide))


class HandedOut:
    """The messages that a reader has handed out, without those that it only read ahead.

    find: returns where the reader is now: (index of the partition, its number) -> mark
    """

    __slots__ = ("_ahead", "_clamps", "_epochs", "_find", "_gone", "_indexes", "_places", "moves")

    def __init__(self, find: Callable[[View], Mapping[tuple[int, int], Mark]]) -> None:
        self._find = find
        self._indexes: dict[int, int] = {}  # number of a partition -> its index
        self._places: dict[int, Mark] = {}  # number of a partition -> where the reader is
        self._ahead: dict[int, deque[Id]] = {}  # by index: read in order, not yet handed out
        self._gone: dict[int, set[Id]] = {}  # by index: ids in _ahead that were handed out early
        self._epochs: dict[int, int] = {}
        self._clamps: dict[int, int] = {}
        self.moves = 0

    def assigned(self, view: View) -> Sequence[Pair]:
        """As Ground; there is no subscription."""
        marks = self._find(view)
        self._indexes = {number: index for index, number in marks}
        self._places = {number: mark for (_, number), mark in marks.items()}
        return [(0, number) for number in self._indexes]

    def epoch(self, view: View, pair: Pair) -> int:
        """As Ground."""
        del view
        return self._epochs.get(self._indexes[pair[1]], 0)

    def mark(self, view: View, pair: Pair) -> Mark:
        """As Ground: before the first message it read ahead, else where the reader is."""
        del view
        first = self._first_ahead(pair[1])
        return self._places[pair[1]] if first is None else first

    def _first_ahead(self, number: int) -> Mark | None:
        first = self._next(self._indexes[number])
        return None if first is None else before(first)

    def _next(self, index: int) -> Id | None:
        """The first message that was read and not handed out."""
        ahead, passed = self._ahead.get(index), self._gone.get(index)
        if passed:
            while ahead and ahead[0] in passed:
                ahead.popleft()
            if not ahead:
                passed.clear()
        return ahead[0] if ahead else None

    def position(self, view: View, pair: Pair) -> Position:
        """As Ground."""
        mark = self._first_ahead(pair[1])
        if mark is None:
            mark = resting(view, pair[1], self._places[pair[1]])
        ledger, entry, inner = mark
        return (ledger, entry - 1) if inner else (ledger, entry)

    def clamp(self, view: View, pair: Pair) -> int | None:
        """As Ground."""
        del view
        return self._clamps.get(self._indexes[pair[1]])

    def emit(self, offered: WatermarkOffer) -> bool:
        """As Ground: only in memory."""
        for _, number in offered.standings:
            index = self._indexes[number]
            self._clamps[index] = max(self._clamps.get(index, 0), offered.event_time)
        return True

    # --- reports of the reader ----------------------------------------------------------------

    def moved(self) -> None:
        """Note that the reader moved, which no frame records."""
        self.moves += 1

    def sought(self, indexes: Iterable[int]) -> None:
        """Note a seek of the reader in these partitions: their clamps no longer apply."""
        moved = set(indexes)
        epochs = self._epochs | {index: self._epochs.get(index, 0) + 1 for index in moved}
        clamps = {index: value for index, value in self._clamps.items() if index not in moved}
        ahead = {index: ids for index, ids in self._ahead.items() if index not in moved}
        handed = {index: ids for index, ids in self._gone.items() if index not in moved}
        self.moves += 1
        self._epochs, self._clamps, self._ahead, self._gone = epochs, clamps, ahead, handed

    def read_ahead(self, messages: Iterable[Message]) -> None:
        """Note that the reader fetched messages after those before; none is handed out yet.

        It notes all messages or none: an interrupt may come at any step, and then the reader
        fetches them again.
        """
        more: dict[int, deque[Id]] = {}
        for message in messages:
            if (message_id := _id(message)) is not None:
                more.setdefault(message.partition, deque()).append(message_id)
        ahead = self._ahead | {
            index: self._ahead.get(index, deque()) + more[index] for index in more
        }
        self.moves += 1
        self._ahead = ahead

    def handed_out(self, message: Message) -> None:
        """Note that the application received a message.

        If the next message follows it directly, there is no watermark row between the two, and
        `moves` stays.
        """
        message_id, index = _id(message), message.partition
        if message_id is None:
            return
        ahead = self._ahead.get(index)
        if ahead and ahead[0] == message_id:
            ahead.popleft()
        elif ahead:
            self._gone.setdefault(index, set()).add(message_id)
        next_id = self._next(index)
        self.moves += next_id is None or not _follows(message_id, next_id)

    def taken_back(self, message: Message) -> None:
        """Take back a message that an interrupt kept from its caller, even after `handed_out`."""
        message_id, index = _id(message), message.partition
        if message_id is None:
            return
        ahead, handed = self._ahead.setdefault(index, deque()), self._gone.get(index, set())
        if message_id in handed:
            handed.discard(message_id)
        elif not ahead or ahead[0] != message_id:
            ahead.appendleft(message_id)
        self.moves += 1

    @property
    def is_ahead(self) -> bool:
        """True while a message was read and not handed out."""
        return any(self._ahead.values())

    def gone(self, index: int, run: Run) -> None:
        """Drop these messages from those read ahead: they were received, or never will be."""
        ledger, first, last, index_first, index_last = run
        ahead = self._ahead.get(index)
        if ahead and (ledger, last, index_last) >= ahead[0]:
            self._gone.setdefault(index, set()).update(
                message_id
                for message_id in ahead
                if message_id[0] == ledger
                and first <= message_id[1] <= last
                and index_first <= message_id[2] <= index_last
            )
        self.moves += 1


def _id(message: Message) -> Id | None:
    """The id of a message; None when it is not committed."""
    message_id = message.message_id
    return None if message_id is None else (message_id.ledger, message_id.entry, message_id.index)


def _follows(first: Id, second: Id) -> bool:
    """True when no row is between two messages, and no marker ends with the first."""
    ledger, entry, index = first
    return second[:2] == (ledger, entry if index else entry + 1)
