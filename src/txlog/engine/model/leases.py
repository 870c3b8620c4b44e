"""Owns Leases: which messages of a cursor each consumer has leased, and which wait to come again.

    deliverable ──Leased──> in a hand ──acknowledged──> gone from here
         ▲                      │
         └──Returned────────────┴──Returned with an instant──> waiting ──due──> deliverable

A leased message may have been taken ahead: no application has seen it. For the last batch that a
consumer took ahead, only the consumer knows how far its application has got (Seen). The application
has got every earlier batch, and every message leased in any other way.

It is part of the cursor fold's state. Messages of a marker are kept one by one, never as its entry,
since a consumer may acknowledge each alone. Source: spec/transactions 9.1.
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
    """A lease in a dump: its ids, its hand-outs with their expiry, its batch taken ahead."""

    consumer: int
    ids: Ids
    handouts: list[tuple[Due, Ids]] = []
    ahead: int = 0
    batch: list[Run] = []
    again: list[Run] = []


class Seen(NamedTuple):
    """How far an application has got in the messages its consumer took ahead.

    batch:  the number of its current batch (Leased.ahead); it has seen all earlier batches
    last:   the message of the batch that was handed out last
    due_ms: when the ack time-out of that message ends, on the clock since boot; 0: it has none
    """

    batch: int = 0
    last: Id = (0, -1, 0)
    due_ms: int = 0


NOTHING_SEEN = Seen()


class Lease:
    """The messages leased to one consumer.

    handouts: hand-outs with an ack time-out, with the time each expires
    ahead:    the number of the last batch that it took ahead, 0 for none; batch: the messages of
              that batch in the order of hand-out, even if they have left the lease since
    again:    messages of the batch that were in this lease before: after a restart below them, an
              Exclusive or Failover consumer takes them again
    """

    __slots__ = ("again", "ahead", "batch", "handouts", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        self.handouts: list[tuple[Due, IdSet]] = []
        self.ahead = 0
        self.batch: Sequence[Run] = ()
        self.again: Sequence[Run] = ()

    def add(self, runs: Sequence[Run], due: Due | None, ahead: int = 0) -> None:
        """Add messages to the lease; messages it had already now expire with these."""
        self.ahead, self.batch, self.again = 0, (), ()
        if ahead:
            self.ahead, self.batch, self.again = ahead, runs, self._kept(runs)
        if self.handouts:
            for run in runs:
                self._forget(run)
        for run in runs:
            self.ids.add(run)
        if due is not None:
            handout = IdSet()
            for run in runs:
                handout.add(run)
            self.handouts.append((due, handout))

    def discard(self, run: Run) -> None:
        """Remove a run from the lease."""
        self.ids.discard(run)
        if self.handouts:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        for _, ids in self.handouts:
            ids.discard(run)
        self.handouts = [handout for handout in self.handouts if handout[1]]

    def drop_through(self, mark: Mark) -> None:
        """Remove everything at or below a mark."""
        self.ids.drop_through(mark)
        if self.handouts:
            for _, ids in self.handouts:
                ids.drop_through(mark)
            self.handouts = [handout for handout in self.handouts if handout[1]]

    def count(self) -> int:
        """How many messages the lease has."""
        return sum(self.ids.count())

    def apart(self, seen: Seen) -> tuple[list[Run], list[Run]]:
        """Split the last batch, where still leased: (messages the application got, the others)."""
        if not self.ahead or seen.batch > self.ahead:
            return self._kept(self.batch), []
        got: list[Run] = []
        unseen = list(self.batch)
        if seen.batch == self.ahead:
            got, unseen = _cut(self.batch, seen.last)
        return self._kept([*got, *self.again]), self.never(self._kept(unseen))

    def never(self, runs: list[Run]) -> list[Run]:
        """The part of runs taken ahead that the application did not get earlier either."""
        if not self.again:
            return runs
        unseen = IdSet()
        for run in runs:
            unseen.add(run)
        for run in self.again:
            unseen.discard(run)
        return unseen.runs()

    def _kept(self, runs: Iterable[Run]) -> list[Run]:
        return [part for run in runs for part in self.ids.common(run)]


class Leases:
    """Leases, and nacked messages with the instant from which they may be delivered again.

    by_consumer: the leases, by consumer
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
        """Remove acknowledged messages: they are no longer leased, and not waiting."""
        for lease in self.by_consumer.values():
            lease.discard(run)
        self.leased.discard(run)
        if self.waiting:
            self._wait_no_more(run)

    def drop_through(self, mark: Mark) -> None:
        """Remove messages acknowledged or trimmed up to a mark."""
        for lease in self.by_consumer.values():
            lease.drop_through(mark)
        self.leased.drop_through(mark)
        if self.waiting:
            for message in [message for message in self.waiting if covers(mark, message)]:
                del self.waiting[message]
            self.waiting_ids.drop_through(mark)

    def release(self, consumer: int, runs: Sequence[Run]) -> None:
        """Take messages back from one consumer; 0: from any consumer that has them."""
        for number, lease in self.by_consumer.items():
            if consumer in (0, number):
                for run in runs:
                    lease.discard(run)
        for run in runs:
            self.leased.discard(run)

    def wait(self, ids: Iterable[Id], due: Due) -> None:
        """Make returned messages wait until they are due."""
        for message in ids:
            self.waiting[message] = due
            self.waiting_ids.add((message[0], message[1], message[1], message[2], message[2]))

    def _wait_no_more(self, run: Run) -> None:
        if self.waiting_ids.first_common(run) is None:
            return
        for part in self.waiting_ids.common(run):
            for message in each(part):
                del self.waiting[message]
        self.waiting_ids.discard(run)

    def apart(self, consumer: int, seen: Seen) -> tuple[list[Run], list[Run]]:
        """Lease.apart for a consumer."""
        lease = self.by_consumer.get(consumer)
        return ([], []) if lease is None else lease.apart(seen)

    def in_hand(self, consumer: int) -> int:
        """How many messages are leased to a consumer."""
        lease = self.by_consumer.get(consumer)
        return 0 if lease is None else lease.count()

    def others(self, consumer: int) -> list[int]:
        """Other consumers that have leased messages."""
        return [
            number for number, lease in self.by_consumer.items() if number != consumer and lease.ids
        ]

    def not_due(self, now: Instant) -> tuple[IdSet, Id | None]:
        """(messages that still wait, the lowest message that is due)."""
        if not self.waiting:
            return self.waiting_ids, None
        due = [message for message, at in self.waiting.items() if is_due(at, now)]
        if not due:
            return self.waiting_ids, None
        not_due = IdSet()
        for message, at in self.waiting.items():
            if not is_due(at, now):
                not_due.add((message[0], message[1], message[1], message[2], message[2]))
        return not_due, min(due)

    def overdue(self, now: Instant) -> list[tuple[int, list[Run]]]:
        """(consumer, runs) of the hand-outs that have expired."""
        return [
            (number, ids.runs())
            for number, lease in self.by_consumer.items()
            for at, ids in lease.handouts
            if is_due(at, now)
        ]

    def next_due_ms(self, now: Instant) -> int | None:
        """When the next hand-out expires or a message may be delivered again; clock since boot."""
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
        loaded = cls()
        for dumped in leases:
            lease = loaded.by_consumer[dumped.consumer] = Lease()
            lease.ids = IdSet.load(*dumped.ids)
            lease.handouts = [(at, IdSet.load(*ids)) for at, ids in dumped.handouts]
            lease.ahead, lease.batch, lease.again = dumped.ahead, dumped.batch, dumped.again
            for run in lease.ids.runs():
                loaded.leased.add(run)
        for message, at in waiting:
            loaded.wait([message], at)
        return loaded


def _cut(runs: Sequence[Run], last: Id) -> tuple[list[Run], list[Run]]:
    """Runs up to and including a message, and those after it; a missing one is before all."""
    ledger, entry, index = last
    for at, run in enumerate(runs):
        number, low, high, first, final = run
        if number != ledger or not low <= entry <= high:
            continue
        if index and first <= index <= final:
            got: Run = (ledger, entry, entry, first, index)
            remaining: Run = (ledger, entry, entry, index + 1, final)
            is_whole = index == final
        elif not index and not first:
            got, remaining = (ledger, low, entry, 0, 0), (ledger, entry + 1, high, 0, 0)
            is_whole = entry == high
        else:
            continue
        return [*runs[:at], got], [*([] if is_whole else [remaining]), *runs[at + 1 :]]
    return [], list(runs)


def is_due(at: Due, now: Instant) -> bool:
    """True when an instant has come: by the clock since boot within one boot, else wall clock."""
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
