"""What is delayed, as rows and counts: the answers of `txlog delay` and of whoever counts.

Reading functions over a view. A message is delayed while its time is to come; counts come from the
index alone, listings read the messages they show. Source: spec/delayed-delivery 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from txlog.engine.folds.catalog import Subscription, Topic, number_of
from txlog.engine.plan.delayed.upcoming import (
    Note,
    is_behind,
    is_in,
    runs_in_order,
    upcoming,
    upcoming_in_any_order,
)
from txlog.engine.plan.reading.dispatch import RECEIVED
from txlog.engine.plan.reading.fetch import fetch
from txlog.engine.view.view import View
from txlog.ids import TopicName
from txlog.settings import DAY_MS, HOUR_MS, MINUTE_MS
from txlog.startup import compute as pc

Answer = dict[str, Any]
LISTED = pa.schema(
    [
        *(RECEIVED.field(name) for name in ("partition", "ledger", "entry", "index")),
        *(RECEIVED.field(name) for name in ("deliver_at", "key")), ("size_bytes", pa.int64()),
        *(RECEIVED.field(name) for name in ("txn_most", "txn_least")),
    ]
)  # fmt: skip
WITHIN = (MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, DAY_MS)
ROWS_AT_ONCE = 1000  # messages that are looked at at once: their payloads are in memory
_ORDER = [(name, "ascending") for name in ("deliver_at", "ledger", "entry", "index")]


class Scope(NamedTuple):
    """What is looked at: partitions of a topic, at a moment, perhaps for one subscription.

    held: only what this subscription has not acknowledged; before_ms: only what is due before
    note: is told which bucket of the index could not be read
    """

    topic: Topic
    indexes: Sequence[int]
    now_ms: int
    note: Note
    held: Subscription | None = None
    before_ms: int | None = None


def listed(
    view: View, scope: Scope, limit: int | None = None, key: bytes | None = None
) -> pa.Table:
    """Delayed messages as LISTED, in order of their time, at most limit.

    key:  only messages with this key
    cost: reads the messages it shows, with a key also those it leaves out
    """
    out = [LISTED.empty_table()]
    left = limit
    for times in ahead(view, scope):
        step = ROWS_AT_ONCE if left is None or key is not None else min(left, ROWS_AT_ONCE)
        for at in range(0, times.num_rows, max(1, step)):
            if left is not None and left <= 0:
                return pa.concat_tables(out)
            rows = _with_messages(view, scope, times.slice(at, step))
            if key is not None:
                rows = rows.filter(pc.fill_null(pc.equal(rows["key"], key), False))
            out.append(rows.slice(0, left))
            left = None if left is None else left - out[-1].num_rows
    return pa.concat_tables(out)


def ahead(view: View, scope: Scope, *, in_order: bool = True) -> Iterator[pa.Table]:
    """Delayed messages as TIMES, in order of key if asked so; cost: of the index only."""
    numbers = [number_of(scope.topic, index) for index in scope.indexes]
    look = upcoming if in_order else upcoming_in_any_order
    for times in look(view, numbers, scope.note, scope.now_ms, scope.before_ms):
        if scope.held is not None:
            times = times.filter(_unacknowledged(view, scope.held, numbers, times))
        if times.num_rows:
            yield times


def _unacknowledged(
    view: View, held: Subscription, numbers: Sequence[int], times: pa.Table
) -> pa.ChunkedArray:
    wanted = pa.chunked_array([pa.repeat(pa.scalar(False), times.num_rows)])
    for number in numbers:
        cursor = view.cursor(held.number, number)
        left = pc.and_(is_behind(times, cursor.mark_delete), pc.invert(is_in(times, cursor.acked)))
        wanted = pc.or_(wanted, pc.and_(left, _is_of(view, number, times)))
    return wanted


def _is_of(view: View, number: int, times: pa.Table) -> pa.ChunkedArray:
    """True for messages of a partition: ledgers number over the whole store."""
    ledgers = pa.array([end.ledger for end in view.topic(number).ledgers], pa.int64())
    return pc.is_in(times["ledger"], ledgers)


def _with_messages(view: View, scope: Scope, times: pa.Table) -> pa.Table:
    """The same messages with what is shown of them, in the same order."""
    short = TopicName.parse(scope.topic.name).short
    out: list[pa.Table] = []
    for index in scope.indexes:
        number = number_of(scope.topic, index)
        some = times.filter(_is_of(view, number, times)) if len(scope.indexes) > 1 else times
        if some.num_rows:
            out.append(fetch(view, short, index, number, runs_in_order(some)))
    rows = pa.concat_tables(out)
    size = pc.fill_null(pc.binary_length(rows["value"]), 0).cast(pa.int64())
    rows = rows.append_column("size_bytes", size)
    return rows.select(LISTED.names).sort_by(_ORDER)


def histogram(now_ms: int, tables: Iterable[pa.Table]) -> list[Answer]:
    """How many are due within which time: [{due_within_ms, messages}], null for the rest."""
    counts = [0] * (len(WITHIN) + 1)
    for times in tables:
        below = 0
        for at, within_ms in enumerate(WITHIN):
            through = pc.sum(pc.less_equal(times["deliver_at"], now_ms + within_ms)).as_py() or 0
            counts[at] += through - below
            below = through
        counts[-1] += times.num_rows - below
    return [
        {"due_within_ms": within_ms, "messages": count}
        for within_ms, count in zip((*WITHIN, None), counts, strict=True)
    ]
