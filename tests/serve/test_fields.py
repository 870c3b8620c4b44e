"""Every number and text of every command: a senseless value is refused with an answer."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor

import txlog
from tests.serve.siege import Served, Wire, serving
from txlog.engine.plan.route import COLUMNS
from txlog.errors import InvalidArgument, InvalidMessage, LimitExceeded, TxlogError
from txlog.serve.http.data.messages import decode_id, number_in
from txlog.serve.pulsar.listener import handlers
from txlog.serve.pulsar.messages import (
    COMMANDS,
    FIELDS,
    IDS_MAX,
    ITEMS_MAX,
    BaseCommand,
    MessageIdData,
    MessageMetadata,
    Proto,
    SingleMessageMetadata,
    check,
    message_class,
    range_of,
)
from txlog.serve.pulsar.wire import message_frame, varint

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC: Final = "persistent://public/default/spoiled"
NUMBERS: Final = (-1, 1 << 31, 1 << 63, (1 << 64) - 1)
BAD_TEXT: Final = b"\xff\xfe"
DEPTH: Final = 3  # of messages within messages; an id may hold another one without end
# Commands without tests here: the handshake has its own tests, and the others have no answer.
UNSPOILED: Final = {COMMANDS[name] for name in ("CONNECT", "AUTH_RESPONSE", "PING", "PONG")}
# Values with which a command is one that the server understands.
VALUES: Final[dict[str, Any]] = {
    "topic": TOPIC,
    "subscription": "s",
    "namespace": "public/default",
    "topics_pattern": ".*",
    "producer_id": 1,
    "consumer_id": 1,
    "request_id": 77,
    "messagePermits": 1,
}


class Spoiled(NamedTuple):
    """A message with one odd value: where it is, and the message as bytes."""

    place: str
    data: bytes


def tag(field: FieldDescriptor, kind: int) -> bytes:
    return varint(field.number << 3 | kind)


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def filled(kind: Any, depth: int = DEPTH) -> Proto:
    """A message of a class with its required fields."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        value = VALUES.get(field.name)
        if field.message_type is not None:
            if field.is_required and depth:
                inner = filled(message_class(field.message_type.name), depth - 1)
                getattr(message, field.name).CopyFrom(inner)
        elif value is not None and not field.is_repeated and field.type != field.TYPE_MESSAGE:
            setattr(message, field.name, value)
        elif field.is_required and field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"")
        elif field.is_required:
            setattr(message, field.name, "x" if field.type == field.TYPE_STRING else 0)
    return message


def spoiled(message: Proto, depth: int = DEPTH) -> Iterator[Spoiled]:
    """The message with each number and text in turn as none should be; the last value counts."""
    data, name = message.SerializeToString(), message.DESCRIPTOR.name
    for field in message.DESCRIPTOR.fields:
        place = f"{name}.{field.name}"
        if range_of(field) is not None:
            for number in NUMBERS:
                odd = varint(number & (1 << 64) - 1)
                yield Spoiled(f"{place}={number}", data + tag(field, 0) + odd)
        elif field.type == field.TYPE_STRING:
            yield Spoiled(f"{place} no text", data + tag(field, 2) + sized(BAD_TEXT))
        elif field.message_type is not None and depth:
            inner = filled(message_class(field.message_type.name))
            for place, odd in spoiled(inner, depth - 1):
                yield Spoiled(f"{name}.{place}", data + tag(field, 2) + sized(odd))


def is_refused(kind: Any, data: bytes) -> bool:
    """Whether `check` refuses the bytes as the server parses them."""
    try:
        check(kind.FromString(data))
    except TxlogError:
        return True
    return False


def as_command(kind: int, body: bytes) -> bytes:
    field = BaseCommand.DESCRIPTOR.fields_by_number[kind]
    data = b"\x08" + varint(kind) + tag(field, 2) + sized(body)
    return struct.pack(">II", len(data) + 4, len(data)) + data


async def opened(served: Served) -> Wire:
    """A client with a producer and a consumer, both with number 1."""
    client = await served.connected()
    ready = await client.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
    assert ready.producer_ready
    fields = {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 1}
    assert (await client.ask("subscribe", request_id=2, **fields)).request_id == 2
    return client


async def answers(client: Wire) -> list[str]:
    """Send a PING, and return the answers up to its PONG; "" means that the connection ended."""
    client.send("ping")
    names: list[str] = []
    while not names or names[-1] not in ("pong", ""):
        try:
            names.append(FIELDS[(await client.answer()).type])
        except (asyncio.IncompleteReadError, ConnectionError):
            names.append("")
    return names


REFUSALS: Final = {"error", "send_error", "close_producer", ""}


async def refuse_each(served: Served, kind: int) -> list[str]:
    """Send a command with each odd value; returns those that were not refused and should be."""
    body_class = message_class(BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type.name)
    wrong, client = [], await opened(served)
    for place, body in spoiled(filled(body_class)):
        if is_refused(body_class, body):
            client.writer.write(as_command(kind, body))
            names = await answers(client)
            if REFUSALS.isdisjoint(names):
                wrong.append(place)
            if names[-1] == "":
                client = await opened(served)
    client.close()
    return wrong


def odd_messages() -> Iterator[tuple[str, list[bytes]]]:
    """SENDs with an odd value in the command, its metadata, or the metadata within its batch."""
    command, plain = filled(message_class("CommandSend")), filled(MessageMetadata)
    whole = as_command(COMMANDS["SEND"], command.SerializeToString())[8:]
    for place, body in spoiled(command):
        if is_refused(type(command), body):
            odd = as_command(COMMANDS["SEND"], body)[8:]
            yield place, message_frame(odd, plain.SerializeToString(), b"x")
    for place, metadata in spoiled(plain):
        if is_refused(MessageMetadata, metadata):
            yield place, message_frame(whole, metadata, b"x")
    plain.num_messages_in_batch = 2
    for place, metadata_of_message in spoiled(SingleMessageMetadata(payload_size=0)):
        if is_refused(SingleMessageMetadata, metadata_of_message):
            payload = (
                struct.pack(">I", len(metadata_of_message))
                + metadata_of_message
                + b"\0\0\0\2\x18\0"
            )
            yield place, message_frame(whole, plain.SerializeToString(), payload)


async def refuse_messages(served: Served) -> list[str]:
    """As `refuse_each`, of SENDs: a client for each, as a refusal closes its producer."""
    wrong = []
    for place, pieces in odd_messages():
        client = await opened(served)
        client.writer.writelines(pieces)
        try:
            name = FIELDS[(await client.answer()).type]
        except (asyncio.IncompleteReadError, ConnectionError):
            name = ""
        if name not in REFUSALS:
            wrong.append(place)
        client.close()
    return wrong


def test_every_odd_number_and_text_is_refused_alone(tmp_path: Path) -> None:
    """Kills: a number out of range in one command that breaks other clients."""

    async def program(served: Served) -> None:
        witness = await served.connected()
        fields = {"topic": f"{TOPIC}-not", "subscription": "s", "subType": 1, "consumer_id": 1}
        await witness.ask("subscribe", request_id=1, **fields)
        await witness.ask("producer", topic=f"{TOPIC}-not", producer_id=1, request_id=2)
        witness.send("flow", consumer_id=1, messagePermits=1_000)
        for number, kind in enumerate(kind for kind in handlers() if kind not in UNSPOILED):
            is_send = kind == COMMANDS["SEND"]
            wrong = await (refuse_messages(served) if is_send else refuse_each(served, kind))
            assert wrong == [], wrong
            witness.message(b"%d" % number, {"producer_id": 1}, {}, sequence_id=number)
            came = {FIELDS[(await witness.answer()).type] for _ in range(2)}
            assert came == {"send_receipt", "message"}, kind
        assert [facts for event, facts in served.told if event == "failed"] == []

    serving(tmp_path, program)


def test_a_command_with_odd_values_that_are_allowed_is_answered(tmp_path: Path) -> None:
    """Kills: a missing answer, or an internal error, for a number at the end of its range."""

    async def program(served: Served) -> None:
        for kind in (handler for handler in handlers() if handler not in UNSPOILED):
            if kind == COMMANDS["SEND"]:
                continue
            name = BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type.name
            body_class = message_class(name)
            client = await opened(served)
            for _, body in spoiled(filled(body_class)):
                if not is_refused(body_class, body):
                    client.writer.write(as_command(kind, body))
            assert (await answers(client))[-1] in ("pong", ""), name
            client.close()
        assert [facts for event, facts in served.told if event == "failed"] == []

    serving(tmp_path, program)


def test_lists_longer_than_any_client_sends_are_refused() -> None:
    ids = [MessageIdData(ledgerId=1, entryId=at) for at in range(IDS_MAX + 1)]
    ack = message_class("CommandAck")
    check(ack(consumer_id=1, ack_type=0, message_id=ids[:-1]))
    with pytest.raises(LimitExceeded):
        check(ack(consumer_id=1, ack_type=0, message_id=ids))
    add = message_class("CommandAddPartitionToTxn")
    with pytest.raises(LimitExceeded):
        check(add(request_id=1, partitions=["t"] * (ITEMS_MAX + 1)))


ODD_NUMBERS: Final = (-1, 1 << 63, (1 << 64) - 1, 2**70, True, 1.5, [1])


@pytest.mark.parametrize("name", ["eventTime", "sequenceId", "deliverAt", "deliverAfterMs"])
def test_odd_numbers_by_rest_are_refused(tmp_path: Path, name: str) -> None:
    """Kills: a stored message that the server cannot encode for its consumers."""

    async def program(served: Served) -> None:
        for number in ODD_NUMBERS:
            body = json.dumps({"messages": [{"payload": "x", name: number}]}).encode()
            head = "POST /topics/persistent/public/default/odd HTTP/1.1\nHost: 127.0.0.1\n"
            length = f"Content-Length: {len(body)}\nConnection: close\n\n"
            status, text = await served.request(head + length, body)
            assert status == 400, text
        path = "/admin/v2/persistent/public/default/odd/subscription/s/skip/-1"
        status, text = await served.request(
            f"POST {path} HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0\nConnection: close\n\n"
        )
        assert status == 400, text
        assert [facts for event, facts in served.told if event == "failed"] == []

    serving(tmp_path, program)


def test_odd_numbers_of_websockets_are_refused() -> None:
    assert [number_in(body, "n") for body in ({"n": 5}, {"n": "5"}, {"n": ""}, {})] == [
        *(5, 5),
        *(None, None),
    ]
    for odd in (*ODD_NUMBERS, "-1", "9" * 30, "1e3", "²"):
        with pytest.raises(InvalidArgument):
            number_in({"n": odd}, "n")
    for ledger, entry in ((1 << 63, 0), (0, 1 << 64)):
        with pytest.raises(InvalidArgument):
            decode_id(base64.b64encode(b"\x08" + varint(ledger) + b"\x10" + varint(entry)).decode())


@pytest.mark.parametrize("field", [{"sequence_id": -5}, {"deliver_at": -1}])
def test_negative_numbers_are_refused_by_the_library(tmp_path: Path, field: dict[str, Any]) -> None:
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as client:
        client.create_topic("t")
        producer = client.producer("t", chunking=True)
        with pytest.raises(InvalidMessage):
            producer.send(b"x", **field)
        with pytest.raises(InvalidMessage):
            producer.send(b"x" * 6_000_000, **field)  # in chunks
        rows = pa.table({"value": pa.array([b"x"] * 100, pa.binary())})
        for name, number in field.items():
            rows = rows.append_column(name, pa.array([number] * 100, COLUMNS[name]))
        with pytest.raises(InvalidMessage):
            producer.send_batch(rows)
        with pytest.raises(InvalidMessage):
            producer.send_async(b"x", **field).result()
        with client.transaction() as txn, pytest.raises(InvalidMessage):
            producer.send_async(b"x", txn=txn, **field).result()
