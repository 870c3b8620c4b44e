"""Message ids as runs: consecutive entries of a ledger, or inner indexes of one entry, as one row.

Ids to acknowledge, cancel or promote come as runs, whether the caller gave ids or a table.
"""

from __future__ import annotations

from operator import attrgetter

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.base.startup import compute as pc
from txlog.engine.model.ops import Run

# Typed scalars: pyarrow needs 40 us to guess the type of a Python number.
_ZERO, _ONE = pa.scalar(0, pa.int32()), pa.scalar(1, pa.int32())
_STAY, _STEP = pa.scalar(0, pa.int64()), pa.scalar(1, pa.int64())
FEW_ROWS = 64
_ENTRY, _REST = attrgetter("entry"), attrgetter("ledger", "index")


def runs_of_ids(ids: list[MessageId]) -> list[Run]:
    """Message ids as runs, sorted, an id twice counted once."""
    first = ids[0] if ids else None
    if first is not None and first.index == 0 and type(first.entry) is int:
        ledger, stop = first.ledger, first.entry + len(ids)
        # consecutive plain messages, most of the time; compared without a loop of Python
        if [*map(_ENTRY, ids)] == [*range(first.entry, stop)] and {*map(_REST, ids)} == {
            (ledger, 0)
        }:
            return [(ledger, first.entry, stop - 1, 0, 0)]
    return merged({(i.ledger, i.entry, i.index) for i in ids})


def merged(keys: set[tuple[int, int, int]]) -> list[Run]:
    """Ids as (ledger, entry, index), as runs in order."""
    out: list[Run] = []
    for ledger, entry, index in sorted(keys):
        last = out[-1] if out else None
        if index == 0 and last and last[3] == 0 and (last[0], last[2]) == (ledger, entry - 1):
            out[-1] = (ledger, last[1], entry, 0, 0)
        elif index and last and last[3] and last[:2] == (ledger, entry) and last[4] == index - 1:
            out[-1] = (ledger, entry, entry, last[3], index)
        else:
            out.append((ledger, entry, entry, index, index))
    return out


def runs_of_table(table: pa.Table) -> list[Run]:
    """The ids of received rows as runs, without an object a message.

    table: columns ledger, entry int64 and index int32 (null for a plain message), in any order;
           rows of a preview, where ledger is null, have no id and are left out
    cost:  a pyarrow kernel takes 3 to 8 us whatever its size, so a few rows go by a plain loop
    """
    if table.column("ledger").null_count:
        table = table.filter(table.column("ledger").is_valid())
    if not table.num_rows:
        return []
    if table.num_rows <= FEW_ROWS:
        columns = [table.column(name).to_pylist() for name in ("ledger", "entry", "index")]
        return merged({(a, b, c or 0) for a, b, c in zip(*columns, strict=True)})
    ledger = table.column("ledger").combine_chunks()
    entry = table.column("entry").combine_chunks()
    index = pc.fill_null(table.column("index").combine_chunks(), _ZERO)
    if table.num_rows > 1:

        def delta(column: pa.Array) -> pa.Array:
            return pc.subtract(column.slice(1), column.slice(0, len(column) - 1))

        plain = pc.equal(index, _ZERO)
        both_plain = pc.and_(plain.slice(1), plain.slice(0, len(plain) - 1))
        step, inner = delta(entry), delta(index)
        follows = pc.and_(
            pc.equal(delta(ledger), _STAY),
            pc.or_(
                pc.and_(both_plain, pc.equal(step, _STEP)),
                pc.and_(pc.equal(step, _STAY), pc.equal(inner, _ONE)),
            ),
        )
        breaks = pc.indices_nonzero(pc.invert(follows)).to_pylist()
    else:
        breaks = []
    starts = [0, *(at + 1 for at in breaks)]
    stops = [*breaks, table.num_rows - 1]
    at_start, at_stop = pa.array(starts, pa.int64()), pa.array(stops, pa.int64())
    firsts = [column.take(at_start).to_pylist() for column in (ledger, entry, index)]
    lasts = [column.take(at_stop).to_pylist() for column in (entry, index)]
    return [
        (at, first, last, index_first, index_last)
        for at, first, last, index_first, index_last in zip(
            firsts[0], firsts[1], lasts[0], firsts[2], lasts[1], strict=True
        )
    ]
