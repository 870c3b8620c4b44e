"""Queued operations of a transaction ride with its commit, in the same frame.

Source: spec/transactions 5.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
import txlog.aio
from tests.crash.world import TOPIC, new_disk, open_client
from tests.engine_kit import Bench, begin, ids, pending, send, values
from txlog import Client, MessageId
from txlog.client.answers.lists import kept_frames
from txlog.engine.model.ops import decode_ops
from txlog.engine.store.appender import Call
from txlog.engine.store.store import Store
from txlog.errors import (
    InvalidMessage,
    InvalidTxnStatus,
    MessageNotFound,
    OutcomeUnknown,
    StoreFull,
    StoreLocked,
    TransactionConflict,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], coordinators=1),
]


def rows(*given_values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(given_values, pa.binary())})


def frames_of(client: Client, start: int) -> list[list[str]]:
    """The ops of the frames after an LSN."""
    frames = [raw for raw in client.store.ask(kept_frames) if raw.lsn > start]
    assert [raw.lsn for raw in frames] == list(range(start + 1, client.wait_for_change(0) + 1))
    return [[type(op).__name__ for op in decode_ops(raw.ops, lsn=raw.lsn)] for raw in frames]


def test_a_transaction_left_for_later_is_one_frame(bench: Bench) -> None:
    client = bench.client
    message_ids = send(client, b"in")
    client.transaction().abort()  # so that ids are reserved
    lsn_before = client.wait_for_change(0)
    with client.transaction() as txn:
        sent = client.producer("t").send_batch_async(rows(b"a", b"b"), txn=txn)
        acked = client.acknowledge_async("t", "s", message_ids, txn=txn)
        assert not sent.done()
        assert client.wait_for_change(0) == lsn_before
    assert len(frames_of(client, lsn_before)) == 1
    assert sent.done()
    assert [receipt.txn_index for receipt in sent.result().receipts()] == [1, 2]
    assert acked.result().acked == 1
    assert values(client) == [b"in", b"a", b"b"]
    assert [m.value for m in pending(client)] == [b"a", b"b"]
    other = bench.reopen()  # replayed, it is the same
    assert values(other) == [b"in", b"a", b"b"]
    assert [m.value for m in pending(other)] == [b"a", b"b"]


def test_rows_of_two_sends_take_two_frames(bench: Bench) -> None:
    client = bench.client
    client.transaction().abort()
    lsn_before = client.wait_for_change(0)
    producer = client.producer("t")
    with client.transaction() as txn:
        first = producer.send_batch_async(rows(b"a"), txn=txn)
        second = producer.send_async(b"b", key=b"", txn=txn)
    assert len(frames_of(client, lsn_before)) == 2
    assert (first.result().receipts()[0].txn_index, second.result().txn_index) == (1, 2)
    assert values(bench.reopen()) == [b"a", b"b"]


def test_an_operation_that_waits_writes_what_was_left_before_it(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t")
    with client.transaction() as txn:
        producer.send_async(b"a", partition=0, txn=txn)
        receipt = producer.send(b"b", partition=0, txn=txn)
        assert receipt.txn_index == 2
        producer.send_async(b"c", partition=0, txn=txn)
        assert client.show_transaction(txn.id)["messages"] == 3
    assert values(client) == [b"a", b"b", b"c"]


def test_a_refusal_that_no_caller_has_seen_fails_the_commit(bench: Bench) -> None:
    client = bench.client
    txn = client.transaction()
    sent = client.producer("t").send_async(b"a", txn=txn)
    acked = client.acknowledge_async("t", "s", [MessageId(999, 0)], txn=txn)
    with pytest.raises(MessageNotFound):
        txn.commit()
    assert txn.state == "ABORTED"
    assert client.show_transaction(txn.id)["state"] == "aborted"
    assert values(client) == []
    assert sent.result().txn_index == 1
    with pytest.raises(MessageNotFound):
        acked.result()


def test_a_refusal_that_the_caller_has_seen_does_not(bench: Bench) -> None:
    client = bench.client
    txn = client.transaction()
    client.producer("t").send_async(b"a", txn=txn)
    acked = client.acknowledge_async("t", "s", [MessageId(999, 0)], txn=txn)
    with pytest.raises(MessageNotFound):
        acked.result()
    assert txn.commit().status == "COMMITTED"
    assert values(client) == [b"a"]


def test_a_conflict_aborts_and_is_raised_by_the_commit(bench: Bench) -> None:
    client = bench.client
    message_ids = send(client, b"in")
    holder = begin(client)
    client.acknowledge("t", "s", message_ids, txn=holder)
    txn = client.transaction()
    client.acknowledge_async("t", "s", message_ids, txn=txn)
    client.producer("t").send_async(b"a", txn=txn)
    with pytest.raises(TransactionConflict):
        txn.commit()
    assert client.show_transaction(txn.id)["reason"] == "conflict"
    client.commit(holder)
    assert values(client) == [b"in"]
    assert pending(client) == []


def test_an_overdue_holder_is_ended_and_the_acknowledgement_made_again(bench: Bench) -> None:
    client = bench.client
    message_ids = send(client, b"in")
    holder = begin(bench.another(), timeout_ms=1000)
    bench.clients[-1].acknowledge("t", "s", message_ids, txn=holder)
    bench.clock.advance(2000)
    fresh = bench.another()  # it has not loaded the holder's coordinator
    with fresh.transaction() as txn:
        fresh.producer("t").send_async(b"a", txn=txn)
        fresh.acknowledge_async("t", "s", message_ids, txn=txn)
    assert values(client) == [b"in", b"a"]
    assert [m.value for m in pending(client)] == [b"a"]


def test_an_abort_drops_what_was_left_for_later(bench: Bench) -> None:
    client = bench.client
    txn = client.transaction()
    sent = client.producer("t").send_async(b"a", txn=txn)
    txn.abort()
    with pytest.raises(InvalidTxnStatus):
        sent.result()
    assert values(client) == []


def test_a_commit_that_found_the_store_locked_can_be_repeated(bench: Bench) -> None:
    client = bench.another(lock_timeout_ms=0)
    lock = bench.client.store.disk.lock_file("lock")
    txn = client.transaction()
    client.producer("t").send_async(b"a", txn=txn)
    assert lock.try_acquire()
    with pytest.raises(StoreLocked):
        txn.commit()
    lock.release()
    lock.close()
    assert txn.commit().status == "COMMITTED"
    assert values(client) == [b"a"]


def test_a_full_disk_leaves_nothing_of_it() -> None:
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    client.create_subscription(TOPIC, "s")
    message_ids = send(client, b"in", topic=TOPIC)
    producer = client.producer(TOPIC)

    def fail(op: str, path: str, **info: int) -> None:
        if op == "pwrite" and path.endswith(".journal"):
            disk.step = lambda op, path, **info: None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    txn = client.transaction()
    producer.send_async(b"a", txn=txn)
    client.acknowledge_async(TOPIC, "s", message_ids, txn=txn)
    disk.step = fail
    with pytest.raises(StoreFull):
        txn.commit()
    assert client.transactions(all=True) == []
    assert [m.value for m in pending(client, TOPIC)] == [b"in"]
    producer.send_async(b"b", txn=txn)  # the same handle works on, as no frame was written
    assert txn.commit().messages == 2
    assert values(open_client(disk), TOPIC) == [b"in", b"a", b"b"]


def test_a_failed_flush_is_unknown_and_names_the_transaction() -> None:
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 1)
    producer = client.producer(TOPIC)

    def fail(op: str, path: str, **info: int) -> None:
        if op == "datasync":
            disk.step = lambda op, path, **info: None
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    txn = client.transaction()
    producer.send_async(b"a", txn=txn)
    disk.step = fail
    with pytest.raises(OutcomeUnknown) as caught:
        txn.commit()
    other = open_client(disk)
    other.flush()
    state = other.show_transaction(caught.value.fields["txn"])["state"]  # type: ignore[arg-type]
    assert values(other, TOPIC) == ([b"a"] if state == "committed" else [])


def test_threads_that_share_a_handle_lose_nothing(bench: Bench) -> None:
    client = bench.client
    txn = client.transaction()

    def work(number: int) -> None:
        producer = client.producer("t")
        for step in range(20):
            value = b"%d-%d" % (number, step)
            if (number + step) % 3:
                producer.send_async(value, partition=0, txn=txn)
            else:
                producer.send(value, partition=0, txn=txn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    txn.commit()
    assert sorted(values(client)) == sorted(b"%d-%d" % (n, s) for n in range(4) for s in range(20))
    assert len(set(ids(client))) == 80


def test_nothing_was_done_and_the_commit_makes_an_empty_transaction(bench: Bench) -> None:
    client = bench.client
    lsn_before = client.wait_for_change(0)
    txn = client.transaction()
    assert txn.commit().messages == 0
    assert client.show_transaction(txn.id)["state"] == "committed"
    assert len(frames_of(client, lsn_before)) == 1


@pytest.mark.parametrize("way", ["commit", "abort"])
def test_a_transaction_whose_abort_failed_is_never_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A later commit must not commit the other operations of the transaction."""
    client = bench.client
    txn = client.transaction()
    client.producer("t").send(b"a", txn=txn)
    missing = [MessageId(999, 0)] if way == "commit" else send(client, b"in")
    client.acknowledge_async("t", "s", missing, txn=txn)

    def fail(*_: object, **__: object) -> None:
        raise StoreLocked("held")

    with monkeypatch.context() as patched:
        patched.setattr("txlog.engine.session.transactions.end.end", fail)
        with pytest.raises(MessageNotFound if way == "commit" else StoreLocked):
            getattr(txn, way)()
    assert txn.state == "OPEN"
    with pytest.raises((MessageNotFound, InvalidTxnStatus)):
        txn.commit()
    assert client.show_transaction(txn.id)["state"] == "aborted"
    assert b"a" not in values(client)


def test_only_undone_operations_are_retried_after_a_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement must be retried, and then the store is locked."""
    client = bench.client
    items = send(client, b"in")
    holder = begin(bench.another(), timeout_ms=1000)
    bench.clients[-1].acknowledge("t", "s", items, txn=holder)
    bench.clock.advance(2000)
    fresh = bench.another()
    submit, calls = fresh.store.submit, []

    def locked_the_second_time(_: object, items: list[Call]) -> None:
        calls.append(len(items))
        if len(calls) != 2:
            return submit(items)
        error = StoreLocked("held")
        for call in items:
            call.error, call.done = error, True
        return None

    txn = fresh.transaction()
    fresh.producer("t").send_async(b"a", txn=txn)
    fresh.acknowledge_async("t", "s", items, txn=txn)
    with monkeypatch.context() as patched:
        patched.setattr("txlog.engine.store.store.Store.submit", locked_the_second_time)
        with pytest.raises(StoreLocked):
            txn.commit()
        assert txn.commit().acks == 1
    assert calls[:2] == [3, 2]
    assert [m.value for m in pending(client)] == [b"a"]


def locked_once(patched: pytest.MonkeyPatch) -> None:
    """The store is locked at its next write, and free again afterwards."""
    was_locked = False

    def locked(
        method: Callable[[Store, list[Call]], None], store: Store, calls: list[Call]
    ) -> None:
        nonlocal was_locked
        if was_locked:
            method(store, calls)
            return
        was_locked = True
        store.take_back(calls)
        for call in calls:
            call.error, call.done = StoreLocked("held"), True

    for name in ("submit", "finish"):
        patched.setattr(Store, name, partialmethod(partial(locked, getattr(Store, name))))


@pytest.mark.parametrize("was_written", [False, True])
def test_a_block_whose_commit_failed_is_aborted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, was_written: bool
) -> None:
    """Nobody commits it any more, so a repeated block must get what it holds."""
    client = bench.client
    items = send(client, b"in")
    with monkeypatch.context() as patched:
        with pytest.raises(StoreLocked), client.transaction() as txn:
            client.producer("t").send(b"a", txn=txn)
            client.acknowledge("t", "s", items, txn=txn)
            if was_written:
                txn.flush()
            locked_once(patched)
        assert txn.state == "ABORTED"
    with client.transaction() as txn:
        client.producer("t").send(b"b", txn=txn)
        client.acknowledge("t", "s", items, txn=txn)
    assert values(client) == [b"in", b"b"]
    assert [m.value for m in pending(client)] == [b"b"]
    assert [row["state"] for row in client.transactions(all=True)][-1] == "committed"


def test_a_task_whose_commit_failed_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    txlog.init(tmp_path / "s", durability="os", free_bytes_min=0)

    async def work() -> None:
        async with txlog.aio.open(tmp_path / "s") as client:
            await client.create_topic("t")
            producer = await client.producer("t")
            with monkeypatch.context() as patched:
                with pytest.raises(StoreLocked):
                    async with client.transaction() as txn:
                        await producer.send(b"a", txn=txn)
                        await txn.flush()
                        locked_once(patched)
                assert txn.state == "ABORTED"

    asyncio.run(work())
    with txlog.open(tmp_path / "s") as client:
        assert [row["state"] for row in client.transactions(all=True)] == ["aborted"]


def test_messages_left_side_by_side_are_one_frame(bench: Bench) -> None:
    """Values, keys, event times; together with the acknowledgement and the commit."""
    client = bench.client
    message_ids = send(client, b"in")
    client.transaction().abort()  # so that ids are reserved
    lsn_before = client.wait_for_change(0)
    producer = client.producer("t")
    with client.transaction() as txn:
        sent = [
            producer.send_async(b"%d" % n, key=b"%d" % n, event_time=n, txn=txn) for n in range(50)
        ]
        client.acknowledge_async("t", "s", message_ids, txn=txn)
    assert len(frames_of(client, lsn_before)) == 1
    at = {
        (future.result().partition, future.result().txn_index): n for n, future in enumerate(sent)
    }
    assert len(at) == 50
    messages = [m for m in client.reader("t") if m.txn is not None]
    for message in messages:
        where = message.message_id
        assert where is not None
        n = at[message.partition, where.index]
        assert (message.value, message.key, message.event_time) == (b"%d" % n, b"%d" % n, n)
    assert sorted(m.value or b"" for m in messages) == sorted(b"%d" % n for n in range(50))
    assert len(values(bench.reopen())) == 51


def test_each_producer_has_a_batch_and_their_order_stays(bench: Bench) -> None:
    client = bench.client
    client.create_topic("other")
    first, second = client.producer("other"), client.producer("t", "named")
    with client.transaction() as txn:
        sent = [
            producer.send_async(b"%d" % n, key=b"k", txn=txn)
            for n, producer in enumerate([second, second, first, second, second])
        ]
        second.send(b"5", key=b"k", txn=txn)
    assert values(client) == [b"0", b"1", b"3", b"4", b"5"]
    assert values(client, "other") == [b"2"]
    assert all(future.result().txn_index for future in sent)


def test_a_message_refused_in_a_batch_is_refused_alone(bench: Bench) -> None:
    """Their sequences do not rise, which one send_batch requires; single sends do not."""
    client = bench.client
    producer = client.producer("t", "named")
    txn = client.transaction()
    sent = [
        producer.send_async(b"%d" % n, key=b"k", sequence_id=n, txn=txn) for n in (1, 2, 2, -1, 3)
    ]
    with pytest.raises(InvalidMessage):
        sent[3].result()  # the caller has seen this error, so it does not fail the commit
    assert [future.result().duplicate for future in sent[:3]] == [False, False, True]
    assert txn.commit().status == "COMMITTED"
    assert [future.done() for future in sent] == [True] * 5
    assert values(client) == [b"1", b"2", b"3"]

    txn_again = client.transaction()
    untold = producer.send_async(b"4", key=b"k", sequence_id=4, txn=txn_again)
    producer.send_async(b"5", key=b"k", sequence_id=-5, txn=txn_again)
    with pytest.raises(InvalidMessage):
        txn_again.commit()
    assert txn_again.state == "ABORTED"
    assert untold.result().txn_index == 1
    assert values(client) == [b"1", b"2", b"3"]
