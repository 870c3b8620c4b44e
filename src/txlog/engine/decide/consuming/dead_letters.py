"""Moving messages off a subscription, to its dead-letter topic or its retry topic.

A move is one frame: the copies in the target, which is created if necessary, and the
acknowledgement of the originals. So after any crash a message is in exactly one of the two topics
(spec/transactions 9.1, apache/pulsar #17287). The caller reads the rows before it takes the lock.
The decision checks each row again, and moves those that are still PENDING and not leased to another
consumer.

    <topic>-<subscription>-DLQ      messages redelivered more often than max_redeliver_count
    <topic>-<subscription>-RETRY    messages that a consumer put off

A subscription on a retry topic continues the subscription of the topic itself: messages that it
postpones or gives up go to the same two topics, under the same policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.settings import TOPICS_MAX, Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.send import AFTER, DeliveryTimes, count_mismatched, times_of
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Subscription, Topic, index_of, number_of, numbers
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.model.ops import (
    Acked,
    Appended,
    CursorOpened,
    DeadLettered,
    Mark,
    Run,
    SubscriptionCreated,
    SubscriptionPolicySet,
    TopicCreated,
)
from txlog.engine.model.schema import PROPERTY_MAP
from txlog.engine.plan.ack_sets import acked_outcome, merged, messages_in, runs_of_table
from txlog.engine.plan.derived import DEAD, RETRY, derived_text, derived_topic
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.reading.dispatch import (
    rows_in,
    still_pending,
    taken_apart,
    visible_end,
    without,
)
from txlog.engine.plan.records import schema_in, stamped_copies
from txlog.engine.plan.route import route
from txlog.engine.view import View
from txlog.errors import LimitExceeded

REAL_TOPIC, REAL_SUBSCRIPTION = "REAL_TOPIC", "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID, RECONSUMETIMES, DELAY_TIME = "ORIGIN_MESSAGE_ID", "RECONSUMETIMES", "DELAY_TIME"
REDELIVERY_COUNT = "REDELIVERY_COUNT"  # of a dead letter: how often it was redelivered
SCHEMA = "REAL_SCHEMA"  # the fingerprint of the Avro schema of the value, if it was checked
EXCEPTION = "EXCEPTION"  # of a dead letter of a function: the exception that it raised
NO_LIMIT = 1 << 62  # a stored message is moved even if it exceeds the limit for new ones
Find = Callable[[View], tuple[Topic, Subscription]]
Policies = Mapping[str, int | str]


class MoveResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a move: the target topic, how many messages moved, and how many did not."""

    topic: str
    moved: int
    left: int


class RetryOptions(msgspec.Struct, frozen=True, gc=False):
    """How to postpone a message; consumer: the number of the caller, 0: it is no consumer."""

    delay_ms: int = 0
    properties: dict[str, str] = {}
    consumer: int = 0


# --- where a subscription moves its messages ---------------------------------------------------


def home(view: View, topic: Topic, subscription: Subscription) -> tuple[Topic, Subscription]:
    """The topic and subscription whose retry topic this is, or these two themselves.

    cost: O(subscriptions of the store), unless the name of the retry topic is derived
    """
    derived = _derived_home(view, topic, subscription)
    if derived is not None:
        return derived
    for other in view.catalog.subscriptions.values():
        retry_topic = other.policies.get("retry_topic")
        if (
            retry_topic is None
            or other.name != subscription.name
            or other.number == subscription.number
        ):
            continue
        if TopicName.parse(str(retry_topic)).full == topic.name:
            return view.catalog.topics[other.topic], other
    return topic, subscription


def _derived_home(
    view: View, topic: Topic, subscription: Subscription
) -> tuple[Topic, Subscription] | None:
    suffix = derived_text("", subscription.name, RETRY)
    base = None
    if topic.name.endswith(suffix):
        base = catalogs.find_topic(view.catalog, topic.name.removesuffix(suffix))
    home_subscription = (
        None if base is None else catalogs.find_subscription(view.catalog, base, subscription.name)
    )
    if base is None or home_subscription is None or "retry_topic" in home_subscription.policies:
        return None
    return base, home_subscription


def policies(view: View, topic: Topic, subscription: Subscription) -> Policies:
    """The policies of a subscription; on a retry topic with a derived name, its home's, too.

    On a retry topic with another name, the subscription got a copy when it was created.
    cost: O(1), because every receive calls it
    """
    derived = _derived_home(view, topic, subscription)
    return (
        subscription.policies
        if derived is None
        else {**derived[1].policies, **subscription.policies}
    )


def target_name(base: tuple[Topic, Subscription], kind: str) -> TopicName:
    """The dead-letter or retry topic of a home subscription: the policy's, else the derived name.

    raises: InvalidArgument (202) when the derived name is too long
    """
    topic, subscription = base
    policy = subscription.policies.get("retry_topic" if kind == RETRY else "dead_letter_topic")
    if policy is not None:
        return TopicName.parse(str(policy))
    return derived_topic(topic.name, subscription.name, kind)


# --- what is due -------------------------------------------------------------------------------


def due(view: View, topic: Topic, subscription: Subscription, partition: int) -> list[Run]:
    """PENDING messages without a lease that were redelivered too often, in order of position.

    cost: O(messages with a redelivery count); O(1) without the policy
    """
    most = policies(view, topic, subscription).get("max_redeliver_count")
    cursor = view.cursor(subscription.number, partition)
    if not isinstance(most, int) or not cursor.redelivered:
        return []
    counts = cursor.redelivered
    over = {
        key
        for key, count in counts.items()
        if count > most or (key[2] and count + counts.get((key[0], key[1], 0), 0) > most)
    }
    if not over:
        return []
    apart = {key for key in over if not key[2] or (key[0], key[1], 0) not in over}
    return free(view, subscription, partition, taken_apart(view, partition, merged(apart)))


def free(
    view: View,
    subscription: Subscription,
    partition: int,
    runs: Sequence[Run],
    own_consumer: int = 0,
) -> list[Run]:
    """The part of the runs that is PENDING and not leased to another consumer.

    Delayed messages count as free.
    """
    cursor = view.cursor(subscription.number, partition)
    pending = still_pending(view, partition, cursor, runs)
    for consumer, lease in cursor.leases.by_consumer.items():
        if consumer != own_consumer:
            pending = without(view, partition, pending, lease.ids)
    return pending


# --- the move ----------------------------------------------------------------------------------


def bury(
    view: View, settings: Settings, now: Instant, find: Find, rows: dict[int, pa.Table]
) -> Decision[MoveResult]:
    """Decide to move messages that are due to the dead-letter topic; durable.

    rows:    for each partition (its store-wide number) messages of RECEIVED, as they were read
    answers: MoveResult; messages that are no longer due stay where they are
    raises:  PartitionUnavailable (of the target), InvalidArgument, LimitExceeded, InvalidMessage
             (the target's policies refuse the delay)
    """
    topic, subscription = find(view)
    allowed = {partition: due(view, topic, subscription, partition) for partition in rows}
    return _move(view, settings, now, (topic, subscription), rows, allowed, DEAD, None)


def postpone(
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    rows: dict[int, pa.Table],
    how: RetryOptions,
) -> Decision[MoveResult]:
    """Decide to move messages to the retry topic, with a delay; durable.

    A message already postponed max_redeliver_count times goes to the dead-letter topic, as in
    Pulsar; the row postponed most often decides for all. rows, answers, raises: as bury.
    """
    topic, subscription = find(view)
    allowed = {
        partition: free(view, subscription, partition, runs_of_table(table), how.consumer)
        for partition, table in rows.items()
    }
    kind = _kind(home(view, topic, subscription), rows, how)
    return _move(view, settings, now, (topic, subscription), rows, allowed, kind, how)


def made_target(
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    rows: dict[int, pa.Table],
    how: RetryOptions | None,
) -> Decision[tuple[Topic, str]]:
    """Decide to create the target of a move if it is missing; answers (the topic, DLQ or RETRY)."""
    topic, subscription = find(view)
    base = home(view, topic, subscription)
    kind = _kind(base, rows, how)
    draft = Draft(view, settings, now.wall_ms)
    target = _target(draft, base, target_name(base, kind), kind)
    return draft.decision((target, kind), sync=True)


def copies(
    view: View, find: Find, table: pa.Table, kind: str, how: RetryOptions | None
) -> pa.RecordBatch:
    """The rows as the target gets them, for a caller that sends them itself."""
    topic, subscription = find(view)
    return _copies(table, (topic, subscription), home(view, topic, subscription), kind, how)


def _kind(
    base: tuple[Topic, Subscription], rows: dict[int, pa.Table], how: RetryOptions | None
) -> str:
    """DLQ or RETRY: a message that was postponed too often goes to the dead-letter topic."""
    if how is None:
        return DEAD
    times = 1 + max(
        _times(dict(row or ()))
        for table in rows.values()
        for row in table.column("properties").to_pylist()
    )
    most = base[1].policies.get("max_redeliver_count")
    return DEAD if isinstance(most, int) and times > most else RETRY


def _times(properties: dict[str, str]) -> int:
    text = properties.get(RECONSUMETIMES, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _move(
    view: View,
    settings: Settings,
    now: Instant,
    source: tuple[Topic, Subscription],
    rows: dict[int, pa.Table],
    allowed: dict[int, list[Run]],
    kind: str,
    how: RetryOptions | None,
) -> Decision[MoveResult]:
    topic, subscription = source
    base = home(view, topic, subscription)
    name = target_name(base, kind)
    chosen = {
        partition: rows_in(view, partition, table, allowed[partition])
        for partition, table in rows.items()
    }
    requested = sum(table.num_rows for table in rows.values())
    moved = sum(table.num_rows for table in chosen.values())
    if not moved:
        return Decision([], None, True, MoveResult(name.short, 0, requested))
    draft = Draft(view, settings, now.wall_ms)
    target = _target(draft, base, name, kind)
    delays = DeliveryTimes(view, settings, target, now.wall_ms)
    pieces: list[pa.RecordBatch] = []
    at = 0
    for partition, table in sorted(chosen.items()):
        turn = index_of(topic, partition)
        copied = route(_copies(table, source, base, kind, how), target.partitions, turn, NO_LIMIT)
        routed = delays.resolved(stamped_copies(view, settings, topic, target, table, copied))
        for part in routed.slices:
            number = number_of(target, part.partition)
            check_available(view, target, number)
            ledger, first = draft.take_entries(number, "p", part.rows)
            rows = routed.batch.slice(part.row_start, part.rows)
            delays.check(number, rows)
            times = times_of(rows)
            draft.ops.append(
                Appended(number, ledger, first, at, part.rows, part.payload_bytes, times=times)
            )
            at += part.rows
            count_mismatched(draft, target, number, rows, is_moved=True)
        pieces.append(routed.batch)
    refusal = delays.refusal()
    if refusal is not None:
        return refusal
    draft.ops += delays.warnings()
    for partition, table in sorted(chosen.items()):
        if table.num_rows:
            runs = runs_of_table(table)
            outcome, mark = acked_outcome(view, subscription.number, partition, runs)
            count = messages_in(view, partition, runs)
            draft.ops.append(Acked(subscription.number, partition, outcome, mark, count))
            if kind == DEAD:
                draft.ops.append(DeadLettered(subscription.number, partition, count))
    joined = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
    return Decision(draft.ops, joined, True, MoveResult(name.short, moved, requested - moved))


def _target(draft: Draft, base: tuple[Topic, Subscription], name: TopicName, kind: str) -> Topic:
    """The topic to move to. Creates it if it is missing, and the subscription of a retry topic."""
    catalog = draft.view.catalog
    existing = catalog.by_name.get(name.full.casefold())
    if existing is not None:
        topic = catalog.topics[existing]
        starts = {number: visible_end(draft.view, number) for number in numbers(topic)}
    elif len(catalog.topics) < TOPICS_MAX:
        full = name.check_new().full
        topic = Topic(catalog.next_topic, full, catalog.next_partition, 1, draft.now_ms, [])
        directory = catalogs.free_directory(catalog, topic.number, full)
        draft.ops.append(TopicCreated(topic.number, full, topic.first_partition, 1, directory))
        draft.open_partition(topic.first_partition)
        starts = {topic.first_partition: BEFORE_ALL}
    else:
        raise LimitExceeded(
            f"{name.short} cannot be made: the store has {TOPICS_MAX} topics, the most there may "
            "be",
            setting="topics_max",
            limit=TOPICS_MAX,
            value=TOPICS_MAX + 1,
        )
    if kind == RETRY and catalogs.find_subscription(catalog, topic, base[1].name) is None:
        _subscribe(draft, base, topic, starts)
    return topic


def _subscribe(
    draft: Draft, base: tuple[Topic, Subscription], topic: Topic, starts: dict[int, Mark]
) -> None:
    """Create the subscription on a retry topic, so that postponed messages are delivered again."""
    number, subscription = draft.view.catalog.next_subscription, base[1]
    draft.ops.append(
        SubscriptionCreated(
            number, topic.number, subscription.name, subscription.type, subscription.isolation
        )
    )
    draft.ops += [CursorOpened(number, partition, mark) for partition, mark in starts.items()]
    if "retry_topic" in subscription.policies:
        dead = target_name(base, DEAD).full
        for key, value in {**subscription.policies, "dead_letter_topic": dead}.items():
            draft.ops.append(SubscriptionPolicySet(number, key, value))


def _copies(
    table: pa.Table,
    source: tuple[Topic, Subscription],
    base: tuple[Topic, Subscription],
    kind: str,
    how: RetryOptions | None,
) -> pa.RecordBatch:
    """The rows to append: the same key, value and event time, and properties with their source."""
    is_retried = source[0].number != base[0].number
    schemas = {
        version.version: schema_in(version).fingerprint
        for version in source[0].schemas
        if version.kind == "avro"
    }
    names = ("properties", "ledger", "entry", "index", "redelivery_count", "schema_version")
    columns = [table.column(name).to_pylist() for name in names]
    properties: list[list[tuple[str, str]]] = []
    for row, ledger, entry, index, count, version in zip(*columns, strict=True):
        new = dict(row or ())
        from_here = {
            REAL_TOPIC: TopicName.parse(source[0].name).short,
            REAL_SUBSCRIPTION: source[1].name,
            ORIGIN_MESSAGE_ID: str(MessageId(ledger, entry, index or 0)),
        }
        if is_retried and ORIGIN_MESSAGE_ID in new:  # it already names its first topic
            from_here = {}
        elif version in schemas:
            from_here[SCHEMA] = schemas[version]
        if kind == DEAD and count is not None:
            from_here[REDELIVERY_COUNT] = str(count)
        if how is not None:
            times = {RECONSUMETIMES: str(_times(new) + 1), DELAY_TIME: str(how.delay_ms)}
            new |= how.properties | times
        properties.append(list((new | from_here).items()))
    kept = ["key", "value", "properties", "event_time"]
    arrays = [table.column(name).combine_chunks() for name in kept]
    arrays[2] = pa.array(properties, PROPERTY_MAP)
    if how is not None and how.delay_ms and kind == RETRY:
        kept.append(AFTER)
        arrays.append(pa.repeat(pa.scalar(how.delay_ms, pa.int64()), table.num_rows))
    return pa.RecordBatch.from_arrays(arrays, kept)
