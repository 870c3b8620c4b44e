"""Owns rows of the index in the order of their keys, and what they do to sets of ids.

    key = (deliver_at, ledger, entry, index)

A few rows are looked at one by one; many are grouped by Arrow, without an object a message. A
marker all of whose messages are in a set is there as its entry: an object each would cost 186 B.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.engine.folds.buffer import Buffer, find_marker
from txlog.engine.model.idset import IdSet
from txlog.engine.storage.bucket.bitmaps import joined, memory_of, one_array, pack_segments
from txlog.engine.storage.bucket.file import IDS
from txlog.engine.storage.bucket.reader import Columns
from txlog.startup import compute as pc

Key = tuple[int, int, int, int]
FAR = 1 << 62  # above every ledger: (time, FAR, 0, 0) stands behind all keys of that time
FEW_ROWS_MAX = 128  # so many are sorted faster one by one
SET_ROWS_MAX = 2048  # and so many put into a set
AT_ONCE = 512
ROW_BYTES = 28  # of a row in memory: three columns of 8 bytes, and its index


def behind_time(at: int) -> Key:
    """The place behind all keys of a time."""
    return (at, FAR, 0, 0)


def key_of(rows: Columns, row: int) -> Key:
    """The key of a row."""
    return (rows.at[row], rows.ledger[row], rows.entry[row], rows.index[row])


def rows_through(rows: Columns, key: Key) -> int:
    """How many rows have this key or a lower one."""
    low = bisect_left(rows.at, key[0])
    high = bisect_right(rows.at, key[0], low)
    if low == high or key[1] == FAR:
        return high
    return bisect_right(range(high), key, low, key=lambda row: key_of(rows, row))


def keys(rows: Columns, start: int, stop: int) -> Iterator[Key]:
    """The keys of rows; made as they are asked for."""
    for low in range(start, stop, AT_ONCE):
        high = min(stop, low + AT_ONCE)
        columns = (rows.at, rows.ledger, rows.entry, rows.index)
        yield from zip(*(column[low:high].tolist() for column in columns), strict=True)


# --- sorted columns --------------------------------------------------------------------------


def sorted_rows(parts: Sequence[Columns]) -> Columns:
    """Rows of parts in order of key; each part is above those before it in position.

    Within a part, rows of one time stand in order of position.
    """
    total = sum(map(len, parts))
    if total <= FEW_ROWS_MAX:
        rows = sorted(key for part in parts for key in keys(part, 0, len(part)))
        at, ledger, entry, index = zip(*rows, strict=True) if rows else ((), (), (), ())
        longs = [memoryview(array("q", column)) for column in (at, ledger, entry)]
        return Columns(longs[0], longs[1], longs[2], memoryview(array("i", index)))
    table = pa.concat_tables(table_of(part, 0, len(part)) for part in parts)
    columns = [one_array(column) for column in table.columns]
    order = pc.array_sort_indices(columns[0])  # stable: equal times keep the order of position
    sort = [memory_of(column.take(order)) for column in columns]
    return Columns(sort[0], sort[1], sort[2], sort[3])


def table_of(rows: Columns, start: int, stop: int) -> pa.Table:
    """Rows as IDS, without a copy."""
    count = stop - start
    columns = [
        pa.Array.from_buffers(kind, count, [None, pa.py_buffer(memory[start:stop])])
        for kind, memory in zip(
            IDS.types, (rows.at, rows.ledger, rows.entry, rows.index), strict=True
        )
    ]
    return pa.Table.from_arrays(columns, schema=IDS)


# --- sets of ids -----------------------------------------------------------------------------


def ids_of(rows: Columns, start: int, stop: int, buffer: Buffer) -> IdSet:
    """The ids of rows as a set; a marker all of whose messages are among them as its entry."""
    made = IdSet()
    if stop - start > SET_ROWS_MAX:
        table = table_of(rows, start, stop)
        is_plain = pc.equal(table["index"], 0)
        inside = table.filter(pc.invert(is_plain))
        if inside.num_rows:
            counts = [inside.num_rows]
            packed = pack_segments(inside, counts, lambda ledger: _counts(buffer, ledger))
            made.entries, made.inner = joined(packed)
            table = table.filter(is_plain)
        for ledger in pc.unique(table["ledger"]).to_pylist():
            of_ledger = table["entry"].filter(pc.equal(table["ledger"], ledger))
            several = BitMap64(array("Q", memory_of(one_array(of_ledger)).tobytes()))
            known = made.entries.get(ledger)
            made.entries[ledger] = several if known is None else known | several
        return made
    inner: dict[tuple[int, int], list[int]] = {}
    plain: dict[int, list[int]] = {}
    for _, ledger, entry, index in keys(rows, start, stop):
        if index:
            inner.setdefault((ledger, entry), []).append(index)
        else:
            plain.setdefault(ledger, []).append(entry)
    for (ledger, entry), indexes in inner.items():
        if len(indexes) == _count(buffer, ledger, entry):
            plain.setdefault(ledger, []).append(entry)
        else:
            made.inner[(ledger, entry)] = BitMap(indexes)
    for ledger, entries in plain.items():
        made.entries[ledger] = BitMap64(entries)
    return made


def _count(buffer: Buffer, ledger: int, entry: int) -> int:
    marker = find_marker(buffer, ledger, entry)
    return 0 if marker is None else marker.count


def _counts(buffer: Buffer, ledger: int) -> pa.Array | None:
    """At each entry of a ledger the messages of its marker."""
    known = buffer.markers.get(ledger)
    if not known:
        return None
    counts = array("i", bytes(4 * (known[-1].entry + 1)))
    for marker in known:
        counts[marker.entry] = marker.count
    return pa.Array.from_buffers(pa.int32(), len(counts), [None, pa.py_buffer(counts)])


def unite(ids: IdSet, more: IdSet) -> None:
    """Add a set to another in place; `more` is not to be used after that."""
    for ledger, entries in more.entries.items():
        known = ids.entries.get(ledger)
        if known is None:
            ids.entries[ledger] = entries
        else:
            known |= entries
        for key in [key for key in ids.inner if key[0] == ledger and key[1] in entries]:
            del ids.inner[key]
    for key, inner in more.inner.items():
        whole = ids.entries.get(key[0])
        if whole is not None and key[1] in whole:
            continue
        if key in ids.inner:
            ids.inner[key] |= inner
        else:
            ids.inner[key] = inner


def remove(ids: IdSet, gone: IdSet, buffer: Buffer) -> None:
    """Take a set out of another in place; of a whole marker the rest of its messages stays."""
    for ledger, entries in gone.entries.items():
        known = ids.entries.get(ledger)
        if known is not None:
            known -= entries
            if not known:
                del ids.entries[ledger]
        if ids.inner:
            for key in [key for key in ids.inner if key[0] == ledger and key[1] in entries]:
                del ids.inner[key]
    for key, inner in gone.inner.items():
        whole = ids.entries.get(key[0])
        if whole is not None and key[1] in whole:
            whole.discard(key[1])
            if not whole:
                del ids.entries[key[0]]
            known_inner = BitMap(range(1, _count(buffer, *key) + 1))
        elif key in ids.inner:
            known_inner = ids.inner.pop(key)
        else:
            continue
        left = known_inner - inner
        if left:
            ids.inner[key] = left


def bytes_of(ids: IdSet | None) -> int:
    """The memory of the bitmaps of a set, without the objects around them."""
    known: list[BitMap | BitMap64] = []
    if ids is not None:
        known = [*ids.entries.values(), *ids.inner.values()]
    total = 0
    for bitmap in known:
        told = bitmap.get_statistics()
        total += told["n_bytes_array_containers"] + told["n_bytes_run_containers"]
        total += told["n_bytes_bitset_containers"]
    return total


def messages_of(ids: IdSet, buffer: Buffer) -> int:
    """How many messages a set stands for; a whole marker for all of its own."""
    total = sum(map(len, ids.inner.values()))
    for ledger, entries in ids.entries.items():
        total += len(entries)
        for marker in buffer.markers.get(ledger, ()):
            if marker.count > 1 and marker.entry in entries:
                total += marker.count - 1
    return total


def common(left: IdSet, right: IdSet) -> IdSet:
    """What two sets have in common; each may have a marker as a whole or message by message."""
    made = IdSet()
    for ledger, entries in left.entries.items():
        known = right.entries.get(ledger)
        if known is not None and (both := entries & known):
            made.entries[ledger] = both
    for one, other in ((left, right), (right, left)):
        for key, inner in one.inner.items():
            whole = other.entries.get(key[0])
            if whole is not None and key[1] in whole:
                made.inner[key] = inner
    for key, inner in left.inner.items():
        some = right.inner.get(key)
        if some is not None and key not in made.inner and (shared := inner & some):
            made.inner[key] = shared
    return made
