"""What a session's watermark rests on: how far its subscription is, and what binds it.

    Subscribed   a durable subscription: everything acknowledged; its clamps are stored
    HandedOut    a reader: everything handed out; its clamps are in memory, like all its state

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
    """What a session needs to know.

    moves: counts changes that no frame records
    """

    moves: int

    def assigned(self, view: View) -> Sequence[Pair]:
        """The (subscription, partition) pairs that it has now."""
        ...

    def epoch(self, view: View, pair: Pair) -> int:
        """How often it was moved by seek there."""
        ...

    def mark(self, view: View, pair: Pair) -> Mark:
        """What its position rests on; with the same mark and the same rows it is the same."""
        ...

    def position(self, view: View, pair: Pair) -> Position:
        """The greatest position up to which nothing is left to be done."""
        ...

    def clamp(self, view: View, pair: Pair) -> int | None:
        """The greatest value that was handed out in this epoch."""
        ...

    def emit(self, offered: WatermarkOffer) -> bool:
        """Make a value binding; False: what it rests on has changed."""
        ...


class Subscribed:
    """One durable subscription, or the several of a consumer of several topics.

    find: the pairs that the consumer has now
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
        """As Ground: that of the cursor."""
        return view.cursor(*pair).epoch

    def mark(self, view: View, pair: Pair) -> Mark:
        """As Ground: mark-delete."""
        return view.cursor(*pair).mark_delete

    def position(self, view: View, pair: Pair) -> Position:
        """As Ground."""
        return tracking_position(view, *pair)

    def clamp(self, view: View, pair: Pair) -> int | None:
        """As Ground."""
        return clamp_of(view.watermark(pair[1]).clamps, pair[0], view.cursor(*pair).epoch)

    def emit(self, offered: WatermarkOffer) -> bool:
        """As Ground: durable, and whatever it rests on."""

        def decide(view: View, now: Instant) -> Decision[bool]:
            del now
            if [*self._find(view)] != [*offered.standings]:
                return Decision([], answer=False)
            return emit(view, offered)

        return bool(self._store.write(decide))


class HandedOut:
    """What a reader delivered. What it read ahead counts once it is received.

    find: where it is now: (index of the partition, its number) -> mark
    """

    __slots__ = ("_ahead", "_clamps", "_epochs", "_find", "_gone", "_indexes", "_places", "moves")

    def __init__(self, find: Callable[[View], Mapping[tuple[int, int], Mark]]) -> None:
        self._find = find
        self._indexes: dict[int, int] = {}  # of a partition, by number
        self._places: dict[int, Mark] = {}  # the same
        self._ahead: dict[int, deque[Id]] = {}  # read, in order, and not handed out; by index
        self._gone: dict[int, set[Id]] = {}  # of these, what was delivered before those below it
        self._epochs: dict[int, int] = {}
        self._clamps: dict[int, int] = {}
        self.moves = 0

    def assigned(self, view: View) -> Sequence[Pair]:
        """As Ground; there is no subscription."""
        found = self._find(view)
        self._indexes = {number: index for index, number in found}
        self._places = {number: mark for (_, number), mark in found.items()}
        return [(0, number) for number in self._indexes]

    def epoch(self, view: View, pair: Pair) -> int:
        """As Ground."""
        del view
        return self._epochs.get(self._indexes[pair[1]], 0)

    def mark(self, view: View, pair: Pair) -> Mark:
        """As Ground: before what it read ahead, else where it is."""
        del view
        first = self._first_ahead(pair[1])
        return self._places[pair[1]] if first is None else first

    def _first_ahead(self, number: int) -> Mark | None:
        first = self._next(self._indexes[number])
        return None if first is None else before(first)

    def _next(self, index: int) -> Id | None:
        """The first message that was read ahead."""
        ahead, gone = self._ahead.get(index), self._gone.get(index)
        if gone:
            while ahead and ahead[0] in gone:
                ahead.popleft()
            if not ahead:
                gone.clear()
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
        """As Ground: nothing is written."""
        for _, number in offered.standings:
            index = self._indexes[number]
            self._clamps[index] = max(self._clamps.get(index, 0), offered.event_time)
        return True

    # --- what the reader reports --------------------------------------------------------------

    def moved(self) -> None:
        """Its place changed."""
        self.moves += 1

    def sought(self, indexes: Iterable[int]) -> None:
        """It was moved in these partitions: no earlier value binds there."""
        gone = set(indexes)
        epochs = self._epochs | {index: self._epochs.get(index, 0) + 1 for index in gone}
        clamps = {index: value for index, value in self._clamps.items() if index not in gone}
        ahead = {index: ids for index, ids in self._ahead.items() if index not in gone}
        handed = {index: ids for index, ids in self._gone.items() if index not in gone}
        self.moves += 1
        self._epochs, self._clamps, self._ahead, self._gone = epochs, clamps, ahead, handed

    def read_ahead(self, messages: Iterable[Message]) -> None:
        """Messages were read that nobody has received yet; they are after those read before.

        All or none: an interrupt may come in the middle, and then they are read again.
        """
        more: dict[int, deque[Id]] = {}
        for message in messages:
            if (one := _id(message)) is not None:
                more.setdefault(message.partition, deque()).append(one)
        ahead = self._ahead | {
            index: self._ahead.get(index, deque()) + more[index] for index in more
        }
        self.moves += 1
        self._ahead = ahead

    def handed_out(self, message: Message) -> None:
        """A message was received; if the next one follows it directly, no watermark was passed."""
        one, index = _id(message), message.partition
        if one is None:
            return
        ahead = self._ahead.get(index)
        if ahead and ahead[0] == one:
            ahead.popleft()
        elif ahead:
            self._gone.setdefault(index, set()).add(one)
        then = self._next(index)
        self.moves += then is None or not _follows(one, then)

    def taken_back(self, message: Message) -> None:
        """A message that may have been reported as received did not arrive: it is next again."""
        one, index = _id(message), message.partition
        if one is None:
            return
        ahead, handed = self._ahead.setdefault(index, deque()), self._gone.get(index, set())
        if one in handed:
            handed.discard(one)
        elif not ahead or ahead[0] != one:
            ahead.appendleft(one)
        self.moves += 1

    @property
    def is_ahead(self) -> bool:
        """True while there is something that was read and not handed out."""
        return any(self._ahead.values())

    def gone(self, index: int, run: Run) -> None:
        """Stop waiting for these messages: they were received, or never will be."""
        ledger, first, last, index_first, index_last = run
        ahead = self._ahead.get(index)
        if ahead and (ledger, last, index_last) >= ahead[0]:
            self._gone.setdefault(index, set()).update(
                one
                for one in ahead
                if one[0] == ledger
                and first <= one[1] <= last
                and index_first <= one[2] <= index_last
            )
        self.moves += 1


def _id(message: Message) -> Id | None:
    """The id of a message; None when it is not committed."""
    one = message.message_id
    return None if one is None else (one.ledger, one.entry, one.index)


def _follows(one: Id, then: Id) -> bool:
    """True when no row lies between two messages, and passing the first one ends no marker."""
    ledger, entry, index = one
    return then[:2] == (ledger, entry if index else entry + 1)
