"""Owns Leases: which messages of a cursor each consumer has in hand, and which wait to come back.

    deliverable ──Leased──> in a hand ──acknowledged──> gone from here
         ▲                      │
         └──Returned────────────┴──Returned with an instant──> waiting ──due──> deliverable

What is in a hand may have been taken ahead: no application has seen it. Of the last batch that each
consumer took so, only the consumer knows how far its application came (Seen); of those before it,
and of what was leased any other way, the application has got everything.

It is part of the cursor fold's state. Messages of a marker are kept one by one, never as its entry,
since any of them may be acknowledged alone. Source: spec/transactions 9.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from txlog.clock import Instant
from txlog.engine.model.idset import Id, IdSet, covers, each
from txlog.engine.model.ops import Due, Mark, Run

Ids = tuple[dict[int, bytes], list[tuple[int, int, bytes]]]


class DumpedLease(msgspec.Struct, array_like=True):
    """A lease in a dump: ids, those of each hand-out with the instant it runs out, and what was
    taken ahead."""

    consumer: int
    ids: Ids
    handouts: list[tuple[Due, Ids]] = []
    ahead: int = 0
    batch: list[Run] = []
    again: list[Run] = []


class Seen(NamedTuple):
    """How far an application has come in what its consumer took ahead.

    batch:  the number of the batch (Leased.ahead) it is in; it has seen those before
    last:   the message of it that was handed out last
    due_ms: when its ack time-out ends, on the clock since boot; 0: it has none
    """

    batch: int = 0
    last: Id = (0, -1, 0)
    due_ms: int = 0


NOTHING_SEEN = Seen()


class Lease:
    """What one consumer has in hand.

    handouts: with an ack time-out, which run out when
    ahead:    the number of the last batch that it took ahead, 0 for none; batch: what was in it,
              in the order in which it is handed out, whatever has become of it since
    again:    of that, what was in this hand before: Exclusive and Failover began again below it
    """

    __slots__ = ("again", "ahead", "batch", "handouts", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        self.handouts: list[tuple[Due, IdSet]] = []
        self.ahead = 0
        self.batch: Sequence[Run] = ()
        self.again: Sequence[Run] = ()

    def add(self, runs: Sequence[Run], due: Due | None, ahead: int = 0) -> None:
        """Add messages to the hand; what it held already runs out with these."""
        self.ahead, self.batch, self.again = 0, (), ()
        if ahead:
            self.ahead, self.batch, self.again = ahead, runs, self._kept(runs)
        if self.handouts:
            for run in runs:
                self._forget(run)
        for run in runs:
            self.ids.add(run)
        if due is not None:
            made = IdSet()
            for run in runs:
                made.add(run)
            self.handouts.append((due, made))

    def discard(self, run: Run) -> None:
        """Let a run go."""
        self.ids.discard(run)
        if self.handouts:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        for _, ids in self.handouts:
            ids.discard(run)
        self.handouts = [one for one in self.handouts if one[1]]

    def drop_through(self, mark: Mark) -> None:
        """Let everything at or below a mark go."""
        self.ids.drop_through(mark)
        if self.handouts:
            for _, ids in self.handouts:
                ids.drop_through(mark)
            self.handouts = [one for one in self.handouts if one[1]]

    def count(self) -> int:
        """Messages in this hand."""
        return sum(self.ids.count())

    def apart(self, seen: Seen) -> tuple[list[Run], list[Run]]:
        """(what the application got, what it never got) of the last batch, where still in hand."""
        if not self.ahead or seen.batch > self.ahead:
            return self._kept(self.batch), []
        got: list[Run] = []
        rest = list(self.batch)
        if seen.batch == self.ahead:
            got, rest = _cut(self.batch, seen.last)
        return self._kept([*got, *self.again]), self.never(self._kept(rest))

    def never(self, runs: list[Run]) -> list[Run]:
        """Of runs that are ahead, what the application did not get earlier either."""
        if not self.again:
            return runs
        left = IdSet()
        for run in runs:
            left.add(run)
        for run in self.again:
            left.discard(run)
        return left.runs()

    def _kept(self, runs: Iterable[Run]) -> list[Run]:
        return [part for run in runs for part in self.ids.common(run)]


class Leases:
    """Leases, and nacked messages with the instant from which they may come again.

    by_consumer: the leases, by the consumer that holds them
    leased: their union; waiting_ids: the keys of `waiting`
    """

    __slots__ = ("by_consumer", "leased", "waiting", "waiting_ids")

    def __init__(self) -> None:
        self.by_consumer: dict[int, Lease] = {}
        self.leased = IdSet()
        self.waiting: dict[Id, Due] = {}
        self.waiting_ids = IdSet()

    def lease(self, consumer: int, runs: Sequence[Run], due: Due | None, ahead: int = 0) -> None:
        """Lease messages to a consumer."""
        lease = self.by_consumer.get(consumer)
        if lease is None:
            lease = self.by_consumer[consumer] = Lease()
        lease.add(runs, due, ahead)
        for run in runs:
            self.leased.add(run)
            if self.waiting:
                self._wait_no_more(run)

    def settle(self, run: Run) -> None:
        """Acknowledged: no longer leased, and not waiting."""
        for lease in self.by_consumer.values():
            lease.discard(run)
        self.leased.discard(run)
        if self.waiting:
            self._wait_no_more(run)

    def drop_through(self, mark: Mark) -> None:
        """Acknowledged or trimmed up to a mark."""
        for lease in self.by_consumer.values():
            lease.drop_through(mark)
        self.leased.drop_through(mark)
        if self.waiting:
            for one in [one for one in self.waiting if covers(mark, one)]:
                del self.waiting[one]
            self.waiting_ids.drop_through(mark)

    def release(self, consumer: int, runs: Sequence[Run]) -> None:
        """Take messages back from one consumer; 0: from any that has them."""
        for number, lease in self.by_consumer.items():
            if consumer in (0, number):
                for run in runs:
                    lease.discard(run)
        for run in runs:
            self.leased.discard(run)

    def wait(self, ids: Iterable[Id], due: Due) -> None:
        """Let messages that came back wait."""
        for one in ids:
            self.waiting[one] = due
            self.waiting_ids.add((one[0], one[1], one[1], one[2], one[2]))

    def _wait_no_more(self, run: Run) -> None:
        if self.waiting_ids.first_common(run) is None:
            return
        for part in self.waiting_ids.common(run):
            for one in each(part):
                del self.waiting[one]
        self.waiting_ids.discard(run)

    def apart(self, consumer: int, seen: Seen) -> tuple[list[Run], list[Run]]:
        """Lease.apart of a consumer."""
        lease = self.by_consumer.get(consumer)
        return ([], []) if lease is None else lease.apart(seen)

    def in_hand(self, consumer: int) -> int:
        """How many messages a consumer has in hand."""
        lease = self.by_consumer.get(consumer)
        return 0 if lease is None else lease.count()

    def others(self, consumer: int) -> list[int]:
        """Other consumers that have something in hand."""
        return [
            number for number, lease in self.by_consumer.items() if number != consumer and lease.ids
        ]

    def not_due(self, now: Instant) -> tuple[IdSet, Id | None]:
        """(messages that still wait, the lowest that no longer waits)."""
        if not self.waiting:
            return self.waiting_ids, None
        due = [one for one, at in self.waiting.items() if is_due(at, now)]
        if not due:
            return self.waiting_ids, None
        left = IdSet()
        for one, at in self.waiting.items():
            if not is_due(at, now):
                left.add((one[0], one[1], one[1], one[2], one[2]))
        return left, min(due)

    def overdue(self, now: Instant) -> list[tuple[int, list[Run]]]:
        """(consumer, runs) of the deliveries that have run out."""
        return [
            (number, ids.runs())
            for number, lease in self.by_consumer.items()
            for at, ids in lease.handouts
            if is_due(at, now)
        ]

    def next_due_ms(self, now: Instant) -> int | None:
        """When the next delivery runs out or message may come again; on the clock since boot."""
        handouts = (at for lease in self.by_consumer.values() for at, _ in lease.handouts)
        return min((_boot_ms(at, now) for at in (*handouts, *self.waiting.values())), default=None)

    def dump(self) -> tuple[list[DumpedLease], list[tuple[Id, Due]]]:
        """Plain values, for msgpack."""
        leases = [
            DumpedLease(
                number,
                lease.ids.dump(),
                [(at, ids.dump()) for at, ids in lease.handouts],
                lease.ahead,
                list(lease.batch),
                list(lease.again),
            )
            for number, lease in sorted(self.by_consumer.items())
            if lease.ids
        ]
        return leases, sorted(self.waiting.items())

    @classmethod
    def load(cls, leases: Iterable[DumpedLease], waiting: Iterable[tuple[Id, Due]]) -> Leases:
        """The inverse of dump."""
        made = cls()
        for dumped in leases:
            lease = made.by_consumer[dumped.consumer] = Lease()
            lease.ids = IdSet.load(*dumped.ids)
            lease.handouts = [(at, IdSet.load(*ids)) for at, ids in dumped.handouts]
            lease.ahead, lease.batch, lease.again = dumped.ahead, dumped.batch, dumped.again
            for run in lease.ids.runs():
                made.leased.add(run)
        for one, at in waiting:
            made.wait([one], at)
        return made


def _cut(runs: Sequence[Run], last: Id) -> tuple[list[Run], list[Run]]:
    """Runs up to and including a message, and those after it; all are after a missing one."""
    ledger, entry, index = last
    for at, run in enumerate(runs):
        number, low, high, first, final = run
        if number != ledger or not low <= entry <= high:
            continue
        if index and first <= index <= final:
            got: Run = (ledger, entry, entry, first, index)
            rest: Run = (ledger, entry, entry, index + 1, final)
            is_whole = index == final
        elif not index and not first:
            got, rest = (ledger, low, entry, 0, 0), (ledger, entry + 1, high, 0, 0)
            is_whole = entry == high
        else:
            continue
        return [*runs[:at], got], [*([] if is_whole else [rest]), *runs[at + 1 :]]
    return [], list(runs)


def is_due(at: Due, now: Instant) -> bool:
    """True when an instant has come: by the clock since boot while the boot is the same."""
    wall_ms, boot_id, boot_ms = at
    if boot_id and boot_id == now.boot_id:
        return now.boot_ms >= boot_ms
    return now.wall_ms >= wall_ms


def _boot_ms(at: Due, now: Instant) -> int:
    """An instant on this boot's clock."""
    wall_ms, boot_id, boot_ms = at
    return boot_ms if boot_id == now.boot_id else now.boot_ms + wall_ms - now.wall_ms


def due_in(now: Instant, ms: int) -> Due:
    """The instant this many milliseconds from now."""
    return (now.wall_ms + ms, now.boot_id, now.boot_ms + ms)
