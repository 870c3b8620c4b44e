"""Owns TopicsSession: one subscription name on several topics, or on all that match a pattern.

It has a ConsumerSession for each topic and receives from them in turn. Each topic has its own
subscription with that name, and keeps the guarantees of one: order, types, redelivery. There is no
order between topics. The watermark is the least over all partitions of all topics. Each
subscription stores it as its clamp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.startup import compute as pc
from txlog.engine.decide.consuming.acknowledge import AckAnswer
from txlog.engine.decide.consuming.dead_letters import MoveResult
from txlog.engine.decide.consuming.lease import ReturnResult
from txlog.engine.decide.consuming.watermark_offer import Pair
from txlog.engine.folds.catalog import Topic, topic_of
from txlog.engine.plan.derived import DEAD, derived_text
from txlog.engine.plan.reading.dispatch import NO_MESSAGES
from txlog.engine.relation.positions import Where, bound_of, only_one
from txlog.engine.session.consuming.acknowledge import (
    Acknowledgeable,
    acknowledge_together,
    acknowledge_together_later,
    check_received,
    runs_of,
)
from txlog.engine.session.consuming.consumer import ConsumerSession
from txlog.engine.session.consuming.receive import Guard
from txlog.engine.session.reading.message import Message
from txlog.engine.session.reading.pause import REST_SECONDS_MAX, Quiet, least
from txlog.engine.session.reading.watermark_ground import Subscribed
from txlog.engine.session.reading.watermark_session import WatermarkSession
from txlog.engine.session.transactions.transaction import Later, Transaction
from txlog.engine.store.store import Mutex, Store
from txlog.engine.view import View
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
# Opens the session of one topic. True: the topic was created later, so skip none of its messages.
OpenTopic: TypeAlias = Callable[[str, bool], ConsumerSession]
T = TypeVar("T")
_GONE = (TopicNotFound, SubscriptionNotFound, AlreadyClosed)  # closed: another consumer took over


class TopicsSession:
    """The state of one consumer of several topics between calls.

    A pattern must match the whole name of a topic, in one of three forms: the short name,
    tenant/namespace/name, or persistent://tenant/namespace/name. Topics created later join at the
    first turn that finds nothing. Dead-letter topics of this subscription never join, or dead
    letters would come back. While a new topic has no watermark, the value stays; it never falls.

    watermarks: None unless the consumer asked for watermarks
    """

    __slots__ = (
        "__weakref__",
        "_is_closed",
        "_open_topic",
        "_pattern",
        "_seen",
        "_sessions",
        "_turn",
        "_turns",
        "store",
        "subscription",
        "watermarks",
    )

    def __init__(
        self,
        store: Store,
        topics: Topics,
        subscription: str,
        open_topic: OpenTopic,
        enable_watermarking: bool = False,
    ) -> None:
        self.store = store
        self.watermarks: WatermarkSession | None = None
        if enable_watermarking:
            self.watermarks = WatermarkSession(store, Subscribed(store, self._assigned))
        self._open_topic = open_topic
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self.subscription = subscription
        self._sessions: dict[str, ConsumerSession] = {}
        self._is_closed = False
        self._turn = 0
        self._turns = Mutex(store.disk.pid)
        self._seen: tuple[int, int, int, int] | None = None  # the catalog last searched
        if isinstance(topics, re.Pattern):
            self._discover(is_later=False)
            return
        names = [str(TopicName.parse(name, allow_partition=True)) for name in topics]
        if not names:
            raise InvalidArgument("a list of topics names at least one")
        try:
            for name in dict.fromkeys(names):
                self._sessions[name] = open_topic(name, False)
        except BaseException:  # the caller gets no handle to close the sessions opened so far
            self.close()
            raise

    @property
    def topics(self) -> list[str]:
        """The topics it currently receives from."""
        return sorted(self._sessions)

    @property
    def blocked(self) -> str | None:
        """`unacked_max` if that limit kept the last turn from leasing messages; else None."""
        reasons = (session.blocked for session in list(self._sessions.values()))
        return next((reason for reason in reasons if reason), None)

    # --- topics of a pattern -----------------------------------------------------------------

    def _discover(self, *, is_later: bool) -> bool:
        """Join topics that match now, and leave others; True if a topic joined.

        A topic is known by its number: it may have another name by now, and another topic its own.
        """
        seen, names = self.store.read(self._matching)
        if seen == self._seen:
            return False
        for name, session in list(self._sessions.items()):
            if names.get(name) != session.receiving.topic.number:
                self._leave(name)
        joined, is_complete = False, True
        for name in names:
            if name in self._sessions:
                continue
            try:
                self._sessions[name] = self._open_topic(name, is_later)
            except _GONE:
                continue  # deleted, or without the subscription: try again when the catalog changes
            except ConsumerBusy:
                is_complete = False
                continue
            joined = True
        self._seen = seen if is_complete else None
        return joined

    def _matching(self, view: View) -> tuple[tuple[int, int, int, int], dict[str, int]]:
        catalog, pattern = view.catalog, self._pattern
        assert pattern is not None
        counts = len(catalog.topics), catalog.renames
        seen = (catalog.next_topic, catalog.next_subscription, *counts)
        if seen == self._seen:
            return seen, {}
        dead_letters = derived_text("", self.subscription, DEAD)
        names = {}
        for topic in catalog.topics.values():
            short = TopicName.parse(topic.name).short
            forms = (short, topic.name, f"persistent://{topic.name}")
            if any(map(pattern.fullmatch, forms)) and not topic.name.endswith(dead_letters):
                names[short] = topic.number
        return seen, dict(sorted(names.items()))

    def _leave(self, name: str) -> None:
        try:
            self._sessions.pop(name).close()
        except _GONE:
            return  # the topic was deleted together with its leases

    # --- receiving ---------------------------------------------------------------------------

    def take(self, limit: int, is_thorough: bool) -> pa.Table | None:
        """At most `limit` messages; no rows: there is a new watermark; None: there is neither."""
        with self._turns.held():
            self._begin(is_thorough)
            outcome = self._turn_of(partial(self._take, limit))
        if outcome is None:
            return None
        table = NO_MESSAGES if outcome[0] is None else outcome[0]
        return table if self.watermarks is None else self.watermarks.marked(table)

    def empty(self) -> pa.Table:
        """The table that a call returns when there is no message."""
        return NO_MESSAGES if self.watermarks is None else self.watermarks.marked(NO_MESSAGES)

    def give_back(self, table: pa.Table) -> None:
        """Return rows of the last turn, each to the session of its topic, uncounted."""
        for session, part in self._by_consumer(table):
            assert isinstance(part, pa.Table)
            session.give_back(part)

    def give_back_message(self, message: Message) -> None:
        """Return a message that `next` returned, uncounted."""
        self._of(message).give_back_message(message)

    def give_back_ahead(self) -> None:
        """Return the messages that were leased ahead of the application, uncounted."""
        with self._turns.held():
            for session in self._sessions.values():
                session.give_back_ahead()

    def rest(self, pause: float) -> Quiet:
        """How long a waiting call may sleep, over all topics, and which events wake it."""
        rests = [session.rest(pause) for session in [*self._sessions.values()]]
        if self.watermarks is not None:
            rests.append(Quiet(self.watermarks.rest(), heeds_appends=True))
        if self._pattern is not None:  # None: a topic could not be joined
            rests.append(Quiet(pause if self._seen is None else REST_SECONDS_MAX))
        return least(rests)

    def _begin(self, is_thorough: bool) -> None:
        self.check_open()
        for session in self._sessions.values():
            session.set_thorough(is_thorough)

    def next(self, is_thorough: bool) -> tuple[Message | None] | None:
        """(the next message of any topic,); (None,): there is a new watermark; None: neither."""
        with self._turns.held():
            self._begin(is_thorough)
            outcome = self._turn_of(self._next_in_turn)
            if outcome is None or outcome[0] is None or self.watermarks is None:
                return outcome
            return (self.watermarks.judged(outcome[0]),)

    def _turn_of(self, take: Callable[[], T | None]) -> tuple[T | None] | None:
        """(the answer of `take`,); (None,): there is a new watermark; None: there is nothing."""

        def take_or_join() -> T | None:
            if self._is_still():
                return None
            answer = take()
            if answer is None and self._pattern is not None and self._discover(is_later=True):
                answer = take()
            return answer

        if self.watermarks is None:
            answer = take_or_join()
            return None if answer is None else (answer,)
        answer, has_moved = self.watermarks.turn(take_or_join, self._is_refused)
        return (answer,) if answer is not None or has_moved else None

    def _is_still(self) -> bool:
        """True when no topic can have a message, as the last turn of each still holds."""
        if self.watermarks is not None or (self._pattern is not None and self._seen is None):
            return False  # a watermark may move, or a topic is yet to be joined
        now, lsns = self.store.clock.now(), set[int]()
        departures = self.store.wakeups.tally.departures
        for session in self._sessions.values():
            still = session.idle
            if still is None or not still.is_early(now, departures):
                return False
            lsns.add(still.lsn)
        return lsns == {self.store.refresh()} and not self.store.has_unflushed(unseen=True)

    def _is_refused(self) -> bool:
        return any(session.is_refused() for session in self._sessions.values())

    def _assigned(self, view: View) -> list[Pair]:
        """(subscription, partition) pairs of all topics, without topics that were deleted."""
        out: list[Pair] = []
        for session in self._sessions.values():
            try:
                out += session.assigned(view)
            except _GONE:
                continue  # the next turn raises the error, or leaves the topic
        return out

    def _guard(self) -> Guard | None:
        return None if self.watermarks is None else self.watermarks.is_current

    def _take(self, limit: int) -> pa.Table | None:
        """Lease a share of the limit from each topic, then more from topics that filled it.

        An error of one topic is raised only if no topic had messages, or the caller would not get
        messages that are already leased.
        """
        tables: list[pa.Table] = []
        more: list[ConsumerSession] = []
        failed: TxlogError | None = None
        share = max(1, limit // max(1, len(self._sessions)))
        for name, session in self._in_turn():
            count = min(share, limit)
            if not count:
                break
            self._turn += 1
            try:
                table = session.lease(count, self._guard())
            except TxlogError as error:
                failed = self._failed(name, error) or failed
                continue
            if table is not None:
                tables.append(table)
                limit -= table.num_rows
                if table.num_rows == count:
                    more.append(session)
        for session in more:
            if limit:
                try:
                    table = session.lease(limit, self._guard())
                except TxlogError:
                    break  # the next call gets this error
                if table is not None:
                    tables.append(table)
                    limit -= table.num_rows
        if failed is not None and not tables:
            raise failed
        return pa.concat_tables(tables) if tables else None

    def _failed(self, name: str, error: TxlogError) -> TxlogError | None:
        """The error to raise; None: the pattern's topic was deleted, and the session left it."""
        if self._pattern is None or not isinstance(error, _GONE):
            return error
        self._leave(name)
        return None

    def _next_in_turn(self) -> Message | None:
        failed: TxlogError | None = None
        for name, session in self._in_turn():
            self._turn += 1
            try:
                message = session.lease_next(self._guard())
            except TxlogError as error:
                failed = self._failed(name, error) or failed
                continue
            if message is not None:
                return message
        if failed is not None:
            raise failed
        return None

    def _in_turn(self) -> list[tuple[str, ConsumerSession]]:
        items = list(self._sessions.items())
        self._turn %= max(1, len(items))
        return items[self._turn :] + items[: self._turn]

    def has_message_available(self) -> bool:
        """True when a message of any topic can be received."""
        with self._turns.held():
            self.check_open()
            return any(session.has_message_available() for session in self._sessions.values())

    def last_message_ids(self) -> dict[str, dict[int, MessageId | None]]:
        """The last visible message of each partition of each topic."""
        with self._turns.held():
            self.check_open()
            return {name: session.last_message_ids() for name, session in self._sessions.items()}

    def last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed unless there is one partition in all."""
        last = [last for ids in self.last_message_ids().values() for last in ids.values()]
        return only_one(self.subscription, dict(enumerate(last)))

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(self, what: Acknowledgeable, txn: Transaction | TxnId | None) -> AckAnswer:
        """Acknowledge messages, ids or received rows of any of the topics: all, or none."""
        parts = [(session.through, runs_of(part)) for session, part in self._by_consumer(what)]
        return acknowledge_together(self.store, parts, txn)

    def acknowledge_later(self, what: Acknowledgeable, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        raises: AlreadyClosed, MessageNotFound (a topic that it does not have), InvalidArgument
        """
        parts = [(session.through, runs_of(part)) for session, part in self._by_consumer(what)]
        if not parts:
            raise InvalidArgument("there is nothing to acknowledge")
        return acknowledge_together_later(self.store, parts, txn)

    def acknowledge_cumulative(
        self, what: Message | MessageId, txn: Transaction | TxnId | None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition."""
        return self._of(what).acknowledge_cumulative(what, txn)

    def reconsume_later(
        self, message: Message | MessageId, delay_ms: int, properties: dict[str, str] | None
    ) -> MoveResult:
        """Move a message to the retry topic of its topic."""
        return self._of(message).reconsume_later(message, delay_ms, properties)

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None, default_ms: int = 0
    ) -> ReturnResult:
        """Return received messages, counted as redelivered."""
        return _together(
            [
                session.negative_acknowledge(part, delay_ms, default_ms)
                for session, part in self._by_consumer(what)
            ]
        )

    def redeliver(self) -> ReturnResult:
        """Return the received and unacknowledged messages of all topics, counted as redelivered."""
        with self._turns.held():
            self.check_open()
            return _together([session.redeliver() for session in self._sessions.values()])

    def seek(self, to: Where) -> None:
        """Move each subscription, one after another; a message id moves only its topic's.

        raises: as ConsumerSession.seek, after earlier topics were moved; MessageNotFound
        """
        bound = bound_of(to)
        if isinstance(bound.value, MessageId):
            self._of(bound.value).seek(to)
            return
        with self._turns.held():
            self.check_open()
            for session in self._sessions.values():
                session.seek(to)

    def unsubscribe(self) -> None:
        """Delete the subscription on each topic, and close.

        raises: ConsumerBusy if one has other consumers; those before it are deleted
        """
        with self._turns.held():
            self.check_open()
            while self._sessions:
                name, session = next(iter(self._sessions.items()))
                session.unsubscribe()
                self._sessions.pop(name)
            self._is_closed = True

    def _by_consumer(self, what: Acknowledgeable) -> list[tuple[ConsumerSession, Acknowledgeable]]:
        """Divide messages by the session of their topic. Raises MessageNotFound."""
        self.check_open()
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
        parts: dict[int, tuple[ConsumerSession, list[Message | MessageId]]] = {}
        for item in what:
            session = self._of(item)
            parts.setdefault(id(session), (session, []))[1].append(item)
        return list(parts.values())

    def _of(self, what: Message | MessageId) -> ConsumerSession:
        self.check_open()
        if isinstance(what, Message):
            return self._named(what.topic)

        def look(view: View) -> Topic | None:
            owner = view.catalog.owners.get(what.ledger)
            return None if owner is None else topic_of(view.catalog, owner[0])

        topic = self.store.read(look)
        if topic is None:
            raise MessageNotFound(f"message {what} does not exist", message_id=what)
        for session in self._sessions.values():  # it may be open by an earlier name
            if session.receiving.topic.number == topic.number:
                return session
        return self._named(TopicName.parse(topic.name).short)

    def _named(self, topic: str) -> ConsumerSession:
        by_name = self._sessions.get(topic)
        if by_name is not None:
            return by_name
        for name, session in self._sessions.items():  # a name with a partition: orders/0
            if name.rpartition("/")[0] == topic:
                return session
        raise MessageNotFound(f"topic {topic} is not one that this consumer has", topic=topic)

    # --- closing -----------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises AlreadyClosed."""
        if self._is_closed:
            raise AlreadyClosed("the consumer is closed")

    def close(self) -> None:
        """Leave the subscriptions; unacknowledged messages go to the next consumer."""
        if self.store.put_off(self.close):  # `__del__` or a signal handler interrupted a call
            return
        failed: TxlogError | None = None
        with self._turns.held():
            self._is_closed = True
            while self._sessions:
                _, session = self._sessions.popitem()
                try:
                    session.close()
                except TxlogError as error:
                    failed = failed or error
        if failed is not None:
            raise failed


def _together(answers: list[ReturnResult]) -> ReturnResult:
    return ReturnResult(
        sum(result.returned for result in answers), sum(result.missed for result in answers)
    )
