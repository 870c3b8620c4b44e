"""Owns Timetable: the index of delayed messages of one partition, as a process holds it.

It is one for all subscriptions, follows the fold, and is never stored: `view.timetables` has it,
and it goes with the view. It stands at a cutoff, and answers

    poll      which ids are due, after a key, in order of key
    futures   which ids are not: bitmaps, one set a bucket and one for mutable, in order of position
    next_key  what is due next

Its parts are disjoint ranges of positions, in order: the buckets, then mutable. Nothing is read
before it is asked for. Polling takes nothing out, so a poll that comes to nothing (a full disk, a
crash) costs nothing either.
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
    BucketAway,
    BucketLost,
    Key,
    Loaded,
    Mutable,
    Sealed,
    common,
    messages_of,
    remove,
)
from txlog.engine.plan.reading.skip_sets import Skip, Without
from txlog.engine.view.view import View


class Timetable:
    """The index of one partition, at the cutoff it was last moved to."""

    __slots__ = ("_buckets", "_mutable", "_number", "_view", "cutoff")

    def __init__(self, view: View, number: int) -> None:
        self._view, self._number = view, number
        self._buckets: list[Sealed] = []
        self._mutable = Mutable(view, number)
        self.cutoff = NO_TIME

    def stand(self, cutoff: int) -> Timetable:
        """Follow the fold, and move to a cutoff, above or below the last."""
        delayed = self._view.delayed(self._number)
        if [one.bucket.gen for one in self._buckets] != [one.gen for one in delayed.buckets]:
            self._follow(delayed)
        self._mutable.follow(delayed.mutable)
        if cutoff != self.cutoff:
            self.cutoff = cutoff
            self._mutable.move(cutoff)
            for one in self._buckets:
                one.move(cutoff)
        return self

    def _follow(self, delayed: Delayed) -> None:
        known = {one.bucket.gen: one for one in self._buckets}
        self._buckets = [
            known.pop(bucket.gen)
            if bucket.gen in known
            else Sealed(self._view, self._number, bucket, self.cutoff)
            for bucket in delayed.buckets
        ]
        for gone in known.values():
            gone.close()

    def close(self) -> None:
        """Let go of the files."""
        for one in self._buckets:
            one.close()

    def futures(self, cursor: Cursor, after: Mark, *, make_do: bool) -> tuple[Skip, list[Bucket]]:
        """What a read from a position leaves out as not due, and the buckets it must do without.

        Nothing released for the subscription is left out.
        make_do: do without a lost bucket; else it raises BucketLost
        """
        out: list[IdSet] = []
        away: list[Bucket] = []
        for one in self._buckets:
            if one.bucket.max_at > self.cutoff and not covers(after, one.bucket.last):
                try:
                    out.append(one.future())
                except BucketAway:
                    away.append(one.bucket)
                except BucketLost:
                    if not make_do:
                        raise
                    away.append(one.bucket)
        out.append(self._mutable.future())
        if not cursor.released:
            return tuple(ids for ids in out if ids), away
        return tuple(Without(ids, cursor.released) for ids in out if ids), away

    def poll(self, after: Key, below: Mark) -> Iterator[Key]:
        """The keys after one that are due, in order, without those at or above a position.

        All keys of a bucket at the position are returned: the caller must check. A bucket that
        cannot be read ends it, with BucketAway or BucketLost, after all the others.
        """
        found = self._mutable.keys(after, self.cutoff, below)
        for one in self._buckets:
            if covers(below, one.bucket.first):
                found += one.keys(after, self.cutoff)
        return merge(*found)

    def next_key(self) -> Key | None:
        """The lowest key above the cutoff; None: nothing waits."""
        best = self._mutable.next_key()
        for one in sorted(self._buckets, key=lambda one: one.bucket.min_at):
            if best is not None and best[0] < one.bucket.min_at:
                break  # nothing in it or after it is lower
            try:
                key = one.next_key()
            except (BucketAway, BucketLost):
                continue  # the next scan meets it
            if key is not None and (best is None or key < best):
                best = key
        return best

    def count(self) -> int:
        """How many ids are above the cutoff; of a bucket that cannot be read, all."""
        total = self._mutable.count()
        for one in self._buckets:
            try:
                total += one.count()
            except (BucketAway, BucketLost):
                total += one.bucket.count
        return total

    def loaded(self) -> tuple[Loaded, dict[int, Loaded]]:
        """What is in memory: of mutable, and of each bucket by its generation."""
        return self._mutable.loaded(), {one.bucket.gen: one.loaded() for one in self._buckets}

    def count_for(self, cursor: Cursor) -> int:
        """How many of them are neither acknowledged nor below mark-delete."""
        total = self._count_in(self._mutable.future(), cursor)
        for one in self._buckets:
            if one.bucket.max_at > self.cutoff and not covers(cursor.mark_delete, one.bucket.last):
                try:
                    total += self._count_in(one.future(), cursor)
                except (BucketAway, BucketLost):
                    total += one.bucket.count
        return total

    def _count_in(self, future: IdSet, cursor: Cursor) -> int:
        buffer = self._view.buffer(self._number)
        ids, mark = _copy(future), cursor.mark_delete
        if mark[2]:  # it is inside a marker, which may be here as a whole
            below = IdSet()
            below.add((mark[0], mark[1], mark[1], 1, mark[2]))
            remove(ids, below, buffer)
        ids.drop_through(mark)
        return messages_of(ids, buffer) - messages_of(common(ids, cursor.acked), buffer)


def _copy(ids: IdSet) -> IdSet:
    made = IdSet()
    made.entries = {ledger: known.copy() for ledger, known in ids.entries.items()}
    made.inner = {key: known.copy() for key, known in ids.inner.items()}
    return made


def timetable(view: View, number: int, cutoff: int) -> Timetable:
    """The timetable of a partition in this process, at a cutoff."""
    found: Timetable | None = view.timetables.get(number)
    if found is None:
        found = view.timetables[number] = Timetable(view, number)
    return found.stand(cutoff)
