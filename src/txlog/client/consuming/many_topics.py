"""Owns MultiTopicsConsumer: one subscription name on several topics, or on a pattern of them.

It holds one Consumer for each topic and asks them in turn. Every topic has a subscription of that
name, and keeps its promises (order, types, redelivery); between topics there is no order. Its
watermark is the least over all partitions of all topics, and binds each subscription.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeAlias, TypeVar

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.startup import compute as pc
from txlog.client.consuming.batches import Batching, BatchReceivePolicy, receive_batch
from txlog.client.consuming.consumer import Consumer
from txlog.client.consuming.listeners import Listening, needed
from txlog.engine.door.catalog import topic_of
from txlog.engine.door.consuming import (
    DEAD,
    AckAnswer,
    Acknowledgeable,
    Guard,
    MoveResult,
    ReturnResult,
    acknowledge_together,
    acknowledge_together_later,
    check_received,
    runs_of,
)
from txlog.engine.door.reading import (
    NO_MESSAGES,
    REST_SECONDS_MAX,
    Message,
    Quiet,
    Where,
    bound_of,
    least,
    only_one,
    until,
)
from txlog.engine.door.store import Mutex, Store, View
from txlog.engine.door.transactions import Later, Transaction
from txlog.engine.door.watermarks import (
    Pair,
    Subscribed,
    Watermarked,
    WatermarkListener,
    WatermarkSession,
)
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidArgument,
    MessageNotFound,
    SubscriptionNotFound,
    TopicNotFound,
    TxlogError,
)

Topics: TypeAlias = list[str] | tuple[str, ...] | re.Pattern[str]
# Opens the consumer of a topic; True: the topic was created later, none of it is skipped.
OpenOne: TypeAlias = Callable[[str, bool], Consumer]
T = TypeVar("T")
_GONE = (TopicNotFound, SubscriptionNotFound, AlreadyClosed)  # closed: it was detached


@checked
class MultiTopicsConsumer(Watermarked):
    """Receives from several topics in fair turns; safe to call from many threads.

    With a pattern (re.compile) it takes the topics whose name it matches as a whole: the short
    name, tenant/namespace/name, or persistent://tenant/namespace/name. Topics created later join at
    the first poll that finds nothing. The dead-letter topics of this subscription never do: what
    was given up would come back. While a topic that joined has no watermark yet, the value stays;
    it never falls for one that lags.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         for name in ("orders", "returns"):
    ...             _ = client.create_topic(name)
    ...             _ = client.producer(name).send(name.encode())
    ...         with client.consumer(["orders", "returns"], "billing", create=True) as consumer:
    ...             table = consumer.receive_batch()
    ...             answer = consumer.acknowledge(table)
    ...         sorted(table["value"].to_pylist()), answer.acked
    ([b'orders', b'returns'], 2)
    """

    __slots__ = (
        "__weakref__",
        "_batching",
        "_consumers",
        "_is_closed",
        "_listening",
        "_open_one",
        "_pattern",
        "_seen",
        "_session",
        "_store",
        "_turn",
        "_turns",
        "subscription",
    )

    def __init__(
        self,
        store: Store,
        topics: Topics,
        subscription: str,
        open_one: OpenOne,
        enable_watermarking: bool = False,
        listener: WatermarkListener[MultiTopicsConsumer] | None = None,
        policy: BatchReceivePolicy | None = None,
    ) -> None:
        self._listening: Listening | None = None
        self._batching = Batching(policy, has_watermarks=enable_watermarking)
        self._store = store
        self._session: WatermarkSession | None = None
        if enable_watermarking:
            notify = None if listener is None else partial(listener.received_watermark, self)
            self._session = WatermarkSession(store, Subscribed(store, self._assigned), notify)
        self._open_one = open_one
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self.subscription = subscription
        self._consumers: dict[str, Consumer] = {}
        self._is_closed = False
        self._turn = 0
        self._turns = Mutex(store.disk.pid)
        self._seen: tuple[int, int, int] | None = None  # the catalog last searched
        if isinstance(topics, re.Pattern):
            self._discover(is_later=False)
            return
        names = [str(TopicName.parse(name, allow_partition=True)) for name in topics]
        if not names:
            raise InvalidArgument("a list of topics names at least one")
        try:
            for name in dict.fromkeys(names):
                self._consumers[name] = open_one(name, False)
        except BaseException:  # nobody else can close those so far
            self.close()
            raise

    @property
    def topics(self) -> list[str]:
        """The topics it currently receives from."""
        return sorted(self._consumers)

    @property
    def blocked(self) -> str | None:
        """Why the last receive returned nothing although there may be messages, as of Consumer."""
        reasons = (one.blocked for one in list(self._consumers.values()))
        return next((reason for reason in reasons if reason), None)

    # --- topics of a pattern -----------------------------------------------------------------

    def _discover(self, *, is_later: bool) -> bool:
        """Join the topics that match now, leave those that are gone; True: some joined."""
        seen, names = self._store.read(self._matching)
        if seen == self._seen:
            return False
        for name in [name for name in self._consumers if name not in names]:
            self._leave(name)
        joined, is_complete = False, True
        for name in names:
            if name in self._consumers:
                continue
            try:
                self._consumers[name] = self._open_one(name, is_later)
            except _GONE:
                continue  # without this subscription, or deleted: checked again after a change
            except ConsumerBusy:
                is_complete = False
                continue
            joined = True
        self._seen = seen if is_complete else None
        return joined

    def _matching(self, view: View) -> tuple[tuple[int, int, int], list[str]]:
        catalog, pattern = view.catalog, self._pattern
        assert pattern is not None
        seen = (catalog.next_topic, len(catalog.topics), catalog.next_subscription)
        if seen == self._seen:
            return seen, []
        given_up = f"-{self.subscription}-{DEAD}"
        names = []
        for topic in catalog.topics.values():
            short = TopicName.parse(topic.name).short
            forms = (short, topic.name, f"persistent://{topic.name}")
            if any(map(pattern.fullmatch, forms)) and not topic.name.endswith(given_up):
                names.append(short)
        return seen, sorted(names)

    def _leave(self, name: str) -> None:
        try:
            self._consumers.pop(name).close()
        except _GONE:
            return  # the topic is gone, and what it had in hand with it

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(self, max_messages: int | None = None, timeout_ms: int = 0) -> pa.Table:
        """The next messages of all topics, at most max_messages, as RECEIVED.

        Without arguments: as batch_receive_policy says, else at most 1,000 and at once. Each topic
        first gets its share, then those with more; so none waits for another. With watermarks also
        no rows, at once, when there is a new one, and a column is_late.
        raises: what a topic raises, once there is nothing else
        """
        return receive_batch(self._store, self, max_messages, timeout_ms)

    def _some(self, limit: int, is_thorough: bool) -> pa.Table | None:
        """One turn for a batch; without rows: there is a new watermark."""
        with self._turns.held():
            self._begin(is_thorough)
            found = self._turn_of(partial(self._take, limit))
        if found is None:
            return None
        table = NO_MESSAGES if found[0] is None else found[0]
        return table if self._session is None else self._session.marked(table)

    def _nothing(self) -> pa.Table:
        return NO_MESSAGES if self._session is None else self._session.marked(NO_MESSAGES)

    def _unread(self, table: pa.Table) -> None:
        for consumer, part in self._by_consumer(table):
            assert isinstance(part, pa.Table)
            consumer._unread(part)

    def _unreceived(self, message: Message) -> None:
        self._of(message)._unreceived(message)

    def receive(self, timeout_ms: int | None = 0) -> Message | None:
        """The next message of any topic; None if none came in time (None: wait forever).

        With watermarks also None, at once, when there is a new one: see get_last_watermark.
        """
        found = until(self._store, self._next, timeout_ms, self._rest)
        return None if found is None else found[0]

    def _rest(self, pause: float) -> Quiet:
        """How long to wait for news: until the first topic may have something by time alone."""
        rests = [one._rest(pause) for one in [*self._consumers.values()]]
        if self._session is not None:
            rests.append(Quiet(self._session.rest(), heeds_appends=True))
        if self._pattern is not None:  # None: a topic could not be joined
            rests.append(Quiet(pause if self._seen is None else REST_SECONDS_MAX))
        return least(rests)

    def _begin(self, is_thorough: bool) -> None:
        self._check_open()
        for consumer in self._consumers.values():
            consumer._receiving.is_thorough = is_thorough

    def _next(self, is_thorough: bool) -> tuple[Message | None] | None:
        with self._turns.held():
            self._begin(is_thorough)
            found = self._turn_of(self._next_in_turn)
            if found is None or found[0] is None or self._session is None:
                return found
            return (self._session.judged(found[0]),)

    def _turn_of(self, take: Callable[[], T | None]) -> tuple[T | None] | None:
        """What is there; (None,) for a new watermark, None for nothing."""

        def take_or_join() -> T | None:
            if self._is_still():
                return None
            found = take()
            if found is None and self._pattern is not None and self._discover(is_later=True):
                found = take()
            return found

        if self._session is None:
            found = take_or_join()
            return None if found is None else (found,)
        found, has_moved = self._session.turn(take_or_join, self._is_refused)
        return (found,) if found is not None or has_moved else None

    def _is_still(self) -> bool:
        """True when no topic can have anything: one check for all, as each found nothing."""
        if self._session is not None or (self._pattern is not None and self._seen is None):
            return False  # it waits for watermarks, or a topic is yet to be joined
        now, lsns = self._store.clock.now(), set[int]()
        departures = self._store.wakeups.tally.departures
        for consumer in self._consumers.values():
            still = consumer._still
            if still is None or not still.is_early(now, departures):
                return False
            lsns.add(still.lsn)
        return lsns == {self._store.refresh()} and not self._store.has_unflushed(unseen=True)

    def _is_refused(self) -> bool:
        return any(consumer._is_refused() for consumer in self._consumers.values())

    def _assigned(self, view: View) -> list[Pair]:
        """What its consumers may receive from; a topic that is gone has nothing."""
        out: list[Pair] = []
        for consumer in self._consumers.values():
            try:
                out += consumer._assigned(view)
            except _GONE:
                continue  # the next turn raises it, or leaves the topic
        return out

    def _guard(self) -> Guard | None:
        return None if self._session is None else self._session.is_current

    def _take(self, limit: int) -> pa.Table | None:
        """What failed on a topic is raised only if no other has anything: it would be lost."""
        tables: list[pa.Table] = []
        more: list[Consumer] = []
        failed: TxlogError | None = None
        share = max(1, limit // max(1, len(self._consumers)))
        for name, consumer in self._in_turn():
            wanted = min(share, limit)
            if not wanted:
                break
            self._turn += 1
            try:
                table = consumer._batch(wanted, self._guard())
            except TxlogError as error:
                failed = self._failed(name, error) or failed
                continue
            if table is not None:
                tables.append(table)
                limit -= table.num_rows
                if table.num_rows == wanted:
                    more.append(consumer)
        for consumer in more:
            if limit:
                try:
                    table = consumer._batch(limit, self._guard())
                except TxlogError:
                    break  # the next call meets it
                if table is not None:
                    tables.append(table)
                    limit -= table.num_rows
        if failed is not None and not tables:
            raise failed
        return pa.concat_tables(tables) if tables else None

    def _failed(self, name: str, error: TxlogError) -> TxlogError | None:
        """The error to raise; with a pattern, a topic that is gone is left instead."""
        if self._pattern is None or not isinstance(error, _GONE):
            return error
        self._leave(name)
        return None

    def _next_in_turn(self) -> Message | None:
        failed: TxlogError | None = None
        for name, consumer in self._in_turn():
            self._turn += 1
            try:
                message = consumer._next_of_queue(self._guard())
            except TxlogError as error:
                failed = self._failed(name, error) or failed
                continue
            if message is not None:
                return message
        if failed is not None:
            raise failed
        return None

    def _in_turn(self) -> list[tuple[str, Consumer]]:
        items = list(self._consumers.items())
        self._turn %= max(1, len(items))
        return items[self._turn :] + items[: self._turn]

    def has_message_available(self) -> bool:
        """True when a message of any topic can be received."""
        with self._turns.held():
            self._check_open()
            return any(consumer.has_message_available() for consumer in self._consumers.values())

    def pause_message_listener(self) -> None:
        """Call its listener no more, for now; returns when it is not being called.

        From within the listener: after this call. What it has taken ahead goes back.
        raises: AlreadyClosed, NotAllowed (it has none)
        """
        self._check_open()
        needed(self._listening).pause()
        with self._turns.held():
            for consumer in self._consumers.values():
                consumer._put_down()

    def resume_message_listener(self) -> None:
        """Call its listener again; raises as pause_message_listener."""
        self._check_open()
        needed(self._listening).resume()

    def get_last_message_ids(self) -> dict[str, dict[int, MessageId | None]]:
        """The last visible message of each partition of each topic."""
        with self._turns.held():
            self._check_open()
            return {name: one.get_last_message_ids() for name, one in self._consumers.items()}

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed unless there is one partition in all."""
        known = {
            index: one
            for index, one in enumerate(
                one for parts in self.get_last_message_ids().values() for one in parts.values()
            )
        }
        return only_one(self.subscription, known)

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows of any of the topics: all, or none.

        raises: as Consumer.acknowledge
        """
        parts = [(one._through, runs_of(part)) for one, part in self._by_consumer(what)]
        return acknowledge_together(self._store, parts, txn)

    def acknowledge_async(self, what: Acknowledgeable, *, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        A refusal is raised by `result()`, or else by the commit, which then aborts.
        raises: AlreadyClosed, MessageNotFound (a topic that it does not have), InvalidArgument
        """
        parts = [(one._through, runs_of(part)) for one, part in self._by_consumer(what)]
        if not parts:
            raise InvalidArgument("there is nothing to acknowledge")
        return acknowledge_together_later(self._store, parts, txn)

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition."""
        return self._of(what).acknowledge_cumulative(what, txn=txn)

    def reconsume_later(
        self,
        message: Message | MessageId,
        delay_ms: int = 0,
        properties: dict[str, str] | None = None,
    ) -> MoveResult:
        """Postpone a message, as Consumer.reconsume_later."""
        return self._of(message).reconsume_later(message, delay_ms, properties)

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None = None
    ) -> ReturnResult:
        """Return received messages, as Consumer.negative_acknowledge."""
        return _together(
            [one.negative_acknowledge(part, delay_ms) for one, part in self._by_consumer(what)]
        )

    def redeliver_unacknowledged_messages(self) -> ReturnResult:
        """Return what was received and not acknowledged; it comes again at once, counted."""
        with self._turns.held():
            self._check_open()
            return _together(
                [one.redeliver_unacknowledged_messages() for one in self._consumers.values()]
            )

    def seek(self, to: Where) -> None:
        """Move each subscription to a place, one after another; an id moves that of its topic.

        raises: as Consumer.seek: the topics before are moved; MessageNotFound
        """
        bound = bound_of(to)
        if isinstance(bound.value, MessageId):
            self._of(bound.value).seek(to)
            return
        with self._turns.held():
            self._check_open()
            for consumer in self._consumers.values():
                consumer.seek(to)

    def unsubscribe(self) -> None:
        """Delete the subscription on each topic, and close.

        raises: ConsumerBusy if one has other consumers; those before it are deleted
        """
        with self._turns.held():
            self._check_open()
            while self._consumers:
                name, consumer = next(iter(self._consumers.items()))
                consumer.unsubscribe()
                self._consumers.pop(name)
            self._is_closed = True

    def _by_consumer(self, what: Acknowledgeable) -> list[tuple[Consumer, Acknowledgeable]]:
        """What was named, by the consumer of its topic. Raises MessageNotFound."""
        self._check_open()
        if isinstance(what, pa.Table):
            check_received(what, "topic", "ledger", "entry", "index")
            names = pc.unique(what.column("topic")).to_pylist()
            if len(names) == 1:
                return [(self._named(names[0]), what)]
            return [
                (self._named(name), what.filter(pc.equal(what.column("topic"), name)))
                for name in names
            ]
        if isinstance(what, Message | MessageId):
            return [(self._of(what), what)]
        parts: dict[int, tuple[Consumer, list[Message | MessageId]]] = {}
        for one in what:
            consumer = self._of(one)
            parts.setdefault(id(consumer), (consumer, []))[1].append(one)
        return list(parts.values())

    def _of(self, what: Message | MessageId) -> Consumer:
        self._check_open()
        if isinstance(what, Message):
            return self._named(what.topic)

        def look(view: View) -> str | None:
            owner = view.catalog.owners.get(what.ledger)
            if owner is None:
                return None
            return TopicName.parse(topic_of(view.catalog, owner[0]).name).short

        name = self._store.read(look)
        if name is None:
            raise MessageNotFound(f"message {what} does not exist", message_id=what)
        return self._named(name)

    def _named(self, topic: str) -> Consumer:
        found = self._consumers.get(topic)
        if found is not None:
            return found
        for name, consumer in self._consumers.items():  # of a partition
            if name.rpartition("/")[0] == topic:
                return consumer
        raise MessageNotFound(f"topic {topic} is not one that this consumer has", topic=topic)

    # --- closing -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed("the consumer is closed")

    def close(self) -> None:
        """Leave the subscriptions; unacknowledged messages go to the next consumer."""
        if self._store.put_off(self.close):  # from `__del__` or a signal handler, within a call
            return
        failed: TxlogError | None = None
        with self._turns.held():
            self._is_closed = True
            while self._consumers:
                _, consumer = self._consumers.popitem()
                try:
                    consumer.close()
                except TxlogError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def __enter__(self) -> MultiTopicsConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _together(answers: list[ReturnResult]) -> ReturnResult:
    return ReturnResult(sum(one.returned for one in answers), sum(one.missed for one in answers))
