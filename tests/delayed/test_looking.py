"""Listings of delayed messages: the index answers as the log would. Source: spec/delayed 9."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.delayed.looking_kit import (
    delayed_now,
    listed_ids,
    lose,
    partition_number,
    place,
    seal,
    time_of,
)
from tests.engine_kit import START_MS, Bench, begin, ids, send
from tests.tiers import graded
from txlog import Bound, Client, Message, MessageId, Range, messages
from txlog.client.answers import delayed
from txlog.engine.decide.draft import Decision
from txlog.engine.model.ops import BucketSealed
from txlog.engine.view import Files
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
HOUR_MS = 3_600_000


def bench_of(folder: Path, partitions: int = 1, **settings: int) -> Bench:
    bench = Bench(folder / "store", coordinators=1, **settings)
    bench.client.create_topic("t", partitions)
    bench.client.create_subscription("t", "s", type="shared")
    return bench


def later(client: Client, *delays_ms: int, partition: int = 0) -> list[MessageId]:
    """Send messages that are due this much later than the start."""
    producer = client.producer("t")
    sent = [
        producer.send(
            b"%d" % message,
            key=b"k%d" % message,
            deliver_at=START_MS + message,
            partition=partition,
        )
        for message in delays_ms
    ]
    return [message.message_id for message in sent if message.message_id is not None]


def test_the_list_is_in_the_order_of_time(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    a, b, c, d = later(client, 500, 300, 500, 100)
    send(client, b"now")
    handle = client.topic("t")
    assert listed_ids(handle.delayed()) == [d, b, a, c]
    assert listed_ids(handle.delayed(limit=3)) == [d, b, a]
    assert listed_ids(handle.delayed(limit=0)) == []
    assert listed_ids(handle.delayed(before=START_MS + 500)) == [d, b]
    assert listed_ids(handle.delayed(key=b"k500")) == [a, c]
    assert listed_ids(handle.delayed(key=b"k500", limit=1)) == [a]
    assert handle.next_delayed() == {"message_id": d, "deliver_at": START_MS + 100}
    bench.clock.advance(300)
    assert listed_ids(handle.delayed()) == [a, c]
    bench.clock.advance(200)
    assert listed_ids(handle.delayed()) == []
    assert handle.next_delayed() is None


def test_a_list_looks_at_each_frame_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against one read for each thousand rows, each with all files, and one read of all
    rows.
    """
    bench = bench_of(tmp_path)
    rng, now = random.Random(4), START_MS
    times = [now + 1 + at for at in rng.sample(range(10**6), 6000)]
    for at in range(0, len(times), 600):
        column = pa.array(times[at : at + 600], pa.timestamp("ms", "UTC"))
        rows = pa.table({"value": [b"x" * 100] * 600, "deliver_at": column})
        bench.client.producer("t").send_batch(rows)
    reads: list[int] = []
    noted = Files._noted

    def count(self: Files, table: pa.Table) -> pa.Table:
        reads.append(len(table))
        return noted(self, table)

    monkeypatch.setattr(Files, "_noted", count)
    found_rows = bench.client.topic("t").delayed()["deliver_at"].cast(pa.int64()).to_pylist()
    assert found_rows == sorted(times)
    assert (len(reads), sum(reads)) == (1, 6000)
    reads.clear()
    monkeypatch.setattr(delayed, "RECEIVE_BYTES_MAX", 100_000)  # the payloads that may be in memory
    assert len(bench.client.topic("t").delayed()) == 6000
    assert reads == [1000] * 6


def test_a_row_of_a_listing_has_key_size_and_transaction(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    later(client, 70)
    with client.transaction() as txn:
        client.producer("t").send(b"four", deliver_at=START_MS + 60, txn=txn)
    first, second = client.topic("t").delayed().to_pylist()
    assert (first["index"], first["key"], first["size_bytes"]) == (1, None, 4)
    assert (first["txn_most"], first["txn_least"]) == (txn.id.most, txn.id.least)
    assert (second["index"], second["key"], second["size_bytes"]) == (None, b"k70", 2)
    assert second["txn_most"] is None


def test_acknowledged_messages_are_not_listed_for_a_subscription(tmp_path: Path) -> None:
    """Also single messages of a marker, whole markers, and messages below mark-delete."""
    bench = bench_of(tmp_path)
    client = bench.client
    plain = later(client, 100, 200, 300)
    with client.transaction() as txn:
        for n in range(4):
            client.producer("t").send(b"x", deliver_at=START_MS + 1000 + n, txn=txn)
    handle = client.topic("t")
    marker = listed_ids(handle.delayed())[3:]
    client.acknowledge("t", "s", [plain[0], plain[2], marker[1]])
    assert listed_ids(handle.delayed("s")) == [plain[1], marker[0], marker[2], marker[3]]
    client.acknowledge("t", "s", [marker[0]])
    assert listed_ids(handle.delayed("s")) == [plain[1], *marker[2:]]
    client.acknowledge("t", "s", [plain[1]])
    assert listed_ids(handle.delayed("s")) == marker[2:]
    client.acknowledge("t", "s", marker[2:])
    assert listed_ids(handle.delayed("s")) == []
    assert listed_ids(handle.delayed()) == [*plain, *marker]


def test_open_and_aborted_transactions_are_not_there(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    for end in (client.abort, client.commit):
        txn = begin(client)
        client.producer("t").send(b"x", deliver_at=START_MS + 1000, txn=txn)
        assert client.topic("t").delayed().num_rows == 0
        end(txn)
    assert client.topic("t").delayed().num_rows == 1


def test_one_partition_or_all(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 3)
    client = bench.client
    a = later(client, 100, 400, partition=0)
    b = later(client, 300, 200, partition=2)
    assert listed_ids(client.topic("t").delayed()) == [a[0], b[1], b[0], a[1]]
    assert listed_ids(client.topic("t/2").delayed()) == [b[1], b[0]]
    assert listed_ids(client.topic("t/1").delayed()) == []


def test_wrong_questions(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    with pytest.raises(TopicNotFound):
        client.topic("nowhere")
    with pytest.raises(TopicNotFound):
        client.topic("t/1")
    with pytest.raises(SubscriptionNotFound):
        client.topic("t").delayed("nobody")
    with pytest.raises(InvalidArgument):
        client.topic("t").delayed(limit=-1)


def test_the_histogram_counts_every_message_once(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    edges = [60_000, 600_000, HOUR_MS, 24 * HOUR_MS]
    later(client, 1, *edges, *(edge + 1 for edge in edges))
    rows = client.topic("t").histogram()
    assert [row["due_within_ms"] for row in rows] == [*edges, None]
    assert [row["messages"] for row in rows] == [2, 2, 2, 2, 1]


def test_instants_beyond_a_calendar_are_listed(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    far = (1 << 63) - 1
    client.producer("t").send_batch(
        pa.record_batch(
            {
                "value": pa.array([b"x"], pa.binary()),
                "deliver_at": pa.array([far], pa.int64()).cast(pa.timestamp("ms", "UTC")),
            }
        )
    )
    assert client.topic("t").next_delayed() is not None
    assert client.topic("t").histogram()[-1]["messages"] == 1


def test_the_mark_of_a_damaged_bucket_is_a_warning_and_no_hole(tmp_path: Path) -> None:
    """Spec 11: no call fails because of a bucket. Its footer, one segment, the whole file."""
    for at, cut in ((0, slice(100, 140)), (1, slice(-40, -20)), (2, None)):
        bench = bench_of(tmp_path / str(at))
        client = bench.client
        sent = later(client, 5000, 1000, 3000, 9000, 7000)
        path = seal(client, 0, 4)
        assert path is not None
        file = Path(bench.path, path)
        data = bytearray(file.read_bytes())
        if cut is None:
            file.unlink()
        else:
            data[cut] = bytes(len(data[cut]))
            file.write_bytes(data)
        order = [sent[1], sent[2], sent[0], sent[4], sent[3]]
        client = bench.reopen()
        assert listed_ids(client.topic("t").delayed()) == order
        assert any("bucket" in line for line in client.reports())
        assert client.topic("t").promote(before=START_MS + 6000)["promoted"] == 3


def test_trimmed_messages_are_not_listed_though_a_bucket_has_them(tmp_path: Path) -> None:
    """A bucket spans several ledgers, and is removed as a whole."""
    client = bench_of(tmp_path, ledger_entries_max=2).client
    sent = later(client, 100, 200, 300, 400, 500)
    seal(client, 0, 4)
    client.acknowledge("t", "s", sent[:3])
    client.checkpoint(roll_all=True)
    deleted_messages = client.admin.trim("t", Bound("id", sent[3]))["messages"]
    assert 0 < deleted_messages < 4
    handle = client.topic("t")
    assert listed_ids(handle.delayed()) == sent[deleted_messages:]
    assert client.topics()[0]["delayed"] == 5 - deleted_messages
    assert client.subscriptions("t")[0]["delayed"] == 2
    with pytest.raises(MessageNotFound):
        handle.cancel(sent[:1])
    assert handle.cancel(all=True)["cancelled"] == 2


def test_messages_skipped_by_a_fast_clock_are_listed_by_a_slow_one(tmp_path: Path) -> None:
    """The index may lack the message; the log has it. Counts come from the index."""
    bench = bench_of(tmp_path)
    client = bench.client
    a, b, c = later(client, 100, 200, 300)
    bench.clock.advance(1000)
    (d,) = later(client, 1500)
    (e,) = later(client, 500)  # due at the time of its send
    seal(client, 0, 2)
    lose(client, 0)
    number = partition_number(client, 0)
    op = BucketSealed(number, "rebuild", (0, 0, 0), (b.ledger, b.entry, 0), START_MS + 250, None)
    client.store.write(lambda view, now: Decision([op], sync=True))
    handle = client.topic("t")
    assert listed_ids(handle.delayed()) == [d]
    bench.clock.set_wall(START_MS)
    assert listed_ids(handle.delayed()) == [a, b, c, e, d]
    assert listed_ids(handle.delayed(before=START_MS + 300)) == [a, b]
    assert listed_ids(handle.delayed(before=START_MS + 501)) == [a, b, c, e]
    assert handle.cancel(all=True)["cancelled"] == 5


def world(chance: random.Random, bench: Bench, partitions: int) -> None:
    """Make one random change."""
    client = bench.client
    act = chance.choice(["send"] * 4 + ["txn"] * 3 + ["seal"] * 2 + ["ack", "ack", "lose", "time"])
    partition = chance.randrange(partitions)
    producer = client.producer("t")
    now_ms = bench.clock.now().wall_ms

    def time() -> int | None:
        return chance.choice([None, now_ms - 5, now_ms + chance.randrange(1, 30_000)])

    if act == "send":
        for _ in range(chance.randrange(1, 4)):
            producer.send(b"x", deliver_at=time(), partition=partition)
    elif act == "txn":
        txn = begin(client)
        for _ in range(chance.randrange(1, 5)):
            producer.send(b"x", deliver_at=time(), partition=partition, txn=txn)
        (client.abort if chance.random() < 0.2 else client.commit)(txn)
    elif act == "seal":
        seal(client, partition, chance.randrange(1, 8))
    elif act == "lose" and any(
        row["state"] == "sealed" and row["partition"] == partition
        for row in client.topic("t").buckets()
    ):
        lose(client, partition)
    elif act == "ack" and (message_ids := ids(client)):
        client.acknowledge(
            "t", "s", chance.sample(message_ids, chance.randrange(1, len(message_ids) + 1))
        )
    elif act == "time":
        bench.clock.advance(chance.randrange(8000))


def check(bench: Bench) -> None:
    """Every answer agrees with the log."""
    client, now_ms = bench.client, bench.clock.now().wall_ms
    handle = client.topic("t")
    there = delayed_now(client, now_ms)
    acked = done(client)
    remaining_messages = [txn_state for txn_state in there if place(txn_state) not in acked]
    assert listed_ids(handle.delayed()) == [txn_state.message_id for txn_state in there]
    assert listed_ids(handle.delayed("s")) == [
        txn_state.message_id for txn_state in remaining_messages
    ]
    assert listed_ids(handle.delayed("s", limit=3)) == [
        txn_state.message_id for txn_state in remaining_messages[:3]
    ]
    middle = now_ms + 10_000
    early = [txn_state for txn_state in there if time_of(txn_state) < middle]
    assert listed_ids(handle.delayed(before=middle)) == [
        txn_state.message_id for txn_state in early
    ]
    assert sum(row["messages"] for row in handle.histogram()) == len(there)
    rows = handle.buckets()
    if not any(row["state"] == "unindexed" for row in rows):
        assert sum(row["not_due"] or 0 for row in rows if row["state"] != "pending") == len(there)
        (subscription_row,) = client.subscriptions("t")
        assert subscription_row["delayed"] == len(remaining_messages)
        assert subscription_row["backlog_no_delayed"] == subscription_row["backlog"] - len(
            remaining_messages
        )
        assert client.topics()[0]["delayed"] == len(there)


def done(client: Client) -> set[tuple[int, int, int]]:
    """The ids that the subscription has acknowledged."""
    rest_messages: list[Message] = []
    for table in client.read("t", range=Range(kind="unacked", subscription="s")):
        rest_messages += messages(table)
    positions = {place(rest_message) for rest_message in rest_messages}
    return {(i.ledger, i.entry, i.index) for i in ids(client)} - positions


@pytest.mark.parametrize("seed", graded(range(4), 1))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    partitions = chance.choice([1, 2])
    bench = bench_of(tmp_path, partitions, ledger_entries_max=6)
    for step in range(60):
        world(chance, bench, partitions)
        if step % 6 == 5:
            check(bench)
        if step % 20 == 19:
            bench.client.checkpoint()
            bench.reopen()
    check(bench)
