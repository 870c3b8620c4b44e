"""Owns DelayedIndex: the index of delayed messages of one partition, as a process holds it.

It is one for all subscriptions, follows the fold, and is never stored: `view.timetables` has it,
and it goes with the view. It has a cutoff, and answers

    poll      which ids are due, after a key, in order of key
    futures   which ids are not due: bitmaps by position, one set per bucket and one for mutable
    next_key  the key that is due next

Its parts are disjoint ranges of positions, in order: the buckets, then mutable. Nothing is read
before it is asked for. Polling removes nothing, so a failed poll (a full disk, a crash) loses
nothing.
Source: spec/delayed 3, 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from txlog.engine.folds.cursor import Cursor, covers
from txlog.engine.folds.delayed import Delayed
from txlog.engine.model.idset import IdSet
from txlog.engine.model.ops import NO_TIME, Bucket, Mark
from txlog.engine.plan.delayed.timetable_parts import (
    BucketLost,
    BucketUnreadable,
    Key,
    LoadedPart,
    MutableBucket,
    SealedBucket,
    common,
    messages_of,
    remove,
)
from txlog.engine.plan.reading.skip_sets import IdsExcept, Skip
from txlog.engine.view.view import View


class DelayedIndex:
    """The index of one partition, at the cutoff it was last moved to."""

    __slots__ = ("_buckets", "_mutable", "_number", "_view", "cutoff")

    def __init__(self, view: View, number: int) -> None:
        self._view, self._number = view, number
        self._buckets: list[SealedBucket] = []
        self._mutable = MutableBucket(view, number)
        self.cutoff = NO_TIME

    def stand(self, cutoff: int) -> DelayedIndex:
        """Follow the fold, and move to a cutoff, above or below the last."""
        delayed = self._view.delayed(self._number)
        if [sealed.bucket.gen for sealed in self._buckets] != [
            sealed.gen for sealed in delayed.buckets
        ]:
            self._follow(delayed)
        self._mutable.follow(delayed.mutable)
        if cutoff != self.cutoff:
            self.cutoff = cutoff
            self._mutable.move(cutoff)
            for sealed in self._buckets:
                sealed.move(cutoff)
        return self

    def _follow(self, delayed: Delayed) -> None:
        by_gen = {sealed.bucket.gen: sealed for sealed in self._buckets}
        self._buckets = [
            by_gen.pop(bucket.gen)
            if bucket.gen in by_gen
            else SealedBucket(self._view, self._number, bucket, self.cutoff)
            for bucket in delayed.buckets
        ]
        for sealed in by_gen.values():
            sealed.close()

    def close(self) -> None:
        """Close the files."""
        for sealed in self._buckets:
            sealed.close()

    def futures(self, cursor: Cursor, start: Mark, *, make_do: bool) -> tuple[Skip, list[Bucket]]:
        """The ids that a read from a position leaves out as not due, and the buckets it
        cannot read.

        Ids released for the subscription are not left out.
        make_do: continue without a lost bucket; else raise BucketLost
        """
        out: list[IdSet] = []
        away: list[Bucket] = []
        for sealed in self._buckets:
            if sealed.bucket.max_at > self.cutoff and not covers(start, sealed.bucket.last):
                try:
                    out.append(sealed.future())
                except BucketUnreadable:
                    away.append(sealed.bucket)
                except BucketLost:
                    if not make_do:
                        raise
                    away.append(sealed.bucket)
        out.append(self._mutable.future())
        if not cursor.released:
            return tuple(ids for ids in out if ids), away
        return tuple(IdsExcept(ids, cursor.released) for ids in out if ids), away

    def poll(self, start: Key, below: Mark) -> Iterator[Key]:
        """The due keys after a key, in order, without those at or above a position.

        If the position is inside a bucket, all its keys come, and the caller must check. An
        unreadable bucket raises BucketUnreadable or BucketLost after the keys of all others.
        """
        iterators = self._mutable.keys(start, self.cutoff, below)
        for sealed in self._buckets:
            if covers(below, sealed.bucket.first):
                iterators += sealed.keys(start, self.cutoff)
        return merge(*iterators)

    def next_key(self) -> Key | None:
        """The lowest key above the cutoff; None: nothing waits."""
        best = self._mutable.next_key()
        for sealed in sorted(self._buckets, key=lambda sealed: sealed.bucket.min_at):
            if best is not None and best[0] < sealed.bucket.min_at:
                break  # no key in this bucket or a later one is lower
            try:
                key = sealed.next_key()
            except (BucketUnreadable, BucketLost):
                continue  # the next scan handles it
            if key is not None and (best is None or key < best):
                best = key
        return best

    def count(self) -> int:
        """How many ids are above the cutoff; all ids of a bucket that cannot be read count."""
        total = self._mutable.count()
        for sealed in self._buckets:
            try:
                total += sealed.count()
            except (BucketUnreadable, BucketLost):
                total += sealed.bucket.count
        return total

    def loaded(self) -> tuple[LoadedPart, dict[int, LoadedPart]]:
        """The parts in memory: of mutable, and of each bucket by its generation."""
        return self._mutable.loaded(), {
            sealed.bucket.gen: sealed.loaded() for sealed in self._buckets
        }

    def count_for(self, cursor: Cursor) -> int:
        """How many ids above the cutoff are neither acknowledged nor below mark-delete."""
        total = self._count_in(self._mutable.future(), cursor)
        for sealed in self._buckets:
            if sealed.bucket.max_at > self.cutoff and not covers(
                cursor.mark_delete, sealed.bucket.last
            ):
                try:
                    total += self._count_in(sealed.future(), cursor)
                except (BucketUnreadable, BucketLost):
                    total += sealed.bucket.count
        return total

    def _count_in(self, future: IdSet, cursor: Cursor) -> int:
        buffer = self._view.buffer(self._number)
        ids, mark = _copy(future), cursor.mark_delete
        if mark[2]:  # it is inside a marker, which may be in the set as a whole
            below = IdSet()
            below.add((mark[0], mark[1], mark[1], 1, mark[2]))
            remove(ids, below, buffer)
        ids.drop_through(mark)
        return messages_of(ids, buffer) - messages_of(common(ids, cursor.acked), buffer)


def _copy(ids: IdSet) -> IdSet:
    copy = IdSet()
    copy.entries = {ledger: bits.copy() for ledger, bits in ids.entries.items()}
    copy.inner = {key: bits.copy() for key, bits in ids.inner.items()}
    return copy


def index_of_partition(view: View, number: int, cutoff: int) -> DelayedIndex:
    """The index of a partition in this process, at a cutoff."""
    table: DelayedIndex | None = view.timetables.get(number)
    if table is None:
        table = view.timetables[number] = DelayedIndex(view, number)
    return table.stand(cutoff)
