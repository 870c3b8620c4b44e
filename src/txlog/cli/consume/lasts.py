"""Owns the last N messages over all partitions, in the order in which they became visible."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.cli.consume.ends import is_of, partitions_in

Tails = dict[tuple[str, int], pa.Table]  # by topic and partition, in order


def keep(tails: Tails, table: pa.Table, count: int) -> None:
    """Append the rows of a table to the ends of their partitions, of at most `count` rows each."""
    for key in partitions_in(table):
        rows = table.filter(is_of(table, key))
        if key in tails:
            rows = pa.concat_tables([tails[key], rows])
        tails[key] = rows.slice(max(0, len(rows) - count))


def last_of(tails: Tails, count: int, at_once: int) -> Iterator[pa.Table]:
    """The last messages of all partitions together, in tables of `at_once` rows."""
    tables = [table for table in tails.values() if len(table)]
    if not tables:
        return
    rows = by_time(pa.concat_tables(tables), of_the_end=True)
    for start in range(max(0, len(rows) - count), len(rows), at_once):
        yield rows.slice(start, at_once)


def by_time(rows: pa.Table, *, of_the_end: bool) -> pa.Table:
    """Messages in order of visible time, each partition in its own order.

    Messages that became visible together (a batch, a transaction) have no order between partitions.
    There the partitions take turns, so that the first or last N do not all come from one partition.
    of_the_end: the turns are counted from the ends of the partitions, else from their starts
    """
    order = [("topic", "ascending"), ("partition", "ascending")]
    rows = rows.take(pc.sort_indices(rows, order))  # stable
    groups = rows.group_by(["topic", "partition"], use_threads=False).aggregate([([], "count_all")])
    instants, turns, start = [], [], 0
    for size in groups["count_all"].to_pylist():
        times = rows["visible_time"].slice(start, size).cast(pa.int64()).combine_chunks()
        instants.append(pc.cumulative_max(times))  # a clock may have gone back
        turns.append(pa.arange(-size if of_the_end else 0, 0 if of_the_end else size))
        start += size
    keys = pa.table({"at": pa.concat_arrays(instants), "turn": pa.concat_arrays(turns)})
    return rows.take(pc.sort_indices(keys, [("at", "ascending"), ("turn", "ascending")]))
