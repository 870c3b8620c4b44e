"""Schemas by the binary protocol: the store decides versions and compatibility."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.serve.raw import Place, Raw, run_story
from txlog.lake.sql.client_query import Query
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.messages import ERRORS, MessageMetadata, message_class

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC = "persistent://public/default/orders"
STRING, JSON, AVRO = 1, 2, 4


def schema(*fields: dict[str, Any], kind: int = AVRO) -> Any:
    definition = {"type": "record", "name": "Order", "fields": list(fields)}
    return message_class("Schema")(
        name="Order", schema_data=json.dumps(definition).encode(), type=kind
    )


WHO = {"name": "who", "type": "string"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


async def created(raw: Raw, schema_data: Any) -> tuple[int | None, bytes]:
    name, body = await raw.ask("getOrCreateSchema", request_id=1, topic=TOPIC, schema=schema_data)
    assert name == "getOrCreateSchemaResponse"
    return body.error_code if body.HasField("error_code") else None, body.schema_version


def test_versions_count_as_in_the_store(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        assert await created(raw, schema(WHO)) == (None, struct.pack(">q", 1))
        assert await created(raw, schema(WHO, NOTE)) == (None, struct.pack(">q", 2))
        assert await created(raw, schema(WHO)) == (None, struct.pack(">q", 1))
        with txlog.open(place.store) as client:
            rows = client.topic("orders").schemas.list()
        assert [(row["version"], row["type"]) for row in rows] == [(1, "avro"), (2, "avro")]
        for version, count in ((struct.pack(">q", 1), 1), (None, 2)):
            _, body = await raw.ask("getSchema", request_id=2, topic=TOPIC, schema_version=version)
            assert len(json.loads(body.schema.schema_data)["fields"]) == count
            assert body.schema.type == AVRO

    run_story(tmp_path, story)


def test_change_that_breaks_readers_is_refused(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        await created(raw, schema(WHO))
        error, _ = await created(raw, schema({"name": "who", "type": "int"}))
        assert error == ERRORS["IncompatibleSchema"]
        with txlog.open(place.store) as client:
            assert len(client.topic("orders").schemas.list()) == 1

    run_story(tmp_path, story)


KEY_VALUE, BYTES = 15, 0
NODE = b'{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}'
MARKED = (
    b'{"type":"record","name":"W","fields":[{"name":"e","type":{"type":"record","name":"E",'
    b'"fields":[]}},{"name":"a","type":"int"}]}'
)
# Schemas that a client declares: type, bytes, properties.
DECLARED = [
    (STRING, b"", {}),
    (9, b"", {}),  # Int64
    (KEY_VALUE, b"\0\0\0\0\xff\0\0\0", {"kv.encoding.type": "INLINE", "key.schema.type": "STRING"}),
    (AVRO, b'"string"', {"a": "b"}),
    (AVRO, NODE, {}),
    (AVRO, b'["null","int","string"]', {}),
    (JSON, b'{"type":"array","items":"long"}', {}),
    (3, NODE, {"x": "y"}),  # Protobuf
    (20, b'{"fileDescriptorSet":"CgA="}', {}),  # ProtobufNative
    (AVRO, b'{"type":"record","name":"Ping","fields":[]}', {}),
    (JSON, b'{"type":"record","name":"Ping","fields":[]}', {}),
    (AVRO, MARKED, {}),
]


def declared(kind: int, data: bytes, properties: dict[str, str]) -> Any:
    schema_data = message_class("Schema")(name="x", schema_data=data, type=kind)
    for key, value in properties.items():
        schema_data.properties.add(key=key, value=value)
    return schema_data


@pytest.mark.parametrize(("kind", "data", "properties"), DECLARED)
def test_schema_of_any_type_is_returned_as_declared(
    kind: int, data: bytes, properties: dict[str, str], tmp_path: Path
) -> None:
    """AUTO_CONSUME asks for the schema; the server does not check values of such a type."""

    async def story(place: Place) -> None:
        raw = await place.client()
        first = struct.pack(">q", 1)
        schema_of_client = declared(kind, data, properties)
        _, schema_data = await raw.ask(
            "producer", request_id=1, topic=TOPIC, producer_id=1, schema=schema_of_client
        )
        assert schema_data.schema_version == first
        assert await created(raw, schema_of_client) == (None, first)
        for version in (first, None):
            _, body = await raw.ask("getSchema", request_id=2, topic=TOPIC, schema_version=version)
            answer = {pair.key: pair.value for pair in body.schema.properties}
            assert (body.schema.type, body.schema.schema_data, answer) == (kind, data, properties)
            assert body.schema_version == first
        with txlog.open(place.store) as client:
            client.producer("orders").send(b"anything")
            [message] = client.reader("orders")
            assert message.schema_version is None
            [row] = client.topic("orders").schemas.list()
            assert (row["version"], row["fields"]) == (1, [])
            # Java's AUTO_CONSUME takes a message without a version for bytes
            assert (await delivered(raw)).schema_version == first
            assert client.topic("orders").schemas.delete() == 1

    run_story(tmp_path, story)


async def delivered(raw: Raw) -> Any:
    """The metadata of the first message of the topic."""
    schema_of_client = {"subscription": "s", "subType": 0, "consumer_id": 1, "initialPosition": 1}
    await raw.ask("subscribe", request_id=3, topic=TOPIC, **schema_of_client)
    raw.write([wire.encode_command("flow", consumer_id=1, messagePermits=1)])
    while True:
        for frame in await raw.frames():
            if frame.kind == wire.BY_FIELD["message"]:
                return wire.split_message(frame.trailer)[0]


def test_a_key_value_that_comes_back_is_the_same_schema(tmp_path: Path) -> None:
    """AUTO_CONSUME subscribes with the schema that it received, but Java changes its names."""

    async def story(place: Place) -> None:
        raw = await place.client()
        types = {"kv.encoding.type": "INLINE", "key.schema.type": "STRING"}
        for properties, version in (
            (types, 1),
            (types | {"key.schema.name": "x"}, 1),
        ):
            answer = await created(raw, declared(KEY_VALUE, bytes(8), properties))
            assert answer == (None, struct.pack(">q", version))
        for name in types:
            error, _ = await created(raw, declared(KEY_VALUE, bytes(8), types | {name: "INT32"}))
            assert error == ERRORS["IncompatibleSchema"]

    run_story(tmp_path, story)


def test_producer_of_another_type_is_refused_and_closes_no_other(
    tmp_path: Path,
) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        kinds = [declared(*declaration) for declaration in DECLARED[:4]] + [
            schema(WHO),
            schema(WHO, kind=JSON),
        ]
        for number, first in enumerate(kinds):
            topic = f"{TOPIC}-{number}"
            schema_of_client: dict[str, Any] = {"topic": topic, "request_id": 1}
            name, _ = await raw.ask(
                "producer", producer_id=number, schema=first, **schema_of_client
            )
            assert name == "producer_success"
            for other in kinds:
                name, body = await raw.ask(
                    "producer", producer_id=99, schema=other, **schema_of_client
                )
                if other is first:
                    assert name == "producer_success"
                    await raw.ask("close_producer", producer_id=99, request_id=2)
                else:
                    assert (name, body.error) == ("error", ERRORS["IncompatibleSchema"])
            with txlog.open(place.store) as client:
                assert len(client.topic(topic).schemas.list()) == 1

    run_story(tmp_path, story)


def test_malformed_schema_is_refused(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        for kind, data in ((AVRO, b"{"), (AVRO, b'"strin"'), (JSON, b"\xff"), (AVRO, b"[" * 9_000)):
            error, _ = await created(raw, declared(kind, data, {}))
            assert error == ERRORS["NotAllowedError"], data
        error, _ = await created(raw, declared(STRING, b"x" * 300_000, {}))
        assert error == ERRORS["NotAllowedError"]
        assert await created(raw, declared(BYTES, b"", {})) == (None, b"")

    run_story(tmp_path, story)


def test_records_and_declared_values_mix_without_checks(
    tmp_path: Path,
) -> None:
    """Messages with a record keep its columns, and messages of a declared type have none."""

    async def story(place: Place) -> None:
        raw = await place.client()
        with txlog.open(place.store) as client:
            client.create_topic("orders")
            client.admin.set_schema_policies("orders", compatibility="none")
            assert await created(raw, schema(WHO, kind=JSON)) == (None, struct.pack(">q", 1))
            client.producer("orders").send({"who": "ana"})
            assert await created(raw, declared(STRING, b"", {})) == (None, struct.pack(">q", 2))
            client.producer("orders").send(b"plain")
            client.checkpoint()
            answer = [message.schema_version for message in client.reader("orders")]
            assert answer == [1, None]
            with Query(client, "SELECT record.who FROM orders ORDER BY entry") as query:
                assert query.rows().read_all().to_pydict() == {"who": ["ana", None]}
            assert await created(raw, schema(WHO, NOTE, kind=JSON)) == (None, struct.pack(">q", 3))
            client.producer("orders").send({"who": "bob", "note": "x"})
            with Query(
                client, "SELECT record.who, record.note FROM orders ORDER BY entry"
            ) as query:
                rows = query.rows().read_all().to_pydict()
            assert rows == {"who": ["ana", None, "bob"], "note": [None, None, "x"]}

    run_story(tmp_path, story)


async def sent(raw: Raw, value: bytes, sequence: int) -> str:
    """Send a message; the name of its answer."""
    head = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    command = wire.make_command("send", producer_id=1, sequence_id=sequence, num_messages=1)
    raw.write(wire.message_frame(command.SerializeToString(), head.SerializeToString(), value))
    return (await raw.next())[0]


def test_malformed_records_are_stored_and_counted(tmp_path: Path) -> None:
    """Python writes an enum as its value, and Go a field by its tag. Kills: ChecksumError."""

    async def story(place: Place) -> None:
        raw = await place.client()
        schema_of_client = schema({"name": "ID", "type": "int"}, kind=JSON)
        await raw.ask("producer", request_id=1, topic=TOPIC, producer_id=1, schema=schema_of_client)
        assert await sent(raw, b'{"ID":1}', 0) == "send_receipt"
        assert await sent(raw, b'{"id":2}', 1) == "send_receipt"
        with txlog.open(place.store) as client:
            assert [m.schema_version for m in client.reader("orders")] == [1, None]
            assert client.describe_topic("orders")["mismatched"] == 1
            answer = client.admin.get_schema_policies("orders")
            assert answer["policies"]["validation"] == "record"

    run_story(tmp_path, story)


@pytest.mark.parametrize("scope", ["topic", "namespace", "library"])
def test_enforced_validation_refuses_bad_records(scope: str, tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        schema_of_client = schema(WHO, kind=JSON)
        with txlog.open(place.store) as client:
            client.create_topic("orders")
            if scope == "library":
                client.topic("orders").schemas.add(
                    txlog.Schema.parse("json", schema_of_client.schema_data.decode())
                )
            else:
                place_of = (
                    {"topic": "orders"} if scope == "topic" else {"namespace": "public/default"}
                )
                client.admin.set_schema_policies(**place_of, validation="enforce")  # type: ignore[arg-type]
        await raw.ask("producer", request_id=1, topic=TOPIC, producer_id=1, schema=schema_of_client)
        assert await sent(raw, b"{}", 0) == "send_error"

    run_story(tmp_path, story)
