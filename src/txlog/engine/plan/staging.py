"""Staging: rows of a batch become files below `_stage`, in any process that sees the directory.

    StagePlan   made by the driver: directory, number of partitions and time; it can be pickled
    Stager      a task's: routes its rows as a producer does, and publishes a file for each
                partition (R3); files too large for memory are begun before they are whole
    Staged      describes each file; only the driver's frame makes it part of the topic

Nothing here reads the store. A task that fails or runs twice leaves files that nothing refers to;
they are deleted with the directory of the job.

    rows ──GROUP_ROWS or GROUP_BYTES──> row group ──FILE_BYTES──> a file of its own, published

As tasks may run twice, a file names no ledger, frame or LSN: `entry` counts from 0, `kind` is data,
`publish_time` is the job's. Encoded row groups are compressed, and stay in memory until their file
is published. If there are too many, the file is begun on the disk (`spill`), and they are written
there. Memory holds at most one row group of raw rows per partition. Source: spec/analytics 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from txlog.base.settings import INSTANT_MS_MAX
from txlog.base.startup import compute as pc
from txlog.engine.model.ops import NO_TIME
from txlog.engine.plan.records import (
    ValueSchema,
    records_of,
    stamped,
    stamped_as,
    stamped_originals,
    with_values,
)
from txlog.engine.plan.route import COLUMNS, route, user_batch
from txlog.engine.storage.columns import INSTANT, KIND_DATA, MESSAGE
from txlog.engine.storage.disk.protocol import Disk, Draft
from txlog.engine.storage.segment import (
    BYTES,
    GROUP_BYTES,
    GROUP_ROWS,
    RECORD,
    FileDigest,
    FileRef,
    Records,
    bloom_of,
    cut,
    sealed_writer,
    typed,
)
from txlog.errors import InvalidArgument, NoResources

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

# --- a file ---------------------------------------------------------------------------------------

FILE_BYTES: Final = 128 << 20
"""Encoded bytes after which a file is published; the next rows begin another file."""


class StagedBytes(msgspec.Struct, frozen=True, gc=False):
    """A finished file: its bytes, and its description.

    pieces:    its bytes, without those that were spilled
    ref:       without path and ledger
    times:     int64, the deliver_at of each row; None when no row has one
    unchecked: how many values are not known to fit the schema
    """

    pieces: list[bytes]
    ref: FileRef
    payload_bytes: int
    times: pa.ChunkedArray | None
    unchecked: int = 0


class StagedFile:
    """One file being written, with rows of one producer.

    draft:         takes the bytes after a spill; None: they stay in memory
    waiting_bytes: bytes of rows that are not in a row group yet
    """

    __slots__ = (
        "_payload_bytes",
        "_pieces",
        "_producer",
        "_records",
        "_rows",
        "_time_ms",
        "_times",
        "_unchecked",
        "_waiting",
        "_waiting_rows",
        "_writer",
        "_written",
        "draft",
        "waiting_bytes",
    )

    def __init__(
        self, time_ms: int, producer: str | None = None, records: Records | None = None
    ) -> None:
        self._time_ms = time_ms
        self._producer = producer
        self._records = records
        self._unchecked = 0
        self._writer: ParquetWriter | None = None
        self._written = FileDigest()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self.waiting_bytes = 0
        self._pieces: list[bytes] = []
        self.draft: Draft | None = None
        self._times: list[pa.Array | pa.ChunkedArray] = []  # none while no row has any
        self._rows = 0
        self._payload_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """The encoded bytes in memory."""
        return sum(map(len, self._pieces))

    @property
    def held_bytes(self) -> int:
        """All bytes in memory, encoded or waiting."""
        return self.kept_bytes + self.waiting_bytes

    @property
    def encoded_bytes(self) -> int:
        """The bytes encoded so far, in memory or spilled."""
        return self._written.bytes

    @property
    def is_full(self) -> bool:
        """True when it has FILE_BYTES and should be published."""
        return self._written.bytes >= FILE_BYTES

    def spill(self, draft: Draft) -> None:
        """Write the encoded bytes to a draft, and later ones as they come; keep none in memory."""
        assert self.draft is None
        self.draft = draft
        pieces, self._pieces = self._pieces, []
        self._keep(pieces)

    def encode(self) -> None:
        """Encode the waiting rows as a row group, however few they are."""
        self._encode(is_last=True)

    def add(self, rows: pa.RecordBatch, payload_bytes: int) -> None:
        """Add rows with user columns of MESSAGE, in their order."""
        table = pa.Table.from_batches([_apart(rows)])
        self._payload_bytes += payload_bytes
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self.waiting_bytes += _size(table)
        if self._waiting_rows >= GROUP_ROWS or self.waiting_bytes >= GROUP_BYTES:
            self._encode(is_last=False)

    def finish(self) -> StagedBytes:
        """The whole file; nothing can be added after this."""
        if self._waiting_rows or self._writer is None:
            self._encode(is_last=True)
        assert self._writer is not None
        self._writer.close()
        written = self._written
        tail_at = written.bytes
        self._keep(written.take_group(0))
        _, _, length, crc = written.groups.pop()
        assert tail_at + length == written.bytes
        ref = FileRef(
            "",
            0,
            self._rows,
            0,
            self._rows - 1,
            written.bytes,
            written.crc,
            length,
            crc,
            written.groups,
            0,
            0,
            "adopted",
            record=0 if self._records is None else self._records.version,
        )
        return StagedBytes(
            self._pieces,
            ref,
            self._payload_bytes,
            pa.chunked_array(self._times, INSTANT).cast(pa.int64()) if self._times else None,
            self._unchecked,
        )

    def _encode(self, *, is_last: bool) -> None:
        """Write the row groups that are full, or (is_last) all rows."""
        table = self._joined()
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0
        groups = self._groups(table)
        if not is_last and len(groups) > 1:  # the last rows begin the next group
            last_group = groups.pop()
            self._waiting = [last_group]
            self._waiting_rows, self.waiting_bytes = last_group.num_rows, _size(last_group)
        for group in groups:
            stored = self._stored(group)
            if self._writer is None:
                keys = stored.column("key")
                bloom = None if keys.null_count == len(keys) else bloom_of(keys)
                sink = pa.PythonFile(self._written.sink, "w")
                self._writer = sealed_writer(sink, bloom, stored.schema)
            self._writer.write_table(stored, row_group_size=GROUP_ROWS)
            self._keep(self._written.take_group(stored.num_rows))

    def _keep(self, pieces: Sequence[bytes]) -> None:
        if self.draft is None:
            self._pieces += pieces
            return
        for piece in pieces:
            self.draft.write(piece)

    def _joined(self) -> pa.Table:
        """The waiting rows; if some came with their records, all get records."""
        tables, records = self._waiting, self._records
        if records is not None and any(RECORD in table.column_names for table in tables):
            tables = [
                table if RECORD in table.column_names else records.beside(table) for table in tables
            ]
        return pa.concat_tables(tables, promote_options="default").combine_chunks()

    @staticmethod
    def _groups(table: pa.Table) -> list[pa.Table]:
        """Row groups of a table; their sizes are counted without records."""
        groups, start = [], 0
        for group in cut(_without_records(table)):
            groups.append(table.slice(start, group.num_rows))
            start += group.num_rows
        return groups

    def _stored(self, rows: pa.Table) -> pa.Table:
        """Rows as the file has them."""
        count = rows.num_rows
        arrays: dict[str, pa.Array | pa.ChunkedArray] = {
            "kind": pa.repeat(pa.scalar(KIND_DATA, pa.int8()), count),
            "entry": pa.arange(self._rows, self._rows + count),
            "publish_time": pa.repeat(pa.scalar(self._time_ms, INSTANT), count),
        }
        if self._producer is not None:
            arrays["producer"] = pa.repeat(self._producer, count)
        for name in rows.column_names:
            arrays[name] = rows.column(name)
        for field in MESSAGE:
            if field.name not in arrays:
                arrays[field.name] = pa.nulls(count, field.type)
        times = arrays["deliver_at"]
        if self._times or times.null_count < count:
            if not self._times and self._rows:
                self._times.append(pa.nulls(self._rows, INSTANT))
            self._times.append(times)
        self._rows += count
        table = pa.Table.from_arrays([arrays[name] for name in MESSAGE.names], schema=MESSAGE)
        if self._records is None:
            return table.select(BYTES.names)
        self._unchecked += arrays["schema_version"].null_count - arrays["value"].null_count
        columns = typed(BYTES, self._records.kind).names
        if RECORD in rows.column_names:
            table = table.append_column(RECORD, rows.column(RECORD))
        else:
            table = self._records.beside(table)
        return table.select(columns)


def _apart(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that do not keep the memory of the batch that they are a slice of."""
    if rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([column]) for column in rows.columns], schema=rows.schema
    )


def _without_records(table: pa.Table) -> pa.Table:
    return table.drop_columns([RECORD]) if RECORD in table.column_names else table


def _size(table: pa.Table) -> int:
    """The size that decides where row groups end: the same whether rows have records or not."""
    size: int = _without_records(table).nbytes
    return size


def times_bytes(times: pa.ChunkedArray | None, none: int) -> bytes | None:
    """Instants as an op has them: int64 little endian, `none` where a row has none."""
    if times is None:
        return None
    column = pc.fill_null(times, pa.scalar(none, pa.int64())).combine_chunks()
    data = column.buffers()[1]
    assert data is not None
    raw: bytes = data.slice(column.offset * 8, len(column) * 8).to_pybytes()
    return raw


# --- a task ---------------------------------------------------------------------------------------

STAGE_DIR = "_stage"
_VERSION: Final = "schema_version"
# Encoded bytes that a task keeps in memory; beyond this the largest file is spilled to disk.
KEPT_BYTES_MAX = 8 << 20
# The same including rows not yet in a group; beyond this the largest file ends its group early.
TASK_BYTES_MAX = 24 << 20
# But each file may always hold so many unencoded bytes: many small row groups are slow to read.
GROUP_BYTES_MIN = 1 << 20
# At most so many files are spilled, each with a descriptor; fewer if the disk allows fewer.
DRAFTS_MAX = 64
# Bytes that a task with more files than descriptors keeps in memory; beyond this the largest file
# is published. A published file stays a ledger, so many small ones cost more than memory.
MANY_BYTES_MAX = 256 << 20
# Rows routed at once.
ROWS_AT_ONCE = 100_000


class StagePlan(msgspec.Struct, frozen=True):
    """The parameters of a task; it can be pickled.

    store:          the store's directory, as the driver names it
    topic, number:  its full name, and its number in the store
    directory:      of the job's files, below the store
    key, batch:     the name of the batch: a transaction key, and the batch's name under it
    time_ms:        the publish_time of every row
    fixed_delay_ms: the policy of the topic; 0: messages are delivered at their own times
    tag:            in the name of the directory: jobs of one stream have the same tag
    producer:       the producer in every row
    query:          the id of a stream, which is the id of its checkpoint
    typing:         the schema that values are checked against
    copies:         the rows are messages of another topic, with their schema_version; they are
                    never refused for their values
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
    copies: bool = False

    def named(self, key: str, batch: int | str, query: str = "") -> StagePlan:
        """The same plan for a batch that was unknown when the files were planned."""
        return msgspec.structs.replace(self, key=key, batch=batch, query=query)


class Staged(msgspec.Struct, frozen=True):
    """A published file that is not part of the topic yet; `file` has its path and length.

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
    """Makes the files of one task; for one thread. The caller closes it: it may have begun files.

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

        For a typed topic, `record` may take the place of `value`: a struct by the schema. Messages
        without a key go to one partition, by the number of the task.
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
        versions = None
        if plan.copies:
            versions, data = data.column(_VERSION), data.drop_columns([_VERSION])
        routed = route(data, plan.partitions, self._task, plan.message_bytes_max)
        if versions is not None:
            routed = stamped_originals(routed, plan.typing, versions)
        elif plan.typing is None or records is None:
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
        stored = {*COLUMNS, _VERSION, RECORD}
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
    """When a job began, in ms, by the name of its directory; None: the name has no time."""
    head = name.partition("-")[0]
    return int(head) if head.isdecimal() else None
