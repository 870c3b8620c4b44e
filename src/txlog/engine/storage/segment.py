"""Segment files: the rows of a ledger as bytes, and back, with every byte checked first.

There are two forms and one schema (`columns`). A *part* is an Arrow IPC file, written at a
checkpoint and read whole. A *sealed* file is Parquet, written once and read by row groups; DuckDB
and Spark read it too. Neither format protects its bytes (spec/reliability R5): stock readers accept
flipped bits without an error. So a `FileRef`, kept in the manifest, holds the CRC32C of the whole
file, of each row group and of the tail after the last one, and nothing reaches pyarrow unchecked.

This module makes no file call: it turns tables into bytes that `disk` publishes; `segment_reader`
reads them back. A `SegmentStream` makes them row group by row group, so that a file may be larger
than the memory it takes to write.

Files written for users get row groups of another size (`gathered`). Rows that wait for their group
are in memory. pyarrow's writer also keeps data of each group until the file ends: 16 KB for
seventeen columns, 27 with a page index, and more when it ends. So the first 256 groups have 8 MB
each, and the later groups of a longer file 12.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.checked import group_bounds
from txlog.engine.storage.columns import INSTANT, KIND_DATA, MESSAGE, conform

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

# --- files of ledgers ----------------------------------------------------------------------------


GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 8 << 20
_SMALL_BYTES: Final = 64 << 10  # smaller pieces are written together
# The bytes of an Arrow IPC file around its batches: their blocks in the footer, magics and lengths.
IPC_BATCH_BYTES, IPC_FILE_BYTES = 64, 4096

# A sealed file of a partition has its ledger in every row: otherwise a Spark scan of many files
# would need the name of each file, which costs more than the whole column. DuckDB does not scan
# files with unequal columns together, so files of untyped topics keep the old columns.
BYTES: Final = pa.schema([field for field in MESSAGE if field.name != "schema_version"])
SEALED: Final = BYTES.append(pa.field("ledger", pa.int64()))
RECORD: Final = "record"
# Parquet encodings, by spec/analytics 8; payload and properties are PLAIN.
_DICTIONARY: Final = ["kind", "key", "producer"]
_DELTA: Final = [
    "schema_version",
    *(field.name for field in SEALED if field.type in (pa.int64(), pa.int32(), INSTANT)),
]
_PLAIN: Final = ["value", "properties.key_value.key", "properties.key_value.value"]
# An absent column reads as null; every file stores these two, so that any scan can rely on them.
_ALWAYS: Final = ("kind", "entry")

Form = Literal["part", "sealed", "chunks", "bucket", "adopted"]
Group = tuple[int, int, int, int]  # rows, offset, length, CRC32C


class Records(NamedTuple):
    """How the values of a typed topic become the column `record` of a Parquet file.

    version: of the schema whose type it has; of: the values of rows as structs, null where
             `schema_version` of a row is null, so that its value is unchecked
    """

    version: int
    kind: pa.StructType
    of: Callable[[pa.Table], pa.ChunkedArray]

    def beside(self, rows: pa.Table) -> pa.Table:
        """Append the records to the rows."""
        return rows.append_column(pa.field(RECORD, self.kind), self.of(rows))


class FileRef(msgspec.Struct, frozen=True, array_like=True):
    """The manifest's description of a segment file; groups and footer cover all its bytes.

    first, last: the least and greatest entry; lsn_first, lsn_last: of the LSN, 0 when the rows have
                 none. An empty file has 0, -1. A part is one group and no footer. An adopted file
                 is a sealed file whose rows have no LSN column: lsn_first is the LSN of all rows
    clean:       of a sidecar or compacted: committed messages only, in the order of the markers
    messages:    how many rows of a sealed file are of kind data; -1: not counted
    record:      the version of the schema of the column `record`; 0: there is no such column
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
    record: int = 0

    @property
    def is_messages_only(self) -> bool:
        """True when every row is known to be of kind data."""
        return self.clean or self.form == "adopted" or self.messages == self.rows


def encode_part(table: pa.Table, identity: Mapping[str, str] | None = None) -> list[memoryview]:
    """The buffers of an Arrow IPC file; without columns that have no value.

    A null column costs its full width in Arrow, and most rows use a third of the columns.
    identity: the file's description of itself (store, ledger, ...), for inspection.
    """
    table = conform(table)
    names = [
        field.name
        for field in MESSAGE
        if field.name in _ALWAYS or table.column(field.name).null_count < table.num_rows
    ]
    table = table.select(names).replace_schema_metadata(dict(identity or {}))
    # without this, each small frame would be a batch of its own
    pool = pa.system_memory_pool()
    batches = [b for piece in cut(table) for b in piece.combine_chunks(pool).to_batches()]
    # a buffer that grows while it is written costs twenty times as much as one of its final size
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
    records: Records | None = None,
) -> list[memoryview]:
    """The buffers of a Parquet file in log order, as SegmentStream.sealed makes them."""
    table, keys = conform(table), 0
    if has_keys:
        compute = arrow_module("pyarrow.compute")
        keys = max(1, int(compute.count_distinct(table.column("key")).as_py()))
    stream = SegmentStream(records).sealed([table], keys, identity, ledger=ledger)
    return [memoryview(piece) for piece in stream]


class Sink:
    """A file object that keeps written bytes until `take`."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, data: bytes) -> int:
        if data:
            self._pieces.append(bytes(data))
            self._position += len(data)
        return len(data)

    def take(self) -> list[bytes]:
        """The pieces since the last call, small ones joined: a page header has many."""
        all_pieces, self._pieces = self._pieces, []
        out: list[bytes] = []
        for small, group in groupby(all_pieces, key=lambda piece: len(piece) < _SMALL_BYTES):
            pieces = list(group)
            out += [b"".join(pieces)] if small else pieces
        return out

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self.closed = True


class FileDigest:
    """Sizes and checksums of a file's bytes while a writer produces them into `sink`."""

    __slots__ = ("bytes", "crc", "groups", "sink")

    def __init__(self) -> None:
        self.sink = Sink()
        self.bytes = 0
        self.crc = 0
        self.groups: list[Group] = []

    def take(self) -> tuple[list[bytes], int]:
        """The bytes written since the last call, and their checksum."""
        pieces, crc = self.sink.take(), 0
        for piece in pieces:
            crc = crc32c(piece, crc)
            self.crc = crc32c(piece, self.crc)
            self.bytes += len(piece)
        return pieces, crc

    def take_group(self, rows: int) -> list[bytes]:
        """The bytes since the last call: a row group, or (rows 0) the bytes after the last."""
        start = self.bytes
        pieces, crc = self.take()
        self.groups.append((rows, start, self.bytes - start, crc))
        return pieces


class SegmentStream:
    """A file written as it is published: first its bytes, `part` or `sealed`, then its `ref`.

    It keeps no more in memory than one given table, as rows and encoded.
    """

    __slots__ = ("_entries", "_form", "_lsns", "_messages", "_records", "_rows", "_written")

    def __init__(self, records: Records | None = None) -> None:
        """records: the column of records in a sealed file of a typed topic."""
        self._records = records
        self._form: Form = "part"
        self._written = FileDigest()
        self._rows = 0
        self._messages = -1
        self._entries: list[tuple[int, int]] = []
        self._lsns: list[tuple[int, int]] = []

    def part(
        self,
        tables: Iterable[pa.Table],
        columns: Collection[str],
        identity: Mapping[str, str] | None = None,
    ) -> Iterator[bytes]:
        """The bytes of an Arrow IPC file with these columns; all other columns have no value."""
        names = [name for name in MESSAGE.names if name in columns or name in _ALWAYS]
        schema = pa.schema([MESSAGE.field(name) for name in names], dict(identity or {}))
        pool = pa.system_memory_pool()
        with pa.ipc.new_file(pa.PythonFile(self._written.sink, "w"), schema) as writer:
            for table in tables:
                self._note(table)
                for piece in cut(conform(table).select(names)):
                    for batch in piece.combine_chunks(pool).to_batches():
                        writer.write_batch(batch)
                yield from self._written.take()[0]
        yield from self._written.take()[0]

    def sealed(
        self,
        tables: Iterable[pa.Table],
        distinct_keys: int,
        identity: Mapping[str, str] | None = None,
        *,
        ledger: int | None = None,
    ) -> Iterator[bytes]:
        """The bytes of a Parquet file in log order, with every column of the schema.

        DuckDB refuses a scan over files of unequal columns, and a null column costs a few bytes.
        distinct_keys: approximate number per row group; 0: no keys, and no bloom filter
        ledger:        of a partition's file; a sidecar's row is found by its marker instead
        """
        self._form, self._messages = "sealed", 0
        written = self._written
        bloom = bloom_for(distinct_keys) if distinct_keys else None
        records = self._records
        schema = SEALED if records is None else typed(SEALED, records.kind)
        with sealed_writer(pa.PythonFile(written.sink, "w"), bloom, schema) as writer:
            writer.add_key_value_metadata(dict(identity or {}))
            for table in tables:
                self._note(table)
                self._messages += _count(table, "kind", KIND_DATA)
                ledgers = pa.repeat(pa.scalar(ledger, pa.int64()), table.num_rows)
                for group in cut(conform(table).append_column(SEALED.field("ledger"), ledgers)):
                    rows = group if records is None else records.beside(group)
                    writer.write_table(rows.select(schema.names), row_group_size=GROUP_ROWS)
                    yield from written.take_group(group.num_rows)
        yield from written.take_group(0)

    def ref(self, path: str, ledger: int, *, clean: bool = False) -> FileRef:
        """Describe the file; all its bytes must have been taken."""
        written, (tail_bytes, tail_crc) = self._written, (0, 0)
        if self._form == "part":
            groups: list[Group] = [(self._rows, 0, written.bytes, written.crc)]
        else:
            *groups, (_, _, tail_bytes, tail_crc) = written.groups
        first, last = _spanned(self._entries, (0, -1))
        lsn_first, lsn_last = _spanned(self._lsns, (0, 0))
        return FileRef(
            path=path,
            ledger=ledger,
            rows=self._rows,
            first=first,
            last=last,
            bytes=written.bytes,
            crc=written.crc,
            footer_bytes=tail_bytes,
            footer_crc=tail_crc,
            groups=groups,
            lsn_first=lsn_first,
            lsn_last=lsn_last,
            form=self._form,
            clean=clean,
            messages=self._messages,
            record=0 if self._records is None or self._form == "part" else self._records.version,
        )

    def _note(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        self._entries.append(_bounds(table, "entry"))
        self._lsns.append(_bounds(table, "lsn"))


def _spanned(bounds: Iterable[tuple[int, int]], none: tuple[int, int]) -> tuple[int, int]:
    """The least and greatest of all bounds that are not empty."""
    nonempty = [(low, high) for low, high in bounds if high >= low]
    return (
        (min(low for low, _ in nonempty), max(high for _, high in nonempty)) if nonempty else none
    )


def typed(schema: pa.Schema, kind: pa.StructType) -> pa.Schema:
    """The columns of a file that also has records of this type."""
    return schema.append(MESSAGE.field("schema_version")).append(pa.field(RECORD, kind))


def _leaves(name: str, kind: pa.DataType) -> Iterator[str]:
    """The columns that Parquet makes of a value, by their paths."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{name}.key_value.key", kind.key_type)
        yield from _leaves(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name


def bloom_of(keys: pa.ChunkedArray) -> dict[str, dict[str, int | float]]:
    """The bloom filter of a row group with these keys."""
    return bloom_for(int(arrow_module("pyarrow.compute").count_distinct(keys).as_py()))


def bloom_for(distinct: int) -> dict[str, dict[str, int | float]]:
    """The bloom filter of a row group with this many keys."""
    return {"key": {"ndv": max(1, min(distinct, GROUP_ROWS)), "fpp": 0.01}}


def sealed_writer(
    sink: object, bloom: Mapping[str, object] | None, schema: pa.Schema = BYTES
) -> ParquetWriter:
    """A writer of the one form of Parquet; sink: any target that pyarrow writes to."""
    delta = [name for name in _DELTA if name in schema.names]
    of_records = list(_leaves(RECORD, schema.field(RECORD).type)) if RECORD in schema.names else []
    return arrow_module("pyarrow.parquet").ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=1,
        use_dictionary=[*_DICTIONARY, *of_records],
        column_encoding={
            **dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_PLAIN, "PLAIN"),
        },
        write_statistics=[*_DICTIONARY, *delta, *of_records],
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
    records: Records | None = None,
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
        record=0 if records is None else records.version,
    )


@cache
def arrow_module(name: str) -> ModuleType:
    """A part of pyarrow, imported at first use: parquet and compute cost a short command 50 ms."""
    return importlib.import_module(name)


def piece_rows(rows: int, size: int) -> int:
    """How many rows to read at once, about a row group; size: the bytes of `rows` rows."""
    step = GROUP_ROWS
    while step > 1 and step * size > 2 * GROUP_BYTES * rows:
        step //= 2  # as `cut` does
    return step


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
    total = compute.sum(compute.equal(table.column(name), value)).as_py()
    return int(total or 0)


def _bounds(table: pa.Table, name: str) -> tuple[int, int]:
    """The least and greatest value of a column, (0, -1) when it has none."""
    at = table.schema.get_field_index(name)
    if at < 0 or table.column(at).null_count == table.num_rows:
        return 0, -1
    bounds = arrow_module("pyarrow.compute").min_max(table.column(at)).as_py()
    return int(bounds["min"]), int(bounds["max"])


# --- row groups of users' files ------------------------------------------------------------------


ROWS_MAX: Final = 1 << 20
BYTES_FIRST, BYTES_MAX = 8 << 20, 12 << 20
GROUPS_OF_A_SIZE: Final = 256
# The limit of a dictionary. With a larger one, the writer would look up most rows of a group in it
# before it gives up, for a column with many values.
DICTIONARY_BYTES: Final = 256 << 10


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables of row groups, joined from consecutive tables; none is empty."""
    waiting: list[pa.Table] = []
    rows = size = groups = 0
    for table in tables:
        if not table.num_rows:
            continue
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        del table  # the caller must not keep written rows while it waits for the next table
        if rows >= ROWS_MAX or size >= _most(groups):
            together, waiting, rows, size = pa.concat_tables(waiting), [], 0, 0
            groups += 1
            yield together
            del together
    if waiting:
        yield pa.concat_tables(waiting)


def _most(groups: int) -> int:
    """The bytes that make a row group, after this many groups."""
    return min(BYTES_FIRST << (groups // GROUPS_OF_A_SIZE), BYTES_MAX)
