"""Owns a client of raw frames that fills a topic, subscribes, receives and acknowledges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from tests.serve.served import Raw
from tests.serve.test_sends import batch, opened
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import (
    MessageIdData,
)


def filled(url: str, topic: str) -> int:
    """A message alone, a batch of three, a message alone; the ledger that they are in."""
    with Raw(url) as raw:
        opened(raw, topic)
        raw.message("send", b"a", {"sequence_id": 0}, producer_id=1, sequence_id=0)
        head = {"sequence_id": 1, "num_messages_in_batch": 3}
        raw.message("send", batch([b"b", b"c", b"d"]), head, producer_id=1, sequence_id=1)
        raw.message("send", b"e", {"sequence_id": 4}, producer_id=1, sequence_id=4)
        message_ids = [raw.read("send_receipt").message_id for _ in range(3)]
        assert [message_id.entryId for message_id in message_ids] == [0, STEP, 4 * STEP]
        return int(message_ids[0].ledgerId)


def subscribed(raw: Raw, topic: str, **fields: Any) -> None:
    fields = {"subType": 1, "subscription": "s", "initialPosition": 1, "consumer_id": 1} | fields
    raw.ask("subscribe", "success", topic=topic, **fields)


def messages(raw: Raw, count: int, permits: int = 100) -> list[tuple[int, int, int]]:
    """(entry, messages, redelivery count) of the next frames."""
    if permits:
        raw.send("flow", consumer_id=1, messagePermits=permits)
    frames = []
    for _ in range(count):
        frame = raw.frame()
        while frame.kind != wire.BY_FIELD["message"]:
            frame = raw.frame()
        head, _ = wire.split_message(frame.trailer)
        body = frame.body
        frames.append((body.message_id.entryId, head.num_messages_in_batch, body.redelivery_count))
    return frames


def acknowledge(raw: Raw, ledger: int, entry: int, **fields: Any) -> None:
    message_id = MessageIdData(ledgerId=ledger, entryId=entry, **fields)
    answer = raw.ask("ack", "ackResponse", consumer_id=1, ack_type=0, message_id=[message_id])
    assert not answer.HasField("error")


def backlog(path: Path, topic: str) -> int:
    with txlog.open(str(path)) as client:
        client.flush()  # acknowledgements are written, and durable with the next flush
        return sum(row["backlog"] for row in client.subscriptions(topic))


def parted(path: Path, topic: str, values: list[bytes], size: int) -> None:
    """Three partitions, each with these messages in batches of a size; by key: k0, k1 and so on."""
    with txlog.open(str(path)) as client:
        client.create_topic(topic, 3)
        client.create_subscription(topic, "s", type="shared", position="earliest")
        for partition in range(3):
            with client.producer(f"{topic}/{partition}", name="till") as producer:
                for at in range(0, len(values), size):
                    rows = values[at : at + size]
                    keys = [b"k%d" % (at + row) for row in range(len(rows))]
                    producer.send_batch(pa.table({"value": rows, "key": keys}))


def counted(raw: Raw, count: int) -> list[tuple[int, int]]:
    """(consumer, messages) of the next frames, in order of consumers."""
    counts = list[tuple[int, int]]()
    while len(counts) < count:
        frame = raw.frame()
        if frame.kind == wire.BY_FIELD["message"]:
            head, _ = wire.split_message(frame.trailer)
            counts.append((frame.body.consumer_id, head.num_messages_in_batch))
    return sorted(counts)


def stored(path: Path, topic: str, name: str | None, count: int, **head: Any) -> int:
    """Store a batch by the library; its ledger."""
    with txlog.open(str(path)) as client:
        client.create_topic(topic)
        client.create_subscription(topic, "s", type="shared", position="earliest")
        rows = pa.table({"value": [b"%d" % at for at in range(count)]})
        with client.producer(topic, name) as producer:
            if not head:
                producer.send_batch(rows)
            else:
                with client.transaction() as txn:
                    producer.send_batch(rows, txn=txn)
        last = client.reader(topic).get_last_message_id()
        assert last is not None
        return last.ledger
