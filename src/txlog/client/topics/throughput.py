"""How much became visible in a topic over time: messages, bytes and transactions in each span.

A span begins at a multiple of its length since 1970 in UTC. A transaction counts once, in the span
of its commit, however many partitions its messages are in.
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
    """A row for each span from the one with `since_ms` until now, including empty ones.

    partitions: None: all
    returns: [{topic, from_time, messages, size_bytes, transactions}], by time; size_bytes: payload
    raises:  InvalidArgument, LimitExceeded (more than SPANS_MAX spans), TopicNotFound; as a reader
    cost:    reads what became visible since then
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
    listed = None if partitions is None else list(partitions)
    wanted = Range(start=Bound("time", first), stop=END)
    reader = Reader(store, topic, wanted, listed)
    rows = {at: _empty(reader.short, at) for at in range(first, first + spans * by_ms, by_ms)}
    ends: list[pa.Table] = []
    while (table := reader.take(_AT_ONCE)).num_rows:
        spanned = _spanned(table, first, by_ms)
        counted = spanned.group_by("span").aggregate([("bytes", "sum"), ("span", "count")])
        columns = (counted.column(name).to_pylist() for name in ("span", "bytes_sum", "span_count"))
        for span, size, count in zip(*columns, strict=True):
            row = rows.setdefault(span, _empty(reader.short, span))  # a clock ahead of ours
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
    """For each message: the span it became visible in, its payload bytes, its transaction."""
    times = table.column("visible_time").cast(pa.int64())
    by = pa.scalar(by_ms, pa.int64())
    made = pa.table(
        {
            "span": pc.multiply(pc.divide(times, by), by),
            "bytes": pc.binary_length(table.column("value")),
            "time": times,
            **{name: table.column(name) for name in _TXN},
        }
    )
    # Clocks sometimes go back: after the first that is late enough there may be earlier ones.
    return made.filter(pc.greater_equal(made.column("time"), pa.scalar(first_ms, pa.int64())))
