"""Owns schemas of clients: those of a topic, by their versions, and new ones.

type        Avro and Json are schemas of the store (spec/schemas); all others are for clients
            alone: String, Int32, KeyValue and the like say how they read bytes, and are not
            kept. A topic without a schema takes them all; with one, values are checked as
            those of every other producer.
version     the number of the store, in 8 bytes, big-endian, as Pulsar has it
compatible  by the policy schema_compatibility of the topic; a refusal is IncompatibleSchema
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.records import schema_in
from txlog.errors import InvalidArgument, NotFound, TopicNotFound, TxlogError
from txlog.ids import TopicName
from txlog.schemas.schema import Schema
from txlog.serve.core.authority import PRODUCE
from txlog.serve.pulsar.batches import VERSION
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.messages import ERRORS, Proto, message_class
from txlog.serve.pulsar.topics import in_use, may_any, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.api.client import Client

_TYPES: Final = {2: "json", 4: "avro"}  # of Schema.Type
_NUMBERS: Final = {name: number for number, name in _TYPES.items()}
_Proto: Final = message_class("Schema")


def version_bytes(version: int | None) -> bytes:
    """A version as clients know it; None: of none."""
    return b"" if version is None else VERSION.pack(version)


def version_of(data: bytes) -> int | None:
    """The reverse; None: nothing was named. Raises InvalidArgument."""
    if not data:
        return None
    if len(data) != VERSION.size:
        raise InvalidArgument(f"a version of a schema has 8 bytes, not {len(data)}")
    number: int = VERSION.unpack(data)[0]
    return number


def schema_of(body: Proto) -> Schema | None:
    """The schema of a command; None: it has none that the store keeps. Raises InvalidArgument."""
    if not body.HasField("schema") or body.schema.type not in _TYPES:
        return None
    try:
        text = body.schema.schema_data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("the schema is not UTF-8") from error
    if not text:
        return None
    return Schema.parse(_TYPES[body.schema.type], text)


def check_reader(client: Client, name: TopicName, body: Proto) -> None:
    """Raises IncompatibleSchema unless the schema of a consumer fits those that its topic has.

    It is not added: what reads a topic does not say what others write.
    """
    schema = schema_of(body)
    if schema is None:
        return
    known = client.topic(name.full).schemas
    if known.list():
        known.test(schema)


async def get(connection: Connection, body: Proto, rest: memoryview) -> None:
    """GET_SCHEMA: one version, or the newest; TopicNotFound says that there is none."""

    def act(client: Client) -> tuple[Schema, int]:
        version = version_of(body.schema_version)
        known = client._store.ask(lambda view: find_topic(view, name.topic).schemas)
        for one in reversed(known):
            if one.version == version or (version is None and not one.deleted):
                return schema_in(one), one.version
        raise NotFound(f"topic {name.topic.short} has no such schema")

    fields: dict[str, Any] = {}
    try:
        name = name_of(body.topic)
        may_any(connection, name.topic)
        schema, version = await connection.client.run(act)
    except (NotFound, TopicNotFound) as error:  # clients know no other word for it
        fields = {"error_code": ERRORS["TopicNotFound"], "error_message": text_of(error)}
    except TxlogError as error:
        fields = {"error_code": error_of(error), "error_message": text_of(error)}
    else:
        fields = {
            "schema": _Proto(
                name=name.topic.name,
                schema_data=schema.definition.encode(),
                type=_NUMBERS[schema.type],
            ),
            "schema_version": version_bytes(version),
        }
    connection.send("getSchemaResponse", request_id=body.request_id, **fields)


async def get_or_create(connection: Connection, body: Proto, rest: memoryview) -> None:
    """GET_OR_CREATE_SCHEMA: the version of a schema, added if it is new."""

    def act(client: Client) -> bytes:
        in_use(client, name, creates=connection.service.options.creates_topics)
        schema = schema_of(body)
        if schema is None:
            return b""
        return version_bytes(client.topic(name.full).schemas.add(schema))

    fields: dict[str, Any] = {}
    try:
        name = name_of(body.topic)
        connection.may(PRODUCE, name.topic)
        fields = {"schema_version": await connection.client.run(act)}
    except TxlogError as error:
        fields = {"error_code": error_of(error), "error_message": text_of(error)}
    connection.send("getOrCreateSchemaResponse", request_id=body.request_id, **fields)


HANDLERS: Final[Mapping[str, Handler]] = {
    "GET_SCHEMA": get,
    "GET_OR_CREATE_SCHEMA": get_or_create,
}
