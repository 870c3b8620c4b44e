"""Messages that no marker makes visible, of open and aborted transactions, and other rows.

These are the rows that READ_UNCOMMITTED gives to a reader (plan/reading/uncommitted), all at once
and with their place in the files. A row of an aborted transaction exists until its ledger is sealed
or compacted; a row whose marker was trimmed was once visible, so it is excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Final

import pyarrow as pa

from txlog.base.ids import TxnId, txn_halves
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Buffer
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE, TXN_ABORT, TXN_COMMIT
from txlog.engine.view.files import Request
from txlog.engine.view.view import View

_READ: Final = (
    "txn_index", "key", "value", "properties", "publish_time", "event_time",
    "deliver_at", "producer", "sequence_id", "schema_version", "kind", "txn_most", "txn_least",
)  # fmt: skip
# The storage columns of a row: its transaction, ledger and row number.
STORED: Final = (
    ("kind", pa.int8()), ("txn_most", pa.int64()), ("txn_least", pa.int64()),
    ("stored_ledger", pa.int64()), ("stored_entry", pa.int64()),
)  # fmt: skip
# The columns of a committed message, of which place, LSN and visible time are null; and the storage
# columns.
HIDDEN: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        *((name, MESSAGE.field(name).type) for name in _READ[:-3]),
        ("visible_time", INSTANT),
        ("lsn", pa.int64()),
        ("txn_state", pa.string()),
        *STORED,
    ]
)
_TXN: Final = ("txn_most", "txn_least")
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())


def hidden(
    view: View, topic: Topic, indexes: Iterable[int], *, everything: bool = False
) -> pa.Table:
    """The invisible messages of these partitions, as HIDDEN, in stored order.

    everything: include all other rows of their sidecars: ends of transactions, watermarks
    txn_state:  open or aborted; for other rows also committed, null if no longer known
    cost:       O(markers + ledgers), and reading those rows
    """
    tables = [HIDDEN.empty_table()]
    for index in indexes:
        state = view.buffer(number_of(topic, index))
        for ledger, requests in _unmarked(view, state):
            rows = pa.concat_tables(view.rows(requests, _READ))
            numbers = pa.chunked_array([pa.arange(start, stop) for _, start, stop in requests])
            rows = rows.append_column("stored_entry", numbers)
            if not everything:
                rows = rows.filter(pc.equal(rows.column("kind"), _DATA))
            total = rows.num_rows
            computed = {name: rows.column(name) for name in _READ}
            computed |= {
                "partition": pa.repeat(pa.scalar(index, pa.int32()), total),
                "stored_ledger": pa.repeat(pa.scalar(ledger, pa.int64()), total),
                "stored_entry": rows.column("stored_entry"),
                "txn_state": _states(state, rows),
            }
            columns = [
                computed[field.name] if field.name in computed else pa.nulls(total, field.type)
                for field in HIDDEN
            ]
            tables.append(pa.Table.from_arrays(columns, schema=HIDDEN))
    return pa.concat_tables(tables)


def _unmarked(view: View, state: Buffer) -> Iterator[tuple[int, list[Request]]]:
    """(ledger, ranges of its rows that no marker makes or made visible), in order."""
    marked: dict[int, list[tuple[int, int]]] = {
        ledger: [(row, row + rows) for row, rows in trimmed]
        for ledger, trimmed in state.trimmed.items()
    }
    for markers in state.markers.values():
        for marker in markers:
            for ledger, row, rows, _ in marker.ranges:
                marked.setdefault(ledger, []).append((row, row + rows))
    for end in state.ledgers:
        ledger, at = end.ledger, 0
        total = 1 if ledger in state.chunked else end.entries
        if end.sealed and ledger not in state.chunked:
            total = view.files.of(ledger)[0].rows  # a sealed file leaves rows out
        requests: list[Request] = []
        for low, high in [*sorted(marked.get(ledger, ())), (total, total)]:
            if at < low:
                requests.append((ledger, at, low))
            at = max(at, high)
        if requests:
            yield ledger, requests


def _states(state: Buffer, rows: pa.Table) -> pa.Array:
    """The state of each row's transaction."""
    open_txns = [
        (number, sequence) for number, by_sequence in state.held.items() for sequence in by_sequence
    ]
    states = pa.scalar(None, pa.string())
    is_data = pc.equal(rows.column("kind"), _DATA)
    if not pc.all(is_data).as_py():
        marked = {
            (m.coordinator, m.sequence) for markers in state.markers.values() for m in markers
        }
        states = pc.if_else(_is_of(rows, marked), pa.scalar("committed"), states)
        for kind, name in ((TXN_COMMIT, "committed"), (TXN_ABORT, "aborted")):
            ends = rows.filter(pc.equal(rows.column("kind"), pa.scalar(kind, pa.int8())))
            halves = zip(*(ends.column(name).to_pylist() for name in _TXN), strict=True)
            ended = {(txn.coordinator, txn.sequence) for txn in starmap(TxnId.from_halves, halves)}
            states = pc.if_else(_is_of(rows, ended), pa.scalar(name), states)
    states = pc.if_else(is_data, pa.scalar("aborted"), states)
    return pc.if_else(_is_of(rows, open_txns), pa.scalar("open"), states)


def _is_of(rows: pa.Table, txns: Iterable[tuple[int, int]]) -> pa.Array:
    """For each row, whether it belongs to one of these transactions."""
    by_most: dict[int, list[int]] = {}
    for coordinator, sequence in txns:
        most, least = txn_halves(coordinator, sequence)
        by_most.setdefault(most, []).append(least)
    mask = pa.repeat(pa.scalar(False), rows.num_rows)
    for most, sequences in by_most.items():
        of = pc.equal(rows.column("txn_most"), pa.scalar(most, pa.int64()))
        its = pc.is_in(rows.column("txn_least"), value_set=pa.array(sequences, pa.int64()))
        mask = pc.or_(mask, pc.and_(of, its))
    return mask
