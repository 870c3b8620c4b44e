"""Files that wait to be adopted: rows of one partition as a sealed file, written as rows arrive.

    rows ──GROUP_ROWS or GROUP_BYTES──> row group ──FILE_BYTES──> a file of its own, published

Tasks that may run twice write these files, so they name no ledger, frame or LSN: `entry` counts
from 0, `kind` is data, `publish_time` is the job's. Encoded row groups are compressed, and stay in
memory until their file is published. If there are too many, the file is begun on the disk
(`spill`), and they are written there. Memory holds at most one row group of raw rows per partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.storage.columns import INSTANT, KIND_DATA, MESSAGE
from txlog.engine.storage.disk.protocol import Draft
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

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

FILE_BYTES: Final = 128 << 20
"""Encoded bytes after which a file is published; the next rows begin another file."""


class StagedBytes(msgspec.Struct, frozen=True, gc=False):
    """A finished file: its bytes, and its description.

    pieces: its bytes, without those that were spilled
    ref:   without path and ledger
    times: int64, the deliver_at of each row; None when no row has one
    unchecked: rows whose value is not known to fit a schema
    """

    pieces: list[bytes]
    ref: FileRef
    payload_bytes: int
    times: pa.ChunkedArray | None
    unchecked: int = 0


class StagedFile:
    """One file being written, with rows of one producer.

    draft: takes the bytes after a spill; None: they stay in memory
    waiting_bytes: of rows that wait for their row group
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
        """True when it should be published."""
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
