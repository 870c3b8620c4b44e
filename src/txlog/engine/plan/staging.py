"""Staging: rows of a batch become files below `_stage`, in any process that sees the directory.

    plan     by the driver: directory, number of partitions and time; it can be pickled
    task     routes its rows as a producer does, and publishes a file for each partition (R3); files
             that together are too large for memory are begun before they are whole
    Staged   describes each file; only the driver's frame makes it part of the topic

Nothing here reads the store. A task that fails or runs twice leaves files that nothing refers to;
they are deleted with the directory of the job. Source: spec/analytics 7.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from txlog.base.settings import INSTANT_MS_MAX
from txlog.base.startup import compute as pc
from txlog.engine.model.ops import NO_TIME
from txlog.engine.model.schema import INSTANT
from txlog.engine.plan.records import ValueSchema, records_of, stamped, stamped_as, with_values
from txlog.engine.plan.route import COLUMNS, route, user_batch
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.segment import RECORD, FileRef
from txlog.engine.storage.staged import StagedFile, times_bytes
from txlog.errors import InvalidArgument, NoResources

STAGE_DIR = "_stage"
# Encoded bytes that a task keeps in memory; beyond it the largest file is written out.
KEPT_BYTES_MAX = 8 << 20
# The same including rows that wait for their group; beyond it the largest file closes its group
# early.
TASK_BYTES_MAX = 24 << 20
# But so much of each file may always wait: many small row groups are slow to read.
GROUP_BYTES_MIN = 1 << 20
# Files that are written before they are whole, a descriptor each; fewer where descriptors are few.
DRAFTS_MAX = 64
# The memory of all other files, if a task has more files than descriptors; beyond it the largest is
# published. A file is a ledger for ever, so many small ones cost more than memory.
MANY_BYTES_MAX = 256 << 20
# Rows routed at once.
ROWS_AT_ONCE = 100_000


class StagePlan(msgspec.Struct, frozen=True):
    """The parameters of a task; it can be pickled.

    store:          the store's directory, as the driver names it
    topic, number:  its full name, and its number in the store
    directory:      of the job's files, below the store
    time_ms:        the publish_time of every row
    fixed_delay_ms: the policy of the topic; 0: messages are delivered at their own times
    tag:            in the name of the directory: jobs of one stream have the same tag
    producer:       the name in every row
    query: of a stream: its id, which is the id of its checkpoint
    typing:         the schema that values are checked against
    """

    store: str
    topic: str
    number: int
    partitions: int
    directory: str
    key: str
    batch: int | str
    time_ms: int
    message_bytes_max: int
    fixed_delay_ms: int = 0
    tag: str = ""
    producer: str | None = None
    query: str = ""
    typing: ValueSchema | None = None

    def named(self, key: str, batch: int | str, query: str = "") -> StagePlan:
        """The same plan for a batch that was unknown when the files were planned."""
        return msgspec.structs.replace(self, key=key, batch=batch, query=query)


class Staged(msgspec.Struct, frozen=True):
    """A file that waits to be adopted; path and length are in `file`.

    partitions:   how many the topic had when its rows were routed
    task, number: its place among the files of its partition
    times:        as in Appended
    mismatched:   messages that do not fit the schema, or were not checked
    """

    directory: str
    topic: int
    partitions: int
    partition: int
    task: int
    number: int
    time_ms: int
    file: FileRef
    payload_bytes: int
    times: bytes | None = None
    mismatched: int = 0


class Stager:
    """Makes the files of one task; for one thread. Close it, as it may have begun files.

    disk: of the plan's store; task: its number among the tasks of the job
    """

    __slots__ = ("_disk", "_done", "_files", "_plan", "_task")

    def __init__(self, disk: Disk, plan: StagePlan, task: int = 0) -> None:
        self._disk = disk
        self._plan = plan
        self._task = task
        self._files: dict[int, StagedFile] = {}
        self._done: list[Staged] = []

    def add(self, data: pa.Table | pa.RecordBatch) -> None:
        """Add messages: the columns of Producer.send_batch.

        Of a typed topic also `record`, a struct by its schema, in the place of `value`. Then
        nothing decodes the value again.

        Those without a key go to one partition, by the number of the task.
        raises: InvalidArgument, InvalidMessage: as send_batch; StoreFull, DiskFailed
        """
        if self._plan.producer is not None and data.schema.get_field_index("sequence_id") >= 0:
            raise InvalidArgument(
                "a batch of a named producer has no column sequence_id: sequences are those of its"
                " sends, and a batch is stored once by its own name",
                hint="leave out the column, or the producer",
            )
        for start in range(0, data.num_rows, ROWS_AT_ONCE):
            self._add(data.slice(start, ROWS_AT_ONCE))
        if not data.num_rows and RECORD not in data.schema.names:
            user_batch(data)  # check its columns in any case

    def finish(self) -> list[Staged]:
        """Publish the remaining files; returns all files of the task, in order."""
        for partition in sorted(self._files):
            self._publish(partition)
        return self._done

    def close(self) -> None:
        """Remove the files that were begun and not published."""
        for file in self._files.values():
            if file.draft is not None:
                file.draft.close()
        self._files.clear()

    def _add(self, data: pa.Table | pa.RecordBatch) -> None:
        plan = self._plan
        records = None
        if RECORD in data.schema.names:
            data, records = with_values(data, plan.typing)
        routed = route(data, plan.partitions, self._task, plan.message_bytes_max)
        if plan.typing is None or records is None:
            routed = stamped(routed, plan.typing)
        else:
            routed = stamped_as(routed, plan.typing, records)
        rows = self._with_times(routed.batch)
        for piece in routed.slices:
            file = self._files.get(piece.partition)
            if file is None:
                file = self._files[piece.partition] = StagedFile(
                    plan.time_ms,
                    plan.producer,
                    None if plan.typing is None else records_of(plan.typing),
                )
            file.add(rows.slice(piece.row_start, piece.rows), piece.payload_bytes)
            if file.is_full:
                self._publish(piece.partition)
        self._shrink()

    def _shrink(self) -> None:
        """Write out files until the task is within its bounds."""
        files, most = self._files, min(DRAFTS_MAX, self._disk.files_kept())
        while True:
            kept_bytes = sum(file.kept_bytes for file in files.values())
            held_bytes = kept_bytes + sum(file.waiting_bytes for file in files.values())
            if kept_bytes > KEPT_BYTES_MAX and len(self._begun()) < most:
                self._spill(max(files, key=lambda number: files[number].kept_bytes))
            elif (
                held_bytes > max(TASK_BYTES_MAX, GROUP_BYTES_MIN * len(files))
                and len(files) <= most
            ):
                files[max(files, key=lambda number: files[number].waiting_bytes)].encode()
            elif held_bytes > MANY_BYTES_MAX:
                self._publish(max(files, key=lambda number: files[number].held_bytes))
            else:
                return

    def _begun(self) -> list[int]:
        """The partitions whose files are written before they are whole."""
        return [number for number, file in self._files.items() if file.draft is not None]

    def _spill(self, partition: int) -> None:
        files = self._files
        try:
            draft = self._disk.begin(self._path(partition))
        except NoResources:  # the program has other files open: end one of this task
            begun = self._begun() or [partition]
            self._publish(max(begun, key=lambda number: files[number].encoded_bytes))
        else:
            files[partition].spill(draft)

    def _with_times(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the instants that are stored: a delay counts from the time of the job."""
        plan, names = self._plan, batch.schema.names
        stored = {*COLUMNS, "schema_version", RECORD}
        columns = {name: batch.column(name) for name in names if name in stored}
        delays = columns.pop("deliver_after", None)
        if plan.fixed_delay_ms:
            columns["deliver_at"] = self._later(
                pa.repeat(pa.scalar(plan.fixed_delay_ms, pa.int64()), batch.num_rows)
            )
        elif delays is not None:
            later = self._later(delays)
            times = columns.get("deliver_at")
            columns["deliver_at"] = later if times is None else times.fill_null(later)
        elif len(columns) == len(names):
            return batch
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    def _later(self, delays: pa.Array) -> pa.Array:
        time_ms = self._plan.time_ms
        most = pa.scalar(INSTANT_MS_MAX - time_ms, pa.int64())
        within = pc.min_element_wise(delays, most, skip_nulls=False)
        return pc.add(within, pa.scalar(time_ms, pa.int64())).view(INSTANT)

    def _path(self, partition: int) -> str:
        return f"{self._plan.directory}/p{partition}-{self._disk.random_bytes(16).hex()}.parquet"

    def _publish(self, partition: int) -> None:
        plan = self._plan
        file = self._files[partition]
        finished = file.finish()
        if file.draft is None:
            path = self._path(partition)
            self._disk.publish(path, finished.pieces)
        else:
            path = file.draft.path
            file.draft.publish()
            file.draft.close()
        del self._files[partition]
        self._done.append(
            Staged(
                plan.directory,
                plan.number,
                plan.partitions,
                partition,
                self._task,
                len(self._done),
                plan.time_ms,
                msgspec.structs.replace(finished.ref, path=path),
                finished.payload_bytes,
                times_bytes(finished.times, NO_TIME),
                finished.unchecked,
            )
        )


def job_name(time_ms: int, tag: str, chance: bytes) -> str:
    """A name for the directory of a job, with the time when it began."""
    return f"{time_ms:015d}-{tag}{chance.hex()}"


def is_tagged(name: str, tag: str) -> bool:
    """True for the directory of a job with this tag."""
    return tag != "" and name.partition("-")[2].startswith(tag)


def job_time(name: str) -> int | None:
    """When a job began, by the name of its directory."""
    head = name.partition("-")[0]
    return int(head) if head.isdecimal() else None
