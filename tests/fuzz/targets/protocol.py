"""Pulsar's protocol: frames of a connection, messages, what is encrypted, schemas of clients."""

from __future__ import annotations

import random
import struct
import zlib
from base64 import b64encode
from contextlib import suppress
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from tests.fuzz.engine import Target
from tests.serve import fuzz as inputs
from txlog.base.startup.crc32c import crc32c
from txlog.errors import InvalidMessage, TxlogError
from txlog.serve.pulsar import batches, encrypted, messages, schemas, wire

MOST = 5 << 20
PIECES_MAX = 200  # bytes of a frame for a decoder that gets a few bytes at a time
_U32 = struct.Struct(">I")


class NotAnInput(Exception):
    """The bytes are not the message that the target takes."""


def _frames(data: bytes) -> None:
    """Decode bytes as a connection does before a handler gets a command."""
    _in_pieces(data)
    decoder = wire.FrameDecoder(MOST)
    half = len(data) // 2
    for piece in (data[:half], data[half:]):
        for whole in decoder.whole(piece):
            wire.decoded_size(whole)
            command = wire.decode_frame(whole)
            wire.check(command.body)
            if command.trailer:
                _message(bytes(command.trailer))
    assert decoder.pending <= len(data)
    assert decoder.wanted >= 0


def _in_pieces(data: bytes) -> None:
    """However the bytes are cut, the decoder never buffers more than one frame."""
    decoder = wire.FrameDecoder(PIECES_MAX)
    with suppress(InvalidMessage):
        for at in range(0, len(data), 61):
            for _ in decoder.whole(data[at : at + 61]):
                pass
            assert decoder.pending <= max(PIECES_MAX, 61) + 4


def repaired_frames(data: bytes) -> bytes:
    """Sizes that fit, and valid checksums of messages."""
    out, at = bytearray(), 0
    while at + 8 <= len(data):
        size = _U32.unpack_from(data, at)[0]
        if not 4 <= size <= len(data) - at - 4:
            size = len(data) - at - 4
        body = data[at + 4 : at + 4 + size]
        command = min(_U32.unpack_from(body)[0], size - 4)
        trailer = repaired_message(body[4 + command :])
        body = _U32.pack(command) + body[4 : 4 + command] + trailer
        out += _U32.pack(len(body)) + body
        at += 4 + size
    return bytes(out)


def _message(trailer: bytes) -> None:
    head, payload = wire.split_message(memoryview(trailer))
    batches.is_large(head, payload)
    size = batches.unpacked_size(head, payload)
    if size > MOST:
        return  # the connection reserves the memory first
    unpacked = batches.unpack_send(head, payload, MOST)
    batches.rows_of_all([unpacked.columns], [0])
    for properties in unpacked.columns.properties:
        encrypted.message_count(properties)


def repaired_message(trailer: bytes) -> bytes:
    """The size of the metadata fits, and the checksum is right if there is one."""
    has_checksum = trailer.startswith(wire.MAGIC) and len(trailer) >= 10
    rest = trailer[6:] if has_checksum else trailer
    if len(rest) >= 4:
        size = min(_U32.unpack_from(rest)[0], len(rest) - 4)
        rest = _U32.pack(size) + rest[4:]
    return wire.MAGIC + _U32.pack(crc32c(rest)) + rest if has_checksum else rest


def _frame_seeds() -> list[bytes]:
    chance = random.Random("frames")
    some = [inputs.command(chance) for _ in range(150)]
    return [inputs.opened(chance), *some, *(inputs.commands(chance)[:2000] for _ in range(20))]


def _message_seeds() -> list[bytes]:
    """Messages alone, in batches, compressed and encrypted."""
    metadata = messages.MessageMetadata
    one: Any = metadata(producer_name="p", sequence_id=1, publish_time=1)
    single = messages.SingleMessageMetadata(payload_size=2, partition_key="k")
    single.properties.add(key="a", value="b")
    text = single.SerializeToString()
    batch = (_U32.pack(len(text)) + text + b"hi") * 3
    heads: list[tuple[dict[str, Any], bytes]] = [
        ({}, b"hello"),
        ({"num_messages_in_batch": 3}, batch),
        ({"deliver_at_time": 5, "partition_key": "a2V5", "partition_key_b64_encoded": True}, b"x"),
        ({"ordering_key": b"o", "event_time": 7, "null_value": True}, b""),
        (
            {"num_messages_in_batch": 3, "compression": 2, "uncompressed_size": len(batch)},
            zlib.compress(batch),
        ),
    ]
    for kind, codec in ((1, "lz4_raw"), (3, "zstd"), (4, "snappy")):
        packed = pa.Codec(codec).compress(batch, asbytes=True)
        head = {"num_messages_in_batch": 3, "compression": kind, "uncompressed_size": len(batch)}
        heads.append((head, packed))
    seeds = []
    for head, payload in heads:
        filled = metadata(**head)
        filled.MergeFrom(one)
        seeds.append(_trailer(filled, payload))
    filled = metadata(num_messages_in_batch=3)
    filled.MergeFrom(one)
    filled.encryption_keys.add(key="k", value=b"v")
    seeds.append(_trailer(filled, b"secret"))
    return seeds


def _trailer(head: Any, payload: bytes) -> bytes:
    text: bytes = head.SerializeToString()
    rest = _U32.pack(len(text)) + text + payload
    return wire.MAGIC + _U32.pack(crc32c(rest)) + rest


def _encrypted(data: bytes) -> None:
    """The property in which a row keeps the metadata of an encrypted batch."""
    name = encrypted.property_of(_encrypted_head())[0]
    for text in (b64encode(data).decode(), data.decode("latin-1")):
        encrypted.kept_in([(name, text)])
        encrypted.message_count([(name, text)])


def _encrypted_head() -> Any:
    head: Any = messages.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    head.num_messages_in_batch = 3
    head.encryption_keys.add(key="k", value=b"v")
    return head


def _schema(data: bytes) -> None:
    """The schema that a client names with a producer or consumer."""
    command = messages.BaseCommand(type=messages.COMMANDS["GET_OR_CREATE_SCHEMA"])
    body: Any = command.getOrCreateSchema
    try:
        body.ParseFromString(data)
    except DecodeError as error:
        raise NotAnInput from error
    wire.check(body)
    schema = schemas.schema_of(body)
    if schema is not None:
        assert schema.fingerprint
        schemas.proto_of(schema, "name")


def _key_value(data: bytes) -> None:
    """The pair of schemas that clients write as bytes, and the REST API as text."""
    schemas.version_of(data[:8])
    schemas.key_value_of(schemas.key_value_as_text(data))


def _key_value_text(data: bytes) -> None:
    schemas.key_value_of(data.decode("utf-8", "surrogateescape"))


def _schema_seeds() -> list[bytes]:
    record = b'{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'
    pair = _pair(b'"string"', record)
    seeds = []
    for kind, text in ((1, b""), (2, record), (4, record), (15, pair), (6, b"")):
        command: Any = wire.make_command("getOrCreateSchema", request_id=1, topic="t")
        schema = command.getOrCreateSchema.schema
        schema.name, schema.schema_data, schema.type = "x", text, kind
        schema.properties.add(key="key.schema.type", value="STRING")
        seeds.append(command.getOrCreateSchema.SerializeToString())
    return seeds


def _pair(key: bytes, value: bytes) -> bytes:
    return _U32.pack(len(key)) + key + _U32.pack(len(value)) + value


_P = "txlog.serve.pulsar."
_WORDS = (
    b"\x0e\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x04",
)
TARGETS = (
    Target(
        "wire",
        _frames,
        _frame_seeds,
        (f"{_P}wire",),
        repair=repaired_frames,
        words=_WORDS,
    ),
    Target(
        "message",
        _message,
        _message_seeds,
        (f"{_P}batches", f"{_P}encrypted"),
        repair=repaired_message,
        words=_WORDS,
        memory=64 << 20,
    ),
    Target(
        "encrypted",
        _encrypted,
        lambda: [_encrypted_head().SerializeToString()],
        (f"{_P}encrypted",),
    ),
    Target(
        "client_schema",
        _schema,
        _schema_seeds,
        (f"{_P}schemas",),
        allowed=(TxlogError, NotAnInput),
    ),
    Target(
        "key_value",
        _key_value,
        lambda: [_pair(b"", b""), _pair(b'"string"', b"{}")],
        (f"{_P}schemas",),
    ),
    Target(
        "key_value_text",
        _key_value_text,
        lambda: [b'{"key":"\\"string\\"","value":{"type":"int"}}'],
        (f"{_P}schemas",),
    ),
)
