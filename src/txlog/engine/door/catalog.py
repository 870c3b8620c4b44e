"""Topics, partitions and subscriptions as the catalog has them, and finding them by name."""

from txlog.engine.folds.catalog import (
    Loss,
    SchemaVersion,
    Subscription,
    Topic,
    consumers_of,
    declared_of,
    directory_of,
    has_partition,
    index_of,
    number_of,
    numbers,
    policies_of,
    schema_of,
    topic_of,
)
from txlog.engine.folds.topic import Topic as TopicState
from txlog.engine.plan.lookup import (
    check_coordinator,
    check_open,
    check_partition,
    check_same,
    is_overdue,
    left_ms,
    live_subscription,
    live_topic,
    subscription,
    topic,
    transaction,
)
