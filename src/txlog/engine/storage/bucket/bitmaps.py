"""The ids of a snapshot segment as bitmaps: made from columns, written, read, joined.

    plain   ledger -> entries of plain messages
    whole   ledger -> markers all of whose messages are in the segment
    inner   (ledger, entry) -> 1-based indexes of messages, for the other markers

A BitMap object per marker costs 186 B, so ten million transactions of one message would need 1.9
GB. `whole` avoids that. Entries are below 2^32, so 32 bits are written; in memory they are
BitMap64, as in every other set of ids (a 64-bit bitmap is its 32-bit ones after a small head).
Source: spec/delayed 5.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.startup import compute as pc

MarkerCounts = Callable[[int], "pa.Array | None"]
"""For a ledger: int32, at each entry the number of messages of that marker, 0 for none; may end
early.
"""

_HEAD64 = struct.pack("<QI", 1, 0)  # one 32-bit bitmap follows, of the numbers below 2^32


class PackedBitmaps(msgspec.Struct, array_like=True, gc=False):
    """The bitmaps of one segment as the file has them; without empty bitmaps."""

    plain: dict[int, bytes]
    whole: dict[int, bytes]
    inner: list[tuple[int, int, bytes]]


@dataclass(slots=True)
class Bitmaps:
    """Ids as bitmaps; entries: plain messages and whole markers, as an IdSet has them."""

    plain: dict[int, BitMap64] = field(default_factory=dict)
    whole: dict[int, BitMap64] = field(default_factory=dict)
    inner: dict[tuple[int, int], BitMap] = field(default_factory=dict)

    def entries(self) -> dict[int, BitMap64]:
        """Plain messages and whole markers by ledger, in new bitmaps."""
        out = {ledger: entries.copy() for ledger, entries in self.plain.items()}
        for ledger, entries in self.whole.items():
            if ledger in out:
                out[ledger] |= entries
            else:
                out[ledger] = entries.copy()
        return out


def pack_segments(ids: pa.Table, ends: Sequence[int], counts: MarkerCounts) -> list[PackedBitmaps]:
    """The bitmaps of neighbouring segments, which end at these rows.

    ids:  columns ledger, entry, index, in any order within a segment, none twice
    cost: one sort of all ids, an object for each segment and ledger, and one for each marker that
          is not whole
    """
    out = [PackedBitmaps({}, {}, []) for _ in ends]
    if not ids.num_rows:
        return out
    sizes = (end - start for start, end in zip((0, *ends), ends, strict=False))
    number = pa.concat_arrays(
        [pa.repeat(pa.scalar(n, pa.int32()), size) for n, size in enumerate(sizes)]
    )
    ledger, entry, index = (one_array(ids.column(n)) for n in ("ledger", "entry", "index"))
    order = _order(number, ledger, entry, index)
    number, ledger, entry, index = (c.take(order) for c in (number, ledger, entry, index))
    starts = _starts(number, ledger, entry)
    here = pc.subtract(pa.concat_arrays([starts[1:], pa.array([len(number)], starts.type)]), starts)
    heads = [column.take(starts) for column in (number, ledger, entry, index)]
    is_plain = pc.equal(heads[3], 0)
    _pack_runs(heads, is_plain, [packed.plain for packed in out])
    if pc.all(is_plain).as_py():
        return out
    is_whole = pc.and_(pc.equal(_counts(heads[1], heads[2], counts), here), pc.invert(is_plain))
    is_whole = pc.fill_null(is_whole, False)
    _pack_runs(heads, is_whole, [packed.whole for packed in out])
    is_part = pc.invert(pc.or_(is_plain, is_whole))
    indexes = memory_of(index)
    columns = (*heads[:3], starts, pc.add(starts, here))
    for n, of, at, start, end in zip(
        *(memory_of(column.filter(is_part)) for column in columns), strict=True
    ):
        bitmap = BitMap(array("I", indexes[start:end].tobytes()))
        out[n].inner.append((of, at, bitmap.serialize()))
    return out


def _order(number: pa.Array, ledger: pa.Array, entry: pa.Array, index: pa.Array) -> pa.Array:
    """The order by segment and position; one sort of an integer where all columns fit into it."""
    columns = (number, ledger, entry, index)
    key, bits = None, 0
    for column in columns:
        bounds = pc.min_max(column).as_py()
        width = (bounds["max"] - bounds["min"]).bit_length()
        bits += width
        if bits > 62:
            table = pa.Table.from_arrays(columns, list("abcd"))
            return pc.sort_indices(table, [(name, "ascending") for name in "abcd"])
        part = pc.subtract(column.cast(pa.int64()), bounds["min"])
        key = part if key is None else pc.bit_wise_or(pc.shift_left(key, width), part)
    return pc.array_sort_indices(key)


def _starts(*columns: pa.Array) -> pa.Array:
    """The rows where a column changes its value, and row 0."""
    changes = None
    for column in columns:
        change = pc.not_equal(column[1:], column[:-1])
        changes = change if changes is None else pc.or_(changes, change)
    starts = pc.add(pc.indices_nonzero(changes), 1).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), starts])


def _pack_runs(heads: list[pa.Array], mask: pa.Array, into: Sequence[dict[int, bytes]]) -> None:
    """Put the entries under the mask into one bitmap per segment and ledger."""
    number, ledger, entry = (column.filter(mask) for column in heads[:3])
    if not len(number):
        return
    starts = _starts(number, ledger)
    entries = memory_of(entry)
    ends = [*memory_of(starts)[1:], len(entries)]
    columns = (memory_of(number.take(starts)), memory_of(ledger.take(starts)), memory_of(starts))
    for n, of, start, end in zip(*columns, ends, strict=True):
        into[n][of] = _packed(entries[start:end])


def _counts(ledger: pa.Array, entry: pa.Array, counts: MarkerCounts) -> pa.Array:
    """How many messages each marker has, null where unknown."""
    order = pc.array_sort_indices(ledger)
    ledger, entry = ledger.take(order), entry.take(order)
    starts = memory_of(_starts(ledger))
    parts: list[pa.Array] = []
    for start, end in zip(starts, [*starts[1:], len(ledger)], strict=True):
        ledger_counts, entries = counts(ledger[start].as_py()), entry[start:end]
        if ledger_counts is None:
            parts.append(pa.nulls(end - start, pa.int32()))
        else:
            at = pc.if_else(pc.less(entries, len(ledger_counts)), entries, None)
            parts.append(ledger_counts.take(at))
    return pa.concat_arrays(parts).take(pc.inverse_permutation(order.cast(pa.int64())))


def _packed(entries: memoryview[int]) -> bytes:
    """Entries as a 32-bit bitmap, in as few bytes as possible."""
    bitmap = BitMap64(array("Q", entries.tobytes()))
    assert bitmap.max() < 1 << 32  # ledger_entries_max is at most 10^9
    bitmap.run_optimize()
    raw: bytes = bitmap.serialize()
    return raw[len(_HEAD64) :]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, without a copy if it has one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def memory_of(values: pa.Array) -> memoryview[int]:
    """The memory of an int64 or int32 array without nulls, as q or i."""
    width = values.type.bit_width // 8
    raw = memoryview(values.buffers()[1] if len(values) else b"").cast("B")
    raw = raw[values.offset * width : (values.offset + len(values)) * width]
    return raw.cast("q") if width == 8 else raw.cast("i")


def unpack(packed: PackedBitmaps) -> Bitmaps:
    """The bitmaps of one segment."""
    return Bitmaps(
        {ledger: _wide(raw) for ledger, raw in packed.plain.items()},
        {ledger: _wide(raw) for ledger, raw in packed.whole.items()},
        {(ledger, entry): BitMap.deserialize(raw) for ledger, entry, raw in packed.inner},
    )


def joined(
    segments: Iterable[PackedBitmaps],
) -> tuple[dict[int, BitMap64], dict[tuple[int, int], BitMap]]:
    """(entries, inner) of all ids of some segments, as an IdSet has them."""
    entries: dict[int, list[bytes]] = {}
    inner: dict[tuple[int, int], list[bytes]] = {}
    for packed in segments:
        for part in (packed.plain, packed.whole):
            for ledger, raw in part.items():
                entries.setdefault(ledger, []).append(raw)
        for ledger, entry, raw in packed.inner:
            inner.setdefault((ledger, entry), []).append(raw)
    return (
        {ledger: _wide(_union(raws)) for ledger, raws in entries.items()},
        {key: BitMap.deserialize(_union(raws)) for key, raws in inner.items()},
    )


def _union(raws: list[bytes]) -> bytes:
    if len(raws) == 1:
        return raws[0]
    raw: bytes = BitMap.union(*map(BitMap.deserialize, raws)).serialize()
    return raw


def _wide(raw: bytes) -> BitMap64:
    """A 64-bit bitmap from the bytes of a 32-bit one."""
    return BitMap64.deserialize(_HEAD64 + raw)
