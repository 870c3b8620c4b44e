"""The newest message of each key: where it lies, found by columns and without its value.

A scan reads the keys of what is visible between two positions, in the order of a plan, and keeps
for each key the last one; what it keeps grows with the keys, and not with the messages. Messages
without a key are left out. The rows of those kept are read afterwards. Nothing here makes an object
for a message: a plan has one for each run of plain messages and each marker.

Compacted rows (role c) are scanned like the log: they say where they stood in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa

from txlog.engine.model.ops import Mark
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.reading.dispatch import NO_MATTER, Piece, plan, requests_of
from txlog.engine.view.files import Request
from txlog.engine.view.view import View
from txlog.startup import compute as pc

# Where a message lies: its row of a ledger; and what its id, time and LSN are once it is visible.
PLACED = pa.schema(
    [
        ("key", pa.binary()),
        ("lsn", pa.int64()),
        ("visible_time", INSTANT),
        ("marker_ledger", pa.int64()),
        ("marker_entry", pa.int64()),
        ("txn_index", pa.int32()),
        ("ledger", pa.int64()),
        ("row", pa.int64()),
    ]
)
_SAID = ("lsn", "visible_time", "marker_ledger", "marker_entry", "txn_index")
SCAN_MESSAGES = 100_000
# Rows are fetched in batches of about this many bytes; the first has few, as nobody knows them yet.
FETCH_BYTES = 16 << 20
FETCH_FIRST, FETCH_MOST = 64, 100_000


def in_log(view: View, number: int, after: Mark, stop: Mark | None = None) -> Iterator[pa.Table]:
    """Where the messages of a partition after a position lie, as tables of PLACED, in order."""
    while True:
        found = plan(view, number, after, SCAN_MESSAGES, (), stop, NO_MATTER)
        if not found.messages:
            return
        yield _placed(view, found.pieces)
        after = found.after


def _placed(view: View, pieces: list[Piece]) -> pa.Table:
    requests = requests_of(pieces)
    rows = pa.concat_tables(view.rows(requests, ("key", "lsn")))
    total = rows.num_rows
    ends = list(accumulate(piece.rows for piece in pieces))
    at = pa.arange(0, total)
    bases = [
        (piece.entry if piece.marker is None else piece.index) - end + piece.rows
        for piece, end in zip(pieces, ends, strict=True)
    ]
    number = pc.add(at, repeat_runs(bases, ends, pa.int64()))
    markers = [piece.marker for piece in pieces]
    fixed = [None if marker is None else marker.entry for marker in markers]
    inner = repeat_runs([None if marker is None else True for marker in markers], ends, pa.bool_())
    times = [None if marker is None else marker.time_ms for marker in markers]
    lsns = [None if marker is None else marker.lsn for marker in markers]
    ledger, row = places_of(requests)
    columns = [
        rows.column("key"),
        pc.coalesce(repeat_runs(lsns, ends, pa.int64()), rows.column("lsn")),
        repeat_runs(times, ends, INSTANT),
        repeat_runs([piece.ledger for piece in pieces], ends, pa.int64()),
        pc.coalesce(repeat_runs(fixed, ends, pa.int64()), number),
        pc.if_else(inner, number, pa.scalar(None, pa.int64())).cast(pa.int32()),
        ledger,
        row,
    ]
    return pa.Table.from_arrays(columns, schema=PLACED)


def places_of(requests: list[Request]) -> tuple[pa.Array, pa.Array]:
    """The ledger and row of each row that requests ask for."""
    ends = list(accumulate(stop - start for _, start, stop in requests))
    bases = [stop - end for (_, _, stop), end in zip(requests, ends, strict=True)]
    at = pa.arange(0, ends[-1])
    return (
        repeat_runs([ledger for ledger, _, _ in requests], ends, pa.int64()),
        pc.add(at, repeat_runs(bases, ends, pa.int64())),
    )


def in_ledgers(view: View, ledgers: Iterable[int]) -> Iterator[pa.Table]:
    """Where the rows of ledgers of compacted rows lie, as tables of PLACED, in order."""
    for ledger in ledgers:
        for ref in view.files.of(ledger):
            for start in range(0, ref.rows, SCAN_MESSAGES):
                stop = min(start + SCAN_MESSAGES, ref.rows)
                rows = pa.concat_tables(view.rows([(ledger, start, stop)], ("key", *_SAID)))
                places = places_of([(ledger, start, stop)])
                yield pa.Table.from_arrays([*rows.columns, *places], schema=PLACED)


def newest(tables: Iterable[pa.Table]) -> tuple[pa.Table, int, int]:
    """The last row of each key, in order; how many rows there were, and how many without a key.

    cost: what came is put together with what is kept once there is as much of it
    """
    kept, waiting, rows, keyless = PLACED.empty_table(), list[pa.Table](), 0, 0
    for table in tables:
        rows += table.num_rows
        keyless += table.column("key").null_count
        waiting.append(last_of_each(table))
        if sum(one.num_rows for one in waiting) >= kept.num_rows:
            kept, waiting = last_of_each(pa.concat_tables([kept, *waiting])), []
    return last_of_each(pa.concat_tables([kept, *waiting])) if waiting else kept, rows, keyless


def last_of_each(table: pa.Table) -> pa.Table:
    """The last row of each key, in the order of the table; rows without a key are left out.

    Backwards, a key is new where the number that its dictionary gives it is above all before.
    """
    rows = pc.indices_nonzero(pc.is_valid(table.column("key"))).cast(pa.int64())
    if not len(rows):
        return table.slice(0, 0)
    rows = rows.take(pc.subtract(len(rows) - 1, pa.arange(0, len(rows))))
    keys = table.column("key").take(rows).combine_chunks()
    top = pc.cumulative_max(keys.dictionary_encode().indices)
    is_new = pa.concat_arrays([pa.array([True]), pc.greater(top[1:], top[:-1])])
    last = rows.filter(is_new)
    return table.take(last.take(pc.sort_indices(last)))


def fetched(
    view: View, places: pa.Table, names: Sequence[str] = tuple(MESSAGE.names)
) -> Iterator[pa.Table]:
    """The rows of PLACED with these columns of MESSAGE, in batches: of compacted rows, but entry.

    The id is in marker_ledger, marker_entry and txn_index (null: a plain message).
    """
    wanted = pa.schema([MESSAGE.field(name) for name in names])
    at, count = 0, FETCH_FIRST
    while at < places.num_rows:
        some = places.slice(at, count)
        rows = pa.concat_tables(view.rows(_requests(some), names))
        columns = {name: rows.column(name) for name in names}
        columns |= {name: some.column(name) for name in _SAID}
        for name, value in (("kind", KIND_DATA), ("count", None)):
            columns[name] = pa.repeat(pa.scalar(value, MESSAGE.field(name).type), rows.num_rows)
        yield pa.Table.from_arrays([columns[name] for name in names], schema=wanted)
        at += some.num_rows
        each = max(1, rows.nbytes // some.num_rows)
        count = max(1, min(FETCH_BYTES // each, 4 * count, FETCH_MOST))


def _requests(places: pa.Table) -> list[Request]:
    """Where the rows lie; neighbours as one request."""
    out: list[Request] = []
    ledger = start = stop = -1
    columns = (places.column(name).to_pylist() for name in ("ledger", "row"))
    for one, row in zip(*columns, strict=True):
        if one == ledger and row == stop:
            stop += 1
            continue
        if stop >= 0:
            out.append((ledger, start, stop))
        ledger, start, stop = one, row, row + 1
    if stop >= 0:
        out.append((ledger, start, stop))
    return out
