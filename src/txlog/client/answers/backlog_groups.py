"""The backlog of a subscription by key, age or ledger: it reads the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS
from txlog.base.startup import compute as pc
from txlog.engine.door import catalog as catalogs
from txlog.engine.door.catalog import Subscription, Topic
from txlog.engine.door.facts import Mark, repeat_runs
from txlog.engine.door.reading import Piece, plan, requests_of
from txlog.engine.door.store import Store, View
from txlog.errors import InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.consuming import BacklogGroup


GROUPS = ("key", "age", "ledger")
AGES = (
    ("<1m", MINUTE_MS), ("<10m", 10 * MINUTE_MS), ("<1h", HOUR_MS), ("<1d", DAY_MS),
    ("<7d", 7 * DAY_MS),
)  # fmt: skip
OLDER = ">=7d"
# Rows read at once; a batch of large messages ends before (RECEIVE_BYTES_MAX).
ROWS_AT_ONCE = 1 << 16


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
