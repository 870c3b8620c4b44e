"""Owns the records of an input as values of a typed topic.

The schema encodes rows of csv and tsv without a column `value`: a column is a field, an empty cell
is null unless it is text, and key, times and properties are fields only if the schema names them.
For a topic of Avro, lines of ndjson become Avro. All other values are only checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from txlog.base.schemas import values
from txlog.base.schemas.schema import Schema
from txlog.base.startup import compute as pc
from txlog.cli.input.inputs import Input
from txlog.errors import BadRecord, InvalidMessage, NotFound

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.client.sending.producer import Producer

_OF_MESSAGES = frozenset(("key", "event_time", "deliver_at", "deliver_after"))
_ROW = re.compile(r"row \d+: ")
_ROWS_MAX = 1_024
Encode = Callable[[pa.Array], pa.Array]


class Typed:
    """Converts or checks the values for a topic; a topic of bytes takes any."""

    def __init__(self, client: Client, topic: str, producer: Producer) -> None:
        self._schema: Schema | None = None
        if not producer.session.has_schema:  # no schema: skip the imports that the checks need
            return
        try:
            schema = client.topic(topic).schemas.get()
        except NotFound:
            return
        if not schema.is_record:
            return
        self._schema = schema
        policies = client.admin.get_schema_policies(topic)["policies"]
        self._is_strict = policies["validation"] == "enforce"

    def fitting(self, input: Input, table: pa.Table) -> Iterator[pa.Table]:
        """The records of a table as values of the topic; the input handles bad ones.

        raises: BadRecord (104), after the records before it
        """
        schema = self._schema
        if schema is None:
            yield table
            return
        encode: Encode
        if input.header is not None and "value" not in input.header:
            names = [name for name in input.header if _is_field(schema, name)]
            encode = lambda column: _of_cells(schema, names, column)  # noqa: E731
        elif input.form == "ndjson" and schema.type == "avro":
            encode = lambda column: _of_json(schema, column)  # noqa: E731
        elif self._is_strict:
            encode = lambda column: _checked(schema, column)  # noqa: E731
        else:
            yield table
            return
        for start in range(0, len(table), _ROWS_MAX):
            yield from self._block(input, table.slice(start, _ROWS_MAX), encode)

    def _block(self, input: Input, table: pa.Table, encode: Encode) -> Iterator[pa.Table]:
        column = table["value"].combine_chunks()
        try:
            yield _with(table, encode(column))
            return
        except InvalidMessage:
            pass  # find the bad rows one by one below
        good: list[int] = []
        encoded: list[bytes | None] = []
        for row in range(len(table)):
            try:
                encoded += encode(column.slice(row, 1)).to_pylist()
            except InvalidMessage as error:
                if self._is_strict:
                    line = table["line"][row].as_py()
                    bad = BadRecord(f"line {line}: {_ROW.sub('', error.message)}", line=line)
                    if not input.skip_bad and good:
                        yield _with(table.take(good), pa.array(encoded, pa.binary()))
                    input.bad(bad, column[row].as_py())
                    continue
                encoded.append(column[row].as_py())
            good.append(row)
        if good:
            yield _with(table.take(good), pa.array(encoded, pa.binary()))


def _with(table: pa.Table, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index("value"), "value", values)


def _is_field(schema: Schema, name: str) -> bool:
    """Whether a column is a field of the record; the check refuses unknown columns later."""
    if schema.record.field(name) is not None:
        return True
    return name not in _OF_MESSAGES and not name.startswith("prop.")


def _of_cells(schema: Schema, names: list[str], column: pa.Array) -> pa.Array:
    """The values of rows, given as JSON objects of strings."""
    rows: list[Mapping[str, str]] = [msgspec.json.decode(text) for text in column.to_pylist()]
    columns = []
    for name in names:
        cells = pa.array([row[name] for row in rows], pa.string())
        field = schema.record.field(name)
        if field is not None and not pa.types.is_string(field.type.arrow):
            cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
        columns.append(cells)
    return values.encode(schema, pa.StructArray.from_arrays(columns, names=names))


def _of_json(schema: Schema, column: pa.Array) -> pa.Array:
    """The values of lines of JSON."""
    written = Schema("json", schema.definition)
    return values.encode(schema, values.decode(written, _checked(written, column)))


def _checked(schema: Schema, column: pa.Array) -> pa.Array:
    for row, why in values.invalid(schema, column):
        raise InvalidMessage(f"row {row}: {why}")
    return column
