"""Opening a consumer: of one topic, of several or of a pattern, durable or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from txlog.base.choices import Isolation, SubscriptionType
from txlog.base.ids import TopicName, check_name
from txlog.base.settings import QUEUE_SIZE
from txlog.base.times import DurationLike, duration_ms
from txlog.client.consuming.batches import BatchReceivePolicy
from txlog.client.consuming.consumer import Consumer
from txlog.client.consuming.in_memory import MemorySession
from txlog.client.reading.reader import Reader, range_from
from txlog.engine.door import topics as admin
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import ConsumerSession, Topics, TopicsSession
from txlog.engine.door.reading import Where, bound_of
from txlog.engine.door.sending import topic_in_use
from txlog.engine.door.store import Store
from txlog.engine.door.topics import Policies
from txlog.engine.door.watermarks import WatermarkListener, check_listener
from txlog.errors import InvalidArgument, NotAllowed


class ConsumerOptions(TypedDict, total=False):
    """The options of `Client.consumer`."""

    type: SubscriptionType | None
    name: str | None
    isolation: Isolation | None
    position: Where | None
    create: bool
    partitions: Sequence[int] | None
    priority: int
    receiver_queue_size: int
    ack_timeout_ms: DurationLike | None
    nack_delay_ms: DurationLike | None
    enable_watermarking: bool
    batch_receive_policy: BatchReceivePolicy | None
    read_compacted: bool


def open_consumer(
    store: Store,
    topics: str | Topics,
    subscription: str,
    options: ConsumerOptions,
    listener: WatermarkListener[Any] | None = None,
    *,
    durable: bool,
    start: Where | None,
) -> Consumer:
    """Open the consumer that the arguments of `Client.consumer` describe.

    listener: called for each watermark of the consumer
    """
    position, create = options.get("position"), options.get("create", False)
    if position is not None and not create:
        raise InvalidArgument("a position is for a new subscription: create=True")
    if not durable:
        return _non_durable(store, topics, subscription, start, options, listener)
    if start is not None:
        raise InvalidArgument("start is for durable=False; a new subscription has a position")
    if options.get("read_compacted"):
        raise InvalidArgument("read_compacted is for durable=False: a subscription has the log")
    bound_of(position)
    watermarks = options.get("enable_watermarking", False)
    check_listener(listener, watermarks)

    def open_topic(name: str, is_later: bool) -> ConsumerSession:
        if create:
            topic_in_use(store, TopicName.parse(name, allow_partition=True))
            create_subscription(
                store,
                name,
                subscription,
                type=options.get("type") or "exclusive",
                isolation=options.get("isolation") or "committed",
                position=None if is_later else position,
                if_not_exists=True,
                of_partition=True,
            )
        return ConsumerSession(
            store,
            name,
            subscription,
            options.get("name"),
            options.get("isolation"),
            options.get("type"),
            options.get("priority", 0),
            options.get("receiver_queue_size", QUEUE_SIZE),
            duration_ms(options.get("ack_timeout_ms")),
            duration_ms(options.get("nack_delay_ms")),
            options.get("partitions"),
            enable_watermarking=watermarks and isinstance(topics, str),
        )

    policy = options.get("batch_receive_policy")
    if isinstance(topics, str):
        return Consumer(open_topic(topics, False), listener, policy)
    if options.get("partitions") is not None:
        raise InvalidArgument("partitions are of one topic; write topic/partition in a list")
    name = check_name("subscription", subscription)
    return Consumer(TopicsSession(store, topics, name, open_topic, watermarks), listener, policy)


def _non_durable(
    store: Store,
    topics: str | Topics,
    subscription: str,
    start: Where | None,
    options: ConsumerOptions,
    listener: WatermarkListener[Any] | None,
) -> Consumer:
    if not isinstance(topics, str):
        raise InvalidArgument("a consumer that is not durable has one topic")
    if options.get("create") or options.get("type") not in (None, "exclusive"):
        raise NotAllowed(
            "a subscription that is not durable is in memory: it is not created and has one "
            "consumer",
            hint="leave create and type out",
            subscription=subscription,
        )
    if options.get("ack_timeout_ms") is not None or options.get("nack_delay_ms") is not None:
        raise InvalidArgument(
            "a subscription in memory has no time-outs: pass the delay to the nack"
        )
    partitions, isolation = options.get("partitions"), options.get("isolation")
    watermarks = options.get("enable_watermarking", False)
    check_listener(listener, watermarks)
    name = check_name("subscription", subscription)
    topic_in_use(store, TopicName.parse(topics, allow_partition=True))
    chosen = None if partitions is None else list(partitions)
    if watermarks and options.get("read_compacted"):
        raise InvalidArgument("compacted messages have no watermarks", code=203)
    bounds = range_from(start, read_compacted=options.get("read_compacted", False))
    reader = Reader(store, topics, bounds, chosen, isolation or "committed")
    session = MemorySession(store, reader, name, watermarks)
    return Consumer(session, listener, options.get("batch_receive_policy"))


def create_subscription(
    store: Store,
    topic: str,
    name: str,
    *,
    type: str,
    isolation: str,
    position: Where | None,
    if_not_exists: bool,
    of_partition: bool = False,
    policies: Policies = admin.NO_POLICIES,
) -> bool:
    """Create a durable subscription on a topic; returns whether it was created.

    of_partition: the topic may be named by one of its partitions
    """
    check_name("subscription", name)
    topic_name = TopicName.parse(topic, allow_partition=of_partition)
    created = store.write(
        lambda view, now: admin.create_subscription(
            view,
            store.settings,
            now,
            find_topic(view, topic_name),
            name,
            type=type,
            isolation=isolation,
            position=bound_of(position),
            if_not_exists=if_not_exists,
            policies=policies,
        )
    )
    return bool(created)
