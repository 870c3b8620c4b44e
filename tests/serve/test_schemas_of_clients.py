"""Schemas by the binary protocol: versions are the store's, and so is what is compatible."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.serve.raw import Place, Raw, told
from txlog.serve.pulsar.messages import ERRORS, message_class

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC = "persistent://public/default/orders"
AVRO, STRING = 4, 1


def schema(*fields: dict[str, Any], kind: int = AVRO) -> Any:
    definition = {"type": "record", "name": "Order", "fields": list(fields)}
    return message_class("Schema")(
        name="Order", schema_data=json.dumps(definition).encode(), type=kind
    )


WHO = {"name": "who", "type": "string"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


async def created(raw: Raw, made: Any) -> tuple[int | None, bytes]:
    name, body = await raw.ask("getOrCreateSchema", request_id=1, topic=TOPIC, schema=made)
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

    told(tmp_path, story)


def test_change_that_breaks_readers_is_refused(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        await created(raw, schema(WHO))
        error, _ = await created(raw, schema({"name": "who", "type": "int"}))
        assert error == ERRORS["IncompatibleSchema"]
        with txlog.open(place.store) as client:
            assert len(client.topic("orders").schemas.list()) == 1

    told(tmp_path, story)


def test_other_types_are_not_kept(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        assert await created(raw, schema(kind=STRING)) == (None, b"")
        _, body = await raw.ask("getSchema", request_id=2, topic=TOPIC)
        assert body.error_code == ERRORS["TopicNotFound"]
        error, _ = await created(raw, message_class("Schema")(name="", schema_data=b"{", type=AVRO))
        assert error == ERRORS["NotAllowedError"]

    told(tmp_path, story)
