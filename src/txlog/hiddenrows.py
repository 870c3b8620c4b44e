"""Owns what no marker makes visible: the messages of open and of aborted transactions, as stored.

They are what `flow.preview` gives to a reader, at once and with the place where they lie. A row of
an aborted transaction is there until its ledger is sealed or compacted; one whose marker was
trimmed was visible, and is neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from txlog.engine.folds.buffer import Buffer
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE
from txlog.engine.view import Request, View
from txlog.ids import txn_halves

_READ: Final = (
    "kind", "entry", "txn_index", "key", "value", "properties", "publish_time", "event_time",
    "deliver_at", "producer", "sequence_id", "txn_most", "txn_least",
)  # fmt: skip
# As a committed message, of which these have no place, LSN and visible time; and what they have.
HIDDEN: Final = pa.schema(
    [
        ("partition", pa.int32()), ("ledger", pa.int64()), ("entry", pa.int64()),
        *((name, MESSAGE.field(name).type) for name in _READ[2:]),
        ("visible_time", INSTANT), ("lsn", pa.int64()), ("txn_state", pa.string()),
        ("stored_ledger", pa.int64()), ("stored_entry", pa.int64()),
    ]
)  # fmt: skip
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())


def hidden(view: View, topic: Topic, indexes: Iterable[int]) -> pa.Table:
    """The messages of these partitions that are not visible, as HIDDEN, in order of storing.

    txn_state: open or aborted
    cost:      O(markers + ledgers), and reading those rows
    """
    tables = [HIDDEN.empty_table()]
    for index in indexes:
        state = view.buffer(number_of(topic, index))
        for ledger, requests in _unmarked(view, state):
            rows = pa.concat_tables(view.rows(requests, _READ))
            rows = rows.filter(pc.equal(rows.column("kind"), _DATA))
            total = rows.num_rows
            made = {name: rows.column(name) for name in _READ[2:]}
            made |= {
                "partition": pa.repeat(pa.scalar(index, pa.int32()), total),
                "stored_ledger": pa.repeat(pa.scalar(ledger, pa.int64()), total),
                "stored_entry": rows.column("entry"),
                "txn_state": _states(state, rows),
            }
            columns = [
                made[field.name] if field.name in made else pa.nulls(total, field.type)
                for field in HIDDEN
            ]
            tables.append(pa.Table.from_arrays(columns, schema=HIDDEN))
    return pa.concat_tables(tables)


def _unmarked(view: View, state: Buffer) -> Iterator[tuple[int, list[Request]]]:
    """(ledger, stretches of its rows that no marker makes or made visible), in order."""
    marked: dict[int, list[tuple[int, int]]] = {
        ledger: [(row, row + rows) for row, rows in gone] for ledger, gone in state.trimmed.items()
    }
    for known in state.markers.values():
        for marker in known:
            for ledger, row, rows, _ in marker.ranges:
                marked.setdefault(ledger, []).append((row, row + rows))
    for end in state.ledgers:
        ledger, at = end.ledger, 0
        total = 1 if ledger in state.chunked else end.entries
        if end.sealed and ledger not in state.chunked:
            total = view.files.of(ledger)[0].rows  # a sealed file has left rows out
        requests: list[Request] = []
        for low, high in [*sorted(marked.get(ledger, ())), (total, total)]:
            if at < low:
                requests.append((ledger, at, low))
            at = max(at, high)
        if requests:
            yield ledger, requests


def _states(state: Buffer, rows: pa.Table) -> pa.Array:
    """Of each row: open while its transaction is held, else aborted."""
    held: dict[int, list[int]] = {}
    for coordinator, known in state.held.items():
        for sequence in known:
            most, least = txn_halves(coordinator, sequence)
            held.setdefault(most, []).append(least)
    is_open = pa.repeat(pa.scalar(False), rows.num_rows)
    for most, sequences in held.items():
        of = pc.equal(rows.column("txn_most"), pa.scalar(most, pa.int64()))
        its = pc.is_in(rows.column("txn_least"), value_set=pa.array(sequences, pa.int64()))
        is_open = pc.or_(is_open, pc.and_(of, its))
    return pc.if_else(is_open, pa.scalar("open"), pa.scalar("aborted"))
