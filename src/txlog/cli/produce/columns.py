"""Owns how the records of an input become messages, column by column.

A field of the record takes precedence; flags fill in missing ones. deliver_at and deliver_after
count as one field: a flag sets the time of records that have neither.

With a dead-letter topic, a bad record becomes a dead letter: its value is the original record (null
when too large for a message), and the properties REAL_TOPIC, ORIGIN_LINE and EXCEPTION hold its
origin and the error, as with `run`.

With --chunking large records are sent alone. A raw file is never in memory as a whole: its blocks
go to the producer as they are read. A signal between two blocks ends the message before any frame
names a part of it.

The schema of a typed topic encodes rows of csv and tsv without a column `value`: a column is a
field, an empty cell is null unless it is text that cannot be null, and key, times and properties
are fields only if the schema names them. For a topic of Avro, lines of ndjson become Avro. All
other values are only checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from txlog.base.ids import SEQUENCE_STOP, TxnId
from txlog.base.schemas import schema as definitions
from txlog.base.schemas import values
from txlog.base.startup import compute as pc
from txlog.cli.input import inputs
from txlog.cli.output import records
from txlog.cli.produce.request import Request
from txlog.cli.terminal.signals import raise_if_asked
from txlog.engine.door.sending import message_bytes
from txlog.errors import BadRecord, InvalidArgument, InvalidMessage, NotFound

if TYPE_CHECKING:
    from txlog.base.schemas.schema import Schema
    from txlog.cli.input.inputs import Input
    from txlog.client.client import Client
    from txlog.client.sending.producer import Producer
    from txlog.engine.door.sending import BatchReceipt, LargeReceipt

_PROPERTY_MAP = pa.map_(pa.string(), pa.string())
_INSTANT = pa.timestamp("ms", "UTC")
_MS = pa.int64()
_OF_MESSAGES = frozenset(("key", "event_time", "deliver_at", "deliver_after"))
_ROW = re.compile(r"row \d+: ")
_ROWS_MAX = 1_024
Encode = Callable[[pa.Array], pa.Array]


# --- values from flags -----------------------------------------------------------------------


def filled(request: Request, table: pa.Table, sent: int) -> pa.Table:
    """The columns to send: the columns of the input, completed by the flags.

    sent: number of records sent before; --seq-from counts on from there
    """
    count = len(table)
    columns: dict[str, pa.Array] = {"value": table["value"]}
    fills = {"key": (request.key, pa.binary()), "event_time": (request.event_time, _INSTANT)}
    for name, (fill, kind) in fills.items():
        _add(columns, name, _filled(table, name, fill, kind))
    for name, column in _deliveries(request, table).items():
        _add(columns, name, column)
    map_column = table["properties"] if "properties" in table.column_names else None
    if request.properties:
        flags = list(request.properties.items())
        if map_column is None:
            columns["properties"] = pa.repeat(pa.scalar(flags, _PROPERTY_MAP), count)
        else:
            merged = [
                {**request.properties, **dict(row_properties or ())}
                for row_properties in map_column.to_pylist()
            ]
            columns["properties"] = pa.array([list(m.items()) for m in merged], _PROPERTY_MAP)
    elif map_column is not None:
        columns["properties"] = map_column
    if request.partition is not None:
        columns["partition"] = pa.repeat(pa.scalar(request.partition, pa.int32()), count)
    elif request.keep_partition and "partition" in table.column_names:
        columns["partition"] = table["partition"]
    if request.seq_from is not None:
        first = request.seq_from + sent
        if first + count > SEQUENCE_STOP:
            raise InvalidArgument(f"there is no sequence id above {SEQUENCE_STOP - 1}", code=203)
        columns["sequence_id"] = pc.add(pa.arange(0, count), first)
    elif request.keep_sequence and "sequence_id" in table.column_names:
        columns["sequence_id"] = table["sequence_id"]
    return pa.table(columns)


def _add(columns: dict[str, pa.Array], name: str, column: pa.Array | None) -> None:
    if column is not None:
        columns[name] = column


def _filled(
    table: pa.Table, name: str, fill: bytes | int | None, kind: pa.DataType
) -> pa.Array | None:
    """A column of the input, its nulls filled by the flag; None: neither has values."""
    column = table[name] if name in table.column_names else None
    if fill is None:
        return column
    scalar = pa.scalar(fill, kind)
    return pa.repeat(scalar, len(table)) if column is None else pc.coalesce(column, scalar)


def _deliveries(request: Request, table: pa.Table) -> dict[str, pa.Array | None]:
    """The columns deliver_at and deliver_after."""
    fills = {
        "deliver_at": (request.deliver_at, _INSTANT),
        "deliver_after": (request.deliver_after_ms, _MS),
    }
    columns = {name: table[name] if name in table.column_names else None for name in fills}
    says = [column.is_valid() for column in columns.values() if column is not None]
    for name, (fill, kind) in fills.items():
        if fill is None:
            continue
        if not says:
            columns[name] = pa.repeat(pa.scalar(fill, kind), len(table))
            continue
        is_said = says[0] if len(says) == 1 else pc.or_(*says)
        column = columns[name] if columns[name] is not None else pa.nulls(len(table), kind)
        columns[name] = pc.if_else(is_said, column, pa.scalar(fill, kind))
    return columns


# --- dead letters ----------------------------------------------------------------------------


class Letters:
    """Bad records, held until they are sent with the good ones around them; taken: how many."""

    def __init__(self, request: Request, client: Client) -> None:
        self.taken = 0
        self.held: list[tuple[bytes | None, list[tuple[str, str]]]] = []
        self._topic = request.topic
        self._most = client.settings.max_message_bytes
        name = request.on_error.topic
        self._producer = None if name is None else client.producer(name)

    def add(self, record: bytes | None, error: BadRecord) -> None:
        """Hold a bad record."""
        reason = error.message.partition(": ")[2] or error.message
        properties = {
            "REAL_TOPIC": self._topic,
            "ORIGIN_LINE": str(error.fields.get("line", "")),
            "EXCEPTION": reason,
        }
        room = self._most - sum(len(k.encode()) + len(v.encode()) for k, v in properties.items())
        if record is not None and len(record) > room:
            record = None
        self.held.append((record, [*properties.items()]))

    def take(self) -> pa.Table:
        """The held records as messages."""
        letters, self.held = self.held, []
        self.taken += len(letters)
        return pa.table(
            {
                "value": pa.array([record for record, _ in letters], pa.binary()),
                "properties": pa.array([properties for _, properties in letters], _PROPERTY_MAP),
            }
        )

    def send(self, letters: pa.Table, txn: TxnId | None) -> None:
        """Send what `take` gave."""
        assert self._producer is not None, "records are held only with a dead-letter topic"
        self._producer.send_batch(letters, txn=txn)


# --- large records ---------------------------------------------------------------------------

_WAIT_S = 0.2  # wait for a terminal or pipe, then check for signals


def runs(data: pa.Table, most: int) -> Iterator[pa.Table]:
    """Cut a table so that each record of more than `most` bytes is alone; the order stays."""
    batch = data.combine_chunks().to_batches() if data.nbytes > most else []
    if len(batch) != 1:  # no large record; or Arrow cannot join them: send each row alone
        yield from [data] if not batch else (data.slice(row, 1) for row in range(len(data)))
        return
    large = pc.indices_nonzero(pc.greater(message_bytes(batch[0]), pa.scalar(most, pa.int64())))
    at = 0
    for row in large.to_pylist():
        if row > at:
            yield data.slice(at, row - at)
        yield data.slice(row, 1)
        at = row + 1
    if at < len(data):
        yield data.slice(at)


def send(
    producer: Producer, data: pa.Table, txn: TxnId | None, value: Iterator[bytes] | None = None
) -> BatchReceipt | LargeReceipt:
    """Send a table from `runs`; a table of one record may need chunks.

    value: of the one record, when data has only its other columns
    """
    if not producer.chunking or len(data) != 1:
        return producer.send_batch(data, txn=txn)
    row = {name: data[name][0] for name in data.column_names if name != "value"}
    whole = next(records.views(data["value"])) if value is None else None
    properties = row["properties"].as_py() if "properties" in row else None
    return producer.session.send(
        whole if value is None else value,
        key=row["key"].as_py() if "key" in row else None,
        properties=dict(properties) if properties else None,
        event_time=_integer(row, "event_time"),
        deliver_at=_integer(row, "deliver_at"),
        deliver_after=_integer(row, "deliver_after"),
        sequence_id=_integer(row, "sequence_id"),
        partition=_integer(row, "partition"),
        txn=txn,
    )


def _integer(row: dict[str, pa.Scalar], name: str) -> int | None:
    number: int | None = row[name].cast(_MS).as_py() if name in row else None
    return number


def pieces(path: str | None) -> Iterator[bytes]:
    """The blocks of a file or of stdin, as they arrive."""
    for block in inputs.read_blocks(path, lambda: _WAIT_S):
        raise_if_asked()
        if block is not None:
            yield block
    raise_if_asked()  # a signal may also have ended the input early


# --- values of a typed topic ----------------------------------------------------------------------


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
        """The records of a table as values of the topic; `input.bad` treats bad ones.

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

    def numbered(self, table: pa.Table) -> pa.Table:
        """The messages of -m, which the send checks; texts of dates and times become numbers."""
        if self._schema is None or not self._is_strict:
            return table
        column = table["value"].combine_chunks()
        bad = values.invalid(self._schema, column)
        return _with(table, _numbered(self._schema, column, bad))

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
    return not is_of_message(name)


def is_of_message(name: str) -> bool:
    """Whether a column of csv or tsv is part of a message, unless a schema has such a field."""
    return name in _OF_MESSAGES or name.startswith("prop.")


def _of_cells(schema: Schema, names: list[str], column: pa.Array) -> pa.Array:
    """The values of rows, given as JSON objects of strings."""
    rows: list[Mapping[str, str]] = [msgspec.json.decode(text) for text in column.to_pylist()]
    columns = []
    fields = definitions.names_of_columns(names)
    for name in names:
        cells = pa.array([row[name] for row in rows], pa.string())
        field = schema.record.field(fields[name])
        if field is not None and (field.type.nullable or not pa.types.is_string(field.type.arrow)):
            cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
        columns.append(cells)
    return values.encode(schema, pa.StructArray.from_arrays(columns, names=[*fields.values()]))


def _of_json(schema: Schema, column: pa.Array) -> pa.Array:
    """The values of lines of JSON."""
    written = definitions.Schema("json", schema.definition)
    return values.encode(schema, values.decode(written, _checked(written, column)))


def _checked(schema: Schema, column: pa.Array) -> pa.Array:
    bad = values.invalid(schema, column)
    if bad:
        column = _numbered(schema, column, bad)
        bad = values.invalid(schema, column)
    for row, why in bad:
        raise InvalidMessage(f"row {row}: {why}")
    return column


def _numbered(schema: Schema, column: pa.Array, bad: list[tuple[int, str]]) -> pa.Array:
    """The values; in JSON of the bad rows, texts of dates and times become numbers."""
    if schema.type != "json" or not bad:
        return column
    rows = column.to_pylist()
    for row, _ in bad:
        try:
            rows[row] = values.with_numbers(schema, rows[row])
        except InvalidMessage as error:
            raise InvalidMessage(f"row {row}: {error.message}") from error
    return pa.array(rows, column.type)
