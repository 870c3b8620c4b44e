"""The ordering key: Key_Shared uses it in place of the key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, session_of
from txlog import Consumer
from txlog.engine.plan.consuming.choice import slot_of, slots_of
from txlog.engine.plan.route import ORDERING_KEY
from txlog.errors import InvalidArgument

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s", "key-shared")], coordinators=1),
]

KEYS = [f"k{number}".encode() for number in range(40)]


def _all_of(consumer: Consumer) -> list[tuple[bytes | None, bytes | None]]:
    rows = []
    while (message := consumer.receive(0)) is not None:
        rows.append((message.ordering_key, message.value))
        consumer.acknowledge(message)
    return rows


def _owners(consumers: list[Consumer]) -> list[range]:
    members = tuple(sorted(session_of(consumer).member.number for consumer in consumers))
    return [slots_of(members, session_of(consumer).member.number) for consumer in consumers]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_one_consumer_has_all_of_an_ordering_key(bench: Bench, is_sealed: bool) -> None:
    """All messages have one key, which alone would send everything to one consumer."""
    producer = bench.client.producer("t")
    for turn in range(3):
        for ordering in KEYS:
            producer.send(b"%d" % turn, key=b"same", ordering_key=ordering)
    if is_sealed:
        bench.client.checkpoint(roll_all=True)
    consumers = [bench.client.consumer("t", "s") for _ in range(2)]
    owners = _owners(consumers)
    seen = [_all_of(consumer) for consumer in consumers]
    for keys, owned in zip(seen, owners, strict=True):
        own_keys = [key for key in KEYS if slot_of(key) in owned]
        assert own_keys  # the keys are spread over both
        assert [consumer for consumer, _ in keys] == own_keys * 3
        assert [value for _, value in keys] == [b"%d" % turn for turn in range(3) for _ in own_keys]


def test_messages_with_and_without_an_ordering_key_mix(bench: Bench) -> None:
    """A message without one uses its key; a value that is no base64 is a property like any
    other.
    """
    producer = bench.client.producer("t")
    for key in KEYS:
        producer.send(b"by key", key=key)
        producer.send(b"by ordering key", key=b"same", ordering_key=key.decode())
        producer.send(b"by key", key=key, properties={ORDERING_KEY: "no base64!"})
        producer.send(b"by key", key=key, properties={"other": "one"})
    consumers = [bench.client.consumer("t", "s") for _ in range(2)]
    owners = _owners(consumers)
    for consumer, owned in zip(consumers, owners, strict=True):
        own_keys = [key for key in KEYS if slot_of(key) in owned]
        orderings = [ordering_key for ordering_key, _ in _all_of(consumer)]
        assert orderings == [
            ordering_key for key in own_keys for ordering_key in (None, key, None, None)
        ]


def test_every_way_to_send_takes_one(bench: Bench) -> None:
    """An ordering key changes neither the partition nor the other properties."""
    bench.client.create_topic("p", partitions=8)
    producer = bench.client.producer("p")
    with bench.client.transaction() as txn:
        receipts = [
            producer.send(b"1", key=b"k", ordering_key=b"o", properties={"a": "b"}),
            producer.send_async(b"2", key=b"k", ordering_key=b"o", properties={"a": "b"}).result(),
            producer.new_message()
            .value(b"3")
            .key(b"k")
            .ordering_key(b"o")
            .property("a", "b")
            .send(),
        ]
        future = producer.send_async(
            b"4", txn=txn, key=b"k", ordering_key=b"o", properties={"a": "b"}
        )
    assert len({message.partition for message in (*receipts, future.result())}) == 1
    messages = sorted(bench.client.reader("p"), key=lambda message: message.value or b"")
    assert [message.value for message in messages] == [b"1", b"2", b"3", b"4"]
    assert {message.ordering_key for message in messages} == {b"o"}
    assert {message.properties["a"] for message in messages} == {"b"}


def test_a_batch_names_it_as_a_property(bench: Bench) -> None:
    """Rows of Arrow have properties, and the ordering key is one of them."""
    rows = pa.RecordBatch.from_pylist(
        [{"value": b"1", "properties": [(ORDERING_KEY, "bw==")]}],
        pa.schema([("value", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))]),
    )
    bench.client.producer("t").send_batch(rows)
    assert [message.ordering_key for message in bench.client.reader("t")] == [b"o"]


def test_another_type_is_refused(bench: Bench) -> None:
    """With the name of the argument, as for the key."""
    with pytest.raises(InvalidArgument, match="ordering_key"):
        bench.client.producer("t").send(b"", ordering_key=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="ordering_key"):
        bench.client.producer("t").send_async(b"", ordering_key=5)  # type: ignore[call-overload]
