"""Compacted rows for readers: the newest message of each key, before the log continues.

A reader chooses the files when it begins, so that a later compaction does not change what it reads:
the later files have other messages, and lack keys that were deleted in between. Replaced files stay
on disk for `reader_grace_ms`.

Rows are in the order of their ids, so a position is a number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.model.ops import Mark, Run
from txlog.engine.plan.reading.dispatch import NO_MESSAGES, RECEIVED
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import View
from txlog.errors import MissingFile, SnapshotExpired

_IDS = ("marker_ledger", "marker_entry", "txn_index")
_RENAMED = dict(zip(_IDS, ("ledger", "entry", "index"), strict=True))
_ELSEWHERE = ("topic", "partition", "txn_state", "redelivery_count", *_RENAMED.values())
_STORED = (*(name for name in RECEIVED.names if name not in _ELSEWHERE), *_IDS)


class CompactedRange(NamedTuple):
    """The compacted rows that a reader still has to read: rows start..stop of the files together.

    after: the position of the log after which the reader continues
    """

    files: tuple[FileRef, ...]
    start: int
    stop: int
    after: Mark


def compacted_files(view: View, number: int) -> tuple[FileRef, ...]:
    """The files of compacted rows of a partition, in order."""
    compaction = view.topic(number).compaction
    ledgers = () if compaction is None else compaction.ledgers
    return tuple(ref for ledger in ledgers for ref in view.files.of(ledger))


def rows_before(view: View, files: Sequence[FileRef], first: Mark) -> int:
    """How many compacted rows have a lower id; cost: reads their ids, once."""
    ledger, entry, index = first
    count = 0
    for ref in files:
        ids = view.files.pick(ref, [(0, ref.rows)], _IDS)
        is_before = pc.less(pc.fill_null(ids.column(2), 0), index)
        for at, value in ((1, entry), (0, ledger)):
            same = pc.and_(pc.equal(ids.column(at), value), is_before)
            is_before = pc.or_(pc.less(ids.column(at), value), same)
        rows_found = int(pc.sum(is_before).as_py() or 0)
        count += rows_found
        if rows_found < ref.rows:
            break
    return count


def rows_earlier(view: View, files: Sequence[FileRef], time_ms: int) -> int:
    """How many compacted rows come before the first that became visible at an instant or later."""
    count = 0
    for ref in files:
        times = view.files.pick(ref, [(0, ref.rows)], ("visible_time", "publish_time"))
        visible = pc.coalesce(times.column(0), times.column(1)).cast(pa.int64())
        first_at = int(pc.index(pc.greater_equal(visible, time_ms), True).as_py())
        if first_at >= 0:
            return count + first_at
        count += ref.rows
    return count


def take(
    view: View, topic: str, index: int, remaining: CompactedRange, limit: int
) -> tuple[pa.Table, CompactedRange]:
    """(the next rows as RECEIVED, at most limit and from one row group; the remaining range).

    raises: SnapshotExpired when a later compaction replaced the files and they were deleted
    """
    row = remaining.start
    for ref in remaining.files:
        if row < ref.rows:
            break
        row -= ref.rows
    end = 0
    for rows, _, _, _ in ref.groups:
        end += rows
        if row < end:
            break
    count = min(limit, end - row, remaining.stop - remaining.start)
    current = view.files.of(ref.ledger) or [ref]  # an offloaded file has a new location
    try:
        rows = view.files.pick(current[0], [(row, row + count)], _STORED)
    except MissingFile as error:
        if view.files.of(ref.ledger):
            raise
        raise SnapshotExpired(
            f"the compacted messages of {topic}/{index} were replaced while they were read",
            hint="read again",
            topic=topic,
            partition=index,
        ) from error
    return _received(topic, index, rows), remaining._replace(start=remaining.start + count)


def take_again(
    view: View, topic: str, index: int, files: tuple[FileRef, ...], run: Run, limit: int
) -> pa.Table:
    """The rows of a run without whole markers, at most limit; raises as take."""
    ledger, first, last, index_first, index_last = run
    start = rows_before(view, files, (ledger, first, index_first))
    stop = rows_before(view, files, (ledger, last, index_last + 1))
    remaining = CompactedRange(files, start, min(stop, start + limit), (ledger, last, index_last))
    tables = [NO_MESSAGES]
    while remaining.start < remaining.stop:
        table, remaining = take(view, topic, index, remaining, limit)
        tables.append(table)
    return pa.concat_tables(tables)


def last_row(view: View, number: int) -> Mark | None:
    """The id of the last compacted row of a partition; None: it has none."""
    files = compacted_files(view, number)
    if not files:
        return None
    last = files[-1]
    ids = view.files.pick(last, [(last.rows - 1, last.rows)], _IDS)
    [ledger], [entry], [index] = (column.to_pylist() for column in ids.columns)
    return (ledger, entry, index or 0)


def is_newest(view: View, number: int, rows: pa.Table) -> pa.BooleanArray:
    """For each row of the log of a partition whether a reader of compacted messages gets it.

    rows: in order of position
    cost: the ids of the compacted rows, once
    """
    compaction = view.topic(number).compaction
    columns = (rows.column(name).to_pylist() for name in ("ledger", "entry", "index"))
    marks = [(ledger, entry, index or 0) for ledger, entry, index in zip(*columns, strict=True)]
    if compaction is None or marks[0][:2] > compaction.horizon:
        return pa.repeat(pa.scalar(True), len(marks))
    files, newest = compacted_files(view, number), set[Mark]()
    ledger, entry, index = marks[-1]
    start = rows_before(view, files, marks[0])
    stop = rows_before(view, files, (ledger, entry, index + 1))
    for ref in files:
        low, high = max(0, start), min(ref.rows, stop)
        if low < high:
            ids = view.files.pick(ref, [(low, high)], _IDS)
            ledgers, entries, indexes = (column.to_pylist() for column in ids.columns)
            newest |= {
                (ledger, entry, index or 0)
                for ledger, entry, index in zip(ledgers, entries, indexes, strict=True)
            }
        start, stop = start - ref.rows, stop - ref.rows
    return pa.array([mark[:2] > compaction.horizon or mark in newest for mark in marks], pa.bool_())


def _received(topic: str, index: int, rows: pa.Table) -> pa.Table:
    total = rows.num_rows
    columns = {_RENAMED.get(name, name): rows.column(name) for name in _STORED}
    is_inner = pc.is_valid(rows.column("txn_index"))
    yes, no = pa.scalar("committed", pa.string()), pa.scalar(None, pa.string())
    columns |= {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), total),
        "partition": pa.repeat(pa.scalar(index, pa.int32()), total),
        "visible_time": pc.coalesce(rows.column("visible_time"), rows.column("publish_time")),
        "txn_state": pc.if_else(is_inner, yes, no),
        "redelivery_count": pa.nulls(total, pa.int32()),
    }
    return pa.Table.from_arrays([columns[name] for name in RECEIVED.names], schema=RECEIVED)
