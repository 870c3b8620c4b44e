"""Owns ConsumerSession: one consumer of one topic, from joining its subscription to leaving it.

It combines the consumer's membership, its turns (`receive`), the messages leased ahead of the
application (`ahead`) and its watermarks. Many threads may call it; a mutex lets one thread at a
time lease messages or return them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId, check_name
from txlog.base.settings import QUEUE_SIZE
from txlog.clock import Instant
from txlog.engine.decide.consuming.acknowledge import AckAnswer
from txlog.engine.decide.consuming.dead_letters import MoveResult, RetryOptions
from txlog.engine.decide.consuming.lease import ReturnResult, negative_acknowledge
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.model.ops import Run
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading.dispatch import NO_MESSAGES
from txlog.engine.relation.positions import Where, chosen_partitions, last_ids, only_one, seek_to
from txlog.engine.session.consuming.acknowledge import (
    Acknowledgeable,
    Through,
    acknowledge_later,
    acknowledge_runs,
    acknowledging,
    ids_of,
    runs_of,
)
from txlog.engine.session.consuming.ahead import Ahead
from txlog.engine.session.consuming.dead_letters import reconsume_later
from txlog.engine.session.consuming.membership import Membership, check_options
from txlog.engine.session.consuming.receive import Guard, Receiving, Still
from txlog.engine.session.reading.message import Message
from txlog.engine.session.reading.pause import BY_TIME, Quiet, least
from txlog.engine.session.reading.watermark_ground import Subscribed
from txlog.engine.session.reading.watermark_session import WatermarkSession
from txlog.engine.session.transactions.transaction import Later, Transaction
from txlog.engine.store.appender import Call
from txlog.engine.store.store import Mutex, Store
from txlog.engine.view import View
from txlog.errors import InvalidArgument, NotAllowed


class ConsumerSession:
    """The state of one consumer of one topic between calls.

    short:      the topic's name without public/default
    name:       of the consumer; by default the user's name and the process id
    member:     its membership of the subscription
    receiving:  its turns: the messages leased to it, and its place in each partition
    watermarks: None unless the consumer asked for watermarks
    """

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_nack_delay_ms",
        "_turns",
        "member",
        "name",
        "receiving",
        "short",
        "store",
        "watermarks",
    )

    def __init__(
        self,
        store: Store,
        topic: str,
        subscription: str,
        name: str | None,
        isolation: str | None = None,
        type: str | None = None,
        priority: int = 0,
        receiver_queue_size: int = QUEUE_SIZE,
        ack_timeout_ms: int | None = None,
        nack_delay_ms: int | None = None,
        partitions: Sequence[int] | None = None,
        enable_watermarking: bool = False,
    ) -> None:
        """Join the subscription.

        raises: TopicNotFound, SubscriptionNotFound, ConsumerBusy, InvalidArgument,
                NotAllowed (the subscription has another type or isolation)
        """
        check_options(type, receiver_queue_size, ack_timeout_ms, nack_delay_ms)
        self.store = store
        asked = TopicName.parse(topic, allow_partition=True)
        self.short = asked.topic.short
        if name is None:  # a user's name need not be a valid name of a consumer: not checked
            self.name = f"{store.disk.owner()[1]}-{store.disk.pid()}"
        else:
            self.name = check_name("consumer", name)
        self._nack_delay_ms = nack_delay_ms
        self._turns = Mutex(store.disk.pid)
        target = store.read(lambda view: _find(view, asked, subscription))
        if isolation not in (None, target[1].isolation):
            raise NotAllowed(
                f"subscription {subscription} is {target[1].isolation}, not {isolation}",
                hint="use a separate subscription",
                topic=self.short,
                subscription=subscription,
            )
        chosen = chosen_partitions(target[0], asked, partitions)
        if chosen is not None and not chosen:
            raise InvalidArgument("a list of partitions names at least one")
        self.member = Membership(store, target[1], self.short, self.name, type, priority)
        self.receiving = Receiving(store, self.short, target, self.member, chosen, ack_timeout_ms)
        self._ahead = Ahead(store, self.member, self.receiving, receiver_queue_size)
        self.watermarks: WatermarkSession | None = None
        if enable_watermarking:
            self.watermarks = WatermarkSession(store, Subscribed(store, self.assigned))

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self.receiving.subscription.name

    @property
    def subscription_number(self) -> int:
        """The number of the subscription in the store."""
        return self.receiving.subscription.number

    @property
    def topics(self) -> list[str]:
        """The one topic that it receives from."""
        return [self.short]

    @property
    def blocked(self) -> str | None:
        """`unacked_max` if that limit kept the last turn from leasing messages; else None."""
        return self.receiving.blocked

    # --- taking messages ---------------------------------------------------------------------

    def next(self, is_thorough: bool) -> tuple[Message | None] | None:
        """(the next message,); (None,): there is a new watermark; None: there is neither.

        is_thorough: search even if the last turn found nothing and no event came since
        """
        with self._turns.held():  # freed while a caller waits, so that another thread can close it
            self.receiving.is_thorough = is_thorough
            watermarks = self.watermarks
            if watermarks is None:
                message = self._ahead.next()
                return None if message is None else (message,)
            take = partial(self._ahead.next, watermarks.is_current)
            message, has_moved = watermarks.turn(take, self.is_refused)
            if message is not None:
                return (watermarks.judged(message),)
            return (None,) if has_moved else None

    def take(self, limit: int, is_thorough: bool) -> pa.Table | None:
        """Lease at most `limit` messages; no rows: a new watermark came; None: there is neither."""
        with self._turns.held():
            self.receiving.is_thorough = is_thorough
            table, has_moved = self._turn(limit)
        return table if table.num_rows or has_moved else None

    def _turn(self, limit: int) -> tuple[pa.Table, bool]:
        """(the rows of one turn, whether there is a new watermark instead)."""
        receiving, watermarks = self.receiving, self.watermarks
        if watermarks is None:
            return self._lease(limit), False

        def lease() -> pa.Table | None:
            table = self._lease(limit, watermarks.is_current)
            return table if table.num_rows else None

        leased, has_moved = watermarks.turn(lease, self.is_refused)
        table = watermarks.marked(NO_MESSAGES if leased is None else leased)
        receiving.stands_for(table)
        return table, has_moved

    def lease(self, limit: int, guard: Guard | None = None) -> pa.Table | None:
        """The rows of one turn without watermarks; None: no message, or the guard refused it."""
        with self._turns.held():
            table = self._lease(limit, guard)
            return table if table.num_rows else None

    def lease_next(self, guard: Guard | None = None) -> Message | None:
        """The next message, without watermarks; guard: as in `lease`."""
        with self._turns.held():
            return self._ahead.next(guard)

    def _lease(self, limit: int, guard: Guard | None = None) -> pa.Table:
        self._ahead.look()
        self._ahead.give_back()  # these messages come again in their order
        table = self.receiving.take(limit, guard, seen=self._ahead.spoken())
        if table.num_rows:
            self._ahead.said()
        return table

    def empty(self) -> pa.Table:
        """The table that a call returns when there is no message."""
        watermarks = self.watermarks
        return NO_MESSAGES if watermarks is None else watermarks.marked(NO_MESSAGES)

    def rest(self, pause: float) -> Quiet:
        """How long a waiting call may sleep, and which events wake it."""
        rests = [self.receiving.rest(pause), Quiet(self._ahead.rest(), concern=BY_TIME)]
        if self.watermarks is not None:
            rests.append(Quiet(self.watermarks.rest(), heeds_appends=True))
        return least(rests)

    @property
    def idle(self) -> Still | None:
        """How long the next turn would find nothing, too; None: it must search."""
        return self.receiving.still

    def is_refused(self) -> bool:
        """True when the guard of the last turn returned False."""
        return self.receiving.is_refused

    def limit_to(self, limits: Mapping[int, int]) -> None:
        """Lease only from these partitions (by index), in a turn at most so many messages each."""
        self.receiving.partitions, self.receiving.limits = list(limits), limits

    def prepare(self, limit: int, view: View) -> Call | None:
        """The call that leases at most `limit` messages for the next turn, or None.

        As `Receiving.prepare`, for a caller that takes nothing ahead and wants no watermarks. It
        does not hold the mutex: the caller makes no turn meanwhile.
        """
        return self.receiving.prepare(view, limit)

    @property
    def is_prepared(self) -> bool:
        """Whether the next turn has messages that `prepare` leased, or may have them."""
        return self.receiving.is_prepared

    def set_thorough(self, is_thorough: bool) -> None:
        """Set whether the next turns search even if no event has come since an empty turn."""
        self.receiving.is_thorough = is_thorough

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        with self._turns.held():
            self.receiving.check_open()
            self._ahead.look()
            return bool(self._ahead) or self.store.read(self.receiving.has_next)

    # --- returning messages that no application has seen -----------------------------------------

    def give_back(self, table: pa.Table) -> None:
        """Return rows of the last turn to the subscription, not counted as redelivered."""
        with self._turns.held():
            self.receiving.give_back(table)

    def give_back_runs(self, parts: Sequence[tuple[int, list[Run]]]) -> None:
        """Return runs by store-wide partition number, not counted as redelivered."""
        with self._turns.held():
            self.receiving.give_back_runs(parts)

    def give_back_message(self, message: Message) -> None:
        """Return a message that `next` returned, uncounted."""
        parts = [(self.receiving.number_of(message), runs_of(message))]
        with self._turns.held():
            self._ahead.returned(self.receiving.give_back_runs(parts))

    def give_back_ahead(self) -> None:
        """Return the messages that were leased ahead of the application, uncounted."""
        with self._turns.held():
            self._ahead.give_back()

    # --- its place ---------------------------------------------------------------------------

    def assigned(self, view: View) -> list[tuple[int, int]]:
        """(subscription, partition) pairs that it may receive from. Raises AlreadyClosed."""
        return self.receiving.assigned(view)

    def check_open(self) -> None:
        """Raises AlreadyClosed."""
        self.receiving.check_open()

    def last_message_ids(self) -> dict[int, MessageId | None]:
        """The last visible message of each partition, None for an empty one."""
        receiving = self.receiving
        receiving.check_open()
        return self.store.read(
            lambda view: last_ids(view, receiving.target(view)[0], receiving.partitions)
        )

    def last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when the topic has several partitions."""
        return only_one(self.short, self.last_message_ids())

    def seek(self, to: Where) -> None:
        """Move the subscription to before a message, an instant or a bound."""
        with self._turns.held():
            receiving = self.receiving
            receiving.check_open()
            seek_to(self.store, receiving.target, to, receiving.partitions)
            self._ahead.clear()
            receiving.begin_again()

    def seek_partition(self, to: Where, partition: int) -> None:
        """Move one partition, by its index in the topic, for a caller that takes nothing ahead.

        It does not hold the mutex: the caller makes no turn meanwhile.
        """
        seek_to(self.store, self.receiving.target, to, [partition])
        self.receiving.begin_again()

    # --- acknowledging -----------------------------------------------------------------------

    @property
    def through(self) -> Through:
        """The subscription and the state of the consumer, for an acknowledgement."""
        return Through(self.receiving.target, self.receiving.standing)

    def _runs(self, what: Acknowledgeable) -> list[Run]:
        """As runs_of. The runs of the last batch are kept: most callers acknowledge that batch."""
        self.receiving.check_open()
        kept = self.receiving.known_runs(what)
        return runs_of(what) if kept is None else kept

    def acknowledge(self, what: Acknowledgeable, txn: Transaction | TxnId | None) -> AckAnswer:
        """Acknowledge messages; in a transaction they are PENDING_ACK until it ends."""
        return self._acknowledge(what, txn, cumulative=False)

    def acknowledge_cumulative(
        self, what: Message | MessageId, txn: Transaction | TxnId | None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition."""
        return self._acknowledge(what, txn, cumulative=True)

    def _acknowledge(
        self, what: Acknowledgeable, txn: Transaction | TxnId | None, *, cumulative: bool
    ) -> AckAnswer:
        return self.acknowledge_runs(self._runs(what), txn, cumulative=cumulative)

    def acknowledge_runs(
        self, runs: list[Run], txn: Transaction | TxnId | None, *, cumulative: bool
    ) -> AckAnswer:
        """Acknowledge messages by their runs."""
        receiving = self.receiving
        return acknowledge_runs(
            self.store,
            receiving.target,
            runs,
            txn,
            cumulative=cumulative,
            standing=receiving.standing,
        )

    def acknowledging(self, runs: list[Run]) -> Call:
        """The call that acknowledges messages, for a caller that submits it with others.

        After the answer None it has to be repeated.
        """
        receiving = self.receiving
        return acknowledging(
            self.store, receiving.target, runs, receiving.standing, cumulative=False
        )

    def acknowledge_later(self, what: Acknowledgeable, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer."""
        receiving = self.receiving
        return acknowledge_later(
            self.store, receiving.target, self._runs(what), txn, receiving.standing
        )

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None, default_ms: int = 0
    ) -> ReturnResult:
        """Return received messages, counted as redelivered; see Consumer.negative_acknowledge."""
        if delay_ms is not None and delay_ms < 0:
            raise InvalidArgument(f"delay_ms is {delay_ms}, it must not be negative", code=203)
        runs, store = self._runs(what), self.store
        if not runs:
            return ReturnResult(0)
        decision: Decision[ReturnResult] = Decision([])

        def decide(view: View, now: Instant) -> Decision[ReturnResult]:
            nonlocal decision
            decision = negative_acknowledge(
                view,
                store.settings,
                now,
                self.receiving.target,
                runs,
                delay_ms,
                consumer=self.member.number,
                nack_delay_ms=self._nack_delay_ms,
                default_ms=default_ms,
                seen={self.member.number: self._ahead.seen},
            )
            return decision

        answer = store.write(decide, tells=True)
        self._ahead.returned(decision.ops)
        self.receiving.is_idle = False
        return answer

    def reconsume_later(
        self, message: Message | MessageId, delay_ms: int, properties: dict[str, str] | None
    ) -> MoveResult:
        """Move a message to the retry topic; see Consumer.reconsume_later."""
        self.receiving.check_open()
        [message_id] = ids_of([message])
        postponed = RetryOptions(delay_ms, properties or {}, self.member.number)
        return reconsume_later(self.store, self.receiving.target, message_id, postponed)

    def redeliver(self) -> ReturnResult:
        """Return all received and unacknowledged messages, counted as redelivered."""
        with self._turns.held():
            self.receiving.check_open()
            answer = self.member.give_back(self._ahead.seen, detach=False)
            self._ahead.clear()  # if the store refused, they are still to be handed out
            self.receiving.is_idle = False
            return answer

    # --- leaving -----------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        """Delete the subscription and leave; raises ConsumerBusy if it has other consumers."""
        with self._turns.held():
            self.member.unsubscribe(self.receiving.target)
            self._ahead.clear()

    def close(self) -> None:
        """Leave the subscription. Unacknowledged messages go back, counted if received."""
        if self.store.put_off(self.close):  # `__del__` or a signal handler interrupted a call
            return
        with self._turns.held():
            if self.member.is_open:
                self.member.leave(self._ahead.seen)
                self._ahead.clear()


def _find(view: View, name: TopicName, subscription: str) -> tuple[Topic, Subscription]:
    topic = find_topic(view, name)
    return topic, find_subscription(view, topic, subscription)
