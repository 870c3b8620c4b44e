"""Messages that clients encrypt end to end: stored as one row, delivered as they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.serve.deliveries import subscribed
from tests.serve.served import Raw
from tests.serve.test_sends import opened
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import ERRORS, MessageIdData, message_class

pytestmark = pytest.mark.usefixtures("quick_disk")
SECRET = b"\x00\xffnobody here can read this"
KEY = message_class("EncryptionKeys")(key="k", value=b"wrapped")
KEY.metadata.add(key="version", value="1")
HEAD: dict[str, Any] = {
    "encryption_keys": [KEY],
    "encryption_algo": "AES",
    "encryption_param": b"nonce",
    "compression": 1,
    "uncompressed_size": 10_000,
    "partition_key": "ana",
    "event_time": 5,
}
COUNT = 5
BATCH = HEAD | {"num_messages_in_batch": COUNT, "sequence_id": 0, "highest_sequence_id": COUNT - 1}


def sent(raw: Raw, head: dict[str, Any], **fields: Any) -> Any:
    """Send a message; the id of its receipt."""
    sequence = head.get("sequence_id", 0)
    all_fields = {"producer_id": 1, "sequence_id": sequence} | fields
    raw.message("send", SECRET, {"sequence_id": sequence} | head, **all_fields)
    return raw.read("send_receipt").message_id


def delivered(raw: Raw, permits: int = 10) -> tuple[Any, Any, bytes]:
    """The next message: (command, metadata, payload)."""
    if permits:
        raw.send("flow", consumer_id=1, messagePermits=permits)
    frame = raw.frame()
    while frame.kind != wire.BY_FIELD["message"]:
        frame = raw.frame()
    head, payload = wire.split_message(frame.trailer)
    return frame.body, head, bytes(payload)


@pytest.mark.parametrize("head", [BATCH, HEAD], ids=["batch", "alone"])
def test_an_encrypted_send_is_one_row_and_comes_out_as_it_came(
    head: dict[str, Any], place: tuple[Path, str]
) -> None:
    path, url = place
    topic = f"plain-{len(head)}"
    with Raw(url) as raw, Raw(url) as reader, txlog.open(str(path)) as client:
        opened(raw, topic)
        first = sent(raw, head)
        subscribed(reader, topic)
        body, metadata, payload = delivered(reader)
        assert payload == SECRET
        assert (body.message_id.entryId, body.message_id.ledgerId) == (0, first.ledgerId)
        for name, value in head.items():
            fields = (
                list(metadata.encryption_keys)
                if name == "encryption_keys"
                else getattr(metadata, name)
            )
            assert fields == value, name
        assert metadata.HasField("num_messages_in_batch") == (head is BATCH)
        assert [pair.key for pair in metadata.properties] == []
        [row] = client.reader(topic)
        assert (row.value, row.key) == (SECRET, b"ana")
        assert sent(raw, HEAD | {"sequence_id": COUNT}).entryId == STEP


def test_an_encrypted_batch_is_acknowledged_with_its_last_message(place: tuple[Path, str]) -> None:
    """Kills: an acknowledgement of one message that acknowledges the whole batch."""
    path, url = place
    with Raw(url) as raw, Raw(url) as reader, txlog.open(str(path)) as client:
        opened(raw, "acks")
        first = sent(raw, BATCH)
        subscribed(reader, "acks")

        def backlog() -> int:
            [row] = client.subscriptions("acks")
            return int(row["backlog"])

        def acknowledged(ack_set: int, kind: int = 0) -> None:
            message_id = MessageIdData(
                ledgerId=first.ledgerId, entryId=first.entryId, batch_size=COUNT
            )
            if ack_set:
                message_id.ack_set.append(ack_set)
            reader.ask("ack", "ackResponse", consumer_id=1, ack_type=kind, message_id=[message_id])

        for is_held in (False, True):
            if is_held:
                delivered(reader)
            acknowledged(0b11101)
            acknowledged(0b11100, kind=1)
            assert backlog() == 1
        reader.send("redeliverUnacknowledgedMessages", consumer_id=1)
        assert delivered(reader)[1].num_messages_in_batch == COUNT
        for ack_set in (0b11101, 0b01111, 0b10111, 0b11011):
            acknowledged(ack_set)
        assert backlog() == 1
        acknowledged(0b11110)
        assert backlog() == 0


def test_encrypted_batch_costs_a_permit_per_message(
    place: tuple[Path, str],
) -> None:
    _, url = place
    with Raw(url) as raw, Raw(url) as reader:
        opened(raw, "permits")
        sent(raw, BATCH)
        subscribed(reader, "permits")
        delivered(reader, permits=2 * COUNT)
        answer = reader.ask("consumerStats", "consumerStatsResponse", consumer_id=1)
        assert (answer.availablePermits, answer.unackedMessages) == (COUNT, COUNT)
        last = reader.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
        last_id = last.last_message_id
        assert (last_id.entryId, last_id.batch_index, last_id.batch_size) == (0, COUNT - 1, COUNT)


@pytest.mark.parametrize("kind", [0, 1, None], ids=["exclusive", "shared", "reader"])
def test_permits_run_out_within_one_encrypted_batch_and_not_after_several(
    kind: int | None, place: tuple[Path, str]
) -> None:
    """Kills: one permit spent per batch of many messages."""
    _, url = place
    topic = f"overrun-{kind}"
    how: dict[str, Any] = {"subType": kind} if kind is not None else {"durable": False}
    with Raw(url) as raw, Raw(url) as reader:
        opened(raw, topic)
        for at in range(4):
            numbers = {"sequence_id": at * COUNT, "highest_sequence_id": at * COUNT + COUNT - 1}
            sent(raw, BATCH | numbers, highest_sequence_id=at * COUNT + COUNT - 1)
        subscribed(reader, topic, **how)

        for permits, entries in ((COUNT + 1, [0, 1]), (COUNT, [2]), (COUNT, [3])):
            reader.send("flow", consumer_id=1, messagePermits=permits)
            delivered_entries = [
                delivered(reader, 0)[0].message_id.entryId // STEP for _ in entries
            ]
            assert delivered_entries == entries  # of the first permits, four more than it asked for
            reader.send("ping")
            reader.read("pong")  # nothing more came before it


def test_encrypted_messages_of_a_transaction_come_alone(place: tuple[Path, str]) -> None:
    """The server cannot batch them, as each one is already an encrypted batch of a client."""
    _, url = place
    with Raw(url) as raw, Raw(url) as reader:
        opened(raw, "txn")
        response = raw.ask("newTxn", "newTxnResponse", txn_ttl_seconds=60_000, tc_id=0)
        txn = {
            "txnid_most_bits": response.txnid_most_bits,
            "txnid_least_bits": response.txnid_least_bits,
        }
        sent(raw, BATCH | txn, **txn)
        sent(raw, HEAD | txn | {"sequence_id": COUNT}, **txn)
        raw.ask("endTxn", "endTxnResponse", txn_action=0, **txn)
        subscribed(reader, "txn")
        first, second = delivered(reader), delivered(reader, 0)
        assert [delivery[1].num_messages_in_batch for delivery in (first, second)] == [COUNT, 1]
        assert [delivery[2] for delivery in (first, second)] == [SECRET, SECRET]
        assert first[0].message_id.entryId < second[0].message_id.entryId


def test_oversized_batch_and_encrypted_chunks_are_refused(place: tuple[Path, str]) -> None:
    _, url = place
    wrong = [
        BATCH | {"num_messages_in_batch": 10_001},
        HEAD | {"num_chunks_from_msg": 2, "chunk_id": 0, "uuid": "u", "total_chunk_msg_size": 60},
    ]
    for number, head in enumerate(wrong):
        with Raw(url) as raw:
            opened(raw, f"wrong-{number}")
            raw.message("send", SECRET, {"sequence_id": 0} | head, producer_id=1, sequence_id=0)
            assert raw.read("send_error").error == ERRORS["NotAllowedError"]
