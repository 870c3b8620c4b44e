"""Owns Membership: joining a subscription, noticing dead peers, and leaving.

A consumer is alive while it holds the flock on consumers/<id>.lock. The kernel frees that lock
however the process dies. Ages and process ids do not matter: a stopped process is alive, and peers
notice a killed one at their next look. For consumers of the same store handle, a table in memory
answers instead of the kernel; otherwise a hundred consumers would test each other's locks. The lock
file also records how far the consumer's application has got in the messages taken ahead.
Source: spec/transactions 9.1.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event

from txlog.base.logs import log_event
from txlog.base.suggest import command_line
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
    holder_of,
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
LOOK_SECONDS = 0.1  # how often a busy consumer checks its peers; an idle one checks at each turn


class Membership:
    """A consumer's entry in the catalog, and its lock file, held while it is alive.

    number:      its id
    kind:        its type: exclusive, shared, failover or key-shared
    sees_one_go: at the last look, a peer had closed its lock file and still held the lock: it is
                 about to die or leave
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
        self.due_ms = 0  # the value in the last note
        self.sees_one_go = False
        self._lock: LockFile | None = self._attach(subscription, topic, name, kind, priority)
        store.members[self.number] = self

    @property
    def is_open(self) -> bool:
        """True until the consumer has left."""
        return self._lock is not None

    def _attach(
        self, subscription: Subscription, topic: str, name: str, kind: str | None, priority: int
    ) -> LockFile:
        """Join with the next unused id; the same frame removes dead peers.

        returns: the lock that the consumer holds while it lives
        raises:  ConsumerBusy, ReadOnlyStore
        """
        self._store.need_writable()
        disk = self._store.disk
        self._store.need_writable()
        present = subscription.type
        for _ in range(ATTACH_TRIES_MAX):
            peers, chosen = self._store.read(self._look)
            dead = self._dead(peers)
            lock = disk.lock_file(consumer_lock(chosen))
            if not lock.try_acquire():  # another consumer is joining with this id
                lock.close()
                Event().wait(ATTACH_PAUSE_SECONDS)
                continue
            request = ConsumerAttached(self.subscription, chosen, name, kind or "", priority)
            joined: object = None
            try:
                joined = self._store.write(self._joining(dead, request))
            finally:
                if not isinstance(joined, str):
                    try:  # unlink first: another consumer may use the id next
                        disk.unlink(consumer_lock(chosen))
                    finally:
                        lock.close()
            if isinstance(joined, str):
                self.number, self.kind = chosen, joined
                for number in dead:
                    with suppress(TxlogError):  # it has joined; the next sweep removes the file
                        disk.unlink(consumer_lock(number))
                return lock
            if isinstance(joined, tuple):
                present, alive = joined
                if self._dead(alive):
                    continue  # a peer has died since; the next try removes it
                break
        how = "exclusive and has" if kind in (None, present) else f"{present}, not {kind}, and has"
        holders = self._store.read(self._holders)
        named = f": {', '.join(holders)}" if holders else ""
        raise ConsumerBusy(
            f"subscription {subscription.name} of {topic} is {how} a live consumer{named}",
            hint="wait for it to end, or use another subscription; "
            f"{command_line('sub describe', subscription.name, '-t', topic)} shows it",
            topic=topic,
            subscription=subscription.name,
        )

    def _holders(self, view: View) -> list[str]:
        """The live consumers of the subscription in words."""
        holders = []
        for consumer in consumers_of(view.catalog, self.subscription):
            is_alive, pid, _ = holder_of(self._store.disk, consumer_lock(consumer.number))
            if is_alive:
                name = consumer.name or f"number {consumer.number}"
                where = "" if pid is None else f" in process {pid} on {platform.node()}"
                holders.append(f"{name}{where}")
        return holders

    def _here(self, number: int) -> Membership | None:
        """The consumer with this number, if it belongs to this store handle and is alive."""
        member: Membership | None = self._store.members.get(number)
        lock = None if member is None else member._lock
        return member if lock is not None and lock.is_open else None

    def _dead(self, numbers: Sequence[int]) -> list[int]:
        """The dead consumers among `numbers`. It tests only locks of other handles' consumers."""
        elsewhere = [number for number in numbers if self._here(number) is None]
        return dead_consumers(self._store.disk, elsewhere)

    def _look(self, view: View) -> tuple[list[int], int]:
        """The consumers of the subscription, and the next unused id."""
        consumers = consumers_of(view.catalog, self.subscription)
        return [consumer.number for consumer in consumers], view.catalog.next_consumer

    # --- what the application has seen -------------------------------------------------------

    def open_note(self) -> bool:
        """Open the lock file for notes; False if it cannot be written."""
        if self._note is None:
            try:
                self._note = self._store.disk.open(consumer_lock(self.number), write=True)
                write_seen(self._note, NOTHING_SEEN)  # allocates the block: a full disk fails here
            except TxlogError:
                return False
        return True

    def note(self, seen: Seen) -> None:
        """Write to the lock file how far the application is once it has its next message."""
        assert self._note is not None
        write_seen(self._note, seen)
        self.due_ms = seen.due_ms

    def _joining(self, dead: list[int], request: ConsumerAttached) -> Decide:
        """The decision to join.

        It answers the type of the subscription if the consumer joined; None if another consumer
        took the id, so try again; (type, live consumers) if they exclude the new one.
        """

        def decide(view: View, now: Instant) -> Decision[str | tuple[str, list[int]]]:
            catalog = view.catalog
            subscription = catalog.subscriptions.get(self.subscription)
            if subscription is None:
                raise SubscriptionNotFound("the subscription was deleted")
            if catalog.next_consumer != request.consumer:
                return Decision([])
            consumers = consumers_of(catalog, subscription.number)
            alive = [consumer.number for consumer in consumers if consumer.number not in dead]
            kind = request.kind or subscription.type
            if alive and (kind != subscription.type or kind == "exclusive"):
                return Decision([], answer=(subscription.type, alive))
            ops: list[Op] = reap_ops(view, subscription, read_all_seen(self._store.disk, dead), now)
            if kind != subscription.type:
                ops.append(SubscriptionTypeSet(subscription.number, kind))
            ops.append(
                ConsumerAttached(
                    subscription.number, request.consumer, request.name, kind, request.priority
                )
            )
            return Decision(ops, None, True, kind)

        return decide

    def reap(self, *, now: bool) -> bool:
        """Return the messages of dead or late peers to the subscription; True if there was one.

        A peer is late when its last message has outlived the acknowledgement time-out: its process
        may hang, so the messages that it took ahead go back.

        now: look even if the last look was less than LOOK_SECONDS ago
        """
        moment = time.monotonic()
        if not now and moment - self._last_look < LOOK_SECONDS:
            return False
        self._last_look = moment
        consumers, _ = self._store.read(self._look, fresh=False, waits=False)
        disk = self._store.disk
        dead = self._dead([number for number in consumers if number != self.number])
        alive = [number for number in consumers if number not in dead and number != self.number]
        going = self._store.wakeups.tally.going()
        self.sees_one_go = any(consumer_lock(peer) in going for peer in alive) if going else False
        late = [number for number in alive if self._is_late(number)]
        if late:
            late = self._store.read(lambda view: self._with_ahead(view, late), fresh=False)
        if not dead and not late:
            return False
        self.take_back(dead, late)
        text = "subscription %d: the messages of %d dead and %d late consumers are delivered again"
        log_event("redelivery", "info", text, self.subscription, len(dead), len(late))
        for number in dead:
            disk.unlink(consumer_lock(number))
        return True

    def _with_ahead(self, view: View, consumers: Sequence[int]) -> list[int]:
        """The members of `consumers` that still lease messages which they took ahead."""
        subscription = view.catalog.subscriptions.get(self.subscription)
        if subscription is None:
            return []
        partitions = catalogs.numbers(view.catalog.topics[subscription.topic])
        leases = [view.cursor(self.subscription, number).leases for number in partitions]
        return [
            number for number in consumers if any(any(has.apart(number, ALL)) for has in leases)
        ]

    def _is_late(self, number: int) -> bool:
        """True when the acknowledgement time-out of a consumer's last message is over."""
        return 0 < self._due_of(number) <= self._store.clock.now().boot_ms

    def _due_of(self, number: int) -> int:
        """When the time-out of a consumer's last message ends, in ms since boot; 0: it has none."""
        here = self._here(number)
        return read_seen(self._store.disk, number).due_ms if here is None else here.due_ms

    def late_at_ms(self, number: int, now: Instant, timeout_ms: int) -> int:
        """When to check next whether a consumer is late, in ms since boot.

        A message that it delivers from now on cannot time out earlier. The check has to be timed,
        because progress is only in the lock file and there is no notification.
        """
        due_ms = self._due_of(number)
        soonest_ms = now.boot_ms + timeout_ms
        return min(due_ms, soonest_ms) if due_ms > now.boot_ms else soonest_ms

    def take_back(self, dead: Sequence[int] = (), late: Sequence[int] = ()) -> None:
        """Return the messages of dead consumers, and all messages whose time-out is over.

        late: consumers whose last message has outlived its time-out; the decision checks it again
        """

        def decide(view: View, now: Instant) -> Decision[None]:
            subscription = view.catalog.subscriptions.get(self.subscription)
            if subscription is None:
                return Decision([])
            disk = self._store.disk
            hanging = [number for number in late if self._is_late(number)]
            seen_by_dead, seen_by_late = read_all_seen(disk, dead), read_all_seen(disk, hanging)
            return Decision(reap_ops(view, subscription, seen_by_dead, now, seen_by_late))

        self._store.write(decide, tells=True)

    def give_back(self, seen: Seen, *, detach: bool) -> ReturnResult:
        """Return all messages leased to this consumer; with detach, also leave.

        seen: how far the application has got in the messages taken ahead
        """

        def decide(view: View, now: Instant) -> Decision[ReturnResult]:
            subscription = view.catalog.subscriptions.get(self.subscription)
            if subscription is None:
                return Decision([], answer=ReturnResult(0))
            return give_back(view, subscription, self.number, seen, detach=detach)

        answer = self._store.write(decide, tells=True)
        return answer

    def unsubscribe(self, find: Find) -> None:
        """Delete the subscription and leave; raises ConsumerBusy if it has other live consumers."""
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
        """Return all leased messages, detach, and release the lock; seen: as in `give_back`."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            self.give_back(seen, detach=True)
            self._store.disk.unlink(consumer_lock(self.number))
        finally:
            if self._note is not None:
                self._note.close()
            lock.close()  # if detaching failed, its peers find it dead and return its messages


def check_options(
    type: str | None, queue_size: int, ack_timeout_ms: int | None, nack_delay_ms: int | None
) -> None:
    """Raise InvalidArgument for options that no consumer can have."""
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
