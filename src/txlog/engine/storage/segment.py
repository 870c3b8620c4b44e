"""Segment files: the rows of a ledger as bytes, and back, with every byte checked first.

There are two forms and one schema (`columns`). A *part* is an Arrow IPC file, written at a
checkpoint and read whole. A *sealed* file is Parquet, written once and read by row groups; DuckDB
and Spark read it too. Neither format protects its bytes (spec/reliability R5): stock readers accept
flipped bits without an error. So a `FileRef`, kept in the manifest, holds the CRC32C of the whole
file, of each row group and of the tail after the last one, and nothing reaches pyarrow unchecked.

This module makes no file call: it turns tables into buffers that `disk` publishes;
`segment_reader` reads them back.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import pyarrow as pa

from txlog.engine.storage.checked import group_bounds
from txlog.engine.storage.columns import INSTANT, KIND_DATA, MESSAGE, conform
from txlog.startup.crc32c import crc32c

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 8 << 20
# What an Arrow IPC file has around its batches: their blocks in the footer, magics and lengths.
IPC_BATCH_BYTES, IPC_FILE_BYTES = 64, 4096

# A sealed file of a partition says which ledger it is in every row: who scans many files by
# Spark would have to ask for the name of each, which costs more than all of such a column.
SEALED: Final = MESSAGE.append(pa.field("ledger", pa.int64()))
# Parquet encodings, by spec/analytics 8; payload and properties are PLAIN.
_DICTIONARY: Final = ["kind", "key", "producer"]
_DELTA: Final = [field.name for field in SEALED if field.type in (pa.int64(), pa.int32(), INSTANT)]
_PLAIN: Final = ["value", "properties.key_value.key", "properties.key_value.value"]
# An absent column reads as null; these two every file stores, so that any scan can rely on them.
_ALWAYS: Final = ("kind", "entry")

Form = Literal["part", "sealed", "chunks", "bucket", "adopted"]
Group = tuple[int, int, int, int]  # rows, offset, length, CRC32C


class FileRef(msgspec.Struct, frozen=True, array_like=True):
    """What the manifest knows of a segment file; the groups and the footer cover all its bytes.

    first, last: the least and greatest entry; lsn_first, lsn_last: of the LSN, 0 when the rows
    have none. An empty file has 0, -1. A part is one group and no footer. An adopted file is a
    sealed one whose rows have no LSN: it is here, for all of them. messages: how many rows of a
    sealed file are of kind data; -1 if not counted.
    """

    path: str
    ledger: int
    rows: int
    first: int
    last: int
    bytes: int
    crc: int
    footer_bytes: int
    footer_crc: int
    groups: list[Group]
    lsn_first: int
    lsn_last: int
    form: Form
    clean: bool = False
    messages: int = -1

    @property
    def is_messages_only(self) -> bool:
        """True when every row is known to be of kind data."""
        return self.clean or self.form == "adopted" or self.messages == self.rows


def encode_part(table: pa.Table, identity: Mapping[str, str] | None = None) -> list[memoryview]:
    """The buffers of an Arrow IPC file; columns without any value are left out.

    A null column costs its full width in Arrow, and most rows use a third of the columns.
    identity: what the file says of itself (store, ledger, ...), for inspection.
    """
    table = conform(table)
    kept = [
        field.name
        for field in MESSAGE
        if field.name in _ALWAYS or table.column(field.name).null_count < table.num_rows
    ]
    table = table.select(kept).replace_schema_metadata(dict(identity or {}))
    # a batch for each chunk would be one for each small frame
    pool = pa.system_memory_pool()
    batches = [b for piece in cut(table) for b in piece.combine_chunks(pool).to_batches()]
    # memory that grows while it is written costs twenty times as much as a buffer of its size
    size = sum(map(pa.ipc.get_record_batch_size, batches)) + 2 * table.schema.serialize().size
    buffer = pa.allocate_buffer(
        size + IPC_BATCH_BYTES * len(batches) + IPC_FILE_BYTES, memory_pool=pool
    )
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return [memoryview(buffer)[: sink.tell()].cast("B")]


def encode_sealed(
    table: pa.Table,
    has_keys: bool,
    identity: Mapping[str, str] | None = None,
    *,
    ledger: int | None = None,
) -> list[memoryview]:
    """The buffers of a Parquet file in log order, with every column of the schema.

    DuckDB refuses a scan over files of unequal columns, and a null column costs a few bytes.
    ledger: of a partition's file; in a sidecar's a row is found by its marker
    """
    table = conform(table)
    table = table.append_column(
        SEALED.field("ledger"), pa.repeat(pa.scalar(ledger, pa.int64()), table.num_rows)
    )
    bloom = None
    if has_keys:
        bloom = bloom_of(table.column("key"))
    sink = pa.BufferOutputStream()
    with sealed_writer(sink, bloom, SEALED) as writer:
        writer.add_key_value_metadata(dict(identity or {}))
        for group in cut(table):
            writer.write_table(group, row_group_size=GROUP_ROWS)
    return [memoryview(sink.getvalue()).cast("B")]


def bloom_of(keys: pa.ChunkedArray) -> dict[str, dict[str, int | float]]:
    """The bloom filter of a row group, by the keys that are known."""
    distinct = int(arrow_module("pyarrow.compute").count_distinct(keys).as_py())
    return {"key": {"ndv": max(1, min(distinct, GROUP_ROWS)), "fpp": 0.01}}


def sealed_writer(
    sink: object, bloom: Mapping[str, object] | None, schema: pa.Schema = MESSAGE
) -> ParquetWriter:
    """A writer of the one form of Parquet; sink: whatever pyarrow writes to."""
    delta = [name for name in _DELTA if name in schema.names]
    return arrow_module("pyarrow.parquet").ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARY,
        column_encoding={
            **dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_PLAIN, "PLAIN"),
        },
        write_statistics=[*_DICTIONARY, *delta],
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options=bloom,
        store_schema=False,  # types survive without it
    )


def make_ref(
    path: str,
    ledger: int,
    buffers: Sequence[bytes | memoryview],
    table: pa.Table,
    *,
    form: Form,
    clean: bool = False,
) -> FileRef:
    """Describe a file about to be published: the bytes of `buffers`, which encode `table`."""
    data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
    size = len(data)
    groups: list[Group] = [(table.num_rows, 0, size, crc32c(data))]
    tail, messages = size, -1
    if form == "sealed":
        messages = _count(table, "kind", KIND_DATA)
        bounds = group_bounds(arrow_module("pyarrow.parquet").read_metadata(pa.BufferReader(data)))
        groups = [
            (rows, start, end - start, crc32c(data[start:end])) for rows, start, end in bounds
        ]
        tail = bounds[-1][2] if bounds else 0
    first, last = _bounds(table, "entry")
    lsn_first, lsn_last = _bounds(table, "lsn")
    if lsn_last < 0:
        lsn_first = lsn_last = 0
    return FileRef(
        path=path,
        ledger=ledger,
        rows=table.num_rows,
        first=first,
        last=last,
        bytes=size,
        crc=crc32c(data),
        footer_bytes=size - tail,
        footer_crc=crc32c(data[tail:]),
        groups=groups,
        lsn_first=lsn_first,
        lsn_last=lsn_last,
        form=form,
        clean=clean,
        messages=messages,
    )


@cache
def arrow_module(name: str) -> ModuleType:
    """A part of pyarrow when first needed: parquet and compute cost a short command 50 ms."""
    return importlib.import_module(name)


def cut(table: pa.Table) -> Iterator[pa.Table]:
    """The table in row groups of at most GROUP_ROWS rows and, beyond one row, GROUP_BYTES."""
    for start in range(0, table.num_rows, GROUP_ROWS):
        waiting = [table.slice(start, GROUP_ROWS)]
        while waiting:
            piece = waiting.pop()
            if piece.num_rows > 1 and piece.nbytes > GROUP_BYTES:
                half = piece.num_rows // 2
                waiting += [piece.slice(half), piece.slice(0, half)]
            else:
                yield piece


def _count(table: pa.Table, name: str, value: int) -> int:
    """How many rows have this value."""
    compute = arrow_module("pyarrow.compute")
    found = compute.sum(compute.equal(table.column(name), value)).as_py()
    return int(found or 0)


def _bounds(table: pa.Table, name: str) -> tuple[int, int]:
    """The least and greatest value of a column, (0, -1) when it has none."""
    at = table.schema.get_field_index(name)
    if at < 0 or table.column(at).null_count == table.num_rows:
        return 0, -1
    found = arrow_module("pyarrow.compute").min_max(table.column(at)).as_py()
    return int(found["min"]), int(found["max"])
