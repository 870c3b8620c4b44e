"""Topics that get more partitions: open readers, consumers and producers find them, and old
partitions keep their numbers and ids.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, ids, pending, read, send, values
from txlog import Bound
from txlog.base.settings import PARTITIONS_MAX
from txlog.engine.folds.catalog import extents, index_of, number_of, numbers
from txlog.errors import InvalidArgument, LimitExceeded, NotAllowed, TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, partitions: int = 1) -> Bench:
    bench = Bench(folder / "store", ledger_entries_max=4, coordinators=1)
    bench.client.create_topic("t", partitions)
    bench.client.create_subscription("t", "s")
    return bench


def grow(bench: Bench, partitions: int, topic: str = "t") -> None:
    """Create another topic in between, so that the partition numbers are not consecutive."""
    bench.client.create_topic(f"between-{partitions}", 2)
    answer = bench.client.admin.update_topic(topic, partitions)
    assert answer == {"topic": topic, "partitions": partitions, "policies": {}, "changed": True}


def test_numbers_and_indexes_are_inverse(tmp_path: Path) -> None:
    """The numbers of a partition never change, and belong to one topic (Law 6)."""
    bench = bench_of(tmp_path, 2)
    grow(bench, 3)
    grow(bench, 7)
    for client in (bench.client, bench.another()):
        catalog = client.store.read(lambda view: view.catalog)
        seen: set[int] = set()
        for topic in catalog.topics.values():
            topic_numbers = list(numbers(topic))
            assert [number_of(topic, at) for at in range(topic.partitions)] == topic_numbers
            assert [index_of(topic, number) for number in topic_numbers] == list(
                range(topic.partitions)
            )
            assert index_of(topic, 99) == index_of(topic, 0) == -1
            assert not seen & set(topic_numbers)
            seen |= set(topic_numbers)
        (grown_topic,) = [
            each_topic for each_topic in catalog.topics.values() if each_topic.name.endswith("/t")
        ]
        assert extents(grown_topic) == [(1, 2), (5, 1), (8, 4)]


def test_an_open_producer_goes_by_the_new_number(tmp_path: Path) -> None:
    """The partition of a key is crc32(key) modulo the number of partitions at that frame, so a key
    never has two partitions at once.
    """
    bench = bench_of(tmp_path, 2)
    producer = bench.client.producer("t")
    keys = [b"key %d" % n for n in range(40)]

    def places() -> list[int]:
        table = pa.table({"value": pa.array(keys, pa.binary()), "key": pa.array(keys, pa.binary())})
        return [receipt.partition for receipt in producer.send_batch(table).receipts()]

    assert places() == [zlib.crc32(key) % 2 for key in keys]
    grow(bench, 3)
    assert places() == [zlib.crc32(key) % 3 for key in keys]
    other = bench.another()
    other.admin.update_topic("t", 8)
    assert places() == [zlib.crc32(key) % 8 for key in keys]
    with bench.client.transaction() as txn:
        other.admin.update_topic("t", 9)
        sent = producer.send(b"x", key=keys[0], txn=txn)
        assert sent.partition == zlib.crc32(keys[0]) % 9
    assert len(read(bench.client)) == 121


def test_an_open_producer_sends_to_a_new_partition_by_name(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    producer = bench.client.producer("t", "till")
    with pytest.raises(InvalidArgument):
        producer.send(b"x", partition=1)
    grow(bench, 2)
    assert producer.send(b"x", partition=1, sequence_id=4).partition == 1
    assert producer.send(b"x", partition=1, sequence_id=4).duplicate
    assert producer.last_sequence_id() == 4
    with pytest.raises(InvalidArgument):
        producer.send(b"x", partition=2)
    assert bench.client.producer("t/1").send(b"y").partition == 1
    with pytest.raises(TopicNotFound):
        bench.client.producer("t/2")


def test_an_open_consumer_gets_new_partitions(tmp_path: Path) -> None:
    """A subscription reads a new partition from its start.

    A subscription to a single partition does not get it.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_subscription("t", "one")
    with client.consumer("t", "s") as consumer, client.consumer("t/0", "one") as alone:
        send(client, b"0")
        consumer.acknowledge(consumer.receive_batch())
        grow(bench, 3)
        send(client, b"1", partition=1)
        send(client, b"2", partition=2)
        table = consumer.receive_batch()
        assert sorted(table.column("value").to_pylist()) == [b"1", b"2"]
        assert sorted(table.column("partition").to_pylist()) == [1, 2]
        consumer.acknowledge(table)
        assert alone.receive_batch().column("value").to_pylist() == [b"0"]
    assert [r["backlog"] for r in client.subscriptions("t")] == [3, 0]
    client.checkpoint(roll_all=True)
    reopened = bench.reopen()
    assert pending(reopened) == []
    assert [r["backlog"] for r in reopened.subscriptions("t")] == [3, 0]


def test_an_open_reader_gets_new_partitions(tmp_path: Path) -> None:
    """This holds for a reader without given partitions and without an end.

    The ids and paths of old partitions do not change.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    (first,) = send(client, b"0")
    reader, late, of_one = (
        client.reader("t"),
        client.reader("t", Bound("end")),
        client.reader("t/0"),
    )
    grow(bench, 2)
    (second,) = send(client, b"1", partition=1)
    assert sorted(m.value or b"" for m in reader) == [b"0", b"1"]
    assert [m.value for m in late] == [b"1"]
    assert [m.value for m in of_one] == [b"0"]
    assert ids(client) == [first, second]
    client.checkpoint(roll_all=True)
    assert sorted(values(bench.reopen())) == [b"0", b"1"]


def test_transactions_span_old_and_new_partitions(tmp_path: Path) -> None:
    """An open transaction continues, and its markers, acknowledgements and aborts work in the new
    partition.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    txn, other = begin(client), begin(client)
    producer = client.producer("t")
    for each_txn, name in ((txn, b"kept"), (other, b"gone")):
        producer.send(name, partition=0, txn=each_txn)
    grow(bench, 3)
    for each_txn, name in ((txn, b"kept too"), (other, b"gone too")):
        producer.send(name, partition=2, txn=each_txn)
    client.commit(txn)
    client.abort(other)
    assert sorted(values(client)) == [b"kept", b"kept too"]
    txn_row = client.show_transaction(txn)
    assert [row["partition"] for row in txn_row["partition_list"]] == [0, 2]
    client.admin.set_offline("t", 2)
    assert not client.describe_topic("t")["partition_list"][2]["online"]
    client.admin.set_online("t", 2)
    assert client.admin.trim("t", Bound("start"))["messages"] == 0
    last = begin(client)
    client.acknowledge("t", "s", ids(client), txn=last)
    client.commit(last)
    assert pending(client) == []


def test_refused_updates_and_updates_without_change(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 3)
    update = bench.client.admin.update_topic
    with pytest.raises(NotAllowed) as caught:
        update("t", 2)
    assert caught.value.code == 406
    with pytest.raises(LimitExceeded):
        update("t", PARTITIONS_MAX + 1)
    with pytest.raises(InvalidArgument):
        update("t", 4, retention=1)
    with pytest.raises(TopicNotFound):
        update("nothing", 2)
    assert bench.client.describe_topic("t")["partitions"] == 3
    assert update("t", ttl_ms=5, retention_ms=7)["changed"]
    lsn = bench.client.wait_for_change(0)
    assert not update("t", 3, ttl_ms=5)["changed"]
    assert bench.client.wait_for_change(0) == lsn
    answer = update("t", ttl_ms=None, retention_bytes=9)
    assert answer["policies"] == {"retention_ms": 7, "retention_bytes": 9}
    assert bench.another().describe_topic("t")["policies"] == answer["policies"]
