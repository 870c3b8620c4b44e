"""What a plan leaves out, as bitmaps for each ledger: a million rows cost microseconds.

    wanted = range - acknowledged - pending - leased - waiting - (future - released)

Only what is left gets walked, run by run; of a marker, only the messages that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from pyroaring import BitMap, BitMap64

from txlog.engine.model.idset import IdSet


class Without(NamedTuple):
    """Ids that are left out, except some of them."""

    ids: IdSet
    but: IdSet


Skip: TypeAlias = tuple[IdSet | Without, ...]


def entries_left(skip: Skip, ledger: int, first: int, stop: int) -> BitMap64 | None:
    """The entries first..stop of a ledger that are not left out; None: all of them.

    A marker is among them unless all its messages are left out together.
    cost: O(containers of the bitmaps)
    """
    left: BitMap64 | None = None
    for one in skip:
        known = _entries_of(one, ledger)
        if not known:
            continue
        if left is None:
            if not known.range_cardinality(first, stop):
                continue
            left = BitMap64(range(first, stop))
        left -= known
    return left


def _entries_of(one: IdSet | Without, ledger: int) -> BitMap64 | None:
    if isinstance(one, IdSet):
        return one.entries.get(ledger)
    known = one.ids.entries.get(ledger)
    if not known:
        return None
    back = one.but.entries.get(ledger)
    known = known - back if back else known
    if one.but.inner:
        some = BitMap64([entry for number, entry in one.but.inner if number == ledger])
        known = known - some
    return known


def runs_left(left: BitMap64, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The runs of a bitmap, as (first, last); it has nothing outside first..stop.

    cost: O(1) a run, whatever its length
    """
    holes: BitMap64 | None = None
    after = first
    while after < stop:
        for low in left.iter_equal_or_larger(after):
            if low + 1 not in left:  # where there are many runs, most are of one
                yield low, low
                continue
            if holes is None:
                holes = BitMap64.flip(left, first, stop)
            after = holes.next_set_bit(low) if holes and holes[-1] > low else stop
            yield low, after - 1
            break
        else:
            return


def indexes_left(
    skip: Skip, ledger: int, entry: int, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """The runs of indexes first..last of a marker that are not left out."""
    left: BitMap | None = None
    for one in skip:
        ids = one if isinstance(one, IdSet) else one.ids
        known = ids.inner.get((ledger, entry))
        if isinstance(one, Without):
            known = _indexes_of(one, ledger, entry, first, last)
        if known:
            if left is None:
                left = BitMap(range(first, last + 1))
            left -= known
    if left is None:
        yield first, last
        return
    holes = BitMap.flip(left, first, last + 1)
    count, after = len(left), first
    while count:
        low = left.next_set_bit(after)
        after = holes.next_set_bit(low) if holes and holes[-1] > low else last + 1
        count -= after - low
        yield low, after - 1


def _indexes_of(one: Without, ledger: int, entry: int, first: int, last: int) -> BitMap | None:
    """Messages of a marker that are left out; the set may have it as a whole."""
    known = one.ids.inner.get((ledger, entry))
    whole = one.ids.entries.get(ledger)
    if whole is not None and entry in whole:
        known = BitMap(range(first, last + 1))
    if known is None:
        return None
    back = one.but.entries.get(ledger)
    if back is not None and entry in back:
        return None
    some = one.but.inner.get((ledger, entry))
    return known if some is None else known - some
