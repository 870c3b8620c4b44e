"""Sends of a transaction wait in the client, and go into one frame with the commit.

Source: spec/transactions 5.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.crash.world import TOPIC, new_disk, open_client
from tests.engine_kit import Bench, begin, ids, pending, send, values
from txlog import Client, MessageId, Transaction
from txlog.client.answers.lists import kept_frames
from txlog.engine.door.sending import SendReceipt
from txlog.engine.session.transactions import buffer
from txlog.errors import (
    AlreadyClosed,
    InvalidArgument,
    InvalidMessage,
    InvalidTxnStatus,
    MessageNotFound,
    PartitionUnavailable,
    ProducerFenced,
    StoreFull,
    StoreLocked,
    TopicNotFound,
    TransactionTimedOut,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], coordinators=1),
]


@dataclass
class Order:
    cups: int


def rows(*given_values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(given_values, pa.binary())})


def lsn(client: Client) -> int:
    return client.wait_for_change(0)


def frames_after(client: Client, start: int) -> int:
    return sum(raw.lsn > start for raw in client.store.ask(kept_frames))


def held(client: Client) -> int:
    """How many messages the open transactions have in the store."""
    return sum(row["messages"] for row in client.transactions())


# --- when they are written -----------------------------------------------------------------------


def test_a_loop_of_sends_is_one_frame_with_the_commit(bench: Bench) -> None:
    """With begin and end; keys, properties and event times; several partitions."""
    client = bench.client
    client.transaction().abort()  # so that ids are reserved
    start = lsn(client)
    producer = client.producer("t")
    with client.transaction() as txn:
        for number in range(200):
            producer.send(
                f"{number}",
                key=b"%d" % (number % 7),
                properties={"n": str(number)} if number % 2 else None,
                event_time=number if number % 3 else None,
                txn=txn,
            )
        assert lsn(client) == start and bench.another().transactions() == []
    assert frames_after(client, start) == 1
    got = {message.value: message for message in client.reader("t")}
    assert len(got) == 200
    for number in range(200):
        message = got[b"%d" % number]
        assert message.key == b"%d" % (number % 7)
        assert message.properties == ({"n": str(number)} if number % 2 else {})
        assert message.event_time == (number if number % 3 else None)


def test_a_program_that_dies_leaves_nothing(bench: Bench) -> None:
    """It had committed nothing: the store has not even a transaction."""
    client = bench.another()
    client.producer("t").send(b"lost", txn=client.transaction())
    bench.clients.remove(client)  # as if killed: no call closes it
    assert bench.another().transactions(all=True) == []


WRITES: dict[str, Callable[[Client, Transaction, SendReceipt], object]] = {
    "flush": lambda client, txn, receipt: txn.flush(),
    "id": lambda client, txn, receipt: txn.id,
    "a field": lambda client, txn, receipt: receipt.txn_index,
    "an index": lambda client, txn, receipt: receipt[0],
    "a loop": lambda client, txn, receipt: [*receipt],
    "a comparison": lambda client, txn, receipt: receipt == receipt,
    "a hash": lambda client, txn, receipt: hash(receipt),
    "pickling": lambda client, txn, receipt: pickle.dumps(receipt),
    "a batch": lambda client, txn, receipt: client.producer("t").send_batch(rows(), txn=txn),
    "a watermark": lambda client, txn, receipt: (
        client.producer("t").new_watermark(txn).event_time(1).send()
    ),
    "chunks": lambda client, txn, receipt: client.producer("t", chunking=True).send(
        BytesIO(b"x" * (6 << 20)), txn=txn
    ),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_writes_them(bench: Bench, what: str) -> None:
    client, other = bench.client, bench.another()
    with client.transaction() as txn:
        receipt = client.producer("t").send(b"a", partition=0, txn=txn)
        assert other.transactions() == []
        WRITES[what](client, txn, receipt)
        assert held(other) >= 1
        assert values(other) == []
    assert b"a" in values(other)


def test_what_does_not_write_them(bench: Bench) -> None:
    """An acknowledgement, with an answer or deferred; printing; asking whether a future is done."""
    client, other = bench.client, bench.another()
    message_ids = send(client, b"in", b"too")
    with client.transaction() as txn:
        producer = client.producer("t")
        receipt = producer.send(b"a", txn=txn)
        later = producer.send_async(b"b", txn=txn)
        assert repr(receipt) == "SendReceipt(not written yet)"
        assert "OPEN" in repr(txn) and "<td>2</td>" in txn._repr_html_()
        assert not later.done()
        client.acknowledge_async("t", "s", message_ids[:1], txn=txn)
        assert client.acknowledge("t", "s", message_ids[1:], txn=txn)["acked"] == 1
        assert held(other) == 0
    assert values(other) == [b"in", b"too", b"a", b"b"]
    assert [message.value for message in pending(other)] == [b"a", b"b"]


@pytest.mark.parametrize("bound", ["MESSAGES", "BYTES"])
def test_a_bound_writes_them(bench: Bench, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(buffer, f"TXN_BUFFER_{bound}_MAX", {"MESSAGES": 10, "BYTES": 100}[bound])
    client, other = bench.client, bench.another()
    producer = client.producer("t")
    with client.transaction() as txn:
        for number in range(25):
            producer.send(b"%10d" % number, partition=0, txn=txn)
            assert held(other) == number // 10 * 10
        producer.send(b"x" * 200, partition=0, txn=txn)  # larger than the bound
        assert held(other) == 25 if bound == "BYTES" else 20
    assert values(other) == [*(b"%10d" % number for number in range(25)), b"x" * 200]


def test_a_send_with_write_through_is_written_when_it_returns(bench: Bench) -> None:
    client, other = bench.client, bench.another()
    producer = client.producer("t")
    for txn in (
        client.transaction(write_through=True),
        client.new_transaction().with_write_through().build(),
        begin(client),
    ):
        before = held(other)
        receipt = producer.send(b"a", txn=txn)
        assert type(receipt) is SendReceipt
        assert held(other) == before + 1


def test_a_keyed_transaction_buffers_too(bench: Bench) -> None:
    client, other = bench.client, bench.another()
    with client.transaction(key="k") as txn:
        client.producer("t").send(b"a", txn=txn)
        assert held(other) == 0
    assert values(other) == [b"a"]


# --- what refuses them ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        (5, {}, InvalidArgument),
        (b"x", {"key": 5}, InvalidArgument),
        (b"x", {"properties": {"a": 5}}, InvalidArgument),
        (b"x", {"properties": {str(n): "" for n in range(1001)}}, InvalidMessage),
        (b"x", {"event_time": 1 << 63}, InvalidArgument),
        (b"x", {"deliver_at": -1}, InvalidMessage),
        (b"x", {"deliver_after": -1}, InvalidArgument),
        (b"x", {"deliver_at": 1, "deliver_after": 1}, InvalidArgument),
        (b"x", {"sequence_id": -1}, InvalidMessage),
        (b"x", {"partition": 2}, InvalidArgument),
        (b"x", {"partition": "0"}, InvalidArgument),
        (b"x" * 70_000, {"key": b"k" * 65_537}, InvalidMessage),
        (b"x" * (5 << 20) + b"y", {}, InvalidMessage),
    ],
)  # fmt: skip
def test_send_refuses_what_needs_no_store(
    bench: Bench, value: Any, options: Any, error: type[Exception]
) -> None:
    """And the rest of the transaction commits."""
    client = bench.client
    producer = client.producer("t")
    start = lsn(client)
    with client.transaction() as txn:
        producer.send(b"good", txn=txn)
        with pytest.raises(error):
            producer.send(value, txn=txn, **options)
        assert lsn(client) == start
    assert values(client) == [b"good"]


def test_send_refuses_a_value_that_does_not_fit_the_schema(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t", schema=Order)
    producer = bench.client.producer("t")
    with bench.client.transaction() as txn:
        producer.send({"cups": 1}, txn=txn)
        producer.send(b'{"cups": 2}', txn=txn)
        with pytest.raises(InvalidMessage, match="does not fit"):
            producer.send(b"bad", txn=txn)
        assert held(bench.another()) == 0
    messages = list(bench.client.reader("t"))
    assert [message.schema_version for message in messages] == [1, 1]


def test_send_refuses_what_is_closed_or_ended(bench: Bench) -> None:
    client = bench.client
    producer, closed = client.producer("t"), client.producer("t")
    committed, aborted, left = (client.transaction() for _ in range(3))
    producer.send(b"a", txn=committed)
    committed.commit()
    aborted.abort()
    with pytest.raises(ZeroDivisionError), left:
        raise ZeroDivisionError
    for txn in (committed, aborted, left):
        with pytest.raises(InvalidTxnStatus):
            producer.send(b"b", txn=txn)
        with pytest.raises(InvalidTxnStatus):
            producer.send_async(b"b", txn=txn)
    closed.close()
    with pytest.raises(AlreadyClosed):
        closed.send(b"b", txn=client.transaction())
    txn = client.transaction()
    client.close()
    with pytest.raises(AlreadyClosed):
        producer.send(b"b", txn=txn)
    assert values(bench.another()) == [b"a"]


def fence(bench: Bench) -> None:
    bench.another().producer("t", "named")


def set_offline(bench: Bench) -> None:
    bench.another().admin.set_offline("t", 1)


def delete(bench: Bench) -> None:
    bench.another().admin.delete_topic("t", force=True)


def time_out(bench: Bench) -> None:
    bench.clock.advance(10_000_000)


STORE_REFUSES: dict[str, tuple[Callable[[Bench], object], type[Exception]]] = {
    "fenced": (fence, ProducerFenced),
    "offline": (set_offline, PartitionUnavailable),
    "deleted": (delete, TopicNotFound),
    "overdue": (time_out, TransactionTimedOut),
}


@pytest.mark.parametrize("way", ["flush", "commit", "receipt", "with"])
@pytest.mark.parametrize("why", STORE_REFUSES)
def test_the_next_write_raises_what_only_the_store_knows(bench: Bench, why: str, way: str) -> None:
    """It names the message; after a flush the commit raises it again, and aborts."""
    client = bench.client
    refuse, error = STORE_REFUSES[why]
    producer = client.producer("t", "named")
    txn = client.transaction()
    _ = txn.id
    producer.send(b"first", key=b"a", partition=0, txn=txn)
    receipt = producer.send(b"second", key=b"b" * 50, partition=1, txn=txn)
    refuse(bench)
    with pytest.raises(error) as caught:
        if way == "with":
            with txn:
                producer.send(b"third", partition=0, txn=txn)
        elif way == "receipt":
            _ = receipt.txn_index
        else:
            getattr(txn, way)()
    (note,) = caught.value.__notes__
    assert "of the transaction, topic t, key b'" in note
    assert ("message 2 " in note and "…" in note) if why == "offline" else "messages 1 to " in note
    if way == "flush":
        with pytest.raises(error):
            txn.flush()
        with pytest.raises(error):
            txn.commit()
    if way == "receipt" and why == "offline":  # the only one that was refused was seen
        txn.commit()
        client.admin.set_online("t", 1)
        assert values(client) == [b"first"]
    else:
        assert txn.state in ("ABORTED", "OPEN")  # OPEN: another one has ended it
        with pytest.raises((InvalidTxnStatus, error)):
            txn.commit()
    assert bench.another().transactions() == []


def test_a_full_disk_is_told_by_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_client(new_disk())
    client.create_topic(TOPIC, 1)
    txn = client.transaction()
    client.producer(TOPIC).send(b"a" * 100, txn=txn)
    monkeypatch.setattr(type(client.store.disk), "free_bytes", lambda _: 0)
    client.store._appender._space._frames = 1000
    with pytest.raises(StoreFull) as caught:
        txn.flush()
    assert "message 1 of the transaction" in caught.value.__notes__[0]


def test_a_flush_that_found_the_store_locked_can_be_repeated(bench: Bench) -> None:
    client = bench.another(lock_timeout_ms=0)
    lock = bench.client.store.disk.lock_file("lock")
    txn = client.transaction()
    client.producer("t").send(b"a", txn=txn)
    assert lock.try_acquire()
    for act in (txn.flush, lambda: txn.id):
        with pytest.raises(StoreLocked):
            act()
    lock.release()
    lock.close()
    client.producer("t").send(b"b", txn=txn)
    txn.flush()
    txn.commit()
    assert values(bench.client) == [b"a", b"b"]


def test_one_bad_message_refuses_no_other(bench: Bench) -> None:
    """The caller sees the error at its receipt; the partition keeps the order of the sends."""
    client = bench.client
    client.admin.set_delayed_policies("t", max_delivery_delay_ms=5)
    one, two = client.producer("t"), client.producer("t", "named")
    txn = client.transaction()
    sent = [one.send(b"%d" % n, partition=0, deliver_after=n, txn=txn) for n in (4, 6, 5)]
    sent.append(two.send(b"n", partition=0, txn=txn))
    sent.append(one.send(b"last", partition=0, txn=txn))
    with pytest.raises(InvalidMessage) as caught:
        _ = sent[1].partition
    assert "message 2 of the transaction" in caught.value.__notes__[0]
    assert "refused" in repr(sent[1])
    assert [sent[at].txn_index for at in (0, 2, 3, 4)] == [1, 2, 3, 4]
    txn.commit()
    bench.clock.advance(10)
    assert values(client) == [b"4", b"5", b"n", b"last"]


def test_each_refusal_has_to_be_seen(bench: Bench) -> None:
    """A caller that saw one of two gets the other one from the commit."""
    client = bench.client
    for kind in ("sends", "acknowledgements"):
        txn = client.transaction()
        first: Any
        if kind == "sends":
            producer = client.producer("t", "named")
            first = producer.send_async(b"a", partition=0, sequence_id=-1, txn=txn)
            producer.send_async(b"b", partition=0, sequence_id=-2, txn=txn)
        else:
            client.acknowledge_async("t", "s", [MessageId(998, 0)], txn=txn)
            first = client.acknowledge_async("t", "s", [MessageId(999, 0)], txn=txn)
        with pytest.raises((InvalidMessage, MessageNotFound)):
            first.result()
        with pytest.raises((InvalidMessage, MessageNotFound)):
            txn.commit()
        assert txn.state == "ABORTED"


# --- receipts ------------------------------------------------------------------------------------


def test_a_receipt_is_that_of_a_written_message(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t", "named")
    with client.transaction() as txn:
        first: Any = producer.send(b"a", partition=1, sequence_id=7, txn=txn)
        again = producer.send(b"a", partition=1, sequence_id=7, txn=txn)
    plain: Any = SendReceipt(1, None, 1, False)
    assert isinstance(first, SendReceipt) and isinstance(first, tuple)
    assert first == plain == first and plain == first and first == (1, None, 1, False, False)
    assert again != first and first < again and (again.txn_index, again.duplicate) == (1, True)
    assert [*first] == [*plain] and first[:2] == (1, None) and len(first) == 5
    partition, *_ = first
    assert partition == 1 and hash(first) == hash(plain) and {first: 1}[plain] == 1
    assert repr(first) == repr(plain) == str(first)
    copy: Any = pickle.loads(pickle.dumps(first))
    assert copy == plain and type(copy) is SendReceipt
    receipt: Any = first
    assert receipt._asdict() == plain._asdict()
    assert receipt._replace(partition=0).partition == 0
    assert first.count(False) == 2 and None in first


def test_a_receipt_after_an_abort_says_so(bench: Bench) -> None:
    client = bench.client
    txn = client.transaction()
    receipt = client.producer("t").send(b"a", txn=txn)
    txn.abort()
    for read in (lambda: receipt.partition, lambda: [*receipt], lambda: pickle.dumps(receipt)):
        with pytest.raises(InvalidTxnStatus, match="aborted before this was written"):
            read()
    assert "aborted before" in repr(receipt)
    assert values(client) == []


def test_sequences_count_for_each_partition_alone(bench: Bench) -> None:
    """As for single sends: the same number in another partition is another message."""
    client = bench.client
    producer = client.producer("t", "named")
    keys: dict[int, bytes] = {}
    for number in range(100):
        keys.setdefault(txlog.engine.plan.route.partition_of_key(b"%d" % number, 2), b"%d" % number)
    with client.transaction() as txn:
        sent = [
            producer.send(b"%d" % n, key=keys[partition], sequence_id=n, txn=txn)
            for n in (1, 2)
            for partition in (0, 1)
        ]
    assert [receipt.duplicate for receipt in sent] == [False] * 4
    assert sorted(values(client)) == [b"1", b"1", b"2", b"2"]


def test_messages_of_a_partition_stay_in_the_order_of_their_sends(bench: Bench) -> None:
    client = bench.client
    client.create_topic("other")
    one, two, other = client.producer("t"), client.producer("t", "n"), client.producer("other")
    with client.transaction() as txn:
        one.send(b"0", partition=0, txn=txn)
        two.send(b"1", partition=0, txn=txn)
        other.send(b"x", txn=txn)
        two.send(b"2", partition=0, txn=txn)
        one.send_batch_async(rows(b"3"), txn=txn)
        one.send(b"4", key=b"", txn=txn)  # the key of partition 0
        other.send(b"y", txn=txn)
        one.send(b"5", partition=0, txn=txn)
    assert values(client) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert values(client, "other") == [b"x", b"y"]


@pytest.mark.parametrize("closes", [False, True])
def test_a_producer_of_the_same_name_fences_no_waiting_message(bench: Bench, closes: bool) -> None:
    """Earlier sends of this client come first; another client opens it after the first closed."""
    client = bench.client
    with client.transaction() as txn:
        first = client.producer("t", "named")
        first.send(b"0", partition=0, txn=txn)
        if closes:
            first.close()
            bench.another().producer("t", "named")
        client.producer("t", "named").send(b"1", partition=0, txn=txn)
    assert values(client) == [b"0", b"1"]


def test_an_exclusive_producer_writes_its_messages_when_it_closes(bench: Bench) -> None:
    """The next holder of the topic would fence them."""
    client = bench.client
    with client.transaction() as txn:
        with client.producer("t", access_mode="exclusive") as producer:
            producer.send(b"a", txn=txn)
        with bench.another().producer("t", access_mode="exclusive") as producer:
            producer.send(b"b")
    assert sorted(values(client)) == [b"a", b"b"]


# --- threads and tasks ---------------------------------------------------------------------------


def in_threads(*acts: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_share_a_transaction_and_read_their_receipts(bench: Bench) -> None:
    """Each thread gets its messages in its order, no matter which thread writes them."""
    client = bench.client
    txn = client.transaction()
    shared = client.producer("t")
    places: dict[bytes, int] = {}

    def work(number: int) -> None:
        for step in range(150):
            value = b"%d-%03d" % (number, step)
            receipt = shared.send(value, partition=0, txn=txn)
            if step % 7 == number:
                txn.flush()
            if step % 3 == 0:
                assert receipt.txn_index is not None
                places[value] = receipt.txn_index

    in_threads(*(partial(work, number) for number in range(3)))
    txn.commit()
    got: list[Any] = values(client)
    assert len(got) == 450
    assert all(got[index - 1] == value for value, index in places.items())
    for number in range(3):
        own = [value for value in got if value.startswith(b"%d-" % number)]
        assert own == sorted(own) and len(own) == 150


class Interleaved(list[Any]):
    """A list that lets another thread act between the choice of a run and the message's place."""

    act: Callable[[], object] | None = None

    def append(self, item: Any) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        super().append(item)


def test_a_message_behind_the_write_of_its_run_goes_to_the_next(bench: Bench) -> None:
    client = bench.client
    producer, txn = client.producer("t"), client.transaction()
    producer.send(b"a", partition=0, txn=txn)
    assert txn.buffer is not None
    [run] = txn.buffer.runs.values()
    run.items = items = Interleaved(run.items)
    items.act = txn.flush
    receipt = producer.send(b"b", partition=0, txn=txn)
    assert held(client) == 1
    txn.commit()
    assert receipt.txn_index == 2 and values(client) == [b"a", b"b"]


def test_a_send_beside_a_commit_is_in_it_or_refused(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t")
    accepted: list[bytes] = []
    for turn in range(20):
        txn = client.transaction()
        producer.send(b"first-%d" % turn, partition=0, txn=txn)
        accepted.append(b"first-%d" % turn)

        def more(txn: Transaction = txn, turn: int = turn) -> None:
            for step in range(10_000):
                value = b"%d-%d" % (turn, step)
                try:
                    producer.send(value, partition=0, txn=txn)
                except InvalidTxnStatus:
                    return
                accepted.append(value)

        in_threads(more, txn.commit)
    assert sorted(v or b"" for v in values(client)) == sorted(accepted)


def test_tasks_send_without_waiting_for_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    txlog.init(path, durability="os", free_bytes_min=0)

    async def main() -> None:
        async with txlog.aio.open(path) as client, client.producer("t") as producer:
            start = await client.run(lambda sync: sync.wait_for_change(0))
            async with client.transaction() as txn:
                sent = [await producer.send(b"%d" % n, txn=txn) for n in range(5)]
                assert await client.run(lambda sync: sync.wait_for_change(0)) == start
                await txn.flush()
                assert [receipt.txn_index for receipt in sent] == [1, 2, 3, 4, 5]
                last = await producer.send(b"5", txn=txn)
            assert last.txn_index == 6
            async with client.transaction(write_through=True) as txn:
                receipt = await producer.send(b"6", txn=txn)
                assert type(receipt) is SendReceipt
                assert [row["messages"] for row in await client.run(transactions)] == [1]
            with pytest.raises(InvalidTxnStatus):
                await producer.send(b"7", txn=txn)
            async with client.reader("t") as reader:
                assert [m.value async for m in reader] == [b"%d" % n for n in range(7)]

    with txlog.open(path) as client:
        client.create_topic("t")
    asyncio.run(main())


def transactions(client: Client) -> list[Any]:
    return [*client.transactions()]


def test_a_bound_is_written_in_the_worker_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop never waits for the lock of the store."""
    monkeypatch.setattr(buffer, "TXN_BUFFER_MESSAGES_MAX", 3)
    path = str(tmp_path / "store")
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t")
    writers: set[str] = set()
    submit = txlog.engine.store.store.Store.submit

    def noted(store: Any, calls: Any) -> None:
        writers.add(threading.current_thread().name)
        submit(store, calls)

    async def main() -> None:
        async with (
            txlog.aio.open(path) as client,
            client.producer("t") as producer,
            client.transaction() as txn,
        ):
            for n in range(10):
                await producer.send(b"%d" % n, txn=txn)

    monkeypatch.setattr("txlog.engine.store.store.Store.submit", noted)
    asyncio.run(main())
    assert writers and all(name.startswith("txlog-aio") for name in writers)
    with txlog.open(path) as client:
        assert len(ids(client)) == 10
