"""The file of a large message: its chunks as rows of a Parquet file, and the message as one row.

    row group   one chunk, or as many as fit GROUP_BYTES; only one is in memory at a time
    row         kind CHUNK, entry = number of the chunk, value = its bytes; the first row has the
                key, properties and instants of the message

Nothing in the file depends on the frame that names it later: transaction, index, position and time
come from the op. So does the time of delivery, which may be a delay until then. The reader checks
each row group by the CRC32C in its `FileRef`, and the whole value by the CRC32C in the op. If the
only chunk is null, a repair made the file: the message is lost, and the first row has the reason.

For all other code, a ledger of chunks has one row, the message; only this module sees several. A
reader that does not need the value reads no more than the first row group (`large_row`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from txlog.base.ids import txn_halves
from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.columns import KIND_DATA, MESSAGE
from txlog.engine.storage.disk.protocol import File
from txlog.engine.storage.segment import (
    GROUP_BYTES,
    GROUP_ROWS,
    FileRef,
    Group,
    Sink,
    arrow_module,
)
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.errors import Corruption

if TYPE_CHECKING:
    from typing_extensions import Buffer

# --- the file ------------------------------------------------------------------------------------


CHUNK_KIND: Final = 6
HEAD: Final = ("key", "properties", "event_time", "deliver_at")
"""The columns of the first chunk of a message, besides its bytes."""


class ChunkFile:
    """The bytes of the file, for `disk.publishing`, and its description once they were read.

    head:   one row with columns of HEAD that the message has
    chunks: the value in pieces; a piece is empty only if it is the only one
    """

    __slots__ = ("_chunks", "_groups", "_head", "bytes", "crc", "file_crc", "rows", "value_bytes")

    def __init__(self, head: pa.RecordBatch, chunks: Iterable[Buffer]) -> None:
        self._head = head
        self._chunks = chunks
        self._groups: list[Group] = []
        self.rows = 0
        self.value_bytes = 0
        self.crc = 0  # of the value
        self.bytes = 0
        self.file_crc = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes in order; a row group is written once its chunks have arrived."""
        sink = Sink()
        with arrow_module("pyarrow.parquet").ParquetWriter(
            pa.PythonFile(sink, "w"),
            MESSAGE,
            version="2.6",
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
            column_encoding={"value": "PLAIN"},
        ) as writer:
            for group in _grouped(self._chunks):
                writer.write_table(self._table(group), row_group_size=len(group))
                yield from self._taken(sink, len(group))
        yield from self._taken(sink, 0)

    def ref(self, path: str, ledger: int) -> FileRef:
        """The description of the file for a frame; available after its bytes."""
        _, _, length, crc = self._groups[-1]  # the bytes after the last row group
        return FileRef(
            path,
            ledger,
            self.rows,
            0,
            self.rows - 1,
            self.bytes,
            self.file_crc,
            length,
            crc,
            self._groups[:-1],
            0,
            0,
            "chunks",
        )

    def _table(self, group: Sequence[memoryview]) -> pa.Table:
        """One row per chunk, over the memory of the chunk if there is only one."""
        count = len(group)
        for chunk in group:
            self.crc = crc32c(chunk, self.crc)
            self.value_bytes += chunk.nbytes
        if count == 1:
            ends = pa.py_buffer(struct.pack("<ii", 0, group[0].nbytes))
            value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(group[0])])
        else:
            value = pa.array([bytes(chunk) for chunk in group], pa.binary())
        arrays: dict[str, pa.Array] = {
            "kind": pa.array([CHUNK_KIND] * count, pa.int8()),
            "entry": pa.arange(self.rows, self.rows + count),
            "value": value,
        }
        for name in HEAD if self.rows == 0 else ():
            at = self._head.schema.get_field_index(name)
            if at >= 0:
                first = self._head.column(at).cast(MESSAGE.field(name).type)
                others = pa.nulls(count - 1, first.type)
                arrays[name] = pa.concat_arrays([first, others])
        self.rows += count
        columns = [
            arrays[field.name] if field.name in arrays else pa.nulls(count, field.type)
            for field in MESSAGE
        ]
        return pa.Table.from_arrays(columns, schema=MESSAGE)

    def _taken(self, sink: Sink, rows: int) -> Iterator[bytes]:
        start, crc = self.bytes, 0
        for piece in sink.take():
            crc = crc32c(piece, crc)
            self.file_crc = crc32c(piece, self.file_crc)
            self.bytes += len(piece)
            yield piece
        self._groups.append((rows, start, self.bytes - start, crc))


def _grouped(chunks: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """The chunks in groups of at most GROUP_BYTES, or one alone."""
    group: list[memoryview] = []
    size = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        if group and (size + view.nbytes > GROUP_BYTES or len(group) >= GROUP_ROWS):
            yield group
            group, size = [], 0
        group.append(view)
        size += view.nbytes
    if group:
        yield group


def cut(source: Iterable[Buffer], first_bytes: int, chunk_bytes: int) -> Iterator[memoryview]:
    """Cut pieces of any size into chunks: the first of at most first_bytes, others of chunk_bytes.

    A chunk inside one piece is a view of it; other chunks are copied together.
    """
    size = first_bytes
    buffer = bytearray()
    for piece in source:
        view = memoryview(piece).cast("B")
        while view.nbytes:
            if not buffer and view.nbytes >= size:
                yield view[:size]
                view = view[size:]
                size = chunk_bytes
                continue
            room = size - len(buffer)
            buffer += view[:room]
            view = view[room:]
            if len(buffer) == size:
                yield memoryview(buffer)
                buffer, size = bytearray(), chunk_bytes
    if buffer:
        yield memoryview(buffer)


def head_of(file: File, ref: FileRef) -> pa.Table:
    """The first row of the file without its bytes: key, properties, instants."""
    return SegmentReader(file, ref).rows(0, 1)


def reassembled(file: File, ref: FileRef, value_bytes: int, crc: int) -> tuple[pa.Table, pa.Array]:
    """(the first row of the file, the value as an array of one), every byte checked.

    memory: the value, and a few row groups
    raises: Corruption (path, offset, length) and errors of `file`
    """
    reader = SegmentReader(file, ref)
    # the default pool keeps freed memory; memory of this size must go back to the system
    buffer = pa.allocate_buffer(value_bytes, memory_pool=pa.system_memory_pool())
    target = memoryview(buffer).cast("B")
    at = actual_crc = row = 0
    first = None
    for rows, offset, length, _ in ref.groups:
        table = reader.rows(row, row + rows)
        if first is None:
            first = table.slice(0, 1)
            if ref.rows == 1 and first.column("value").null_count:
                return first, pa.nulls(1, pa.binary())
        for value in table.column("value").chunks:
            data = _bytes_of(value)
            if at + data.nbytes > value_bytes:
                raise _wrong(ref, offset, length, f"{value_bytes} bytes of value", "more")
            target[at : at + data.nbytes] = data
            actual_crc = crc32c(data, actual_crc)
            at += data.nbytes
        row += rows
    if at != value_bytes:
        raise _wrong(ref, 0, ref.bytes, f"{value_bytes} bytes of value", f"{at}")
    if actual_crc != crc or first is None:
        raise _wrong(ref, 0, ref.bytes, f"{crc:08x}", f"{actual_crc:08x}")
    ends = pa.py_buffer(struct.pack("<ii", 0, value_bytes))
    return first, pa.Array.from_buffers(pa.binary(), 1, [None, ends, buffer])


def _bytes_of(values: pa.Array) -> memoryview:
    """The bytes of consecutive values, one after another."""
    _, ends, data = values.buffers()
    if data is None:
        return memoryview(b"")
    offsets = memoryview(ends).cast("i")
    first, last = offsets[values.offset], offsets[values.offset + len(values)]
    return memoryview(data).cast("B")[first:last]


def _wrong(ref: FileRef, offset: int, length: int, expected: str, found: str) -> Corruption:
    return Corruption(
        f"{ref.path} is damaged in bytes {offset} to {offset + length}: expected {expected}, "
        f"found {found}",
        hint=HINT,
        path=ref.path,
        offset=offset,
        length=length,
        expected=expected,
        found=found,
    )


# --- the row of a large message ------------------------------------------------------------------


class LargeMessage(Protocol):
    """The buffer fold's description of a large message."""

    value_bytes: int
    crc: int
    coordinator: int
    sequence: int
    index: int
    time_ms: int
    lsn: int
    producer: str | None
    last_sequence: int
    deliver_at: int | None


def large_row(file: File, ref: FileRef, message: LargeMessage, names: Sequence[str]) -> pa.Table:
    """The message as a row with these columns of MESSAGE; every byte read is checked.

    raises: Corruption (path, offset, length)
    """
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    if "value" in names:
        first, columns["value"] = reassembled(file, ref, message.value_bytes, message.crc)
    elif not set(HEAD).isdisjoint(names):
        first = head_of(file, ref)
    else:
        first = MESSAGE.empty_table()
    most, least = txn_halves(message.coordinator, message.sequence)
    values: dict[str, object] = {
        "kind": KIND_DATA,
        "entry": 0,
        "lsn": message.lsn,
        "publish_time": message.time_ms,
        "producer": message.producer,
        "txn_most": most,
        "txn_least": least,
        "txn_index": message.index,
        "sequence_id": message.last_sequence if message.last_sequence >= 0 else None,
    }
    if message.deliver_at is not None:  # the file has an instant that the sender named, not a delay
        values["deliver_at"] = message.deliver_at
    for name in names:
        if name in values:
            columns[name] = pa.array([values[name]], MESSAGE.field(name).type)
        elif name in HEAD:
            columns[name] = first.column(name)
        elif name != "value":
            columns[name] = pa.nulls(1, MESSAGE.field(name).type)
    schema = pa.schema([MESSAGE.field(name) for name in names])
    return pa.Table.from_arrays([columns[name] for name in names], schema=schema)
