"""The ids that a plan leaves out, as bitmaps for each ledger: a million rows cost microseconds.

    planned = range - acknowledged - pending - leased - waiting - (future - released)

A plan walks only the remaining entries, run by run, and only the remaining messages of a marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from pyroaring import BitMap, BitMap64

from txlog.engine.model.idset import IdSet


class IdsExcept(NamedTuple):
    """Ids that are left out, except those in `but`."""

    ids: IdSet
    but: IdSet


Skip: TypeAlias = tuple[IdSet | IdsExcept, ...]


def entries_left(skip: Skip, ledger: int, first: int, stop: int) -> BitMap64 | None:
    """The entries first..stop of a ledger outside all skip sets; None: all of them.

    A marker is included unless all its messages are left out together.
    cost: O(containers of the bitmaps)
    """
    remaining: BitMap64 | None = None
    for skipped in skip:
        bits = _entries_of(skipped, ledger)
        if not bits:
            continue
        if remaining is None:
            if not bits.range_cardinality(first, stop):
                continue
            remaining = BitMap64(range(first, stop))
        remaining -= bits
    return remaining


def _entries_of(skipped: IdSet | IdsExcept, ledger: int) -> BitMap64 | None:
    if isinstance(skipped, IdSet):
        return skipped.entries.get(ledger)
    bits = skipped.ids.entries.get(ledger)
    if not bits:
        return None
    back = skipped.but.entries.get(ledger)
    bits = bits - back if back else bits
    if skipped.but.inner:
        partial_entries = BitMap64(
            [entry for number, entry in skipped.but.inner if number == ledger]
        )
        bits = bits - partial_entries
    return bits


def runs_left(bits: BitMap64, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The runs of a bitmap, as (first, last); it has nothing outside first..stop.

    cost: O(1) a run, whatever its length
    """
    holes: BitMap64 | None = None
    position = first
    while position < stop:
        for low in bits.iter_equal_or_larger(position):
            if low + 1 not in bits:  # where there are many runs, most have one entry
                yield low, low
                continue
            if holes is None:
                holes = BitMap64.flip(bits, first, stop)
            position = holes.next_set_bit(low) if holes and holes[-1] > low else stop
            yield low, position - 1
            break
        else:
            return


def indexes_left(
    skip: Skip, ledger: int, entry: int, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """The runs of indexes first..last of a marker that are not left out."""
    remaining: BitMap | None = None
    for skipped in skip:
        ids = skipped if isinstance(skipped, IdSet) else skipped.ids
        bits = ids.inner.get((ledger, entry))
        if isinstance(skipped, IdsExcept):
            bits = _indexes_of(skipped, ledger, entry, first, last)
        if bits:
            if remaining is None:
                remaining = BitMap(range(first, last + 1))
            remaining -= bits
    if remaining is None:
        yield first, last
        return
    holes = BitMap.flip(remaining, first, last + 1)
    count, position = len(remaining), first
    while count:
        low = remaining.next_set_bit(position)
        position = holes.next_set_bit(low) if holes and holes[-1] > low else last + 1
        count -= position - low
        yield low, position - 1


def _indexes_of(
    skipped: IdsExcept, ledger: int, entry: int, first: int, last: int
) -> BitMap | None:
    """The messages of a marker that are left out; the set may have the marker as a whole."""
    bits = skipped.ids.inner.get((ledger, entry))
    whole = skipped.ids.entries.get(ledger)
    if whole is not None and entry in whole:
        bits = BitMap(range(first, last + 1))
    if bits is None:
        return None
    back = skipped.but.entries.get(ledger)
    if back is not None and entry in back:
        return None
    released = skipped.but.inner.get((ledger, entry))
    return bits if released is None else bits - released
