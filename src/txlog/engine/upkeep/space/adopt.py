"""Adoption: staged files become ledgers of a topic; the driver's side of a batch.

    1 check    every file against its checksum
    2 reserve  a ledger id for each, by a durable frame
    3 link     each file gets the name of its ledger; its directory is flushed
    4 adopt    one frame, which alone makes them part of the topic (Law 5)

All of it runs under the maintenance lock, so that no sweep comes between 3 and 4: it would remove a
name that no frame has (R19). A process that dies leaves such names and the directory of the job; a
checkpoint removes both. Source: spec/analytics 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import pyarrow as pa

from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import adopt as flow
from txlog.engine.decide.sending import producers
from txlog.engine.decide.sending.adopt import AGAIN, DONE, Adoption
from txlog.engine.folds.catalog import directory_of, number_of
from txlog.engine.model.schema import MESSAGE
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.records import ValueSchema, stamped, stamped_originals, typing_of
from txlog.engine.plan.route import COLUMNS, route
from txlog.engine.plan.staging import STAGE_DIR, Staged, is_tagged, job_time
from txlog.engine.storage.checked import check_size, checked_bytes
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.store.liveness import holds_seat
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.checkpoint import maintenance
from txlog.engine.upkeep.space.sweep import below_topics, names_in, topic_dirs, unlink_unnamed
from txlog.engine.view import View, ledger_dir, sealed_path
from txlog.errors import MissingFile, NotAllowed, OutcomeUnknown, TryAgain, TxlogError

# Of larger files only length and footer are checked, because the task has read back the rest.
CHECK_BYTES_MAX = 4 << 30
# How often a topic may get a later ledger while files are linked, which makes their ids too low.
TRIES_MAX = 20
# A batch up to this size is appended to the open ledgers as rows: its files would be too small.
ROWS_MAX = 20_000
ROWS_BYTES_MAX = 1 << 20
_VERSION = "schema_version"


def adopt_files(
    store: Store,
    topic: int,
    key: str,
    batch: int | str,
    staged: Sequence[Staged],
    query: str = "",
    after: int | None = None,
    *,
    copies: bool = False,
) -> bool:
    """Make staged files messages of a topic, once for this key and batch; durable when it returns.

    topic:   its number
    staged:  each file once
    query:   of a stream: its id
    after, copies: as in Adoption
    returns: False when the batch was stored before
    raises: StoreLocked, Corruption (a file has changed since its task wrote it), NotAllowed (it is
            missing, partitions were added, the key is of another topic or stream), TopicNotFound,
            ProducerBusy, PartitionUnavailable, LimitExceeded, StoreFull, DiskFailed: nothing was
            done; OutcomeUnknown
    """
    ordered = sorted(
        staged,
        key=lambda staged_file: (staged_file.partition, staged_file.task, staged_file.number),
    )
    with maintenance(store, wait=True):
        _with_stage(lambda: _check(store.disk, ordered))
        for _ in range(TRIES_MAX):
            done = _adopt(store, Adoption(topic, key, batch, ordered, (), query, after, copies))
            if done != AGAIN:
                return done == DONE
        raise TryAgain(f"the topic grew faster than {len(ordered)} files could be named")


def append_rows(
    store: Store,
    topic: int,
    key: str,
    batch: int | str,
    staged: Sequence[Staged],
    query: str = "",
    after: int | None = None,
    *,
    copies: bool = False,
) -> bool | None:
    """Append the rows of staged files to a topic, once for this key and batch; durable then.

    returns: False when the batch was stored before; None when it is too large for one frame of
             rows, so that nothing was done
    raises:  as adopt_files
    """
    if (
        sum(staged_file.payload_bytes + staged_file.file.bytes for staged_file in staged)
        > ROWS_BYTES_MAX
    ):
        return None
    ordered = sorted(
        staged,
        key=lambda staged_file: (staged_file.partition, staged_file.task, staged_file.number),
    )
    tables: list[pa.Table] = []

    def look() -> None:
        tables.extend(_rows_of(store.disk, staged_file, copies) for staged_file in ordered)

    _with_stage(look)
    rows = pa.concat_tables(tables, promote_options="default")
    if rows.num_rows > ROWS_MAX or rows.nbytes > 2 * ROWS_BYTES_MAX:
        return None
    versions = None
    if copies:
        versions, rows = rows.column(_VERSION), rows.drop_columns([_VERSION])
    routed = route(rows, ordered[0].partitions, 0, store.settings.max_message_bytes)
    written = ordered[0].file.record or None  # Avro must not be read with another version
    typing = store.read(lambda view: _typing(view, store.settings, topic, written))
    routed = (
        stamped(routed, typing) if versions is None else stamped_originals(routed, typing, versions)
    )
    adoption = Adoption(topic, key, batch, ordered, [], query, after, copies)
    caller = store.disk.owner()

    def decide(view: View, now: Instant) -> Decision[str]:
        _check_alone(store, view, topic)
        return flow.append(view, store.settings, now, caller, adoption, routed)

    done = store.write(decide)
    return done == DONE


def _typing(view: View, settings: Settings, number: int, version: int | None) -> ValueSchema | None:
    topic = live_topic(view, number, "of this batch")
    return typing_of(view, settings, topic, version) if topic.schemas else None


def _rows_of(disk: Disk, staged: Staged, copies: bool) -> pa.Table:
    """The rows of a file in the form of a producer's batch, checked against its checksums.

    copies: with the schema_version of each
    """
    file = disk.open(staged.file.path)
    try:
        reader = SegmentReader(file, staged.file)
        reader.check()
        names = [name for name in COLUMNS if name in MESSAGE.names]
        versions = [_VERSION] * copies
        rows = reader.rows(0, staged.file.rows, [*names, *versions])
    finally:
        file.close()
    names_used = [
        name for name in names if name == "value" or rows.column(name).null_count < len(rows)
    ] + versions
    partition = pa.repeat(pa.scalar(staged.partition, pa.int32()), rows.num_rows)
    return rows.select(names_used).append_column("partition", partition)


def _adopt(store: Store, requested: Adoption) -> str:
    topic, staged = requested.topic, requested.staged
    ledgers = store.write(lambda view, now: flow.reserve(view, topic, staged))
    files = store.read(lambda view: _named(view, topic, staged, ledgers))
    done: object = AGAIN
    try:
        _with_stage(lambda: _link(store.disk, staged, files))
        adoption = replace(requested, files=files)
        caller = store.disk.owner()

        def decide(view: View, now: Instant) -> Decision[str]:
            _check_alone(store, view, topic)
            return flow.adopt(view, store.settings, now, caller, adoption)

        done = store.write(decide)
    except OutcomeUnknown:
        raise  # the frame may name them
    except TxlogError:
        _unlink(store, files)
        raise
    if done != DONE:
        _unlink(store, files)
    return done


def _check_alone(store: Store, view: View, number: int) -> None:
    """Raise ProducerBusy while a topic has an exclusive producer: a batch is like a shared one."""
    topic = view.catalog.topics.get(number)
    if topic is not None:
        producers.check(view, topic, 0, lambda epoch: holds_seat(store.disk, number, epoch))


def _named(
    view: View, number: int, staged: Sequence[Staged], ledgers: Sequence[int]
) -> list[FileRef]:
    """The files under the names of their ledgers."""
    topic, generation = live_topic(view, number, "of this batch"), view.manifest.generation
    return [
        msgspec.structs.replace(
            staged_file.file,
            ledger=ledger,
            path=sealed_path(
                ledger_dir(view.catalog, number_of(topic, staged_file.partition), "p"),
                ledger,
                generation,
            ),
        )
        for staged_file, ledger in zip(staged, ledgers, strict=True)
    ]


def _link(disk: Disk, staged: Sequence[Staged], files: Sequence[FileRef]) -> None:
    for staged_file, file in zip(staged, files, strict=True):
        disk.link(staged_file.file.path, file.path)
    for directory in sorted({file.path.rpartition("/")[0] for file in files}):
        disk.sync_dir(directory)


def _unlink(store: Store, files: Sequence[FileRef]) -> None:
    """Remove these names, which no frame has; the sweep removes those that this cannot remove."""
    for file in files:
        with suppress(TxlogError):
            unlink_unnamed(store, file.path)


def _check(disk: Disk, staged: Sequence[Staged]) -> None:
    for staged_file in staged:
        _check_file(disk, staged_file.file)


def _check_file(disk: Disk, ref: FileRef) -> None:
    file = disk.open(ref.path)
    try:
        if ref.bytes <= CHECK_BYTES_MAX:
            SegmentReader(file, ref).check()
            return
        check_size(file, ref.path, ref.bytes)
        tail = ref.bytes - ref.footer_bytes
        checked_bytes(file, ref.path, tail, ref.footer_bytes, ref.footer_crc)
    finally:
        file.close()


def _with_stage(act: Callable[[], None]) -> None:
    """Run a function that reads staged files; NotAllowed: one is missing."""
    try:
        act()
    except MissingFile as error:
        raise NotAllowed(
            f"a staged file of the batch is gone: {error.fields.get('path')}",
            hint="it was aborted, or waited longer than stage_ttl_ms: write it again",
            path=error.fields.get("path"),
        ) from error


# --- the directories of jobs ------------------------------------------------------------------


def stage_dir(view: View, topic: int) -> str:
    """The directory in which the jobs of a topic stage their files."""
    return f"{directory_of(live_topic(view, topic, 'of this batch'))}/{STAGE_DIR}"


def remove_job(disk: Disk, directory: str) -> int:
    """Remove the directory of a job and its files; returns the bytes removed."""
    size = 0
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        with suppress(MissingFile):
            size += disk.size(path)
            disk.unlink(path)
    disk.remove_dir(directory)
    return size


def remove_tagged(disk: Disk, directory: str, tag: str, through_ms: int) -> None:
    """Remove the directories of jobs with a tag that began at this time or before."""
    for name in disk.listdir(directory):
        began = job_time(name)
        if is_tagged(name, tag) and began is not None and began <= through_ms:
            remove_job(disk, f"{directory}/{name}")


def sweep_stages(store: Store, *, topics_max: int | None = None) -> int:
    """Remove directories of jobs that began at least stage_ttl_ms ago; returns the bytes removed.

    No frame names their files, so they need no check. The caller holds the maintenance lock.
    topics_max: with more topics than this it searches nothing; None: also deleted topics
    """
    now = store.clock.now()
    now_ms = store.read(lambda view: trusted(view, store.settings, now)).wall_ms
    oldest = now_ms - store.settings.stage_ttl_ms
    size = 0
    for directory in _stage_dirs(store, topics_max):
        for name in names_in(store.disk, directory) or ():
            began = job_time(name)
            if began is not None and began <= oldest:
                size += remove_job(store.disk, f"{directory}/{name}")
    return size


def _stage_dirs(store: Store, topics_max: int | None) -> Iterator[str]:
    if topics_max is not None:
        directories = topic_dirs(store)
        if len(directories) <= topics_max:
            yield from (f"{directory}/{STAGE_DIR}" for directory in directories)
        return
    yield from (f"{path}/{STAGE_DIR}" for path in below_topics(store.disk, 3))
