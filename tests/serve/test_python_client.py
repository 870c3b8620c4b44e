"""The stock Python client of Apache Pulsar, unmodified, while commands use the same store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import txlog
from tests.serve.served import served

pulsar = pytest.importorskip("pulsar")
pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    path = tmp_path_factory.mktemp("s") / "s"
    with served(path) as url:
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        yield path, client
        client.close()


def everything(consumer: Any, count: int, *, acks: bool = True) -> list[Any]:
    """Receive so many messages."""
    messages = []
    for _ in range(count):
        message = consumer.receive(20_000)
        if acks:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def first(client: Any, topic: str, name: str = "s", **options: Any) -> Any:
    options.setdefault("consumer_type", pulsar.ConsumerType.Shared)
    earliest = pulsar.InitialPosition.Earliest
    return client.subscribe(topic, name, initial_position=earliest, **options)


def send(client: Any, topic: str, count: int, **options: Any) -> list[str]:
    """Send numbers as one or more batches; the ids of their receipts."""
    ids: list[str] = []
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=20, **options
    )
    for number in range(count):
        producer.send_async(
            b"%d" % number,
            lambda result, message_id: ids.append(str(message_id)),
            partition_key=str(number % 7),
        )
    producer.flush()
    producer.close()
    return ids


def backlog(path: Path, topic: str) -> int:
    with txlog.open(str(path)) as client:
        client.flush()  # acknowledgements are written, and durable with the next flush
        return sum(row["backlog"] for row in client.subscriptions(topic))


@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_receipts_have_the_ids_that_consumers_get(place: tuple[Path, Any], kind: str) -> None:
    path, client = place
    pressed = getattr(pulsar.CompressionType, kind)
    ids = send(client, f"ids{kind}", 50, compression_type=pressed)
    messages = everything(first(client, f"ids{kind}"), 50)
    assert [str(message.message_id()) for message in messages] == ids
    assert [message.data() for message in messages] == [b"%d" % number for number in range(50)]
    assert messages[9].partition_key() == "2"
    with txlog.open(str(path), read_only=True) as store:
        rows = [(message.value, message.key) for message in store.reader(f"ids{kind}")]
    assert rows[9] == (b"9", b"2")
    assert len(rows) == 50


@pytest.mark.parametrize("kind", ["Shared", "KeyShared", "Failover", "Exclusive"])
def test_each_type_of_subscription_gets_everything_once(place: tuple[Path, Any], kind: str) -> None:
    path, client = place
    send(client, f"types{kind}", 100)
    consumer = first(client, f"types{kind}", consumer_type=getattr(pulsar.ConsumerType, kind))
    numbers = sorted(int(message.data()) for message in everything(consumer, 100))
    assert numbers == list(range(100))
    consumer.close()
    assert backlog(path, f"types{kind}") == 0


def test_partitions_are_one_subscription(place: tuple[Path, Any]) -> None:
    path, client = place
    with txlog.open(str(path)) as store:
        store.create_topic("parts", partitions=3)
    send(client, "parts", 100)
    consumer = first(client, "parts", consumer_type=pulsar.ConsumerType.Exclusive)
    assert sorted(int(message.data()) for message in everything(consumer, 100)) == list(range(100))
    consumer.close()
    assert backlog(path, "parts") == 0


def test_negatively_acknowledged_messages_come_again(place: tuple[Path, Any]) -> None:
    path, client = place
    send(client, "nacks", 10)
    consumer = first(client, "nacks", negative_ack_redelivery_delay_ms=100)
    for message in everything(consumer, 10, acks=False):
        consumer.negative_acknowledge(message)
    redelivered = everything(consumer, 10)
    assert {message.redelivery_count() for message in redelivered} == {1}
    consumer.close()
    assert backlog(path, "nacks") == 0


def test_acknowledgements_of_parts_of_a_batch(place: tuple[Path, Any]) -> None:
    path, client = place
    send(client, "odd", 50)
    consumer = first(client, "odd", batch_index_ack_enabled=True)
    for message in everything(consumer, 50, acks=False):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    consumer = first(client, "odd")
    assert sorted(int(message.data()) for message in everything(consumer, 25)) == list(
        range(0, 50, 2)
    )
    consumer.close()
    assert backlog(path, "odd") == 0


def test_readers_seek_and_know_whether_there_is_more(place: tuple[Path, Any]) -> None:
    _, client = place
    send(client, "read", 20)
    reader = client.create_reader("read", pulsar.MessageId.earliest)
    messages = []
    while reader.has_message_available():
        messages.append(reader.read_next(20_000))
    assert len(messages) == 20
    reader.seek(messages[9].message_id())
    assert reader.read_next(20_000).data() == b"10"
    later = client.create_reader("read", messages[17].message_id())
    assert [later.read_next(20_000).data() for _ in range(2)] == [b"18", b"19"]
    assert not later.has_message_available()


def test_a_consumer_seeks_by_id_and_by_time(place: tuple[Path, Any]) -> None:
    _, client = place
    send(client, "seeks", 20)
    consumer = first(client, "seeks")
    messages = everything(consumer, 20)
    consumer.seek(messages[4].message_id())
    assert consumer.receive(20_000).data() == b"5"
    consumer = first(client, "seeks", "by-time")
    everything(consumer, 20)
    consumer.seek(1)
    assert consumer.receive(20_000).data() == b"0"


def test_a_message_in_chunks_comes_whole(place: tuple[Path, Any]) -> None:
    path, client = place
    producer = client.create_producer("large", chunking_enabled=True)
    producer.send(b"z" * 12_000_000, properties={"a": "b"})
    consumer = first(client, "large")
    [message] = everything(consumer, 1)
    assert (message.data(), message.properties()) == (b"z" * 12_000_000, {"a": "b"})
    consumer.close()
    assert backlog(path, "large") == 0


def test_a_delayed_message_waits(place: tuple[Path, Any]) -> None:
    _, client = place
    producer = client.create_producer("late")
    consumer = first(client, "late")
    begun = time.monotonic()
    producer.send(b"later", deliver_after=timedelta(milliseconds=400))
    producer.send(b"now")
    assert [message.data() for message in everything(consumer, 2)] == [b"now", b"later"]
    assert time.monotonic() - begun >= 0.4


def test_producer_goes_on_after_the_server_was_replaced(tmp_path: Path) -> None:
    """Nothing is lost or doubled: the new server knows what the old one stored."""
    with served(tmp_path / "s") as url:
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer("goes", "till")
        for number in range(20):
            producer.send(b"%d" % number)
    port = int(url.rpartition(":")[2])
    with served(tmp_path / "s", port=port):
        for number in range(20, 40):
            producer.send(b"%d" % number)
        client.close()
    with txlog.open(str(tmp_path / "s"), read_only=True) as store:
        assert [message.value for message in store.reader("goes")] == [b"%d" % n for n in range(40)]


def test_ordering_keys_go_with_their_messages_and_share_them_out(place: tuple[Path, Any]) -> None:
    """All messages have one key; Key_Shared consumers share them by their ordering keys."""
    path, client = place
    keys = [f"o{number}" for number in range(20)]
    with txlog.open(str(path)) as store:
        store.create_topic("ordered")
        store.producer("ordered").send(
            b"odd", key=b"same", properties={"pulsar.ordering_key": "no base64"}
        )
    kind = pulsar.ConsumerType.KeyShared
    consumers = [first(client, "ordered", consumer_type=kind) for _ in range(2)]
    producer = client.create_producer("ordered", batching_enabled=False)
    for turn in range(2):
        for key in keys:
            producer.send(b"%d" % turn, partition_key="same", ordering_key=key)
    values_by_key: list[dict[str, list[bytes]]] = [{}, {}]
    remaining = 2 * len(keys) + 1
    while remaining:
        for consumer, seen in zip(consumers, values_by_key, strict=True):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            seen.setdefault(message.ordering_key(), []).append(message.data())
            remaining -= 1
    [odd] = [seen.pop("") for seen in values_by_key if "" in seen]
    assert odd == [b"odd"]
    assert all(values_by_key)  # both have some
    assert not set(values_by_key[0]) & set(values_by_key[1])
    assert sorted([*values_by_key[0], *values_by_key[1]]) == sorted(keys)
    assert all(values == [b"0", b"1"] for seen in values_by_key for values in seen.values())


def test_encrypted_batches_are_read_with_the_key(place: tuple[Path, Any], tmp_path: Path) -> None:
    """Python's batches are encrypted as a whole, after they are compressed."""
    path, client = place
    private = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    none = serialization.NoEncryption()
    files = [tmp_path / "public.pem", tmp_path / "private.pem"]
    public_form = serialization.PublicFormat.SubjectPublicKeyInfo
    files[0].write_bytes(private.public_key().public_bytes(serialization.Encoding.PEM, public_form))
    files[1].write_bytes(private.private_bytes(serialization.Encoding.PEM, form, none))
    keys = pulsar.CryptoKeyReader(*map(str, files))
    producer = client.create_producer(
        "secret",
        batching_enabled=True,
        batching_max_publish_delay_ms=50,
        compression_type=pulsar.CompressionType.ZSTD,
        encryption_key="k",
        crypto_key_reader=keys,
    )
    for number in range(20):
        producer.send_async(b"clear %d" % number, None)
    producer.flush()
    consumer = first(client, "secret", crypto_key_reader=keys)
    messages = everything(consumer, 20)
    assert [message.data() for message in messages] == [b"clear %d" % one for one in range(20)]
    consumer.close()
    with txlog.open(str(path)) as store:
        rows = list(store.reader("secret"))
        assert 1 <= len(rows) < 20
        assert not any(b"clear" in (row.value or b"") for row in rows)
        assert store.subscriptions("secret")[0]["backlog"] == 0
