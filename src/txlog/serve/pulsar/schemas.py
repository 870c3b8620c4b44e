"""Owns schemas of clients: those of a topic, by their versions, and new ones.

type        Avro and Json that are records are schemas of the store (spec/schemas). All others
            (String, Int64, KeyValue, Avro and Json of anything else) are declared: the store keeps
            type, bytes and properties, gives them back, and looks into no value. A schema of type
            None is none: the client sends bytes
values      a topic whose first schema comes from a client stores values that do not fit, and counts
            them, unless a policy or setting says otherwise: brokers of Pulsar look at no value, and
            clients of Python and Go write JSON that is no record of their own schema
version     the number of the store, in 8 bytes, big-endian, as Pulsar has it
compatible  by the policy schema_compatibility of the topic; a refusal is IncompatibleSchema. So no
            producer of another type changes what an open one may send
"""

from __future__ import annotations

from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from txlog.base.ids import TopicName
from txlog.base.schemas.forms import is_avro
from txlog.base.schemas.schema import DEFINITION_BYTES_MAX, TYPES, Schema
from txlog.base.suggest import suggestion
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.topics import schema_in
from txlog.errors import InvalidArgument, NotFound, TopicNotFound, TxlogError
from txlog.serve.core.authority import PRODUCE
from txlog.serve.pulsar.batches import VERSION
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.messages import ERRORS, Proto, message_class
from txlog.serve.pulsar.topics import in_use, may_any, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.client.client import Client

# Schema.Type. None is bytes; Auto are those of clients that take what the topic has.
_TYPES: Final = {
    **{1: "string", 2: "json", 3: "protobuf", 4: "avro", 5: "boolean", 6: "int8", 7: "int16"},
    **{8: "int32", 9: "int64", 10: "float", 11: "double", 12: "date", 13: "time"},
    **{14: "timestamp", 15: "key_value", 16: "instant", 17: "local_date", 18: "local_time"},
    **{19: "local_date_time", 20: "protobuf_native"},
}
_NUMBERS: Final = {name: number for number, name in _TYPES.items()}
KEY_VALUE: Final = "key_value"
_SIZE: Final = Struct(">i")
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
    """The schema of a command; None: it has none. Raises InvalidArgument."""
    if not body.HasField("schema") or body.schema.type not in _TYPES:
        return None
    given = body.schema
    properties = {pair.key: pair.value for pair in given.properties}
    if not all(isinstance(text, str) for text in chain(*properties.items())):
        raise InvalidArgument("a property of the schema is not UTF-8")
    return named_schema(_TYPES[given.type], given.schema_data, properties)


def named_schema(kind: str, data: bytes, properties: Mapping[str, str]) -> Schema | None:
    """A schema by its type in lower case; None: Avro or Json without a definition is bytes.

    raises: InvalidArgument
    """
    if kind not in _NUMBERS:
        hint = suggestion(kind, _NUMBERS, f"the types are {', '.join(_NUMBERS)}")
        raise InvalidArgument(f"there is no type of schema {kind[:80]}", hint=hint)
    if kind not in TYPES:
        return Schema.declared(kind, data, properties)
    if not data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("the schema is not UTF-8") from error
    try:
        return Schema.parse(kind, text)
    except InvalidArgument:
        if len(data) > DEFINITION_BYTES_MAX or not is_avro(text):
            raise
        return Schema.declared(kind, data, properties)


def key_value_as_text(data: bytes) -> str:
    """The definition of a KeyValue as JSON {key, value}, as Pulsar's REST has it.

    data: of each part its size in 4 bytes (-1: none) and its definition
    """
    parts, at = [], 0
    for _ in range(2):
        size = max(0, _SIZE.unpack_from(data, at)[0]) if len(data) >= at + _SIZE.size else 0
        at += _SIZE.size
        parts.append(data[at : at + size].decode(errors="replace"))
        at += size
    key, value = (_json(part) for part in parts)
    return msgspec.json.encode({"key": key, "value": value}).decode()


def key_value_of(text: str) -> bytes:
    """The reverse. Raises InvalidArgument."""
    try:
        node = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidArgument("the schema is not JSON") from error
    if not isinstance(node, dict) or not {"key", "value"} <= node.keys():
        raise InvalidArgument('a schema of type KEY_VALUE is written {"key": ..., "value": ...}')
    parts = [
        b"" if part == "" else msgspec.json.encode(part) for part in (node["key"], node["value"])
    ]
    return b"".join(piece for part in parts for piece in (_SIZE.pack(len(part)), part))


def _json(text: str) -> object:
    """What a text of JSON holds; any other stays as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def proto_of(schema: Schema, name: str) -> Proto:
    """A schema as clients get it back."""
    kind, data, properties = schema.declaration
    found = _Proto(name=name, schema_data=data, type=_NUMBERS[kind])
    for key, value in properties.items():
        found.properties.add(key=key, value=value)
    return found


def add(client: Client, topic: str, schema: Schema) -> int:
    """Add the schema of a client; returns its version. Raises IncompatibleSchema."""
    return client.topic(topic).schemas._add(schema, marks=True)


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
        known = client.store.ask(lambda view: find_topic(view, name.topic).schemas)
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
            "schema": proto_of(schema, name.topic.name),
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
        return version_bytes(add(client, name.full, schema))

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
