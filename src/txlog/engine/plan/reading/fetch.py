"""Fetching messages by their ids, to move them elsewhere or hand them out again.

Dispatch plans what follows a position; here the caller has the messages, as runs. A marker that
represents all its messages is taken apart, so that each row has the id of one message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import pyarrow as pa

from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import IdSet
from txlog.engine.model.ops import Run
from txlog.engine.plan.ack_sets import above_mark, is_trimmed, subtract
from txlog.engine.plan.reading.dispatch import Piece, received
from txlog.engine.view import View


def taken_apart(view: View, partition: int, runs: Iterable[Run]) -> list[Run]:
    """The same messages, with markers taken apart.

    Trimmed rows and rows that are not data are left out.
    """
    silent = view.watermark(partition).silent
    if silent:
        rows = IdSet(silent)
        runs = [part for run in runs for part in subtract(view, partition, run, rows)]
    out: list[Run] = []
    for run in runs:
        ledger, first, last, index_first, _ = run
        if is_trimmed(view, partition, ledger):
            continue
        if index_first:
            out.append(run)
            continue
        markers = view.buffer(partition).markers.get(ledger, [])
        for at in range(
            bisect_left(markers, first, key=lambda marker_: marker_.entry), len(markers)
        ):
            marker = markers[at]
            if marker.entry > last:
                break
            if marker.entry > first:
                out.append((ledger, first, marker.entry - 1, 0, 0))
            if marker.count:
                out.append((ledger, marker.entry, marker.entry, 1, marker.count))
            first = marker.entry + 1
        if first <= last:
            out.append((ledger, first, last, 0, 0))
    return out


def first_of(runs: Iterable[Run], limit: int) -> list[Run]:
    """The first messages of runs without whole markers, at most limit."""
    out: list[Run] = []
    for ledger, first, last, index_first, index_last in runs:
        if limit <= 0:
            break
        if index_first:
            index_last = min(index_last, index_first + limit - 1)
            limit -= index_last - index_first + 1
        else:
            last = min(last, first + limit - 1)
            limit -= last - first + 1
        out.append((ledger, first, last, index_first, index_last))
    return out


def fetch(
    view: View,
    topic: str,
    index: int,
    partition: int,
    runs: Iterable[Run],
    redelivered: dict[tuple[int, int, int], int] | None = None,
) -> pa.Table:
    """The messages of runs without whole markers as RECEIVED, in the order of the runs.

    index:       of the partition in its topic
    redelivered: counts of the subscription, None for a reader
    """
    pieces = pieces_of(view, partition, runs)
    return received(view, topic, index, partition, pieces, redelivered)


def pieces_of(view: View, partition: int, runs: Iterable[Run]) -> list[Piece]:
    """Runs without whole markers as pieces of a plan."""
    pieces: list[Piece] = []
    for ledger, first, last, index_first, index_last in runs:
        if index_first:
            marker = buffers.find_marker(view.buffer(partition), ledger, first)
            assert marker is not None
            rows = index_last - index_first + 1
            pieces.append(Piece(ledger, first, rows, index_first, marker))
        else:
            pieces.append(Piece(ledger, first, last - first + 1, 0, None))
    return pieces


def still_pending(view: View, partition: int, cursor: Cursor, runs: Iterable[Run]) -> list[Run]:
    """The part of the runs that is neither DELETED nor PENDING_ACK."""
    out: list[Run] = []
    for run in runs:
        if is_trimmed(view, partition, run[0]):
            continue
        above = above_mark(view, partition, run, cursor.mark_delete)
        out += without(view, partition, without(view, partition, above, cursor.acked), cursor.held)
    return out


def without(view: View, partition: int, runs: Iterable[Run], ids: IdSet) -> list[Run]:
    """The part of the runs that is not in the set."""
    return [part for run in runs for part in subtract(view, partition, run, ids)]


def rows_in(view: View, partition: int, table: pa.Table, runs: Iterable[Run]) -> pa.Table:
    """The rows of RECEIVED whose ids are in runs without whole markers."""
    ids = IdSet()
    for run in runs:
        ids.add(run)
    columns = [table.column(name).to_pylist() for name in ("ledger", "entry", "index")]
    is_in = [
        not without(view, partition, [(ledger, entry, entry, index or 0, index or 0)], ids)
        for ledger, entry, index in zip(*columns, strict=True)
    ]
    return table if all(is_in) else table.filter(pa.array(is_in, pa.bool_()))
