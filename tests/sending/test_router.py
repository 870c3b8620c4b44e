"""The partition that a producer chooses: its own function, the key, in turn, or always the same."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
import txlog.aio
from txlog import Client, Message
from txlog.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    path = str(tmp_path / "store")
    txlog.init(path, free_bytes_min=0, durability="os")
    with txlog.open(path) as new_client:
        new_client.create_topic("t", partitions=4)
        yield new_client


def by_number(message: Message, partitions: int) -> int:
    assert partitions in (4, 5) and message.topic == "t"
    return int(message.properties["to"])


def test_a_function_chooses_however_a_message_is_sent(client: Client) -> None:
    producer = client.producer("t", message_router=by_number, chunking=True)
    to = {"to": "2"}
    partitions = [
        producer.send(b"a", key=b"k", properties=to).partition,
        producer.send_async(b"b", properties=to).result().partition,
        producer.new_message().value(b"c").property("to", "2").send().partition,
        producer.send(io.BytesIO(b"d" * 6_000_000), properties=to).partition,
    ]
    with client.transaction() as txn:
        later = [producer.send_async(b"e", txn=txn, properties=to) for _ in range(2)]
        partitions.append(producer.send(b"f", txn=txn, properties=to).partition)
        partitions += [message.result().partition for message in later]
    assert set(partitions) == {2}
    pairs = [[("to", str(at % 4))] for at in range(8)]
    kind = pa.map_(pa.string(), pa.string())
    rows = pa.table({"value": [b"%d" % at for at in range(8)], "properties": pa.array(pairs, kind)})
    producer.send_batch(rows)
    sent = {
        message.value: message.partition
        for message in client.reader("t")
        if message.properties["to"] != "2"
    }
    assert sent == {b"%d" % at: at % 4 for at in range(8) if at % 4 != 2}


def test_a_function_sees_what_is_sent_and_a_named_partition_goes_before_it(client: Client) -> None:
    seen: list[tuple[Any, ...]] = []

    def choose(message: Message, partitions: int) -> int:
        seen.append((message.value, message.key, message.event_time, message.sequence_id))
        return 3

    producer = client.producer("t", "till", message_router=choose)
    assert producer.send(b"a", key=b"k", event_time=5, sequence_id=1).partition == 3
    assert producer.send(b"b", partition=1, sequence_id=2).partition == 1
    assert producer.send_async(b"c", partition=1, sequence_id=3).result().partition == 1
    assert client.producer("t/2", message_router=choose).send(b"d").partition == 2
    with client.transaction() as txn:
        sent = producer.send_async("e", key="k", event_time=6, sequence_id=4, txn=txn)
        assert sent.result().partition == 3
    assert seen == [(b"a", b"k", 5, 1), (b"e", b"k", 6, 4)]


def test_a_function_that_chooses_wrong_or_fails_sends_nothing(client: Client) -> None:
    for chosen in (4, -1, None, True, 1.0):
        producer = client.producer("t", message_router=lambda *_, chosen=chosen: chosen)
        for send in (producer.send, producer.send_async):
            with pytest.raises(InvalidArgument, match="the message router chose"):
                send(b"a")
    failing = client.producer("t", message_router=by_number)
    for send in (failing.send, failing.send_async):
        with pytest.raises(KeyError):
            send(b"a")
    assert not client.reader("t").has_message_available()


def test_a_function_learns_of_new_partitions(client: Client) -> None:
    producer = client.producer("t", message_router=by_number)
    producer.send(b"a", properties={"to": "0"})
    client.admin.update_topic("t", 5)
    producer.send(b"b", properties={"to": "0"})
    assert producer.send(b"c", properties={"to": "4"}).partition == 4


def test_messages_without_a_key_go_round_or_to_one_partition(client: Client) -> None:
    def partitions(**options: Any) -> list[int]:
        producer = client.producer("t", **options)
        return [producer.send(b"a").partition for _ in range(8)]

    assert partitions() == [0, 1, 2, 3, 0, 1, 2, 3]
    single = [partitions(message_routing_mode="single-partition") for _ in range(16)]
    assert all(len(set(one)) == 1 for one in single)
    assert len({one[0] for one in single}) > 1  # different producers choose different partitions
    fields: dict[str, Any] = {"name": "till", "message_routing_mode": "single-partition"}
    assert partitions(**fields) == partitions(**fields)
    keyed = client.producer("t", message_routing_mode="single-partition")
    plain = client.producer("t")
    for key in (b"a", b"b", b"c"):
        assert keyed.send(b"", key=key).partition == plain.send(b"", key=key).partition


def test_other_modes_and_routers_without_a_call_are_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="must be one of round-robin, single-partition"):
        client.producer("t", message_routing_mode="custom")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="message_router is int"):
        client.producer("t", message_router=1)  # type: ignore[arg-type]


def test_a_producer_of_tasks_has_a_router(client: Client, tmp_path: Path) -> None:
    async def main() -> int:
        async with (
            txlog.aio.open(str(tmp_path / "store")) as store,
            store.producer("t", message_router=lambda message, partitions: 3) as producer,
        ):
            return (await producer.send(b"a")).partition

    assert asyncio.run(main()) == 3
