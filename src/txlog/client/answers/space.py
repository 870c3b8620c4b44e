"""Freeing space: compact, offload, trim and gc.

It calls the engine's upkeep. The keys of the answers are the fields that the commands print.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from txlog.base.ids import TopicName
from txlog.base.ranges import Bound
from txlog.engine.door import catalog as catalogs
from txlog.engine.door.catalog import check_partition
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.disk import check_place, confirm, is_far, place_of, size_of
from txlog.engine.door.history import RELATIONS, CheckpointReport, maintenance
from txlog.engine.door.history import checkpoint as write_checkpoint
from txlog.engine.door.liveness import trusted
from txlog.engine.door.space import (
    Arrange,
    CompactReport,
    OffloadReport,
    TopicCompactReport,
    compact_sidecars,
    far_unnamed,
    free_gone,
    offload_files,
    offloadable,
    plan_compaction,
    replaced,
    roll_open,
    sidecar_bytes,
    trim_topic,
    unlink_free,
    unlink_unnamed,
    unnamed,
)
from txlog.engine.door.space import compact_topic as compact_by_key
from txlog.engine.door.store import Store, View, run_checkpoint
from txlog.engine.door.store import compact_changes as compact_logs
from txlog.engine.door.topics import TrimmedPartition as DecidedPartition
from txlog.engine.door.transactions import unavailable_error
from txlog.errors import InvalidArgument, MissingFile, SnapshotExpired, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.space import (
        ChangesCompacted,
        Compacted,
        Confirmed,
        GarbageCollected,
        Offloaded,
        TopicCompacted,
        Trimmed,
        TrimmedPartition,
        UnnamedFile,
    )


def _partitions(store: Store, topic: str, partition: int | None) -> tuple[TopicName, list[int]]:
    """The name of a topic, and the store-wide numbers of its partitions, or of `partition` alone.

    raises: TopicNotFound, PartitionUnavailable
    """
    name = TopicName.parse(topic, allow_partition=True)
    index = name.partition if partition is None else partition

    def numbers_of(view: View) -> list[int]:
        state = find_topic(view, name)
        if index is not None:
            check_partition(name.topic.short, state, index)
        partitions = catalogs.numbers(state)
        return [partitions[index]] if index is not None else [*partitions]

    def check_available(view: View) -> None:
        for number in numbers:
            if number in view.catalog.unavailable:
                raise unavailable_error(view.catalog, find_topic(view, name), number)

    numbers = store.read(numbers_of)
    store.read(check_available)
    return name, numbers


@contextmanager
def _dry(store: Store) -> Iterator[None]:
    """For a dry run, which takes no lock: a file that a checkpoint has removed is not damage.

    raises: SnapshotExpired
    """
    before = store.read(lambda view: view.manifest.generation)
    try:
        yield
    except MissingFile as error:
        if store.read(lambda view: view.manifest.generation) == before:
            raise
        raise SnapshotExpired(
            "files were removed before they were read",
            hint="try again, or raise reader_grace_ms",
        ) from error


def compact(
    store: Store,
    topic: str,
    partition: int | None,
    *,
    dry_run: bool,
    arrange: Arrange | None = None,
) -> Compacted:
    """Compact the sidecars of a topic; the fields of `txlog admin compact`."""
    name, numbers = _partitions(store, topic, partition)
    report = CompactReport()
    if dry_run:
        with _dry(store):
            for number in numbers:
                plan_compaction(store, number, report)
    else:
        store.need_writable()
        with maintenance(store, wait=True):
            _compact(store, numbers, report, arrange)
    return {
        "topic": name.topic.short,
        "transactions": report.transactions,
        "messages": report.messages,
        "aborted_dropped": report.aborted_dropped,
        "size_before_bytes": report.size_before_bytes,
        "size_after_bytes": report.size_after_bytes,
        "ledgers_before": report.ledgers_before,
        "ledgers_after": report.ledgers_after,
        "dry_run": dry_run,
    }


def _compact(
    store: Store, numbers: list[int], report: CompactReport, arrange: Arrange | None
) -> None:
    """Close open ledgers, checkpoint so that every row is in a file, compact, drop old files."""

    def measure(view: View) -> tuple[int, int]:
        size = sum(sidecar_bytes(view, number) for number in numbers)
        return size, sum(len(view.buffer(number).ledgers) for number in numbers)

    report.ledgers_before = store.read(measure)[1]
    roll_open(store, numbers)
    write_checkpoint(store, CheckpointReport())
    report.size_before_bytes = store.read(measure)[0]
    compact_sidecars(store, numbers, report, arrange=arrange)
    free_gone(store)
    write_checkpoint(store, CheckpointReport())
    report.size_after_bytes, report.ledgers_after = store.read(measure)


def compact_topic(store: Store, topic: str, *, dry_run: bool) -> TopicCompacted:
    """Compact a topic by key; the fields of `txlog admin compact-topic`."""
    name = TopicName.parse(topic)
    number = store.read(lambda view: find_topic(view, name).number)
    report = TopicCompactReport()
    if not dry_run:
        store.need_writable()
    with _dry(store) if dry_run else maintenance(store, wait=True):
        compact_by_key(store, number, report, dry_run=dry_run)
    return {
        "topic": name.short,
        "partitions": report.partitions,
        "lsn": report.lsn,
        "messages": report.messages,
        "keys_kept": report.keys_kept,
        "keys_deleted": report.keys_deleted,
        "without_key": report.without_key,
        "files": report.files,
        "size_before_bytes": report.size_before_bytes,
        "size_after_bytes": report.size_after_bytes,
        "dry_run": dry_run,
    }


def compact_changes(store: Store) -> list[ChangesCompacted]:
    """Compact the logs of changes; a row for each, as in `txlog admin compact-changes`."""
    before, after = compact_logs(store)
    out: list[ChangesCompacted] = []
    for kind, name in RELATIONS.items():
        old, new = ([ref for ref in logs.refs if ref.kind == kind] for logs in (before, after))
        out.append(
            {
                "log": name,
                "rows_before": sum(ref.rows for ref in old),
                "rows_after": sum(ref.rows for ref in new),
                "files_before": len(old),
                "files_after": len(new),
                "size_before_bytes": sum(ref.bytes for ref in old),
                "size_after_bytes": sum(ref.bytes for ref in new),
            }
        )
    return out


def offload(
    store: Store, topic: str, to: str, partition: int | None, *, dry_run: bool
) -> Offloaded:
    """Move sealed files of a topic to a place; the fields of `txlog admin offload`."""
    place = place_of(to, store.identity.uuid)
    inside = f"file://{store.disk.description}/"
    if place.startswith(inside):
        raise InvalidArgument(f"{to} is inside the store")
    name, numbers = _partitions(store, topic, partition)
    check_place(place)
    report = OffloadReport()
    if dry_run:
        files = store.read(lambda view: offloadable(view, numbers, report))
        report.files, report.size_bytes = len(files), sum(ref.bytes for ref in files)
    else:
        store.need_writable()
        with maintenance(store, wait=True):
            # a process may have died between the frame of a copy and its flush: that file has moved
            files = store.locked(lambda view: offloadable(view, numbers, report))
            try:
                offload_files(store, place, files, report)
            finally:
                if report.files:
                    write_checkpoint(store, CheckpointReport(), far=True)
    return {
        "topic": name.topic.short,
        "place": place,
        "files": report.files,
        "size_bytes": report.size_bytes,
        "ledgers_left": report.ledgers_left,
        "dry_run": dry_run,
    }


def confirm_place(store: Store, to: str) -> Confirmed:
    """Record a place for reading; the fields of `txlog admin confirm`."""
    place = place_of(to, store.identity.uuid)
    confirm(store, place, removes=False)
    return {"place": place}


def trim(
    store: Store,
    topic: str,
    to: Bound | None,
    *,
    by_policy: bool,
    force_unacked: bool,
    dry_run: bool,
    checkpoint: bool,
) -> Trimmed:
    """Trim a topic; the fields of `txlog admin trim`.

    checkpoint: write a checkpoint, so that the files can be removed now, not with the next one
    """
    if (to is None) is not by_policy:
        raise InvalidArgument("a trim goes up to a bound or by policy: give one of them")
    name = TopicName.parse(topic)
    answer = trim_topic(store, name, to, force_unacked=force_unacked, dry_run=dry_run)
    if checkpoint and not dry_run and answer.total("ledgers"):
        try:
            run_checkpoint(store, wait=False)
        except TxlogError as error:  # the trim is done; the next checkpoint removes its files
            store.reports.append(f"a checkpoint failed and is due again: {error}")
    return {
        "topic": answer.topic,
        "ledgers": answer.total("ledgers"),
        "messages": answer.total("messages"),
        "size_bytes": answer.total("size_bytes"),
        "partition_list": [_row(row) for row in answer.partitions],
        "dry_run": dry_run,
    }


def _row(row: DecidedPartition) -> TrimmedPartition:
    return {
        "partition": row.partition,
        "first_before": row.first_before,
        "first_after": row.first_after,
        "ledgers": row.ledgers,
        "messages": row.messages,
        "size_bytes": row.size_bytes,
        "unacked": row.unacked,
    }


def gc(store: Store, *, apply: bool, keep_ms: int) -> GarbageCollected:
    """Files that no manifest names; apply: unlink them. The fields of `txlog admin gc`.

    keep_ms: how long files that lost their name stay, for readers of older snapshots
    """
    if apply:
        store.need_writable()
    with maintenance(store, wait=True) if apply else nullcontext():
        rows: list[UnnamedFile] = []
        now = store.clock.now()
        now_ms = store.read(lambda view: trusted(view, store.settings, now)).wall_ms
        candidates = [*unnamed(store), *far_unnamed(store), *replaced(store, keep_ms, now_ms)]
        for path, reason in candidates:
            try:
                size = size_of(path) if is_far(path) else store.disk.size(path)
            except MissingFile:  # `replaced` does not check that files outside the store exist
                continue
            if apply:
                size = (
                    unlink_free(store, [path])
                    if reason == "replaced"
                    else unlink_unnamed(store, path)
                )
                if not size:
                    continue  # a manifest names it again, or a reader has pinned it
            rows.append({"path": path, "size_bytes": size, "reason": reason})
    return {
        "applied": apply,
        "files": len(rows),
        "size_bytes": sum(row["size_bytes"] for row in rows),
        "file_list": rows,
    }
