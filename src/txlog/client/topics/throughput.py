"""The throughput of a topic: messages, bytes and transactions that became visible, by time span.

A span begins at a multiple of its length since 1970 UTC. A transaction counts once, in the span of
its commit, even if its messages are in several partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.base.ranges import END, Bound, Range
from txlog.base.startup import compute as pc
from txlog.client.reading.reader import Reader
from txlog.engine.door.store import Store
from txlog.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from txlog.base.rows.topics import Throughput


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
