"""Owns Consumer: receives a subscription's messages and acknowledges them.

What it receives is leased to it (engine/flow/lease): one frame a batch, not flushed. Messages come
back when it dies, gives them back, or lets an acknowledgement time-out run out.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event
from types import TracebackType

import pyarrow as pa

from txlog.acknowledging import (
    Acknowledgeable,
    Through,
    acknowledge_later,
    acknowledge_runs,
    ids_of,
    runs_of,
)
from txlog.clock import Instant
from txlog.engine.flow import acknowledge
from txlog.engine.flow.acknowledge import AckAnswer
from txlog.engine.flow.deadletter import Moved, Postponed
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.lease import (
    SHARED_TYPES,
    Back,
    Handed,
    Wants,
    negative_acknowledge,
    receive,
)
from txlog.engine.flow.lookup import live_subscription, live_topic
from txlog.engine.flow.lookup import subscription as find_subscription
from txlog.engine.flow.lookup import topic as find_topic
from txlog.engine.flow.place import Place, Standing
from txlog.engine.flow.preview import START, PreviewPlace, preview
from txlog.engine.flow.sweep import Uses
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor, covers
from txlog.engine.model.idset import Id
from txlog.engine.model.ops import Mark, Run
from txlog.engine.store import Store
from txlog.engine.sweeper import is_sweep_due
from txlog.engine.upkeep.expiry import expire_due
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, InvalidArgument, NotAllowed
from txlog.handing import read_handed
from txlog.ids import MessageId, TopicName, TxnId
from txlog.membership import Membership, check_options
from txlog.message import Message, messages
from txlog.moving import DeadLetters, reconsume_later
from txlog.positions import Where, chosen_partitions, last_ids, only_one, seek_to
from txlog.transaction import Later, Transaction

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.002, 0.05
QUEUE_SIZE = 1000


class Consumer:
    """Receives from one topic on a subscription; safe to call from many threads.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         _ = client.create_subscription("orders", "billing")
    ...         _ = client.producer("orders").send(b"one")
    ...         with client.consumer("orders", "billing") as consumer:
    ...             message = consumer.receive()
    ...             _ = consumer.acknowledge(message)
    ...             message.value, consumer.receive(timeout_ms=0)
    (b'one', None)
    """

    __slots__ = (
        "_ack_timeout_ms", "_buffered", "_dead", "_highest", "_is_idle", "_last",
        "_member", "_nack_delay_ms", "_partitions", "_places", "_previews", "_queue_size",
        "_store", "_subscription", "_topic", "_turn", "_turns", "blocked", "name", "short",
    )  # fmt: skip

    def __init__(
        self, store: Store, topic: str, subscription: str, name: str | None,
        isolation: str | None = None, type: str | None = None, priority: int = 0,
        receiver_queue_size: int = QUEUE_SIZE, ack_timeout_ms: int | None = None,
        nack_delay_ms: int | None = None, partitions: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        check_options(type, receiver_queue_size, ack_timeout_ms, nack_delay_ms)
        self._store = store
        wanted = TopicName.parse(topic, allow_partition=True)
        self.short = wanted.topic.short
        self.name = name or f"{store.disk.owner()[1]}-{store.disk.pid()}"
        self.blocked: str | None = None  # why the last receive gave nothing: unacked_max
        self._queue_size = receiver_queue_size
        self._ack_timeout_ms = ack_timeout_ms
        self._nack_delay_ms = nack_delay_ms
        self._turns = threading.RLock()
        self._buffered: deque[Message] = deque()
        self._places: dict[int, Place] = {}
        self._highest: dict[int, Mark] = {}  # the last message it ever got, by partition
        self._turn = 0
        self._is_idle = False
        self._last: tuple[Callable[[], pa.Table | None], list[Run]] = (lambda: None, [])
        found = store.read(lambda view: self._find(view, wanted, subscription))
        self._topic, self._subscription = found
        if isolation not in (None, self._subscription.isolation):
            raise NotAllowed(
                f"subscription {subscription} is {self._subscription.isolation}, not {isolation}",
                hint="use a subscription of its own", topic=self.short, subscription=subscription,
            )  # fmt: skip
        self._partitions = chosen_partitions(self._topic, wanted, partitions)
        self._previews: dict[int, PreviewPlace] = {}
        self._dead = DeadLetters(store, self._target)
        self._member = Membership(store, self._subscription, self.short, self.name, type, priority)

    @staticmethod
    def _find(view: View, wanted: TopicName, name: str) -> tuple[Topic, Subscription]:
        topic = find_topic(view, wanted)
        return topic, find_subscription(view, topic, name)

    @property
    def id(self) -> int:
        """Its number in the store; none is given out twice."""
        return self._member.number

    @property
    def kind(self) -> str:
        """The type of the subscription: exclusive, failover, shared or key-shared."""
        return self._member.kind

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(self, max_messages: int = 1000, timeout_ms: int = 0) -> pa.Table:
        """The next messages, at most max_messages, as RECEIVED; no rows when the time is over.

        Rows of one marker stand together. What came back goes before what is new. `blocked` says
        why there is nothing although there may be messages.
        """
        if max_messages <= 0:
            raise InvalidArgument(f"max_messages is {max_messages}, it must be positive", code=203)
        deadline = time.monotonic() + timeout_ms / 1000
        pause = POLL_SECONDS_MIN
        while True:
            with self._turns:
                table = self._poll(max_messages)
            left = deadline - time.monotonic()
            if table.num_rows or left <= 0:
                return table
            Event().wait(min(pause, left))
            pause = min(POLL_SECONDS_MAX, pause * 2)

    def _poll(self, limit: int) -> pa.Table:
        if not self._member.is_open:
            raise AlreadyClosed("the consumer is closed")
        handed = self._hand(limit)
        self.blocked = handed.blocked
        table, runs = read_handed(self._store, self._topic, self._member, handed)
        self._stand(handed)
        for part in handed.parts:
            highest = self._highest.get(part.partition, BEFORE_ALL)
            if part.runs and not covers(highest, part.place.mark):
                self._highest[part.partition] = part.place.mark
        left = limit - table.num_rows
        if left and self._subscription.isolation == "uncommitted":
            table = pa.concat_tables([table, *self._preview(left)])
        self._last = (weakref.ref(table), runs)
        return table

    def _hand(self, limit: int) -> Handed:
        """Have messages leased; one that found nothing before looks first, without the lock."""
        store = self._store
        self._topic, self._subscription = store.read(self._target, fresh=self._is_idle)
        expire_due(store, [(self._topic.number, self._subscription.number)], fresh=False)
        numbers = self._numbers()
        order = [*numbers[self._turn :], *numbers[: self._turn]]
        subscription = self._subscription.number
        uses = Uses(cursors=tuple((subscription, number) for number in numbers))
        wants = Wants(
            subscription, self._member.number, order, limit, self._places, self._ack_timeout_ms
        )

        def look(view: View) -> Handed | None:
            now = store.clock.now()
            if is_sweep_due(view, store.settings, now, uses) or self._dead.is_due(view, order):
                return None
            decision = receive(view, store.settings, now, wants)
            assert decision.answer is None or isinstance(decision.answer, Handed)
            return None if decision.ops else decision.answer

        is_seen = not self._is_idle
        if self._is_idle:
            there = store.read(look)
            while there is not None and there.is_more:
                self._stand(there)
                there = store.read(look)
            is_seen = self._member.reap(now=True)
            if there is not None and not is_seen and not store.has_unflushed(unseen=True):
                return there
        else:
            self._member.reap(now=False)
        handed = self._lease(wants, uses)
        if not any(part.runs for part in handed.parts) and self._member.reap(now=True):
            handed = self._lease(wants, uses)  # what a dead one had comes before nothing
        full = [at for at, part in enumerate(handed.parts) if part.runs]
        self._is_idle = not full
        if full:
            last = order.index(handed.parts[full[-1]].partition)
            # the next one first: a partition that never ends must not keep the others waiting
            self._turn = (self._turn + last + 1) % len(order)
        return handed

    def _lease(self, wants: Wants, uses: Uses) -> Handed:
        store = self._store

        def decide(view: View, now: Instant) -> Decision:
            if self._dead.is_due(view, wants.partitions):  # under the lock: none slips through
                return Decision([], answer=wants)
            return receive(view, store.settings, now, wants)

        while True:
            try:
                answer = store.write(decide, uses=uses)
            except AlreadyClosed:
                store.read(self._target, fresh=False)  # deleted: this says so
                raise
            if answer is None:
                self._member.take_back([])
                continue
            if answer is wants:
                self._dead.sweep(wants.partitions)
                continue
            assert isinstance(answer, Handed)
            if not answer.is_more:
                return answer
            self._stand(answer)

    def _stand(self, handed: Handed) -> None:
        """Note how far it has come."""
        for part in handed.parts:
            self._places[part.partition] = part.place

    def _preview(self, limit: int) -> list[pa.Table]:
        """READ_UNCOMMITTED: what stands behind everything committed, at most limit rows."""

        def look(view: View) -> tuple[list[pa.Table], dict[int, PreviewPlace]]:
            left, places, out = limit, dict(self._previews), []
            for number in self._numbers():
                if left <= 0:
                    break
                if number in view.catalog.unavailable:
                    continue
                rows, places[number] = preview(
                    view, self.short, catalogs.index_of(self._topic, number), number,
                    places.get(number, START), left,
                )  # fmt: skip
                left -= rows.num_rows
                out.append(rows)
            return out, places

        tables, self._previews = self._store.read(look, fresh=False)
        return tables

    def _numbers(self) -> list[int]:
        """The partitions it receives from, by store-wide number."""
        numbers = catalogs.numbers(self._topic)
        if self._partitions is None:
            return list(numbers)
        return [numbers[index] for index in self._partitions]

    def receive(self, timeout_ms: int | None = 0) -> Message | None:
        """The next message; None when none came within timeout_ms (None: wait for ever).

        It takes up to receiver_queue_size messages in hand at once, and gives those back uncounted
        that were not received when it closes.
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        pause = POLL_SECONDS_MIN
        while True:
            with self._turns:  # not while it waits: another thread may close it
                self._drop_lost()
                if not self._buffered:
                    self._buffered.extend(messages(self._poll(max(1, self._queue_size))))
                if self._buffered:
                    return self._buffered.popleft()
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            Event().wait(min(pause, left))
            pause = min(POLL_SECONDS_MAX, pause * 2)

    def _drop_lost(self) -> None:
        """Drop buffered messages before the first that is still to be handed out.

        Lost are those that are in this hand no more, or that will come again in order. Only the
        first is looked at for sure: those behind it are when it is their turn.
        """
        if self._buffered:
            lost = self._store.read(self._count_lost)
            for _ in range(lost):
                self._buffered.popleft()

    def _count_lost(self, view: View) -> int:
        numbers = catalogs.numbers(self._topic)
        for at, message in enumerate(self._buffered):
            one = message.message_id
            if one is None:
                return at
            number = numbers[message.partition]
            cursor = view.cursor(self._subscription.number, number)
            lease = cursor.hands.leases.get(self._member.number)
            place, what = self._places.get(number), (one.ledger, one.entry, one.index)
            is_here = lease is not None and what in lease.ids
            if is_here and (place is None or not self._is_to_come_again(cursor, place, what)):
                return at
        return len(self._buffered)

    def _is_to_come_again(self, cursor: Cursor, place: Place, one: Id) -> bool:
        if self.kind in SHARED_TYPES:
            return False  # in hand is in hand
        return not covers(cursor.rewound(place.round, place.mark), one)

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        with self._turns:
            self._drop_lost()
            return bool(self._buffered) or self._store.read(self._has_next)

    def _has_next(self, view: View) -> bool:
        self._topic, self._subscription = self._target(view)
        places, now = dict(self._places), self._store.clock.now()
        while True:
            wants = Wants(
                self._subscription.number, self._member.number, self._numbers(), 1, places,
                self._ack_timeout_ms,
            )  # fmt: skip
            found = receive(view, self._store.settings, now, wants)
            if found.ops or not isinstance(found.answer, Handed):
                return True
            if not found.answer.is_more:
                return False
            places |= {part.partition: part.place for part in found.answer.parts}

    def get_last_message_ids(self) -> dict[int, MessageId | None]:
        """The last visible message of each partition, None for an empty one."""
        return self._store.read(
            lambda view: last_ids(view, self._target(view)[0], self._partitions)
        )

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when the topic has several partitions."""
        return only_one(self.short, self.get_last_message_ids())

    # --- acknowledging -----------------------------------------------------------------------

    def _target(self, view: View) -> tuple[Topic, Subscription]:
        held = self._subscription
        return (
            live_topic(view, self._topic.number, self.short),
            live_subscription(view, held.number, held.name, self.short),
        )

    @property
    def through(self) -> Through:
        """What an acknowledgement through this consumer takes along."""
        standing = Standing(self._member.number, self._places, self._highest)
        return Through(self._target, standing)

    def _runs(self, what: Acknowledgeable) -> list[Run]:
        """runs_of; those of the batch that came last are known, and most acknowledge just that."""
        return self._last[1] if self._last[0]() is what else runs_of(what)

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows; in a transaction they become PENDING_ACK.

        raises: MessageNotFound; TransactionConflict, which has aborted the transaction
        """
        return acknowledge_runs(
            self._store, self._target, self._runs(what), txn, cumulative=False,
            standing=self.through.standing,
        )  # fmt: skip

    def acknowledge_async(self, what: Acknowledgeable, *, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        A refusal is raised by `result()`, or else by the commit, which then aborts.
        """
        return acknowledge_later(
            self._store, self._target, self._runs(what), txn, self.through.standing
        )

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and with a message of its partition.

        Of a message that was received before some below it came back it does nothing, and says so
        by `stale`; in a transaction that is a TransactionConflict.
        """
        return acknowledge_runs(
            self._store, self._target, runs_of(what), txn, cumulative=True,
            standing=self.through.standing,
        )  # fmt: skip

    def negative_acknowledge(self, what: Acknowledgeable, delay_ms: int | None = None) -> Back:
        """Give messages in hand back, to come again after a delay; each counts as a redelivery.

        delay_ms: None: that of the consumer or subscription, doubled with each redelivery up to
                  nack_backoff_max_ms. Messages that are not in this consumer's hand are left alone
        """
        if delay_ms is not None and delay_ms < 0:
            raise InvalidArgument(f"delay_ms is {delay_ms}, it must not be negative", code=203)
        runs, store = self._runs(what), self._store
        if not runs:
            return Back(0)

        def decide(view: View, now: Instant) -> Decision:
            return negative_acknowledge(
                view, store.settings, now, self._target, runs, delay_ms,
                consumer=self._member.number, nack_delay_ms=self._nack_delay_ms,
            )  # fmt: skip

        answer = store.write(decide)
        assert isinstance(answer, Back)
        self._is_idle = False
        return answer

    def reconsume_later(
        self, message: Message | MessageId, delay_ms: int = 0,
        properties: dict[str, str] | None = None,
    ) -> Moved:  # fmt: skip
        """Put a message off: it goes to the retry topic, and is acknowledged, in one frame.

        The retry topic is <topic>-<subscription>-RETRY, or the subscription's policy; it is made
        with this subscription on it, so that a consumer of both topics gets the message again.
        delay_ms: not handed out before, where the retry topic is read with a type that waits;
                  a send with deliver_after, so the policies of that topic hold
        raises: InvalidMessage (a delay above the maximum of the retry topic): nothing moved
        """
        [one] = ids_of([message])
        return reconsume_later(
            self._store, self._target, one, Postponed(delay_ms, properties or {}, self.id)
        )

    def redeliver_unacknowledged_messages(self) -> Back:
        """Give back what was received and not acknowledged; it comes again at once, counted."""
        with self._turns:
            unseen = self._unseen()
            self._buffered.clear()
            self._is_idle = False
            return self._member.give_back(unseen, detach=False)

    def _unseen(self) -> dict[int, list[Run]]:
        """What lies in the queue and was never received, by partition."""
        out: dict[int, list[MessageId]] = {}
        numbers = catalogs.numbers(self._topic)
        for message in self._buffered:
            if message.message_id is not None:
                out.setdefault(numbers[message.partition], []).append(message.message_id)
        return {number: acknowledge.runs_of_ids(ids) for number, ids in out.items()}

    def seek(self, to: Where) -> None:
        """Stand before a message, an instant or a bound; as SubscriptionHandle.seek."""
        with self._turns:
            seek_to(self._store, self._target, to, self._partitions)
            self._buffered.clear()
            self._places.clear()
            self._highest.clear()

    def unsubscribe(self) -> None:
        """Delete the subscription and close; raises ConsumerBusy when it has other consumers."""
        with self._turns:
            self._member.unsubscribe(self._target)
            self._buffered.clear()

    def close(self) -> None:
        """Leave the subscription; what is in hand goes back, counted if it was received."""
        with self._turns:
            if self._member.is_open:
                self._member.leave(self._unseen())
                self._buffered.clear()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()
