"""Owns what an exported message looks like: its columns, and the bytes of each form of file.

    parquet, arrow   COLUMNS: key and value are bytes, instants UTC in milliseconds
    csv              the same as text, instants that no year from 1 to 9999 has as epoch ms; key and
                     value as their encoding says: utf8, base64, or empty: there is none
    ndjson           the envelope of FORMAT records (`produce --in envelope` takes it byte for byte)

Text is made by DuckDB, column by column: no message becomes an object of Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from txlog.engine.model.schema import INSTANT, PROPERTY_MAP
from txlog.errors import InvalidArgument
from txlog.ids import TxnId
from txlog.ranges import INSTANT_MS_MIN
from txlog.settings import INSTANT_MS_MAX
from txlog.sql.duck import Session
from txlog.startup import compute as pc

FORMS: Final = ("parquet", "arrow", "csv", "ndjson")
COLUMNS: Final = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("message_id", pa.string()),
        ("key", pa.binary()), ("value", pa.binary()), ("properties", PROPERTY_MAP),
        ("publish_time", INSTANT), ("event_time", INSTANT), ("deliver_at", INSTANT),
        ("visible_time", INSTANT), ("txn", pa.string()), ("txn_index", pa.int32()),
        ("producer", pa.string()), ("sequence_id", pa.int64()),
    ]
)  # fmt: skip
# By what files may be parted; a date is a day in UTC.
PLACES: Final = ("partition", "key", "producer", "publish_date", "event_date")
PLACES_MAX: Final = 500  # files that are open at once
_TIMES: Final = [field.name for field in COLUMNS if field.type == INSTANT]
_NOWHERE: Final = "__HIVE_DEFAULT_PARTITION__"
_HIGH: Final = pa.scalar((1 << 48) - 1, pa.int64())


def _text(column: str) -> str:
    """SQL for bytes as text, and how it says them."""
    said = f"CASE WHEN {column} IS NULL THEN NULL WHEN try(decode({column})) IS NULL"
    return (
        f"coalesce(try(decode({column})), to_base64({column})) AS {column}, "
        f"{said} THEN 'base64' ELSE 'utf8' END AS {column}_encoding"
    )


def _time(column: str) -> str:
    """SQL for an instant as records print it: what no year has as epoch ms."""
    year = f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%gZ')"
    within = f"{column}_ms BETWEEN {INSTANT_MS_MIN} AND {INSTANT_MS_MAX}"
    return f"CASE WHEN {within} THEN {year} ELSE CAST({column}_ms AS VARCHAR) END AS {column}"


_TEXTS: Final = f"{_text('key')}, {_text('value')}"
_CSV: Final = (
    f"SELECT topic, partition, message_id, {_TEXTS}, CAST(to_json(properties) AS VARCHAR) AS"
    f" properties, {', '.join(map(_time, ('publish_time', 'event_time', 'deliver_at')))},"
    f" {_time('visible_time')}, txn, txn_index, producer, sequence_id FROM rows"
)
_MEMBERS: Final = {
    **{name: name for name in ("key", "key_encoding", "value", "value_encoding")},
    "properties": "coalesce(to_json(properties), CAST('{}' AS JSON))",
    **{name: f"{name}_ms" for name in ("event_time", "deliver_at")},
    **{name: name for name in ("topic", "partition", "message_id")},
    "publish_time": "publish_time_ms", "producer": "producer", "sequence_id": "sequence_id",
}  # fmt: skip
_ENVELOPES: Final = (
    "SELECT json_object(" + ", ".join(f"'{name}', {sql}" for name, sql in _MEMBERS.items()) + ")"
    f" || chr(10) AS line FROM (SELECT * EXCLUDE (key, value), {_TEXTS} FROM rows)"
)


class Writer(Protocol):
    """What takes the messages of one file."""

    def write(self, rows: pa.Table) -> None:
        """Add rows of COLUMNS."""

    def close(self) -> None:
        """Write the end of the file; it stays open."""

    def drop(self) -> None:
        """Write nothing any more, the end included; behind `close` it does nothing."""


def exported(received: pa.Table) -> pa.Table:
    """Rows of RECEIVED as rows of COLUMNS."""
    made = {
        "message_id": message_ids(received), "txn": _transactions(received),
        "txn_index": received.column("index"),
    }  # fmt: skip
    columns = [made[n] if n in made else received.column(n) for n in COLUMNS.names]
    return pa.table(columns, schema=COLUMNS)


def message_ids(received: pa.Table) -> pa.ChunkedArray:
    """The ids of messages as text."""
    parts = [received.column(name).cast(pa.string()) for name in ("ledger", "entry", "index")]
    return pc.binary_join_element_wise(*parts, ":", null_handling="skip")


def _transactions(received: pa.Table) -> pa.ChunkedArray:
    most, least = received.column("txn_most"), received.column("txn_least")
    if most.null_count == len(most):
        return pa.chunked_array([pa.nulls(len(most), pa.string())])
    if pc.any(pc.greater(pc.bit_wise_and(most, _HIGH), pa.scalar(0, pa.int64()))).as_py():
        pairs = zip(most.to_pylist(), least.to_pylist(), strict=True)  # beyond 2**64 of them
        texts = [None if one is None else str(TxnId.from_halves(one, two)) for one, two in pairs]
        return pa.chunked_array([pa.array(texts, pa.string())])
    parts = [_unsigned(pc.shift_right(most.cast(pa.int64()), 48), 0xFFFF), _unsigned(least, None)]
    return pc.binary_join_element_wise(*parts, ":")


def _unsigned(column: pa.ChunkedArray, mask: int | None) -> pa.ChunkedArray:
    if mask is not None:
        column = pc.bit_wise_and(column, pa.scalar(mask, pa.int64()))
    chunks = [chunk.view(pa.uint64()) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.uint64()).cast(pa.string())


def writer(form: str, sink: BinaryIO, without: Sequence[str] = (), *, seeks: bool = True) -> Writer:
    """What writes a file of a form.

    without: columns that the names of directories say
    seeks:   the sink is a file
    """
    schema = pa.schema([field for field in COLUMNS if field.name not in without])
    if form == "parquet":
        return _Arrow(schema, pq.ParquetWriter(
            sink, schema, version="2.6", compression="zstd", compression_level=1,
            use_dictionary=["topic", "key", "producer", "txn"], write_page_index=True,
            write_page_checksum=True,
        ))  # fmt: skip
    if form == "arrow":
        made = pa.ipc.new_file(sink, schema) if seeks else pa.ipc.new_stream(sink, schema)
        return _Arrow(schema, made)
    return _Text(form, sink, without)


@contextmanager
def dropping(made: Writer) -> Iterator[Writer]:
    """A writer that, closed or not, leaves its sink alone when the block ends."""
    try:
        yield made
    finally:
        made.drop()


class _Arrow:
    def __init__(self, schema: pa.Schema, sink: Any) -> None:
        self._names = schema.names
        self._sink = sink

    def write(self, rows: pa.Table) -> None:
        self._sink.write_table(rows.select(self._names))

    def close(self) -> None:
        self._sink.close()

    def drop(self) -> None:
        # Else a writer of Parquet writes the end when it is collected, and says on stderr that its
        # sink is closed.
        if isinstance(self._sink, pq.ParquetWriter):
            self._sink.is_open = False


class _Text:
    def __init__(self, form: str, sink: BinaryIO, without: Sequence[str]) -> None:
        self._session = Session()
        self._is_csv = form == "csv"
        self._sink = sink
        self._without = {*without, *(f"{name}_encoding" for name in without)}
        self._header = True
        if self._is_csv:
            self.write(COLUMNS.empty_table())

    def write(self, rows: pa.Table) -> None:
        for name in _TIMES:
            rows = rows.append_column(f"{name}_ms", rows.column(name).cast(pa.int64()))
        self._session.register("rows", rows)
        if not self._is_csv:
            for lines in self._session.stream(_ENVELOPES):
                self._sink.write(_bytes(lines.column(0)))
            return
        found = self._session.arrow(_CSV)
        kept = [name for name in found.column_names if name not in self._without]
        options = pacsv.WriteOptions(include_header=self._header, quoting_style="needed")
        self._header = False
        pacsv.write_csv(found.select(kept), self._sink, options)

    def close(self) -> None:
        self._session.close()

    def drop(self) -> None:
        self._session.close()


def _bytes(lines: pa.Array) -> memoryview:
    """The text of an array without nulls, as it lies in memory."""
    ends = lines.cast(pa.large_string()).cast(pa.large_binary())
    offsets, data = ends.buffers()[1], ends.buffers()[2]
    found = memoryview(offsets).cast("q")[ends.offset : ends.offset + len(ends) + 1]
    return memoryview(data or b"").cast("B")[found[0] : found[-1]]


def by_place(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The rows by the directory they belong to, `name=value/…`, in their order.

    names: of PLACES; none: all rows belong to the directory itself
    """
    if not names:
        yield "", rows
        return
    codes: pa.Array | None = None
    words: list[list[str]] = []
    for name in names:
        column = _place(rows, name).combine_chunks().dictionary_encode("encode")
        words.append([f"{name}={_word(value)}" for value in column.dictionary.to_pylist()])
        indices = column.indices.cast(pa.int64())
        width = pa.scalar(max(1, len(words[-1])), pa.int64())
        codes = indices if codes is None else pc.add(pc.multiply(codes, width), indices)
    assert codes is not None
    distinct = codes.unique().to_pylist()
    if len(distinct) > PLACES_MAX:
        raise InvalidArgument(
            f"{len(distinct)} files at once by {', '.join(names)}, at most {PLACES_MAX}",
            hint="part by less",
        )
    for code in distinct:
        parts: list[str] = []
        rest = code
        for listed in reversed(words):
            rest, at = divmod(rest, max(1, len(listed)))
            parts.append(listed[at])
        here = rows.filter(pc.equal(codes, pa.scalar(code, pa.int64())))
        yield "/".join(reversed(parts)), here


def _place(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name.endswith("_date"):
        times = rows.column(name.replace("_date", "_time"))
        ms = times.cast(pa.int64())
        within = pc.and_(
            pc.greater_equal(ms, pa.scalar(INSTANT_MS_MIN, pa.int64())),
            pc.less_equal(ms, pa.scalar(INSTANT_MS_MAX, pa.int64())),
        )  # what no year has, has no date
        times = pc.if_else(within, times, pa.scalar(None, times.type))
        return pc.strftime(times, "%Y-%m-%d")
    return rows.column(name)


def _word(value: Any) -> str:
    if value is None:
        return _NOWHERE
    return quote(value if isinstance(value, bytes) else str(value), safe="")
