"""Values of typed topics: which schema a message is checked against, and values as columns.

`schema_version` of a row names the schema that its writer checked the value against; null means
unchecked bytes. So code that makes columns of values need not check them. `record` in a file
has the type of the newest schema when the file was written. A value whose schema cannot be read as
this type has no record. Source: spec/schemas 2 and 3; PIP-87 and "Schema evolution and
compatibility" of Pulsar.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.schemas import resolution, values
from txlog.base.schemas import schema as definitions
from txlog.base.settings import CHOICES, SCHEMA_VALIDATIONS, Settings
from txlog.base.startup import compute as pc
from txlog.base.suggest import command_line
from txlog.engine.folds.catalog import (
    SchemaVersion,
    Topic,
    policies_of,
    record_schemas,
    schema_of,
)
from txlog.engine.plan.route import Routed
from txlog.engine.storage.segment import RECORD, Records
from txlog.engine.view import View
from txlog.errors import InvalidArgument, InvalidMessage

if TYPE_CHECKING:
    from txlog.base.schemas.schema import Schema

VALIDATION: Final = "schema_validation"
COMPATIBILITY: Final = "schema_compatibility"
ENFORCE, MARK, OFF = SCHEMA_VALIDATIONS
_VERSION: Final = "schema_version"
_NO_VALUE: Final = pa.scalar(None, pa.binary())


class ValueSchema(NamedTuple):
    """The schema that values of a topic are checked against.

    mode:  ENFORCE or MARK; topic: its short name
    """

    topic: str
    version: int
    kind: str
    definition: str
    mode: str

    @property
    def schema(self) -> Schema:
        """The schema, parsed."""
        return _schema(self.kind, self.definition)


@lru_cache(maxsize=256)
def _schema(kind: str, definition: str) -> Schema:
    return definitions.Schema(kind, definition)


def schema_in(stored: SchemaVersion) -> Schema:
    """A schema of the catalog, parsed."""
    return _schema(stored.kind, stored.definition)


def word(view: View, settings: Settings, topic: Topic, name: str) -> str:
    """The policy VALIDATION or COMPATIBILITY (name) of a topic as a word, one of its CHOICES."""
    at = policies_of(view.catalog, topic).get(name)
    return getattr(settings, name) if at is None else CHOICES[name][at]


def typing_of(
    view: View, settings: Settings, topic: Topic, version: int | None = None
) -> ValueSchema | None:
    """The schema to check values against; None: the topic takes any bytes.

    version: the version that a producer writes, None for the newest
    """
    newest = schema_of(topic)
    if newest is None:
        return None
    mode = word(view, settings, topic, VALIDATION)
    if mode == OFF:
        return None
    checked = newest if version is None else topic.schemas[version - 1]
    name = TopicName.parse(topic.name).short
    return ValueSchema(name, checked.version, checked.kind, checked.definition, mode)


def stamped(routed: Routed, typing: ValueSchema | None) -> Routed:
    """Routed rows with the version of the schema that their values were checked against.

    raises: InvalidMessage for a value that does not fit, with mode ENFORCE
    """
    if typing is None:
        return routed
    batch = routed.batch
    column = batch.column("value")
    bad = values.invalid(typing.schema, column)
    if bad and typing.mode == ENFORCE:
        row, why = bad[0]
        at = row if routed.order is None else routed.order[row].as_py()
        which = "the value" if batch.num_rows == 1 else f"the value of row {at}"
        raise InvalidMessage(
            f"{which} does not fit schema {typing.version} of topic {typing.topic}: {why}",
            hint=f"{command_line('schema get', typing.topic)} shows the schema; "
            "policy schema_validation says what is checked",
            topic=typing.topic,
        )
    versions = pa.repeat(pa.scalar(typing.version, pa.int32()), batch.num_rows)
    if bad or column.null_count:
        is_there = column.is_valid()
        if bad:
            is_bad = pa.array([row for row, _ in bad], pa.int64())
            rows = pa.arange(0, batch.num_rows)
            is_there = pc.and_not(is_there, pc.is_in(rows, value_set=is_bad))
        versions = pc.if_else(is_there, versions, pa.scalar(None, pa.int32()))
    return msgspec.structs.replace(routed, rows=batch.append_column(_VERSION, versions))


def with_values(
    rows: pa.Table | pa.RecordBatch, typing: ValueSchema | None
) -> tuple[pa.Table | pa.RecordBatch, pa.StructArray]:
    """Rows whose column `record` has become `value`, and the records that these values encode.

    raises: InvalidArgument, InvalidMessage: a record that does not fit, with its row
    """
    if typing is None:
        raise InvalidArgument("the topic has no schema to write records by", hint="a column value")
    if "value" in rows.schema.names:
        raise InvalidArgument("there are both value and record", hint="leave out one of them")
    records_in = rows.column(RECORD)
    if isinstance(records_in, pa.ChunkedArray):
        records_in = records_in.combine_chunks()
    if not pa.types.is_struct(records_in.type):
        raise InvalidArgument(f"the column record is of {records_in.type}, it must be a struct")
    try:
        encoded, records = values.written(typing.schema, records_in)
    except InvalidMessage as error:
        raise InvalidMessage(
            f"a record does not fit schema {typing.version} of topic {typing.topic}: {error}",
            hint=f"{command_line('schema get', typing.topic)} shows the schema, "
            f"{command_line('schema upload', typing.topic, 'FILE')} adds fields to it",
            topic=typing.topic,
        ) from error
    at = rows.schema.get_field_index(RECORD)
    return rows.set_column(at, "value", encoded), records


def stamped_as(routed: Routed, typing: ValueSchema, records: pa.StructArray) -> Routed:
    """Routed rows with the records that their values encode; these need no check."""
    if routed.order is not None:
        records = records.take(routed.order)
    batch = routed.batch
    version, none = pa.scalar(typing.version, pa.int32()), pa.scalar(None, pa.int32())
    versions = pc.if_else(batch.column("value").is_valid(), version, none)
    batch = batch.append_column(_VERSION, versions).append_column(RECORD, records)
    return msgspec.structs.replace(routed, rows=batch)


def stamped_copies(
    view: View, settings: Settings, source: Topic, target: Topic, table: pa.Table, routed: Routed
) -> Routed:
    """Routed copies of messages of another topic, which are never refused for their values.

    table: the messages, with schema_version. Copies that fit the newest schema of the target get
           its version; Avro copies get it only if the same schema wrote them
    """
    typing = typing_of(view, settings, target)
    if typing is None:
        return routed
    if typing.kind != "avro":
        return stamped(routed, typing._replace(mode=MARK))
    same = [
        version.version
        for version in source.schemas
        if (version.kind, version.definition) == (typing.kind, typing.definition)
    ]
    written_as = table.column(_VERSION).combine_chunks()
    is_same = pc.is_in(written_as, value_set=pa.array(same, pa.int32()))
    versions = pc.if_else(is_same, typing.version, pa.scalar(None, pa.int32()))
    if routed.order is not None:
        versions = versions.take(routed.order)
    return msgspec.structs.replace(routed, rows=routed.batch.append_column(_VERSION, versions))


def stamped_originals(
    routed: Routed, typing: ValueSchema | None, versions: pa.Array | pa.ChunkedArray
) -> Routed:
    """Routed copies of a topic's messages, which are never refused for their values.

    versions: of the originals, in the order before they were routed. A message that its writer did
              not check stays unchecked: its bytes may fit by chance, above all as Avro
    """
    if typing is None:
        return routed
    batch = stamped(routed, typing._replace(mode=MARK)).batch
    if isinstance(versions, pa.ChunkedArray):
        versions = versions.combine_chunks()
    if routed.order is not None:
        versions = versions.take(routed.order)
    at = batch.schema.get_field_index(_VERSION)
    stamps = pc.if_else(versions.is_valid(), batch.column(at), pa.scalar(None, pa.int32()))
    return msgspec.structs.replace(routed, rows=batch.set_column(at, _VERSION, stamps))


def stamped_back(target: Topic, fingerprints: Sequence[str | None], routed: Routed) -> Routed:
    """Routed copies of messages that go back to their topic, with the Avro schemas that wrote them.

    A text in a message is no proof, so a version is given only to values that its schema reads.
    fingerprints: of the schemas, in the order of the messages before they were routed
    """
    versions = {
        schema_in(version).fingerprint: version
        for version in target.schemas
        if version.kind == "avro" and not version.deleted
    }
    batch = routed.batch
    at = batch.schema.get_field_index(_VERSION)
    if at < 0 or not versions.keys() & {*fingerprints}:
        return routed
    order = range(batch.num_rows) if routed.order is None else routed.order.to_pylist()
    stamps, column = batch.column(at), batch.column("value")
    for fingerprint, version in versions.items():
        is_written = pa.array([fingerprints[row] == fingerprint for row in order])
        written = pc.if_else(pc.and_(is_written, column.is_valid()), column, _NO_VALUE)
        bad = pa.array([row for row, _ in values.invalid(schema_in(version), written)], pa.int64())
        is_bad = pc.is_in(pa.arange(0, batch.num_rows), value_set=bad)
        is_good = pc.and_not(written.is_valid(), is_bad)
        stamps = pc.if_else(is_good, pa.scalar(version.version, pa.int32()), stamps)
    return msgspec.structs.replace(routed, rows=batch.set_column(at, _VERSION, stamps))


def unchecked(rows: pa.RecordBatch | pa.Table) -> int:
    """How many rows have a value that no writer has checked against a schema."""
    count: int = rows.num_rows - rows.column("value").null_count
    at = rows.schema.get_field_index(_VERSION)
    return count if at < 0 else count - (rows.num_rows - rows.column(at).null_count)


def records_for(topic: Topic) -> Records | None:
    """How the values of a topic become columns of its files; None: it never had a schema."""
    schemas = record_schemas(topic)
    if not schemas:
        return None
    newest = schema_of(topic) or schemas[-1]
    kind = schema_in(newest).arrow
    return Records(newest.version, kind, lambda rows: records_as(schemas, newest.version, rows))


def records_of(typing: ValueSchema) -> Records:
    """As `records_for`, for rows that all have one schema."""
    schema = typing.schema

    def made(rows: pa.Table) -> pa.ChunkedArray:
        is_checked = rows.column(_VERSION).is_valid()
        return decoded(schema, pc.if_else(is_checked, rows.column("value"), _NO_VALUE))

    return Records(typing.version, schema.arrow, made)


def records_as(schemas: Sequence[SchemaVersion], version: int, table: pa.Table) -> pa.ChunkedArray:
    """The values of rows as structs of the type of a version; null where there is none.

    schemas: all of the topic; table: with value and schema_version
    """
    newest = schema_in(schemas[version - 1])
    column, versions = table.column("value"), table.column(_VERSION)
    versions_used = [
        version_ for version_ in pc.unique(versions).to_pylist() if version_ is not None
    ]
    if len(versions_used) == 1 and not versions.null_count:
        return decoded(schema_in(schemas[versions_used[0] - 1]), column, newest)
    records = pa.chunked_array([pa.nulls(table.num_rows, newest.arrow)], newest.arrow)
    for used in versions_used:
        is_one = pc.fill_null(pc.equal(versions, pa.scalar(used, pa.int32())), False)
        values_of_version = pc.if_else(is_one, column, _NO_VALUE)
        records = pc.if_else(
            is_one, decoded(schema_in(schemas[used - 1]), values_of_version, newest), records
        )
    return records


def records_of_file(
    schemas: Sequence[SchemaVersion], written: int, version: int, column: pa.ChunkedArray
) -> pa.ChunkedArray:
    """The column `record` of a file with the type of another version; null: it cannot be read so.

    written: FileRef.record, the version that the file was written with
    """
    if written == version:
        return column
    of, newest = schema_in(schemas[written - 1]), schema_in(schemas[version - 1])
    return pa.chunked_array(
        [resolution.resolved(chunk, of, newest) for chunk in column.chunks], newest.arrow
    )


def decoded(
    schema: Schema, column: pa.ChunkedArray, as_of: Schema | None = None
) -> pa.ChunkedArray:
    """Checked values of a schema as structs, of its type or the type of `as_of`."""
    other = None if as_of == schema else as_of
    pieces = [values.decode(schema, chunk, as_of=other) for chunk in column.chunks]
    return pa.chunked_array(pieces, (as_of or schema).arrow)
