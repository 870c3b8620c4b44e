"""Builds the buckets of one partition's delayed index, one step at a time.

    1 read      the index at an LSN, and the ids of a new bucket
    2 publish   its file, under a name never used before
    3 switch    one frame, checked again under the write lock; nothing names the replaced files then

A crash before the frame leaves a file that nothing names, a crash after it files that nothing
needs. The sweep removes both. The caller holds the maintenance lock, so there are never two
builders in one directory. A step that fails is retried, then given up: the log has everything, and
delivery goes
on. Source: spec/delayed 6, 11; R17, R18.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from txlog.base.settings import SECOND_MS
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics import buckets as flow
from txlog.engine.model import ops
from txlog.engine.storage import bucket as storage_bucket
from txlog.engine.store.store import Store
from txlog.engine.upkeep.delayed import sources as bucket_source
from txlog.engine.view import View, delayed_dir
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    FormatMismatch,
    MissingFile,
    PartitionUnavailable,
    StoreLocked,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.engine.folds.delayed import Delayed
    from txlog.engine.model.ops import Bucket, Id
    from txlog.engine.storage.bucket import BucketFile, Source
    from txlog.engine.upkeep.delayed.sources import Search

TRIES = 3
# A merge of up to this many ids keeps them in memory, 28 bytes each; a larger one reads its sources
# three times.
KEPT_IDS = 1 << 20
STEPS_MAX = 10_000  # of one kind in one pass; each step removes something, so it is not reached
T = TypeVar("T")
_GENERATION = re.compile(r"bucket-\d+-\d+-(\d+)\.parquet")


class IndexUpkeepReport(msgspec.Struct, gc=False):
    """How many steps were done; failed: given up; lost: buckets found unreadable."""

    deleted: int = 0
    pruned: int = 0
    sealed: int = 0
    merged: int = 0
    rebuilt: int = 0
    lost: int = 0
    failed: int = 0

    @property
    def steps(self) -> int:
        """Roughly how many frames were written."""
        return self.deleted + self.pruned + self.sealed + self.merged + self.rebuilt + self.lost


def is_lost(error: TxlogError) -> bool:
    """True when an error of reading a bucket means that its file will never be read."""
    return isinstance(error, Corruption | MissingFile | FormatMismatch)


def lose(store: Store, partition: int, gen: int, error: TxlogError) -> bool:
    """Record that a bucket cannot be read; False when it is not in the index any more."""
    dropped = store.write(lambda view, now: flow.lose(view, partition, [gen]))
    if dropped:
        store.bucket_ops.note("lost", 0.0)
        store.note(f"bucket {gen} of a delayed index is lost and will be rebuilt: {error}")
    return bool(dropped)


class Builder:
    """Steps of upkeep of one partition; each returns whether it changed something."""

    __slots__ = ("_partition", "_report", "_search", "_store")

    def __init__(
        self, store: Store, partition: int, report: IndexUpkeepReport, search: Search | None = None
    ) -> None:
        self._search = search or bucket_source.logged
        self._store = store
        self._partition = partition
        self._report = report

    def tend(self) -> None:
        """Run all due steps in this order, because a dropped bucket need not be merged."""
        report = self._report
        report.deleted += self._attempt("delete", self.delete)
        report.pruned += self.repeat("prune", self.prune)
        report.sealed += self.repeat("seal", self.seal)
        most = self._store.settings.max_num_buckets
        if most > 0:
            report.merged += self.repeat("merge", lambda: self.merge(most))
        report.rebuilt += self.repeat("rebuild", self.rebuild_wanted)

    def repeat(self, kind: str, step: Callable[[], bool]) -> int:
        """Repeat a step until it has nothing to do, or fails; returns how often it succeeded."""
        for done in range(STEPS_MAX):
            if not self._attempt(kind, step):
                return done
        return STEPS_MAX

    def _attempt(self, kind: str, step: Callable[[], bool]) -> bool:
        """Run a step and retry it after failures; a lasting failure is counted and noted."""
        store = self._store
        tries = 0
        while True:
            began = time.monotonic()
            try:
                done = step()
            except AlreadyClosed:
                raise
            except PartitionUnavailable:  # it was taken away or deleted meanwhile
                return False
            except TxlogError as error:
                if self._is_source_lost(error):
                    continue  # each retry has one bucket less
                tries += 1
                if tries < TRIES and not isinstance(error, StoreLocked):
                    continue
                self._report.failed += 1
                store.bucket_ops.fail(kind, store.clock.now().wall_ms)
                store.note(f"a delayed index was left as it was, {kind} failed: {error}")
                return False
            if done:
                store.bucket_ops.note(kind, time.monotonic() - began)
            return done

    def _is_source_lost(self, error: TxlogError) -> bool:
        """Drop the bucket that an error is about; True when there is one."""
        if not is_lost(error):
            return False
        path = error.fields.get("path")
        try:
            gens = [bucket.gen for bucket in self.buckets() if bucket.file.path == path]
            if gens:
                self._report.lost += lose(self._store, self._partition, gens[0], error)
        except TxlogError:
            return False  # count it as an ordinary failure
        return bool(gens)

    def look(self, question: Callable[[View, Delayed], T]) -> T:
        """Query the index; raises PartitionUnavailable if the partition needs no upkeep."""
        partition = self._partition

        def asked(view: View) -> T:
            if not flow.is_tended(view, partition):
                raise PartitionUnavailable("the partition is away", partition=partition)
            return question(view, view.delayed(partition))

        return self._store.read(asked)

    def buckets(self) -> list[Bucket]:
        """The buckets, in order of position."""
        return self.look(lambda view, state: list(state.buckets))

    def cutoff(self) -> int:
        """The cutoff of now."""
        store, partition = self._store, self._partition
        now = store.clock.now()
        return self.look(lambda view, state: flow.cutoff_of(view, store.settings, partition, now))

    # --- steps -------------------------------------------------------------------------------

    def delete(self) -> bool:
        """Drop obsolete buckets."""
        store, partition = self._store, self._partition
        cutoff = self.cutoff()
        if not self.look(lambda view, state: flow.doomed(view, partition, cutoff)):
            return False
        return bool(
            store.write(lambda view, now: flow.delete(view, store.settings, now, partition))
        )

    def prune(self) -> bool:
        """Rewrite a bucket without its due ids."""
        cutoff = self.cutoff()
        prunable = self.look(lambda view, state: flow.to_prune(state, cutoff))
        return bool(prunable) and self._merge(prunable[:1], cutoff)

    def merge(self, most: int) -> bool:
        """Merge two neighbours into one bucket, if there are more than this many."""
        cutoff = self.cutoff()
        pairs = self.look(
            lambda view, state: flow.neighbours(state) if len(state.buckets) > most else []
        )
        live: dict[int, int] = {}
        for bucket in {bucket.gen: bucket for pair in pairs for bucket in pair}.values():
            with ExitStack() as stack:
                live[bucket.gen] = flow.live_ids(self._open(stack, bucket).head, cutoff)
        pair = flow.least_pair(pairs, live)
        return pair is not None and self._merge(pair, cutoff)

    def seal(self) -> bool:
        """Move ids from the mutable bucket into a new one."""
        partition, settings = self._partition, self._store.settings

        def full(view: View, state: Delayed) -> tuple[pa.Table, Id, Id] | None:
            through = flow.seal_through(state, settings)
            if through is None:
                return None
            rows = state.mutable.rows_through(through)
            return (
                bucket_source.ids_of(state.mutable, rows),
                state.mutable.place(0),
                through,
            )

        sealed = self.look(full)
        if sealed is None:
            return False
        ids, first, through = sealed
        cutoff = self.cutoff()
        bucket = self._publish_table(bucket_source.by_key(ids, cutoff), first, through, cutoff)
        op = ops.BucketSealed(partition, "seal", first, through, cutoff, bucket)
        rows = ids.num_rows
        return self._switch(bucket, lambda view: flow.seal(view, op, first, rows))

    def rebuild_wanted(self) -> bool:
        """Rebuild a part of the index that a subscription waits for."""
        partition = self._partition
        ranges = self.look(lambda view, state: flow.to_rebuild(view, partition))
        return bool(ranges) and self.rebuild(*ranges[0])

    def rebuild(self, first: Id, last: Id) -> bool:
        """Rebuild a part of the first unindexed range that overlaps this one."""
        store, partition = self._store, self._partition
        view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
        try:
            view.take(view.journal.read_durable())
            if not flow.is_tended(view, partition):
                return False
            ranges = view.delayed(partition).unindexed
            unindexed = next((r for r in ranges if not (r[1] < first or last < r[0])), None)
            if unindexed is None:
                return False
            cutoff = self.cutoff()
            most = store.settings.mutable_ids_max
            rows = self._search(view, partition, *unindexed, cutoff, most)
        finally:
            view.close()
        low, through = unindexed[0], rows.through
        bucket = self._publish_table(bucket_source.by_key(rows.ids, cutoff), low, through, cutoff)
        op = ops.BucketSealed(partition, "rebuild", low, through, cutoff, bucket)
        return self._switch(bucket, lambda view: flow.rebuild(view, op))

    def indexed(self, buckets: Sequence[Bucket]) -> pa.Table:
        """The ids of buckets; a bucket that cannot be read has none."""
        out = [storage_bucket.IDS.empty_table()]
        for bucket in buckets:
            with ExitStack() as stack:
                try:
                    file = self._open(stack, bucket)
                    out.append(file.table(0, len(file.segments)))
                except TxlogError as error:
                    if not is_lost(error):
                        raise
        return pa.concat_tables(out)

    # --- parts -------------------------------------------------------------------------------

    def _merge(self, sources: Sequence[Bucket], cutoff: int) -> bool:
        """Replace a bucket, or two neighbours, with one bucket without due ids."""
        first, last = sources[0].first, sources[-1].last
        span = (min(bucket.min_at for bucket in sources), max(bucket.max_at for bucket in sources))
        with ExitStack() as stack:
            files = [self._open(stack, bucket) for bucket in sources]
            source: Source = lambda: bucket_source.merged(files, cutoff)  # noqa: E731
            if sum(bucket.count for bucket in sources) <= KEPT_IDS:
                tables = list(source())
                source = lambda: tables  # noqa: E731
            bucket = self._publish(source, span, first, last, cutoff)
        op = ops.BucketsMerged(
            self._partition,
            [bucket.gen for bucket in sources],
            cutoff,
            bucket,
            [bucket.file.path for bucket in sources],
        )
        return self._switch(bucket, lambda view: flow.merge(view, op))

    def _open(self, stack: ExitStack, bucket: Bucket) -> BucketFile:
        file = self._store.disk.open(bucket.file.path)
        stack.callback(file.close)
        return storage_bucket.BucketFile(file, bucket.file)

    def _publish_table(self, ids: pa.Table, first: Id, last: Id, cutoff: int) -> Bucket | None:
        return self._publish(lambda: [ids], bucket_source.span_of(ids), first, last, cutoff)

    def _publish(
        self, source: Source, span: tuple[int, int], first: Id, last: Id, cutoff: int
    ) -> Bucket | None:
        """Publish a bucket; None when it would be empty."""
        store, partition = self._store, self._partition
        settings = store.settings
        directory, gen = self.look(
            lambda view, state: (delayed_dir(view.catalog, partition), state.next_gen)
        )
        used = map(_GENERATION.fullmatch, store.disk.listdir(directory))
        gen = max([gen, *(int(name[1]) + 1 for name in used if name)])  # Law 6: also of orphans
        cutting = storage_bucket.SegmentLimits(
            settings.time_step_per_bucket_snapshot_seconds * SECOND_MS,
            settings.max_indexes_per_snapshot_segment,
            settings.segments_max,
        )
        path = f"{directory}/{storage_bucket.bucket_name(first[0], last[0], gen)}"
        encoded = storage_bucket.encode_bucket(
            path,
            storage_bucket.BucketName(partition, gen, first, last, cutoff),
            source,
            span,
            cutting,
            bucket_source.MarkerTables(store, partition),
        )
        if encoded is None:
            return None
        store.disk.publish(path, encoded.buffers)
        return ops.Bucket(
            gen,
            encoded.file,
            first,
            last,
            encoded.head.count,
            encoded.min_at,
            encoded.max_at,
            cutoff,
            encoded.half_at,
        )

    def _switch(self, bucket: Bucket | None, decide: Callable[[View], Decision[Any]]) -> bool:
        """Write the frame; if it is refused, the file is removed."""
        if self._store.write(lambda view, now: decide(view)):
            return True
        if bucket is not None:
            self._store.disk.unlink(bucket.file.path)
        return False
