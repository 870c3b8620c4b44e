"""One subscription: its consumers with their leases, its partitions, and its backlog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS
from txlog.base.startup import compute as pc
from txlog.client.answers import topics_and_txns, watermarks
from txlog.client.answers.delayed import DelayCounts
from txlog.engine.door import catalog as catalogs
from txlog.engine.door.catalog import Subscription, Topic
from txlog.engine.door.consuming import active_consumer, backlog, messages_in
from txlog.engine.door.facts import Mark, repeat_runs
from txlog.engine.door.liveness import consumer_lock, holder_of
from txlog.engine.door.reading import Piece, plan, requests_of
from txlog.engine.door.store import Store, View
from txlog.errors import InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.consuming import (
        BacklogGroup,
        ConsumerRow,
        SubscriptionDescription,
        SubscriptionPartition,
    )


# --- its consumers ---------------------------------------------------------------------------


def consumers(view: View, subscription: Subscription, store: Store) -> list[ConsumerRow]:
    """The attached consumers of a subscription, by id.

    alive:       a process holds its lock; a dead consumer stays in the list until a peer notices
    leased:      how many messages are leased to it
    active_list: with failover, the partitions of which it is the active consumer
    pid, command: of the process that holds the lock, according to the kernel
    returns:     {consumer, name, pid, command, alive, priority, leased, active_list, since_time}
    """
    numbers = catalogs.numbers(view.catalog.topics[subscription.topic])
    active: dict[int, list[int]] = {}
    if subscription.type == "failover":
        for index, _ in enumerate(numbers):
            active.setdefault(active_consumer(view, subscription.number, index), []).append(index)
    out: list[ConsumerRow] = []
    for consumer in catalogs.consumers_of(view.catalog, subscription.number):
        is_alive, pid, command = holder_of(store.disk, consumer_lock(consumer.number))
        out.append(
            {
                "consumer": consumer.number,
                "name": consumer.name,
                "pid": pid,
                "command": command,
                "alive": is_alive,
                "priority": consumer.priority,
                "leased": sum(
                    view.cursor(subscription.number, number).leases.in_hand(consumer.number)
                    for number in numbers
                ),
                "active_list": active.get(consumer.number, []),
                "since_time": consumer.since_ms,
            }
        )
    return out


def waiting(view: View, subscription: Subscription) -> int:
    """How many returned messages wait for their redelivery delay."""
    numbers = catalogs.numbers(view.catalog.topics[subscription.topic])
    return sum(len(view.cursor(subscription.number, number).leases.waiting) for number in numbers)


# --- its partitions and its backlog ----------------------------------------------------------

GROUPS = ("key", "age", "ledger")
AGES = (
    ("<1m", MINUTE_MS), ("<10m", 10 * MINUTE_MS), ("<1h", HOUR_MS), ("<1d", DAY_MS),
    ("<7d", 7 * DAY_MS),
)  # fmt: skip
OLDER = ">=7d"
# Rows read at once; a batch of large messages ends before (RECEIVE_BYTES_MAX).
ROWS_AT_ONCE = 1 << 16


def describe(
    view: View, store: Store, topic: Topic, subscription: Subscription
) -> SubscriptionDescription:
    """One subscription; the fields of `txlog sub describe`."""
    counts = DelayCounts(view, store)
    places = watermarks.standings(view, topic, range(topic.partitions), subscription)
    return {
        **topics_and_txns.subscription(view, subscription, store, counts),
        "policies": dict(sorted(subscription.policies.items())),
        "consumer_list": consumers(view, subscription, store),
        "partition_list": [
            _partition(
                view, subscription, standing, counts.of_cursor(topic, subscription, standing.number)
            )
            for standing in places
        ],
    }


def _partition(
    view: View, subscription: Subscription, standing: watermarks.Standing, delayed: int
) -> SubscriptionPartition:
    number = standing.number
    cursor = view.cursor(subscription.number, number)
    mark = cursor.mark_delete
    return {
        "partition": standing.partition,
        "mark_delete": MessageId(*mark) if mark[1] >= 0 else None,
        "backlog": (messages := backlog(view, subscription.number, number)),
        "acked_beyond": messages_in(view, number, cursor.acked.runs()),
        "delayed": delayed,
        "backlog_no_delayed": messages - delayed,
        "pending_acks": sum(pending.count for pending in cursor.pending.values()),
        "leased": sum(lease.count() for lease in cursor.leases.by_consumer.values()),
        "watermark": standing.value,
    }


def backlog_groups(
    store: Store,
    topic: Topic,
    subscription: Subscription,
    indexes: list[int] | None,
    by: str,
    top: int,
) -> list[BacklogGroup]:
    """The unacknowledged messages by group: [{group, messages, size_bytes, oldest_time}].

    by:   key (the largest groups first), age, or ledger
    cost: reads every message of the backlog, many at once
    """
    if by not in GROUPS:
        raise InvalidArgument(f"by is {by!r}", hint=", ".join(GROUPS), code=203)
    if top < 1:
        raise InvalidArgument(f"top is {top}, it must be positive", code=203)
    groups: dict[str, list[int]] = {}  # group -> messages, bytes, oldest
    now_ms = store.clock.now().wall_ms
    for index in range(topic.partitions) if indexes is None else indexes:
        number = catalogs.number_of(topic, index)
        place: Mark | None = None
        while True:
            place, rows = store.read(
                lambda view, at=place, number=number: _next(view, subscription, number, at)  # type: ignore[misc]
            )
            if rows is None:
                break
            _add(groups, rows, by, now_ms)
    if by == "key":
        order = sorted(groups, key=lambda group: (-groups[group][0], group))
    elif by == "ledger":
        order = sorted(groups, key=int)
    else:
        order = [age for age in (*(name for name, _ in AGES), OLDER) if age in groups]
    return [
        {
            "group": group,
            "messages": groups[group][0],
            "size_bytes": groups[group][1],
            "oldest_time": groups[group][2],
        }
        for group in order[:top]
    ]


def _next(
    view: View, subscription: Subscription, number: int, at: Mark | None
) -> tuple[Mark, pa.Table | None]:
    """The next unacknowledged messages as (ledger, key, size, time); None after the last."""
    cursor = view.cursor(subscription.number, number)
    mark = cursor.mark_delete if at is None else at
    step = plan(view, number, mark, ROWS_AT_ONCE, (cursor.acked,))
    if not step.pieces:
        return mark, None
    # In the order of their files: messages of transactions are in sidecar files, others are not.
    pieces = sorted(step.pieces, key=lambda piece: requests_of([piece])[0])
    tables = view.rows(requests_of(pieces), ("key", "value", "publish_time"))
    stored = pa.concat_tables(tables)
    ends, total = [], 0
    for piece in pieces:
        total += piece.rows
        ends.append(total)
    times = pc.coalesce(
        repeat_runs([_time(piece) for piece in pieces], ends, pa.int64()),
        stored.column("publish_time").cast(pa.int64()),
    )
    size = pc.add(
        pc.fill_null(pc.binary_length(stored.column("value")), 0),
        pc.fill_null(pc.binary_length(stored.column("key")), 0),
    ).cast(pa.int64())
    return step.after, pa.table(
        {
            "ledger": repeat_runs([piece.ledger for piece in pieces], ends, pa.int64()),
            "key": stored.column("key"),
            "size": size,
            "time": times,
        }
    )


def _time(piece: Piece) -> int | None:
    return None if piece.marker is None else piece.marker.time_ms


def _add(groups: dict[str, list[int]], rows: pa.Table, by: str, now_ms: int) -> None:
    if by == "age":
        young = pc.subtract(now_ms, rows.column("time"))
        step = pa.chunked_array([pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)])
        for _, limit_ms in AGES:
            step = pc.add(step, pc.greater_equal(young, limit_ms).cast(pa.int32()))
        rows = rows.append_column("age", step)
    # rows of a frame are not aligned as Arrow's grouping expects, and it warns on stderr
    rows = rows.take(pa.arange(0, rows.num_rows))
    grouped = rows.group_by(by).aggregate([("size", "count"), ("size", "sum"), ("time", "min")])
    for value, *figures in zip(
        *(grouped.column(name).to_pylist() for name in (by, "size_count", "size_sum", "time_min")),
        strict=True,
    ):
        group = groups.setdefault(_group(by, value), [0, 0, figures[2]])
        group[0] += figures[0]
        group[1] += figures[1]
        group[2] = min(group[2], figures[2])


def _group(by: str, value: bytes | int | None) -> str:
    if by == "age":
        assert isinstance(value, int)
        return AGES[value][0] if value < len(AGES) else OLDER
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value)
