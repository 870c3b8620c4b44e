"""The newest message of each key: its location, found by columns and without its value.

A scan reads the keys of visible messages between two positions, in the order of a plan, and keeps
the last message of each key. Its memory grows with the keys, and not with the messages. Messages
without a key are left out. The caller reads the rows of the kept messages afterwards. No Python
object is made per message: a plan has one for each run of plain messages and each marker.

Compacted rows (role c) are scanned like the log: each has its position in the log. A second scan
gives the same rows in the same order, so a caller that cannot keep locations may keep row numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.model.ops import Mark
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.reading.dispatch import NO_MATTER, Piece, plan, requests_of
from txlog.engine.view import Request, View

# The location of a message: its row of a ledger; and its id, time and LSN as a visible message,
# unless the row itself has them. The row of a plain message has its LSN, a compacted row has all.
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
SCAN_MESSAGES = 25_000
_NOWHERE = (0, 0, 0)
# Rows are fetched from so many bytes at once, as they are in memory.
FETCH_BYTES = 8 << 20
CELL_BYTES = 8  # the bytes of a row without a value in a column


class ScanSegment(NamedTuple):
    """Consecutive messages of a scan, not read yet.

    pieces: of the log; none: compacted rows
    """

    rows: int
    requests: list[Request]
    pieces: list[Piece]

    def keys(self, view: View) -> pa.ChunkedArray:
        """The key of each message, null without one."""
        return _read(view, self.requests, ("key",)).column("key")

    def places(self, view: View, names: Sequence[str] = ()) -> pa.Table:
        """The locations, as PLACED.

        names: the columns to read for it, key or lsn; columns that are neither read nor in the plan
               are null
        """
        columns_known = {"ledger": _ledgers_of(self.requests), "row": _rows_of(self.requests)}
        columns_known |= self._by_plan() if self.pieces else {}
        if names:
            read = _read(view, self.requests, names)
            columns_known |= {
                name: pc.coalesce(columns_known[name], read.column(name))
                if name in columns_known
                else read[name]
                for name in names
            }
        columns = [
            columns_known[field.name]
            if field.name in columns_known
            else pa.nulls(self.rows, field.type)
            for field in PLACED
        ]
        return pa.Table.from_arrays(columns, schema=PLACED)

    def _by_plan(self) -> dict[str, pa.Array]:
        """The columns that a plan has for its messages."""
        pieces = self.pieces
        ends = list(accumulate(piece.rows for piece in pieces))
        bases = [
            (piece.entry if piece.marker is None else piece.index) - end + piece.rows
            for piece, end in zip(pieces, ends, strict=True)
        ]
        number = pc.add(pa.arange(0, self.rows), repeat_runs(bases, ends, pa.int64()))
        markers = [piece.marker for piece in pieces]
        fixed = [None if marker is None else marker.entry for marker in markers]
        inside = [None if marker is None else True for marker in markers]
        times = [None if marker is None else marker.time_ms for marker in markers]
        lsns = [None if marker is None else marker.lsn for marker in markers]
        index = pc.if_else(
            repeat_runs(inside, ends, pa.bool_()), number, pa.scalar(None, pa.int64())
        )
        return {
            "lsn": repeat_runs(lsns, ends, pa.int64()),
            "visible_time": repeat_runs(times, ends, INSTANT),
            "marker_ledger": repeat_runs([piece.ledger for piece in pieces], ends, pa.int64()),
            "marker_entry": pc.coalesce(repeat_runs(fixed, ends, pa.int64()), number),
            "txn_index": index.cast(pa.int32()),
        }


def in_log(view: View, number: int, start: Mark, stop: Mark | None = None) -> Iterator[ScanSegment]:
    """The messages of a partition after a position, in order."""
    while True:
        planned = plan(view, number, start, SCAN_MESSAGES, (), stop, NO_MATTER)
        if not planned.messages:
            return
        yield ScanSegment(planned.messages, requests_of(planned.pieces), planned.pieces)
        start = planned.after


def in_ledgers(view: View, ledgers: Iterable[int]) -> Iterator[ScanSegment]:
    """The rows of ledgers of compacted rows, in order."""
    for ledger in ledgers:
        for ref in view.files.of(ledger):
            for start in range(0, ref.rows, SCAN_MESSAGES):
                stop = min(start + SCAN_MESSAGES, ref.rows)
                yield ScanSegment(stop - start, [(ledger, start, stop)], [])


def _read(view: View, requests: list[Request], names: Sequence[str]) -> pa.Table:
    return pa.concat_tables(view.rows(requests, names))


def _ledgers_of(requests: list[Request]) -> pa.Array:
    """The ledger of each row that requests ask for."""
    ends = list(accumulate(stop - start for _, start, stop in requests))
    return repeat_runs([ledger for ledger, _, _ in requests], ends, pa.int64())


def _rows_of(requests: list[Request]) -> pa.Array:
    """The row number, in its ledger, of each row that requests ask for."""
    ends = list(accumulate(stop - start for _, start, stop in requests))
    bases = [stop - end for (_, _, stop), end in zip(requests, ends, strict=True)]
    return pc.add(pa.arange(0, ends[-1]), repeat_runs(bases, ends, pa.int64()))


class NewestRows:
    """The last row of each key in a sequence of tables with a column `key`.

    bytes: an estimate of the memory that it takes
    cost:  it merges new rows into the old ones once there are as many
    """

    __slots__ = ("_kept", "_rows", "_waiting", "bytes")

    def __init__(self, schema: pa.Schema) -> None:
        self._kept = schema.empty_table()
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self.bytes = 0

    def add(self, table: pa.Table) -> None:
        """Add the next rows.

        They are copied, because they may be a small part of a large buffer.
        """
        keyed = table.filter(pc.is_valid(table.column("key")))
        self._waiting.append(keyed)
        self._rows += keyed.num_rows
        self.bytes += keyed.nbytes
        if self._rows >= self._kept.num_rows:
            self.table()

    def table(self) -> pa.Table:
        """The last row of each key, in order."""
        if self._waiting:
            self._kept = last_of_each(pa.concat_tables([self._kept, *self._waiting]))
            self._waiting, self._rows, self.bytes = [], 0, self._kept.nbytes
        return self._kept


def newest(view: View, stretches: Iterable[ScanSegment]) -> pa.Table:
    """The location of the last message of each key, as PLACED with key and LSN, in order."""
    latest = NewestRows(PLACED)
    for stretch in stretches:
        latest.add(stretch.places(view, ("key", "lsn")))
    return latest.table()


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
    """The rows at locations (PLACED), with these columns of MESSAGE, in batches.

    They have the form of compacted rows, but their stored `entry`: the id is in marker_ledger,
    marker_entry and txn_index (null: a plain message). A batch keeps whole row groups in memory,
    also for few rows: about FETCH_BYTES by the sizes in their files.
    """
    schema = pa.schema([MESSAGE.field(name) for name in names])
    at = 0
    for requests in _batches(view, _requests(places), CELL_BYTES * len(names)):
        rows = pa.concat_tables(view.rows(requests, names))
        batch_places = places.slice(at, rows.num_rows)
        at += rows.num_rows
        columns = {name: rows.column(name) for name in names}
        columns |= {name: _said(batch_places, columns, name) for name in _SAID if name in columns}
        for name, value in (("kind", KIND_DATA), ("count", None)):
            columns[name] = pa.repeat(pa.scalar(value, MESSAGE.field(name).type), rows.num_rows)
        yield pa.Table.from_arrays([columns[name] for name in names], schema=schema)


def _said(places: pa.Table, columns: dict[str, pa.ChunkedArray], name: str) -> pa.ChunkedArray:
    """A column of the id or LSN: from the location, or from the row where the location has none."""
    placed = places.column(name)
    if name == "lsn":
        return pc.coalesce(placed, columns[name])
    owners = places.column("marker_ledger")
    if not owners.null_count:
        return placed
    return pc.if_else(pc.is_valid(owners), placed, columns[name])


def _batches(view: View, requests: list[Request], width: int) -> Iterator[list[Request]]:
    """Requests in batches of about FETCH_BYTES, or of one row group: a group is decoded whole.

    width: bytes that a row takes in memory in addition to those in its file
    """
    group_of: dict[int, tuple[int, int, int]] = {}  # by ledger, where the last row was
    batch: list[Request] = []
    groups = set[tuple[int, int]]()
    room = FETCH_BYTES
    for ledger, start, stop in requests:
        while start < stop:
            first, end, size = group_of.get(ledger, _NOWHERE)
            if not first <= start < end:
                first, end, size = group_of[ledger] = view.files.beside(ledger, start)
            if (ledger, first) not in groups:
                cost = (end - first) * (size + width)
                if batch and cost > room:
                    yield batch
                    batch, room = [], FETCH_BYTES
                    groups.clear()
                groups.add((ledger, first))
                room -= cost
            until = min(stop, end)
            if batch and batch[-1][::2] == (ledger, start):
                batch[-1] = (ledger, batch[-1][1], until)
            else:
                batch.append((ledger, start, until))
            start = until
    if batch:
        yield batch


def _requests(places: pa.Table) -> list[Request]:
    """The locations of the rows; neighbours as one request."""
    out: list[Request] = []
    ledger = start = stop = -1
    columns = (places.column(name).to_pylist() for name in ("ledger", "row"))
    for row_ledger, row in zip(*columns, strict=True):
        if row_ledger == ledger and row == stop:
            stop += 1
            continue
        if stop >= 0:
            out.append((ledger, start, stop))
        ledger, start, stop = row_ledger, row, row + 1
    if stop >= 0:
        out.append((ledger, start, stop))
    return out
