"""Owns the endpoints of schemas: the versions of a topic's schema, by Pulsar's names.

Versions are the store's numbers, from 1 up, as in the binary protocol.
"""

from __future__ import annotations

from typing import Any, Final

from txlog.base.ids import TopicName
from txlog.base.rows.topics import SchemaRow
from txlog.base.schemas.schema import Schema
from txlog.client.client import Client
from txlog.errors import IncompatibleSchema, InvalidArgument, NotFound
from txlog.serve.http.core.declared import ADMIN, LOOK, PRODUCE, EndpointList, members
from txlog.serve.pulsar.schemas import KEY_VALUE, add, key_value_as_text, key_value_of, named_schema

SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
endpoint = EndpointList()


@endpoint("GET", f"{SCHEMAS}/schema", LOOK)
def schema(client: Client, topic: TopicName) -> dict[str, object]:
    """The newest schema."""
    rows = _rows(client, topic)
    if not rows:
        raise NotFound(f"topic {topic.short} has no schema", topic=topic.short)
    return _written(rows[-1])


@endpoint("GET", f"{SCHEMAS}/schema/{{version}}", LOOK)
def schema_of_version(client: Client, topic: TopicName, version: int) -> dict[str, object]:
    """A version of the schema; they count from 1."""
    for row in _rows(client, topic):
        if row["version"] == version:
            return _written(row)
    raise NotFound(f"topic {topic.short} has no schema {version}", topic=topic.short)


@endpoint("GET", f"{SCHEMAS}/schemas", LOOK)
def schemas(client: Client, topic: TopicName) -> dict[str, object]:
    """All versions, oldest first."""
    return {"getSchemaResponses": [_written(row) for row in _rows(client, topic)]}


@endpoint("GET", f"{SCHEMAS}/metadata", LOOK)
def schema_metadata(client: Client, topic: TopicName) -> dict[str, object]:
    """The existing versions; a store keeps them in no separate ledger."""
    index = [
        {"ledgerId": -1, "entryId": -1, "version": row["version"]} for row in _rows(client, topic)
    ]
    if not index:
        raise NotFound(f"topic {topic.short} has no schema", topic=topic.short)
    return {"info": index[-1], "index": index}


@endpoint("POST", f"{SCHEMAS}/schema", PRODUCE)
def upload_schema(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """Add a version: {type, schema, properties}."""
    version = add(client, topic.full, _given(body))
    return {"version": {"version": version}}


@endpoint("DELETE", f"{SCHEMAS}/schema", ADMIN)
def delete_schema(client: Client, topic: TopicName, force: bool = False) -> dict[str, object]:
    """Delete all versions; the answer says how many there were."""
    return {"version": client.topic(topic.full).schemas.delete()}


@endpoint("POST", f"{SCHEMAS}/compatibility", LOOK)
def test_schema(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """Check whether a schema would be accepted."""
    schema_to_test = _given(body)
    policies = client.admin.get_schema_policies(topic.full)["policies"]
    try:
        client.topic(topic.full).schemas.test(schema_to_test)
        is_fit = True
    except IncompatibleSchema:
        is_fit = False
    strategy = str(policies["compatibility"]).upper()
    return {"compatibility": is_fit, "schemaCompatibilityStrategy": strategy}


@endpoint("POST", f"{SCHEMAS}/version", LOOK)
def version_of_schema(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """The version of a schema that the topic has."""
    schema_to_find = _given(body)
    for row in _rows(client, topic):
        if Schema(row["type"], row["definition"]) == schema_to_find:
            return {"version": row["version"]}
    raise NotFound(f"topic {topic.short} has no such schema", topic=topic.short)


def _rows(client: Client, topic: TopicName) -> list[SchemaRow]:
    return client.topic(topic.full).schemas.list()


def _written(row: SchemaRow) -> dict[str, object]:
    kind, data, properties = Schema(row["type"], row["definition"]).declaration
    return {
        "version": row["version"],
        "type": kind.upper(),
        "timestamp": row["created_time"],
        "data": key_value_as_text(data) if kind == KEY_VALUE else data.decode(errors="replace"),
        "properties": properties,
    }


def _given(body: object) -> Schema:
    fields: dict[str, Any] = members(body)
    kind, text = fields.get("type"), fields.get("schema", "")
    properties = fields.get("properties") or {}
    if not isinstance(kind, str) or not isinstance(text, str):
        raise InvalidArgument('a schema is written {"type": "AVRO", "schema": "..."}')
    if not isinstance(properties, dict) or not all(
        isinstance(item, str) for item in properties.values()
    ):
        raise InvalidArgument("the properties of a schema are texts")
    kind = kind.lower()
    data = key_value_of(text) if kind == KEY_VALUE else text.encode(errors="surrogatepass")
    parsed = named_schema(kind, data, properties)
    if parsed is None:
        raise InvalidArgument(f"a schema of type {kind} needs a definition")
    return parsed
