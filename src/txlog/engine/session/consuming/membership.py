"""Owns Membership: joining a subscription, finding out which of the others are dead, and leaving.

A consumer is alive while it holds the flock on consumers/<id>.lock, which the kernel frees however
it dies. Age and process numbers count for nothing: a stopped process is alive, and a killed one is
noticed at the next look. Nobody asks the kernel about consumers of the same handle, which are known
here: a hundred of them would ask about each other. The same file says how far its application has
come in what was taken ahead. Source: spec/transactions 9.1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event

from txlog.clock import Instant
from txlog.engine.decide.consuming.acknowledge import Find
from txlog.engine.decide.consuming.lease import ALL, ReturnResult, give_back, reap_ops
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.catalog import check_type, delete_subscription
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Subscription, consumers_of
from txlog.engine.model.leases import NOTHING_SEEN, Seen
from txlog.engine.model.ops import ConsumerAttached, Op, SubscriptionTypeSet
from txlog.engine.storage.disk.protocol import File, LockFile
from txlog.engine.store.appender import Decide
from txlog.engine.store.liveness import (
    consumer_lock,
    dead_consumers,
    read_all_seen,
    read_seen,
    write_seen,
)
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidArgument,
    SubscriptionNotFound,
    TxlogError,
)

ACK_TIMEOUT_MS_MIN = 1000
ATTACH_TRIES_MAX = 1000
ATTACH_PAUSE_SECONDS = 0.002
LOOK_SECONDS = 0.1  # how often a busy consumer checks its peers; an idle one does at each turn


class Membership:
    """One consumer's place in the registry of the catalog; `number` is its id, `kind` its type.

    sees_one_go: when it last looked, the lock file of a peer had closed and its lock was not free
    """

    __slots__ = (
        "__weakref__",
        "_last_look",
        "_lock",
        "_note",
        "_store",
        "due_ms",
        "kind",
        "number",
        "sees_one_go",
        "subscription",
    )

    def __init__(
        self,
        store: Store,
        subscription: Subscription,
        topic: str,
        name: str,
        kind: str | None,
        priority: int,
    ) -> None:
        self._store = store
        self.subscription = subscription.number
        self._last_look = 0.0
        self._note: File | None = None
        self.number, self.kind = 0, ""
        self.due_ms = 0  # as noted last
        self.sees_one_go = False
        self._lock: LockFile | None = self._attach(subscription, topic, name, kind, priority)
        store.members[self.number] = self

    @property
    def is_open(self) -> bool:
        """True until it has left."""
        return self._lock is not None

    def _attach(
        self, subscription: Subscription, topic: str, name: str, kind: str | None, priority: int
    ) -> LockFile:
        """Take an id that was never used, and join; dead ones are removed in the same frame.

        raises: ConsumerBusy, ReadOnlyStore
        """
        self._store.need_writable()
        disk = self._store.disk
        self._store.need_writable()
        wrong = subscription.type
        for _ in range(ATTACH_TRIES_MAX):
            known, chosen = self._store.read(self._look)
            dead = self._dead(known)
            mine = disk.lock_file(consumer_lock(chosen))
            if not mine.try_acquire():  # another one is joining with this id
                mine.close()
                Event().wait(ATTACH_PAUSE_SECONDS)
                continue
            asked = ConsumerAttached(self.subscription, chosen, name, kind or "", priority)
            joined: object = None
            try:
                joined = self._store.write(self._joining(dead, asked))
            finally:
                if not isinstance(joined, str):  # first the name: it may be another's next
                    disk.unlink(consumer_lock(chosen))
                    mine.close()
            if isinstance(joined, str):
                self.number, self.kind = chosen, joined
                for one in dead:
                    disk.unlink(consumer_lock(one))
                return mine
            if isinstance(joined, tuple):
                wrong, alive = joined
                if self._dead(alive):
                    continue  # one died since; the next try removes it
                break
        how = "exclusive and has" if kind in (None, wrong) else f"{wrong}, not {kind}, and has"
        raise ConsumerBusy(
            f"subscription {subscription.name} of {topic} is {how} a live consumer",
            hint="wait for it to end, or use another subscription",
            topic=topic,
            subscription=subscription.name,
        )

    def _here(self, number: int) -> Membership | None:
        """A consumer of this handle that has its lock."""
        found: Membership | None = self._store.members.get(number)
        lock = None if found is None else found._lock
        return found if lock is not None and lock.is_open else None

    def _dead(self, numbers: Sequence[int]) -> list[int]:
        """Those of some consumers that are dead; the kernel is asked about those elsewhere."""
        elsewhere = [one for one in numbers if self._here(one) is None]
        return dead_consumers(self._store.disk, elsewhere)

    def _look(self, view: View) -> tuple[list[int], int]:
        known = consumers_of(view.catalog, self.subscription)
        return [one.number for one in known], view.catalog.next_consumer

    # --- what the application has seen -------------------------------------------------------

    def open_note(self) -> bool:
        """Prepare to note what is seen; False if the lock file cannot be written."""
        if self._note is None:
            try:
                self._note = self._store.disk.open(consumer_lock(self.number), write=True)
                write_seen(self._note, NOTHING_SEEN)  # it has its block now, however full the disk
            except TxlogError:
                return False
        return True

    def note(self, seen: Seen) -> None:
        """Note how far the application gets with its next message."""
        assert self._note is not None
        write_seen(self._note, seen)
        self.due_ms = seen.due_ms

    def _joining(self, dead: list[int], asked: ConsumerAttached) -> Decide:
        """Answers the type, None (again: another one joined), or (type, who lives) when busy."""

        def decide(view: View, now: Instant) -> Decision[str | tuple[str, list[int]]]:
            catalog = view.catalog
            held = catalog.subscriptions.get(self.subscription)
            if held is None:
                raise SubscriptionNotFound("the subscription was deleted")
            if catalog.next_consumer != asked.consumer:
                return Decision([])
            known = consumers_of(catalog, held.number)
            alive = [one.number for one in known if one.number not in dead]
            kind = asked.kind or held.type
            if alive and (kind != held.type or kind == "exclusive"):
                return Decision([], answer=(held.type, alive))
            ops: list[Op] = reap_ops(view, held, read_all_seen(self._store.disk, dead), now)
            if kind != held.type:
                ops.append(SubscriptionTypeSet(held.number, kind))
            ops.append(
                ConsumerAttached(held.number, asked.consumer, asked.name, kind, asked.priority)
            )
            return Decision(ops, None, True, kind)

        return decide

    def reap(self, *, now: bool) -> bool:
        """Return what dead peers held; answers whether there was one.

        now: look, even if the last look was just before
        """
        moment = time.monotonic()
        if not now and moment - self._last_look < LOOK_SECONDS:
            return False
        self._last_look = moment
        known, _ = self._store.read(self._look, fresh=False)
        disk = self._store.disk
        dead = self._dead([one for one in known if one != self.number])
        alive = [one for one in known if one not in dead and one != self.number]
        going = self._store.wakeups.tally.going()
        self.sees_one_go = any(consumer_lock(one) in going for one in alive) if going else False
        late = [one for one in alive if self._is_late(one)]
        if late:
            late = self._store.read(lambda view: self._with_ahead(view, late), fresh=False)
        if not dead and not late:
            return False
        self.take_back(dead, late)
        for one in dead:
            disk.unlink(consumer_lock(one))
        return True

    def _with_ahead(self, view: View, numbers: Sequence[int]) -> list[int]:
        """Those of some consumers that still hold something of what they took ahead."""
        held = view.catalog.subscriptions.get(self.subscription)
        if held is None:
            return []
        every = catalogs.numbers(view.catalog.topics[held.topic])
        leases = [view.cursor(self.subscription, number).leases for number in every]
        return [one for one in numbers if any(any(has.apart(one, ALL)) for has in leases)]

    def _is_late(self, number: int) -> bool:
        """True when the time-out of what a consumer delivered last is over: it may hang there."""
        return 0 < self._due_of(number) <= self._store.clock.now().boot_ms

    def _due_of(self, number: int) -> int:
        """When the time-out of what a consumer delivered last is over, since boot; 0: never."""
        here = self._here(number)
        return read_seen(self._store.disk, number).due_ms if here is None else here.due_ms

    def late_at_ms(self, number: int, now: Instant, timeout_ms: int) -> int:
        """When to look next whether a consumer is late: what it delivers from now on is not before.

        Nobody tells of what it delivers, which stands in its lock file only.
        """
        due_ms = self._due_of(number)
        soonest_ms = now.boot_ms + timeout_ms
        return min(due_ms, soonest_ms) if due_ms > now.boot_ms else soonest_ms

    def take_back(self, dead: Sequence[int] = (), late: Sequence[int] = ()) -> None:
        """Write what dead consumers had, and hand-outs that ran out, back to the subscription.

        late: consumers that let the time-out of what they handed out last run out
        """

        def decide(view: View, now: Instant) -> Decision[None]:
            held = view.catalog.subscriptions.get(self.subscription)
            if held is None:
                return Decision([])
            disk = self._store.disk
            still = [one for one in late if self._is_late(one)]
            gone, hanging = read_all_seen(disk, dead), read_all_seen(disk, still)
            return Decision(reap_ops(view, held, gone, now, hanging))

        self._store.write(decide, tells=True)

    def give_back(self, seen: Seen, *, detach: bool) -> ReturnResult:
        """Return all that this consumer holds, and with detach leave."""

        def decide(view: View, now: Instant) -> Decision[ReturnResult]:
            held = view.catalog.subscriptions.get(self.subscription)
            if held is None:
                return Decision([], answer=ReturnResult(0))
            return give_back(view, held, self.number, seen, detach=detach)

        answer = self._store.write(decide, tells=True)
        return answer

    def unsubscribe(self, find: Find) -> None:
        """Delete the subscription, unless others consume it, and release the lock."""
        if self._lock is None:
            raise AlreadyClosed("the consumer is closed")
        settings = self._store.settings
        self.reap(now=True)
        self._store.write(
            lambda view, now: delete_subscription(
                view, settings, now, *find(view), dead=[self.number], force=False
            )
        )
        self.leave(NOTHING_SEEN)

    def leave(self, seen: Seen) -> None:
        """Give back what is in hand, detach, and release the lock; seen: by the application."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            self.give_back(seen, detach=True)
            self._store.disk.unlink(consumer_lock(self.number))
        finally:
            if self._note is not None:
                self._note.close()
            lock.close()  # if it could not leave, it counts as dead, which returns them too


def check_options(
    type: str | None, queue_size: int, ack_timeout_ms: int | None, nack_delay_ms: int | None
) -> None:
    """Refuse options that no consumer can have; raises InvalidArgument."""
    if type is not None:
        check_type(type)
    if queue_size < 0:
        raise InvalidArgument(f"receiver_queue_size is {queue_size}, it must not be negative")
    if ack_timeout_ms and ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
        raise InvalidArgument(
            f"ack_timeout_ms is {ack_timeout_ms}, the smallest is {ACK_TIMEOUT_MS_MIN}", code=203
        )
    if nack_delay_ms is not None and nack_delay_ms < 0:
        raise InvalidArgument(f"nack_delay_ms is {nack_delay_ms}, it must not be negative")
