"""Owns TopicHandle: listing, promoting and cancelling the delayed messages of a topic.

Each command of `txlog delay` has a method. Each change is one decision, durable when it returns.
Answers are plain values with the field names that the commands print. Each span of the throughput
begins at a multiple of its length since 1970 UTC. A transaction counts once, in the span of its
commit, even if its messages are in several partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import END, Bound, Range
from txlog.base.settings import DAY_MS, HOUR_MS, Settings
from txlog.base.startup import compute as pc
from txlog.base.times import DurationLike, InstantLike, duration_ms, instant_ms
from txlog.client.answers import dead_letters as letters_report
from txlog.client.answers import delayed as delayreport
from txlog.client.consuming.open import create_subscription
from txlog.client.reading.preview import newest_html
from txlog.client.reading.reader import Reader
from txlog.client.topics import delayed_index
from txlog.client.topics import schemas as of_schemas
from txlog.client.topics import watermarks as of_watermarks
from txlog.clock import Instant
from txlog.engine.door import sending
from txlog.engine.door.catalog import Subscription, Topic, live_topic, number_of
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import (
    RETRIED,
    RetryAnswer,
    RetryOptions,
    Selection,
    retry,
    runs_of_ids,
)
from txlog.engine.door.delayed import (
    DelayedSelection,
    Find,
    PromotionResult,
    Search,
    cancel,
    promote,
)
from txlog.engine.door.reading import partition_of
from txlog.engine.door.store import CallScope, Decision, Store, View
from txlog.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from txlog.base.rows.consuming import DeadLetter, DeadLettersRetried
    from txlog.base.rows.delayed import (
        BucketRow,
        BucketsMerged,
        Cancelled,
        DueWithin,
        IndexRebuilt,
        NextDelayed,
        Promoted,
    )
    from txlog.base.rows.topics import Throughput
    from txlog.client.topics.schemas import TopicSchemas
    from txlog.client.topics.watermarks import TopicWatermarks


NEVER_MERGED = 1 << 31  # buckets that may stay if max_num_buckets turns merging off

Ask = Callable[[View, Settings, Instant, Find, DelayedSelection], Decision[PromotionResult]]


@checked
class TopicHandle:
    """The delayed messages, throughput, watermarks and schemas of a topic, or of one partition.

    As producers and consumers, it goes on with the topic when that is renamed, and keeps the name
    under which it was opened; it never goes on with another topic that gets the name.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         _ = client.create_subscription("orders", "billing", type="shared")
    ...         later = 32_503_680_000_000
    ...         ids = [client.producer("orders").send(b"x", deliver_at=later + n).message_id
    ...                for n in range(3)]
    ...         orders = client.topic("orders")
    ...         cancelled = orders.cancel(ids[:1])["cancelled"]
    ...         promoted = orders.promote(before=later + 2, subscription="billing")["promoted"]
    ...         cancelled, promoted, orders.next_delayed(subscription="billing")["deliver_at"]
    (1, 1, 32503680000001)
    """

    __slots__ = ("_asked", "_number", "_store", "short")

    def __init__(self, store: Store, topic: str) -> None:
        self._store = store
        self._asked = TopicName.parse(topic, allow_partition=True)
        self.short = self._asked.topic.short
        self._number = store.ask(
            lambda view: find_topic(view, self._asked).number, up_to_damage=True
        )

    def __repr__(self) -> str:
        return f"<txlog topic {self._asked}>"

    def _repr_html_(self) -> str:
        def newest(last: Range) -> Reader:
            return Reader(self._store, str(self._current()), last, None, is_led=True)

        return newest_html(self._store, f"{self!r}: the newest messages", newest)

    def _topic(self, view: View) -> Topic:
        return live_topic(view, self._number, self.short)

    def _current(self) -> TopicName:
        """The name that the topic has now, with the partition of the handle."""
        name = TopicName.parse(self._store.ask(self._topic, up_to_damage=True).name)
        return TopicName(name.tenant, name.namespace, name.name, self._asked.partition)

    def _find(self, view: View, subscription: str | None) -> tuple[Topic, Subscription | None]:
        topic = self._topic(view)
        record = None if subscription is None else find_subscription(view, topic, subscription)
        return topic, record

    def _indexes(self, topic: Topic) -> list[int]:
        """The partition in the handle's name, if it has one, else all."""
        if self._asked.partition is not None:
            return [self._asked.partition]
        return list(range(topic.partitions))

    def stats(
        self, by_ms: DurationLike = HOUR_MS, since_ms: InstantLike | None = None
    ) -> list[Throughput]:
        """The messages that became visible, by time span; the fields of `txlog topic stats`.

        by_ms:    the length of a span
        since_ms: an instant in the first span (ms since 1970 UTC); None: a day ago
        raises:   InvalidArgument, LimitExceeded; as a reader
        """
        since = instant_ms(since_ms)
        if since is None:
            since = self._store.clock.now().wall_ms - DAY_MS
        name, partition = self._current(), self._asked.partition
        only = None if partition is None else [partition]
        rows = throughput(self._store, name.topic.short, only, since, duration_ms(by_ms))
        return [{**row, "topic": self.short} for row in rows]

    @property
    def numbers(self) -> list[int]:
        """The store-wide numbers of its partitions, as in the outcome of a transaction."""

        def numbers(view: View) -> list[int]:
            topic = self._topic(view)
            return [number_of(topic, index) for index in self._indexes(topic)]

        return self._store.ask(numbers)

    @property
    def watermarks(self) -> TopicWatermarks:
        """Its event-time watermarks: show them, assert a producer's time, declare it idle."""
        return of_watermarks.TopicWatermarks(self._store, self._asked, self._number)

    @property
    def schemas(self) -> TopicSchemas:
        """The schemas of its values: list, add or delete them."""
        return of_schemas.TopicSchemas(self._store, self._asked, self._number)

    # --- looking -----------------------------------------------------------------------------

    def delayed(
        self,
        subscription: str | None = None,
        before: InstantLike | None = None,
        limit: int | None = None,
        *,
        key: bytes | str | None = None,
    ) -> pa.Table:
        """Messages that are not due yet, by time of delivery. They come from the index.

        subscription: only messages that it has not acknowledged
        before:       only messages due before this instant (ms since 1970 UTC)
        key:          only messages with this key
        returns:      partition, ledger, entry, index (null for a plain message), deliver_at, key,
                      size_bytes, txn_most, txn_least
        raises:       SubscriptionNotFound, InvalidArgument, PartitionUnavailable
        """
        if limit is not None and limit < 0:
            raise InvalidArgument(f"limit is {limit}, it must not be negative", code=203)

        return self._store.ask(
            lambda view: delayreport.listed(
                view, self._scope(view, subscription, before), limit, sending.as_bytes(key)
            ),
        )

    def next_delayed(self, subscription: str | None = None) -> NextDelayed | None:
        """The next message to fall due: {message_id, deliver_at}; None if none is delayed."""

        def first(view: View) -> NextDelayed | None:
            for times in delayreport.ahead(view, self._scope(view, subscription)):
                at, *place = (times[name][0].as_py() for name in times.column_names)
                return {"message_id": MessageId(*place), "deliver_at": at}
            return None

        return self._store.ask(first)

    def histogram(
        self, subscription: str | None = None, before: InstantLike | None = None
    ) -> list[DueWithin]:
        """How many messages are due within a minute, ten minutes, an hour, a day, and later.

        returns: [{due_within_ms, messages}], due_within_ms None in the last
        """

        def counted(view: View) -> list[DueWithin]:
            scope = self._scope(view, subscription, before)
            return delayreport.histogram(
                scope.now_ms, delayreport.ahead(view, scope, in_order=False)
            )

        return self._store.ask(counted)

    def cutoff(self) -> int | None:
        """The latest delivery time that is due now, in ms since 1970 UTC; None: all are due.

        It follows the policies of the topic. If the journal is damaged, it follows those before the
        damage.
        """
        store = self._store

        def cutoff(view: View) -> int | None:
            return delayreport.DelayCounts(view, store).cutoff(self._topic(view))

        return store.ask(cutoff, up_to_damage=True)

    def buckets(self) -> list[BucketRow]:
        """The buckets of the index; the fields of `txlog delay buckets`."""
        return self._store.ask(lambda view: delayreport.buckets(view, self._scope(view, None)))

    def _scope(
        self, view: View, subscription: str | None, before: InstantLike | None = None
    ) -> delayreport.Scope:
        topic, record = self._find(view, subscription)
        store = self._store
        return delayreport.Scope(
            topic,
            self._indexes(topic),
            store.clock.now().wall_ms,
            store.note,
            record,
            instant_ms(before),
        )

    # --- deciding ----------------------------------------------------------------------------

    def promote(
        self,
        ids: Sequence[MessageId] | None = None,
        *,
        before: InstantLike | None = None,
        all: bool = False,
        subscription: str | None = None,
        dry_run: bool = False,
    ) -> Promoted:
        """Deliver delayed messages now. It does not change the delay of messages sent later.

        ids, before, all: pass only one: these messages, messages due before an instant (ms since
                          1970 UTC), or all
        subscription:     None: every shared and key-shared subscription
        returns:          {topic, subscription, promoted, not_delayed, first_at, last_at}; promoted:
                          messages, including those in `ids` that were promoted before;
                          not_delayed: messages in `ids` that were not delayed
        raises:           NotAllowed (the subscription type ignores delays, or a transaction holds
                          one of the messages), MessageNotFound, PartitionUnavailable; then nothing
                          is changed
        """
        answer = self._change(promote, ids, instant_ms(before), all, subscription, dry_run=dry_run)
        return {
            "topic": self.short,
            "subscription": subscription,
            "promoted": answer.messages,
            "not_delayed": answer.not_delayed,
            "first_at": answer.first_ms,
            "last_at": answer.last_ms,
        }

    def cancel(
        self,
        ids: Sequence[MessageId] | None = None,
        *,
        before: InstantLike | None = None,
        all: bool = False,
        subscription: str | None = None,
        dry_run: bool = False,
    ) -> Cancelled:
        """Acknowledge delayed messages before they are due, so that they are never delivered.

        subscription: None: every subscription of the topic
        returns:      as promote, with `cancelled` instead of `promoted`
        raises:       as promote, but any subscription type is allowed
        """
        answer = self._change(cancel, ids, instant_ms(before), all, subscription, dry_run=dry_run)
        return {
            "topic": self.short,
            "subscription": subscription,
            "cancelled": answer.messages,
            "not_delayed": answer.not_delayed,
            "first_at": answer.first_ms,
            "last_at": answer.last_ms,
        }

    def _change(
        self,
        ask: Ask,
        ids: Sequence[MessageId] | None,
        before: int | None,
        every: bool,
        subscription: str | None,
        *,
        dry_run: bool,
    ) -> PromotionResult:
        if (ids is not None) + (before is not None) + every != 1:
            raise InvalidArgument("choose one: message ids, those before an instant, or all")
        runs = None if ids is None else runs_of_ids(list(ids))
        store = self._store

        def find(view: View) -> tuple[Topic, Subscription | None]:
            return self._find(view, subscription)

        def decide(view: View, now: Instant) -> Decision[PromotionResult]:
            which = DelayedSelection(self._indexes(self._topic(view)), store.note, runs, before)
            return ask(view, store.settings, now, find, which)

        uses = CallScope(cursors=store.ask(lambda view: self._cursors(view, subscription)))
        if dry_run:
            store.sweep_if_due(uses)
            answer = store.read(lambda view: decide(view, store.clock.now()).answered())
        else:
            answer = store.write(decide, uses=uses)
        return answer

    def _cursors(self, view: View, subscription: str | None) -> tuple[tuple[int, int], ...]:
        topic, record = self._find(view, subscription)
        names = topic.subscriptions if record is None else [record.number]
        return tuple(
            (name, number_of(topic, index)) for name in names for index in self._indexes(topic)
        )

    # --- upkeep of the index -----------------------------------------------------------------

    def merge(self, to: int | None = None, *, dry_run: bool = False) -> BucketsMerged:
        """Merge the buckets of each partition's index until there are at most `to`.

        to:      None: max_num_buckets of the store, as for upkeep; if that is 0 or -1, no merge
        returns: {topic, buckets_before, buckets_after, messages}; messages: ids in the buckets
                 afterwards
        raises:  InvalidArgument, StoreLocked, PartitionUnavailable
        """
        if to is None:
            most = self._store.settings.max_num_buckets
            to = most if most > 0 else NEVER_MERGED
        elif to < 1:
            raise InvalidArgument(f"to is {to}, it must be at least 1", code=203)
        return delayed_index.merge(self._store, self.short, self._numbers(), to, dry_run=dry_run)

    def rebuild(
        self,
        first: MessageId | None = None,
        last: MessageId | None = None,
        *,
        dry_run: bool = False,
        searches: Mapping[int, Search] | None = None,
    ) -> IndexRebuilt:
        """Build the index of a range from the log again.

        searches: by store-wide partition number: a function that finds the delayed ids; jobs pass
                  ids that Spark has found
        first, last: the range, both included; an id selects its partition
        returns: {topic, partitions, messages_read, indexed, missing, surplus, buckets}; missing:
                 delayed messages that the index lacked; surplus: ids in it that were not in the log
        raises:  MessageNotFound (an id of another topic), InvalidArgument (ids of two partitions),
                 StoreLocked, PartitionUnavailable
        """
        return delayed_index.rebuild(
            self._store,
            self.short,
            self._numbers(first, last),
            first,
            last,
            dry_run=dry_run,
            searches=searches,
        )

    # --- dead letters ------------------------------------------------------------------------

    def dead_letters(self, limit: int | None = None) -> list[DeadLetter]:
        """The dead letters not yet retried, the oldest first; the fields of `dlq list T`.

        The topic is a dead-letter topic. A message is a dead letter until the topic's subscription
        `dlq` acknowledges it, which `retry_dead_letters` does.
        """
        if limit is not None and limit < 0:
            raise InvalidArgument(f"limit is {limit}, it must not be negative", code=203)
        return self._store.ask(
            lambda view: letters_report.letters(
                view, topic := self._topic(view), self._indexes(topic), limit
            )
        )

    def retry_dead_letters(
        self,
        ids: Sequence[MessageId] | None = None,
        *,
        all: bool = False,
        count: int | None = None,
        key: bytes | str | None = None,
        all_subscriptions: bool = False,
        dry_run: bool = False,
    ) -> DeadLettersRetried:
        """Move dead letters back to the topics that they came from; the fields of `dlq retry`.

        The topic is a dead-letter topic. One frame stores a message in its topic and acknowledges
        it here, so it is never in both or neither, and two callers at once move it once. It keeps
        key, value, properties and event time, and gets a new id; the property DLQ_RETRIES counts
        how often it was moved. If it fails again, it comes here again, after the end of this call.

        ids, all, count, key: which ones: those, or all, the oldest, or those with this key
        all_subscriptions:    every subscription of the topic gets the message again; otherwise only
                              the one that gave it up
        dry_run: only report what would move
        returns: how many were moved, and why others stay: retried before, in the hand of a consumer
                 or a transaction, without an origin, or their topic or subscription was deleted
        raises:  MessageNotFound, PartitionUnavailable, InvalidArgument
        """
        return retried(
            self._store,
            self._current().topic,
            ids,
            every=all,
            count=count,
            key=key,
            options=RetryOptions(all_subscriptions, dry_run or self._store.dry_run),
        )

    def _numbers(self, *ids: MessageId | None) -> list[int]:
        """The partitions of the handle; if ids are given, only the partition of the ids."""

        def numbers(view: View) -> list[int]:
            topic = self._topic(view)
            indexes = self._indexes(topic)
            chosen = {
                partition_of(view, topic, message_id)
                for message_id in ids
                if message_id is not None
            }
            if len(chosen) > 1:
                raise InvalidArgument("the two ids are of different partitions", code=203)
            return [number_of(topic, index) for index in indexes if not chosen or index in chosen]

        return self._store.ask(numbers)


# --- throughput -----------------------------------------------------------------------------------

SPANS_MAX: Final = 100_000
_AT_ONCE: Final = 65_536
_TXN: Final = ("txn_most", "txn_least")


def throughput(
    store: Store, topic: str, partitions: Sequence[int] | None, since_ms: int, by_ms: int
) -> list[Throughput]:
    """One row per time span, from the span of `since_ms` until now; empty spans included.

    since_ms:   in ms since 1970 UTC
    by_ms:      the length of a span, at least 1
    partitions: None: all
    returns: [{topic, from_time, messages, size_bytes, transactions}]; size_bytes: of the values
    raises:  InvalidArgument, LimitExceeded (more than SPANS_MAX spans), TopicNotFound; as a reader
    cost:    reads all messages since then
    """
    if by_ms < 1:
        raise InvalidArgument(f"a span of {by_ms} ms is below one", code=203)
    now_ms = store.clock.now().wall_ms
    first = since_ms - since_ms % by_ms
    spans = max(0, (now_ms - first) // by_ms + 1)
    if spans > SPANS_MAX:
        raise LimitExceeded(
            f"{spans} spans of time, at most {SPANS_MAX} are possible",
            hint="use a longer --by or a later --since",
            limit=SPANS_MAX,
            value=spans,
        )
    indexes = None if partitions is None else list(partitions)
    since = Range(start=Bound("time", first), stop=END)
    reader = Reader(store, topic, since, indexes)
    rows = {at: _empty(reader.short, at) for at in range(first, first + spans * by_ms, by_ms)}
    ends: list[pa.Table] = []
    while (table := reader.take(_AT_ONCE)).num_rows:
        spanned = _spanned(table, first, by_ms)
        counted = spanned.group_by("span").aggregate([("bytes", "sum"), ("span", "count")])
        columns = (counted.column(name).to_pylist() for name in ("span", "bytes_sum", "span_count"))
        for span, size, count in zip(*columns, strict=True):
            row = rows.setdefault(span, _empty(reader.short, span))  # the writer's clock was ahead
            row["messages"] += count
            row["size_bytes"] += size or 0
        of_txns = spanned.filter(pc.is_valid(spanned.column("txn_most")))
        if of_txns.num_rows:
            ends.append(of_txns.group_by(["span", *_TXN]).aggregate([]))
    if ends:
        distinct = pa.concat_tables(ends).group_by(["span", *_TXN]).aggregate([])
        for item in distinct.column("span").value_counts().to_pylist():
            rows[item["values"]]["transactions"] += item["counts"]
    return [rows[at] for at in sorted(rows)]


def _empty(topic: str, from_ms: int) -> Throughput:
    return {"topic": topic, "from_time": from_ms, "messages": 0, "size_bytes": 0, "transactions": 0}


def _spanned(table: pa.Table, first_ms: int, by_ms: int) -> pa.Table:
    """A row per message: the span in which it became visible, the bytes of its value, its txn."""
    times = table.column("visible_time").cast(pa.int64())
    by = pa.scalar(by_ms, pa.int64())
    spanned = pa.table(
        {
            "span": pc.multiply(pc.divide(times, by), by),
            "bytes": pc.binary_length(table.column("value")),
            "time": times,
            **{name: table.column(name) for name in _TXN},
        }
    )
    # A clock may have gone back, so earlier times can follow the first one in the range.
    return spanned.filter(pc.greater_equal(spanned.column("time"), pa.scalar(first_ms, pa.int64())))


# --- dead letters ---------------------------------------------------------------------------------


def retried(
    store: Store,
    topic: TopicName,
    ids: Sequence[MessageId] | None,
    *,
    every: bool,
    count: int | None,
    key: bytes | str | None,
    options: RetryOptions,
) -> DeadLettersRetried:
    """The answer of `TopicHandle.retry_dead_letters`, after the move."""
    if (ids is not None) == (every or count is not None or key is not None):
        raise InvalidArgument("retry either ids, or a count, a key or all dead letters")
    if count is not None and count < 1:
        raise InvalidArgument(f"{count} messages to retry, at least 1", code=203)
    store.ask(lambda view: find_topic(view, topic))
    chosen = Selection(None if ids is None else list(ids), count, sending.as_bytes(key))
    if not options.dry_run:
        rehearsal = RetryOptions(options.for_all, dry_run=True)
        if not retry(store, topic, chosen._replace(limit=1), rehearsal).moved:
            # an ordinary topic must not get a subscription: its backlog would only grow
            return _answer(topic, retry(store, topic, chosen, rehearsal))
        create_subscription(
            store,
            topic.short,
            RETRIED,
            type="shared",
            isolation="committed",
            position=None,
            if_not_exists=True,
        )
    return _answer(topic, retry(store, topic, chosen, options))


def _answer(topic: TopicName, answer: RetryAnswer) -> DeadLettersRetried:
    return {
        "topic": topic.short,
        "retried": answer.moved,
        "left": sum(map(len, answer.left.values())),
        "left_list": [
            {"reason": reason, "messages": len(ids), "first": ids[0]}
            for reason, ids in answer.left.items()
        ],
    }
