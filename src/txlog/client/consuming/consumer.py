"""Owns Consumer: receives a subscription's messages and acknowledges them.

What it receives is leased to it (`receive`). Messages come back when it dies, gives them back, or
lets an acknowledgement time-out expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TopicName, TxnId, check_name
from txlog.base.settings import QUEUE_SIZE
from txlog.client.consuming.batches import Batching, BatchReceivePolicy, receive_batch
from txlog.client.consuming.listeners import Listening, needed
from txlog.clock import Instant
from txlog.engine.door.catalog import Subscription, Topic
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import (
    AckAnswer,
    Acknowledgeable,
    Ahead,
    Guard,
    Membership,
    MoveResult,
    Receiving,
    RetryOptions,
    ReturnResult,
    Still,
    Through,
    acknowledge_later,
    acknowledge_runs,
    check_options,
    ids_of,
    negative_acknowledge,
    reconsume_later,
    runs_of,
)
from txlog.engine.door.facts import Run
from txlog.engine.door.reading import (
    BY_TIME,
    NO_MESSAGES,
    Message,
    Quiet,
    Where,
    chosen_partitions,
    last_ids,
    least,
    only_one,
    seek_to,
    until,
)
from txlog.engine.door.store import Decision, Mutex, Store, View
from txlog.engine.door.transactions import Later, Transaction
from txlog.engine.door.watermarks import (
    Subscribed,
    Watermarked,
    WatermarkListener,
    WatermarkSession,
)
from txlog.errors import InvalidArgument, NotAllowed


@checked
class Consumer(Watermarked):
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
        "__weakref__",
        "_ahead",
        "_batching",
        "_listening",
        "_member",
        "_nack_delay_ms",
        "_receiving",
        "_session",
        "_store",
        "_turns",
        "name",
        "short",
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
        listener: WatermarkListener[Consumer] | None = None,
        policy: BatchReceivePolicy | None = None,
    ) -> None:
        self._listening: Listening | None = None
        self._batching = Batching(policy, has_watermarks=enable_watermarking)
        check_options(type, receiver_queue_size, ack_timeout_ms, nack_delay_ms)
        self._store = store
        wanted = TopicName.parse(topic, allow_partition=True)
        self.short = wanted.topic.short
        if name is None:  # whatever a user may be called
            self.name = f"{store.disk.owner()[1]}-{store.disk.pid()}"
        else:
            self.name = check_name("consumer", name)
        self._nack_delay_ms = nack_delay_ms
        self._turns = Mutex(store.disk.pid)
        found = store.read(lambda view: self._find(view, wanted, subscription))
        held = found[1]
        if isolation not in (None, held.isolation):
            raise NotAllowed(
                f"subscription {subscription} is {held.isolation}, not {isolation}",
                hint="use a separate subscription",
                topic=self.short,
                subscription=subscription,
            )
        chosen = chosen_partitions(found[0], wanted, partitions)
        if chosen is not None and not chosen:
            raise InvalidArgument("a list of partitions names at least one")
        self._member = Membership(store, held, self.short, self.name, type, priority)
        self._receiving = Receiving(store, self.short, found, self._member, chosen, ack_timeout_ms)
        self._ahead = Ahead(store, self._member, self._receiving, receiver_queue_size)
        self._session: WatermarkSession | None = None
        if enable_watermarking:
            notify = None if listener is None else partial(listener.received_watermark, self)
            ground = Subscribed(store, self._assigned)
            self._session = WatermarkSession(store, ground, notify)

    @staticmethod
    def _find(view: View, wanted: TopicName, name: str) -> tuple[Topic, Subscription]:
        topic = find_topic(view, wanted)
        return topic, find_subscription(view, topic, name)

    @property
    def id(self) -> int:
        """Its number in the store; none is used twice."""
        return self._member.number

    @property
    def kind(self) -> str:
        """The type of the subscription: exclusive, failover, shared or key-shared."""
        return self._member.kind

    @property
    def blocked(self) -> str | None:
        """Why the last receive returned nothing although there may be messages: unacked_max."""
        return self._receiving.blocked

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(self, max_messages: int | None = None, timeout_ms: int = 0) -> pa.Table:
        """The next messages, at most max_messages, as RECEIVED; no rows when time runs out.

        Without arguments: as batch_receive_policy says, else at most 1,000 and at once. Rows of one
        marker are together. What came back goes before what is new. `blocked` says why there is
        nothing although there may be messages. With watermarks also no rows, at once, when there is
        a new one, and a column is_late.
        raises: AlreadyClosed, InvalidArgument, SubscriptionNotFound (deleted); Corruption, after
                what can be read; PartitionUnavailable once all its partitions are unavailable
        """
        return receive_batch(self._store, self, max_messages, timeout_ms)

    def receive(self, timeout_ms: int | None = 0) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait forever).

        It leases a few messages at once, as many as the application's pace suggests, at most
        receiver_queue_size. What was not received counts as not delivered: no time-out runs for it,
        and it goes back uncounted when the consumer closes or dies. With watermarks also None, at
        once, when there is a new one: see get_last_watermark. Raises as receive_batch.
        """
        found = until(self._store, self._next, timeout_ms, self._rest)
        return None if found is None else found[0]

    def _next(self, is_thorough: bool) -> tuple[Message | None] | None:
        """The next message; (None,): there is a new watermark."""
        with self._turns.held():  # not while it waits: another thread may close it
            self._receiving.is_thorough = is_thorough
            session = self._session
            if session is None:
                message = self._ahead.next()
                return None if message is None else (message,)
            take = partial(self._ahead.next, session.is_current)
            message, has_moved = session.turn(take, self._is_refused)
            if message is not None:
                return (session.judged(message),)
            return (None,) if has_moved else None

    def _rest(self, pause: float) -> Quiet:
        """How long to wait for news, whatever brings it."""
        rests = [self._receiving.rest(pause), Quiet(self._ahead.rest(), concern=BY_TIME)]
        if self._session is not None:
            rests.append(Quiet(self._session.rest(), heeds_appends=True))
        return least(rests)

    def _take(self, limit: int) -> tuple[pa.Table, bool]:
        """One turn, and whether there is a new watermark instead of messages."""
        receiving, session = self._receiving, self._session
        if session is None:
            return self._table(limit), False

        def take() -> pa.Table | None:
            table = self._table(limit, session.is_current)
            return table if table.num_rows else None

        found, has_moved = session.turn(take, self._is_refused)
        table = session.marked(NO_MESSAGES if found is None else found)
        receiving.stands_for(table)
        return table, has_moved

    def _some(self, limit: int, is_thorough: bool) -> pa.Table | None:
        """One turn for a batch; without rows: there is a new watermark."""
        with self._turns.held():
            self._receiving.is_thorough = is_thorough
            table, has_moved = self._take(limit)
        return table if table.num_rows or has_moved else None

    def _nothing(self) -> pa.Table:
        return NO_MESSAGES if self._session is None else self._session.marked(NO_MESSAGES)

    def _unread(self, table: pa.Table) -> None:
        with self._turns.held():
            self._receiving.give_back(table)

    def _unread_runs(self, parts: Sequence[tuple[int, list[Run]]]) -> None:
        """Return runs by partition, its store-wide number, uncounted: nobody has seen them."""
        with self._turns.held():
            self._receiving.give_back_runs(parts)

    def _unreceived(self, message: Message) -> None:
        """A message that `_next` returned goes back uncounted: no application got it."""
        parts = [(self._receiving.number_of(message), runs_of(message))]
        with self._turns.held():
            self._ahead.returned(self._receiving.give_back_runs(parts))

    def _batch(self, limit: int, guard: Guard | None = None) -> pa.Table | None:
        """One turn; None when there is nothing, or when the guard refused it under the lock."""
        with self._turns.held():
            table = self._table(limit, guard)
            return table if table.num_rows else None

    def _table(self, limit: int, guard: Guard | None = None) -> pa.Table:
        self._ahead.look()
        self._ahead.give_back()  # it comes in its order
        table = self._receiving.take(limit, guard, seen=self._ahead.spoken())
        if table.num_rows:
            self._ahead.said()
        return table

    def _next_of_queue(self, guard: Guard | None = None) -> Message | None:
        """The next message, of a newly leased batch if need be; guard: as in batch."""
        with self._turns.held():
            return self._ahead.next(guard)

    @property
    def _still(self) -> Still | None:
        """After a turn that found nothing: how long that holds; None: it must look again."""
        return self._receiving.still

    def _is_refused(self) -> bool:
        """True when the guard of the last turn said no."""
        return self._receiving.is_refused

    def _assigned(self, view: View) -> list[tuple[int, int]]:
        """(subscription, partition) of those it may receive from; raises when closed."""
        return self._receiving.assigned(view)

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        with self._turns.held():
            self._receiving.check_open()
            self._ahead.look()
            return bool(self._ahead) or self._store.read(self._receiving.has_next)

    def pause_message_listener(self) -> None:
        """Call its listener no more, for now; returns when it is not being called.

        From within the listener: after this call. What it has taken ahead goes back.
        raises: AlreadyClosed, NotAllowed (it has none)
        """
        self._receiving.check_open()
        needed(self._listening).pause()
        self._put_down()

    def _put_down(self) -> None:
        """Return what it has taken ahead."""
        with self._turns.held():
            self._ahead.give_back()

    def resume_message_listener(self) -> None:
        """Call its listener again; raises as pause_message_listener."""
        self._receiving.check_open()
        needed(self._listening).resume()

    def get_last_message_ids(self) -> dict[int, MessageId | None]:
        """The last visible message of each partition, None for an empty one."""
        self._receiving.check_open()
        return self._store.read(
            lambda view: last_ids(view, self._receiving.target(view)[0], self._receiving.partitions)
        )

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when the topic has several partitions."""
        return only_one(self.short, self.get_last_message_ids())

    # --- acknowledging -----------------------------------------------------------------------

    @property
    def _through(self) -> Through:
        """What an acknowledgement through this consumer takes along."""
        return Through(self._receiving.target, self._receiving.standing)

    def _runs(self, what: Acknowledgeable) -> list[Run]:
        """As runs_of; those of the last batch are known, and that is what most acknowledge."""
        self._receiving.check_open()
        known = self._receiving.known_runs(what)
        return runs_of(what) if known is None else known

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows; in a transaction they become PENDING_ACK.

        raises: AlreadyClosed, MessageNotFound, PartitionUnavailable; in a transaction
                TransactionConflict, which has aborted it, and errors of its state
        """
        return acknowledge_runs(
            self._store,
            self._receiving.target,
            self._runs(what),
            txn,
            cumulative=False,
            standing=self._receiving.standing,
        )

    def acknowledge_async(self, what: Acknowledgeable, *, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        A refusal is raised by `result()`, or else by the commit, which then aborts.
        """
        return acknowledge_later(
            self._store, self._receiving.target, self._runs(what), txn, self._receiving.standing
        )

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition.

        If the message was received before some below it came back, it does nothing and `stale` says
        so; in a transaction that is a TransactionConflict.
        raises: as acknowledge; NotAllowed (shared, key-shared)
        """
        return acknowledge_runs(
            self._store,
            self._receiving.target,
            self._runs(what),
            txn,
            cumulative=True,
            standing=self._receiving.standing,
        )

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None = None
    ) -> ReturnResult:
        """Return received messages, to come again after a delay; each counts as a redelivery.

        delay_ms: None: that of the consumer or subscription, doubled with each redelivery up to
                  nack_backoff_max_ms. Messages that this consumer does not hold are left alone
        raises:   AlreadyClosed, InvalidArgument, MessageNotFound
        """
        if delay_ms is not None and delay_ms < 0:
            raise InvalidArgument(f"delay_ms is {delay_ms}, it must not be negative", code=203)
        runs, store = self._runs(what), self._store
        if not runs:
            return ReturnResult(0)

        def decide(view: View, now: Instant) -> Decision[ReturnResult]:
            return negative_acknowledge(
                view,
                store.settings,
                now,
                self._receiving.target,
                runs,
                delay_ms,
                consumer=self._member.number,
                nack_delay_ms=self._nack_delay_ms,
                seen={self._member.number: self._ahead.seen},
            )

        made: Decision[ReturnResult] = Decision([])

        def noted(view: View, now: Instant) -> Decision[ReturnResult]:
            nonlocal made
            made = decide(view, now)
            return made

        answer = store.write(noted, tells=True)
        self._ahead.returned(made.ops)
        self._receiving.is_idle = False
        return answer

    def reconsume_later(
        self,
        message: Message | MessageId,
        delay_ms: int = 0,
        properties: dict[str, str] | None = None,
    ) -> MoveResult:
        """Postpone a message: it goes to the retry topic and is acknowledged, in one frame.

        The retry topic is <topic>-<subscription>-RETRY, or the subscription's policy; it is made
        with this subscription on it, so that a consumer of both topics gets the message again.
        delay_ms: not delivered before, if the subscription type on the retry topic waits; a send
                  with deliver_after, so the policies of that topic apply
        raises: InvalidMessage (a delay above the maximum of the retry topic): nothing moved
        """
        self._receiving.check_open()
        [one] = ids_of([message])
        return reconsume_later(
            self._store,
            self._receiving.target,
            one,
            RetryOptions(delay_ms, properties or {}, self.id),
        )

    def redeliver_unacknowledged_messages(self) -> ReturnResult:
        """Return what was received and not acknowledged; it comes again at once, counted."""
        with self._turns.held():
            self._receiving.check_open()
            self._ahead.clear()
            self._receiving.is_idle = False
            return self._member.give_back(self._ahead.seen, detach=False)

    def seek(self, to: Where) -> None:
        """Move to before a message, an instant or a bound; as SubscriptionHandle.seek."""
        with self._turns.held():
            receiving = self._receiving
            receiving.check_open()
            seek_to(self._store, receiving.target, to, receiving.partitions)
            self._ahead.clear()
            self._receiving.begin_again()

    def unsubscribe(self) -> None:
        """Delete the subscription and close; raises ConsumerBusy if it has other consumers."""
        with self._turns.held():
            self._member.unsubscribe(self._receiving.target)
            self._ahead.clear()

    def close(self) -> None:
        """Leave the subscription; unacknowledged messages go back, counted if received.

        From `__del__` or a signal handler, inside a call on the store: once that has ended.
        """
        if self._store.put_off(self.close):
            return
        with self._turns.held():
            if self._member.is_open:
                self._member.leave(self._ahead.seen)
                self._ahead.clear()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
