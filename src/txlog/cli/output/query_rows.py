"""Owns the output of query rows: printed in any form of a listing, or written to a file.

The statement chooses the columns, so their types, not their names, decide the form of values.
Bytes are text if they are UTF-8, else base64; decimals keep every digit.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
from msgspec.structs import replace

from txlog.base.startup import compute as pc
from txlog.base.text import columns, formats
from txlog.base.text.columns import Column, Part
from txlog.cli.output.output import Output, check_columns, delimited, tsv_cell
from txlog.cli.terminal.tables import cell, table
from txlog.engine.door.disk import replacing
from txlog.engine.door.segments import DICTIONARY_BYTES, arrow_module, gathered
from txlog.errors import AlreadyExists, Usage

_MAPS: Final = (
    pa.map_(pa.string(), pa.string()), pa.map_(pa.string(), pa.field("value", pa.string(), False))
)  # fmt: skip
_ZONES: Final = (None, "UTC", "Etc/UTC")
_YEAR_1_S: Final = -62_135_596_800
_YEAR_10000_S: Final = 253_402_300_800
_ENDLESS: Final = (1 << 63) - 1  # DuckDB's infinity
_ENDLESS_DAYS: Final = (1 << 31) - 1
_DAY_MS: Final = 86_400_000
_OUT: Final = ("parquet", "csv", "tsv", "ndjson", "arrow")
Batches = tuple[pa.Schema, Iterator[pa.RecordBatch]]


class Rows(Protocol):
    """Rows that arrive in batches."""

    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def limited(rows: Rows, limit: int | None) -> Batches:
    """The schema of a query, and its batches up to a limit of rows; later ones never run."""

    def some() -> Iterator[pa.RecordBatch]:
        if limit is None:
            yield from rows
            return
        remaining = limit
        for batch in rows if remaining else ():
            yield batch.slice(0, remaining)
            remaining -= min(remaining, batch.num_rows)
            if not remaining:
                return

    return rows.schema, some()


def begun(batches: Batches) -> Batches:
    """Compute the first batch now, so that an error comes before any output; return all."""
    schema, pieces = batches
    first = [*islice(pieces, 1)]
    return schema, chain(first, pieces)


class Columns:
    """The columns of a schema as rows, each with its name and type."""

    schema = pa.schema([("column", pa.string()), ("type", pa.string())])

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = [*schema]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        names = [field.name for field in self._fields]
        types = [str(field.type) for field in self._fields]
        yield pa.record_batch([pa.array(names), pa.array(types)], schema=self.schema)


def values(batch: pa.RecordBatch) -> list[list[object]]:
    """The rows of a batch, each as plain values in the order of the columns."""
    listed = [
        [_plain(value, field.type) for value in _listed(column)]
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return [list(row) for row in zip(*listed, strict=True)]


def _listed(column: pa.Array) -> list[object]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    if pa.types.is_time64(column.type) and column.type.unit == "ns":
        column = column.cast(pa.time64("us"), safe=False)
    try:
        listed: list[object] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_far(value) for value in column]
    return listed


def _far(value: pa.Scalar) -> object:
    """A value of a column where some instants or dates are outside the years 1 to 9999.

    Those become epoch ms as text, at any depth; `infinity` and `-infinity` keep DuckDB's names.
    """
    if not value.is_valid:
        return None
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        kind = value.type
    if pa.types.is_map(kind):
        return [(_far(item["key"]), _far(item["value"])) for item in value.values]
    if pa.types.is_struct(kind):
        return {name: _far(item) for name, item in value.items()}
    if hasattr(value, "values"):
        return [_far(item) for item in value.values]
    number = value.value
    if pa.types.is_time(kind):  # of nanoseconds
        return (datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=number // 1000)).time()
    if abs(number) == (_ENDLESS_DAYS if pa.types.is_date32(kind) else _ENDLESS):
        return "infinity" if number > 0 else "-infinity"
    if pa.types.is_date32(kind):
        return str(number * _DAY_MS)
    per_ms = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
    times, parts = per_ms[kind.unit]
    return str(number * times // parts)


def _plain(value: Any, kind: pa.DataType) -> object:
    """A value in its JSON form."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and kind.scale == 0 else str(value)
    if isinstance(value, datetime):
        digits = "milliseconds" if value.microsecond % 1000 == 0 else "microseconds"
        return value.replace(tzinfo=None).isoformat(timespec=digits) + "Z" * (kind.tz is not None)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, pa.MonthDayNano):
        return _interval(value)
    if pa.types.is_map(kind):
        return {
            str(_plain(key, kind.key_type)): _plain(item, kind.item_type) for key, item in value
        }
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, kind.field(name).type) for name, item in value.items()}
    return str(value)


class Printed:
    """Prints the rows of a query in the chosen form.

    columns: print only these columns
    """

    def __init__(self, output: Output, columns: Sequence[str] = ()) -> None:
        self._output = output
        self._columns = columns
        self._is_first = True

    def print(self, batches: Batches) -> int:
        """Print all rows; return their number. Raises Usage when two columns have one name."""
        schema, pieces = batches
        names = _distinct(schema)
        if self._columns:
            check_columns(self._columns, names)
            names = [*self._columns]
            pieces = (batch.select(names) for batch in pieces)
        form = self._output.form
        if form in ("table", "wide", "md"):
            rows = [row for batch in pieces for row in values(batch)]
            look = replace(self._output.look, human=False)  # names of a query do not imply units
            listed = [dict(zip(names, row, strict=True)) for row in rows]
            self._output.drawn(table(names, listed, look, markdown=form == "md", of_query=True))
            return len(rows)
        count = 0
        self._output.text({"json": "["}.get(form, ""))
        if form in ("tsv", "csv"):
            header = [tsv_cell(name) for name in names] if form == "tsv" else names
            self._output.text(delimited(form, header, []))
        for batch in pieces:
            count += batch.num_rows
            for piece in columns.pieces(batch):
                self._output.out.write(self._encoded(form, names, piece))
        self._output.text({"json": "]\n"}.get(form, ""))
        return count

    def _encoded(self, form: str, names: list[str], batch: pa.RecordBatch) -> memoryview:
        if form in ("tsv", "csv"):
            return _delimited(form, batch)
        if form == "names":
            return _delimited("tsv", batch.select([0]))
        if form == "ndjson":
            return _lines(names, batch)
        line = [b",", *_objects(names, batch)]
        data = columns.data_of(columns.joined(line, batch.num_rows))
        if not self._is_first or not data:
            return data
        self._is_first = False
        return data[1:]


def _objects(names: Sequence[str], batch: pa.RecordBatch) -> list[Part]:
    """Each row as a JSON object."""
    widen = columns.widened(batch)
    members = {
        name: _member(widen(column)) for name, column in zip(names, batch.columns, strict=True)
    }
    return columns.json_object(list(members.items()))


def _lines(names: Sequence[str], batch: pa.RecordBatch) -> memoryview:
    return columns.data_of(columns.joined([*_objects(names, batch), b"\n"], batch.num_rows))


def _delimited(form: str, batch: pa.RecordBatch) -> memoryview:
    widen = columns.widened(batch)
    cells = [_cell(form, widen(column)) for column in batch.columns]
    return columns.data_of(columns.joined(columns.delimited(form, cells), batch.num_rows))


def _cell(form: str, column: pa.Array) -> list[Part]:
    text_form = _text(column)
    if text_form is None:
        plain = [_plain(value, column.type) for value in _listed(column)]
        return columns.cell(form, pa.array([cell(value) for value in plain], pa.string()))
    text, takes = text_form
    return columns.cell(form, text, is_safe=takes in ("nothing", "quotes"))


def _member(column: pa.Array) -> list[Part]:
    text_form = _text(column)
    if text_form is None:
        texts = [_dump(_plain(value, column.type)) for value in _listed(column)]
        return columns.json_bare(pa.array(texts, pa.string()))
    text, takes = text_form
    if takes == "escapes":
        return columns.json_text(text)
    return columns.json_safe(text) if takes == "quotes" else columns.json_bare(text)


def _text(column: pa.Array) -> tuple[Column, str] | None:
    """A column as text, and its treatment in JSON; None: no kernel can convert it.

    escapes   any text: escape and quote it
    quotes    a string in which nothing needs escaping: quote it
    nothing   a number: write it as it is
    object    already JSON
    """
    kind = column.type
    if column.null_count == len(column):
        return None, "nothing"
    if pa.types.is_dictionary(kind):
        return _text(column.dictionary_decode())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return columns.numbers(column), "nothing"
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return columns.strings(column.cast(pa.string())), "nothing"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return columns.strings(column), "escapes"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return columns.text_of(column)[0], "escapes"
    if pa.types.is_timestamp(kind) and kind.tz in _ZONES:
        return columns.by_distinct(column, _moments), "quotes"
    if kind in _MAPS:
        pairs = columns.pairs_of(column)
        text = pa.repeat("{}", len(column)) if pairs is None else pairs.objects()
        return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string())), "object"
    return None


def _moments(column: pa.Array) -> pa.Array:
    """Instants as `_plain` writes them, without a Python object for each."""
    kind = column.type
    if kind.unit == "ns":
        kind = pa.timestamp("us", kind.tz)
        column = column.cast(kind, safe=False)
    number = column.cast(pa.int64())
    second = {"s": 1, "ms": 1000, "us": 1_000_000}[kind.unit]
    within = pc.and_(
        pc.greater_equal(number, _YEAR_1_S * second), pc.less(number, _YEAR_10000_S * second)
    )
    near = pc.if_else(within, number, pa.scalar(0, pa.int64()))
    if kind.unit == "s":
        near, second = pc.multiply(near, 1000), 1000
    text = near.cast(pa.timestamp("ms" if second == 1000 else "us")).cast(pa.string())
    if second == 1_000_000:
        whole = pc.equal(pc.multiply(pc.divide(near, 1000), 1000), near)
        text = pc.if_else(whole, pc.binary_replace_slice(text, 23, 26, ""), text)
    text = pc.binary_replace_slice(text, 10, 11, "T")
    text = pc.binary_join_element_wise(text, "Z" if kind.tz else "", "")
    if pc.all(within).as_py() in (True, None):
        return text
    far = [_far(value) for value in pc.if_else(within, None, number).cast(kind)]
    return pc.if_else(within, text, pa.array(far, pa.string()))


def check_out(path: str, force: bool) -> None:
    """Refuse a file without a known suffix, or an existing one. Raises Usage, AlreadyExists."""
    suffixes = ", ".join(formats.SUFFIXES)
    formats.check_form(path, formats.suffix_form(path), _OUT, f"the suffix chooses: {suffixes}")
    if os.path.lexists(path) and not force:
        raise AlreadyExists(f"{path} exists", hint="--force replaces it", path=path)


def write_out(path: str, batches: Batches, *, force: bool) -> int:
    """Write the rows to a file, which appears only when complete; returns the number of rows.

    raises: DiskFailed; AlreadyExists when another process created the file meanwhile, without force
    """
    schema, pieces = batches
    names = _distinct(schema)
    form = formats.suffix_form(path)
    with replacing(path, only_new=not force) as file, formats.packed(file, path) as sink:
        if form in formats.TEXTS:
            return _write_text(form, sink, names, pieces)
        tables: Iterator[pa.Table]
        tables = (pa.Table.from_batches([batch], schema) for batch in pieces)
        if form == "arrow":
            writer = pa.ipc.new_file(sink, schema)
        else:
            writer = arrow_module("pyarrow.parquet").ParquetWriter(
                sink, schema, version="2.6", dictionary_pagesize_limit=DICTIONARY_BYTES
            )
            tables = gathered(tables)
        count = 0
        with writer:
            for rows in tables:
                writer.write_table(rows, rows.num_rows)
                count += rows.num_rows
        return count


def _write_text(
    form: str, file: BinaryIO, names: list[str], pieces: Iterator[pa.RecordBatch]
) -> int:
    if form != "ndjson":
        header = [tsv_cell(name) for name in names] if form == "tsv" else names
        file.write(delimited(form, header, []).encode())
    count = 0
    for batch in pieces:
        for piece in columns.pieces(batch):
            file.write(_lines(names, piece) if form == "ndjson" else _delimited(form, piece))
        count += batch.num_rows
    return count


def _distinct(schema: pa.Schema) -> list[str]:
    names: Sequence[str] = schema.names
    for name in names:
        if names.count(name) > 1:
            raise Usage(f"two columns are called {name}", hint="rename one with AS")
    return list(names)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _interval(value: Any) -> str:
    """An interval as DuckDB writes it: 1 year 2 months 3 days 04:05:06.000007."""
    years, months = divmod(abs(value.months), 12)
    sign = -1 if value.months < 0 else 1
    counts = ((sign * years, "year"), (sign * months, "month"), (value.days, "day"))
    units = [f"{n} {unit}{'' if abs(n) == 1 else 's'}" for n, unit in counts if n]
    micros = abs(value.nanoseconds) // 1000
    if micros or not units:
        seconds, parts = divmod(micros, 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        fraction = f".{parts:06d}".rstrip("0") if parts else ""
        units.append(f"{'-' * (value.nanoseconds < 0)}{clock}{fraction}")
    return " ".join(units)
