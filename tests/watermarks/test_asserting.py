"""Producers assert watermarks: the builder, transactions, bad input; spec/watermarks 2, 10, 12."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, values
from tests.tiers import graded
from txlog import Client, Position
from txlog.engine.folds.catalog import numbers, topic_of
from txlog.engine.session.sending.producer import WatermarkAheadWarning
from txlog.errors import (
    AlreadyClosed,
    InvalidArgument,
    InvalidTxnStatus,
    LimitExceeded,
    NotAllowed,
    PartitionUnavailable,
    ProducerFenced,
    TransactionNotFound,
    TransactionTimedOut,
    TxlogError,
)

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 3})]
END_OF_STREAM = (1 << 63) - 1


def active(client: Client) -> list[dict[str, int]]:
    """The times of the active producers, by partition."""
    client.flush()
    return client.store.read(
        lambda view: [
            {
                name: producer_state.event_time
                for name, producer_state in view.watermark(number).state.active.items()
            }
            for number in numbers(topic_of(view.catalog, 1))
        ]
    )


def lsn(client: Client) -> int:
    client.flush()
    return client.store.refresh()


def test_a_time_is_in_every_partition_and_only_rises(bench: Bench) -> None:
    """5, 10: in one frame, whatever the routing; the greatest time wins."""
    producer = bench.client.producer("t/1", name="A")
    lsn_before = lsn(bench.client)
    placed = producer.new_watermark().event_time(50).send()
    assert lsn(bench.client) == lsn_before + 1
    assert placed.partitions == [0, 1, 2] and placed.txn is None
    assert [position.entry for position in placed.positions.values()] == [0, 0, 0]
    producer.new_watermark().event_time(40).send()
    assert active(bench.client) == [{"A": 50}] * 3
    producer.new_watermark().event_time(END_OF_STREAM).send()
    assert active(bench.client) == [{"A": END_OF_STREAM}] * 3


def test_producers_without_a_name_are_one_member(bench: Bench) -> None:
    """3: this is right for one producer."""
    for time in (10, 20):
        bench.client.producer("t").new_watermark().event_time(time).send()
    assert active(bench.client) == [{"(unnamed)": 20}] * 3


def test_idle_leaves_and_a_time_comes_back_lower(bench: Bench) -> None:
    """5: an idle producer loses its time."""
    producer = bench.client.producer("t", name="A")
    producer.new_watermark().event_time(50).send()
    producer.new_watermark().mark_idle().send()
    assert active(bench.client) == [{}] * 3
    producer.new_watermark().event_time(5).send()
    assert active(bench.client) == [{"A": 5}] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda new: new,
        lambda new: new.event_time(5).mark_idle(),
        lambda new: new.event_time(0),
        lambda new: new.event_time(-1),
        lambda new: new.event_time(1 << 63),
        lambda new: new.event_time(1.5),
        lambda new: new.event_time(True),
        lambda new: new.event_time("soon"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_bad_input_appends_nothing(bench: Bench, make: object, inside: bool) -> None:
    """12: neither or both of the two, and a wrong time."""
    txn = begin(bench.client) if inside else None
    new = bench.client.producer("t", name="A").new_watermark(txn)
    lsn_before = lsn(bench.client)
    assert callable(make)
    with pytest.raises(InvalidArgument):
        make(new).send()
    assert lsn(bench.client) == lsn_before


def test_a_fenced_producer_asserts_nothing(bench: Bench) -> None:
    """12: as for send."""
    older = bench.client.producer("t", name="A")
    bench.another().producer("t", name="A")
    for call in (older.new_watermark().event_time(5), older.new_watermark().mark_idle()):
        with pytest.raises(ProducerFenced):
            call.send()
    with pytest.raises(ProducerFenced):
        older.new_watermark(begin(bench.client)).event_time(5).send()
    assert active(bench.client) == [{}] * 3


def test_a_transaction_that_has_ended_takes_none(bench: Bench) -> None:
    """12: ended, unknown, expired: as for send."""
    client = bench.client
    producer = client.producer("t", name="A")
    ended, deleted_txn, late = begin(client), begin(client), begin(client, 1000)
    client.commit(ended)
    client.abort(deleted_txn)
    bench.clock.advance(2000)
    unknown = type(ended)(0, 10_000)
    expected: list[tuple[object, type[TxlogError]]] = [
        (ended, InvalidTxnStatus),
        (deleted_txn, InvalidTxnStatus),
        (late, TransactionTimedOut),
        (unknown, TransactionNotFound),
    ]
    for txn, error in expected:
        with pytest.raises(error):
            producer.new_watermark(txn).event_time(5).send()  # type: ignore[arg-type]
    assert active(client) == [{}] * 3


def test_a_partition_that_is_away_refuses_all_of_it(bench: Bench) -> None:
    """10: PartitionUnavailable, nothing appended; also in a transaction."""
    client = bench.client
    producer = client.producer("t", name="A")
    txn = begin(client)
    client.admin.set_offline("t", 2)
    lsn_before = lsn(client)
    for within in (None, txn):
        with pytest.raises(PartitionUnavailable):
            producer.new_watermark(within).event_time(5).send()
    assert lsn(client) == lsn_before
    client.admin.set_online("t", 2)
    producer.new_watermark().event_time(5).send()
    assert active(client) == [{"A": 5}] * 3


def test_in_a_transaction_it_comes_with_the_commit(bench: Bench) -> None:
    """3, 10: every partition gets a marker; its count is 0 in a partition without a message."""
    client = bench.client
    producer = client.producer("t", name="A")
    with client.transaction() as txn:
        producer.send(b"a", event_time=5, partition=1, txn=txn)
        placed = producer.new_watermark(txn).event_time(9).send()
        assert (placed.partitions, placed.positions) == ([0, 1, 2], {})
        assert placed.txn == txn.id
        assert active(client) == [{}] * 3
    assert txn.outcome is not None
    assert [marker[3] for marker in txn.outcome.markers] == [0, 1, 0]
    assert placed.positions == {
        at: Position(*marker[1:3]) for at, marker in enumerate(txn.outcome.markers)
    }
    assert active(client) == [{"A": 9}] * 3
    assert values(client) == [b"a"]


def test_an_abort_drops_it(bench: Bench) -> None:
    """3: the abort changes no value; nor does a power cut, which aborts open transactions."""
    client = bench.client
    producer = client.producer("t", name="A")
    producer.new_watermark().event_time(5).send()
    txn = client.transaction(write_through=True)
    producer.new_watermark(txn).mark_idle().send()
    producer.new_watermark(txn).event_time(9).send()
    txn.abort()
    assert active(client) == [{"A": 5}] * 3


def test_a_watermark_comes_after_queued_sends(bench: Bench) -> None:
    """The operations of a handle are written in order, whichever one opens the transaction."""
    client = bench.client
    producer = client.producer("t", name="A")
    txn = client.transaction(write_through=True)
    later = [producer.send_async(b"%d" % n, event_time=n + 1, txn=txn) for n in range(3)]
    placed = producer.new_watermark(txn).event_time(3).send()
    assert all(future.done() for future in later) and placed.txn == txn.id
    producer.send_async(b"3", event_time=2, txn=txn)
    with client.transaction() as first:
        opened = producer.new_watermark(first).event_time(1).send()
    assert opened.txn == first.id and active(client) == [{"A": 1}] * 3
    txn.commit()
    assert active(client) == [{"A": 3}] * 3
    assert sorted(values(client)) == [b"0", b"1", b"2", b"3"]


def test_a_refused_queued_send_fails_the_commit(bench: Bench) -> None:
    """A watermark after the send does not hide the refusal, and never takes effect."""
    client = bench.client
    client.create_topic("gone")
    lost = client.producer("gone")
    producer = client.producer("t", name="A")
    txn = client.transaction(write_through=True)
    producer.send(b"a", txn=txn)
    client.admin.delete_topic("gone", force=True)
    lost.send_async(b"x", txn=txn)
    producer.new_watermark(txn).event_time(3).send()
    with pytest.raises(TxlogError):
        txn.commit()
    assert txn.state == "ABORTED" and active(client) == [{}] * 3


def test_ahead_of_ones_own_open_transaction_is_counted(bench: Bench) -> None:
    """2: rule 2, worked example B; one warning only; an ended transaction does not count."""
    client = bench.client
    producer = client.producer("t", name="A")
    txn = begin(client)
    producer.send(b"x", event_time=50, txn=txn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        producer.new_watermark().event_time(50).send()
    with pytest.warns(
        WatermarkAheadWarning, match=f"{txn} is open and has a message of 50"
    ) as caught:
        producer.new_watermark().event_time(80).send()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        producer.new_watermark().event_time(81).send()
        assert producer.watermarks_ahead == 2
        # it takes effect at the marker of its own transaction
        producer.new_watermark(txn).event_time(90).send()
        client.commit(txn)
        producer.new_watermark().event_time(99).send()
    assert producer.watermarks_ahead == 2


@pytest.mark.parametrize("way", ["handle", "later", "batch", "id", "large"])
def test_refused_ahead_of_an_open_transaction(tmp_path: Path, way: str) -> None:
    """2: the refusal names the transaction, its least event time and t; no row is appended."""
    bench = Bench(
        tmp_path / "store",
        watermark_open_transaction_check=1,
        max_message_bytes=1000,
        max_chunked_message_bytes=10_000,
    )
    client = bench.client
    client.create_topic("t", 3)
    producer = client.producer("t", name="A", chunking=True)
    txn = client.transaction(write_through=True)
    if way == "handle":
        producer.send(b"x", event_time=50, txn=txn)
    elif way == "later":
        producer.send_async(b"x", event_time=50, txn=txn)
    elif way == "batch":
        times = pa.array([70, None, 50, 60], pa.timestamp("ms", "UTC"))
        producer.send_batch(pa.table({"value": [b"x"] * 4, "event_time": times}), txn=txn)
    elif way == "id":
        producer.send(b"x", event_time=50, txn=txn.id)
    else:
        producer.send(b"x" * 5000, event_time=50, txn=txn)
    lsn_before = lsn(client)
    with pytest.raises(NotAllowed) as refused:
        producer.new_watermark().event_time(51).send()
    assert refused.value.fields["least_event_time"] == 50
    assert lsn(client) == lsn_before
    producer.new_watermark().event_time(50).send()
    producer.new_watermark(txn).event_time(70).send()
    producer.new_watermark(txn.id).event_time(70).send()
    with pytest.raises(NotAllowed, match=f"transaction {txn.id} is open"):
        producer.new_watermark(begin(client)).event_time(51).send()
    bench.another().abort(txn.id)  # by another process
    producer.new_watermark().event_time(51).send()


def test_not_looked_at(tmp_path: Path) -> None:
    """2: `off`."""
    bench = Bench(tmp_path / "store", watermark_open_transaction_check=2)
    bench.client.create_topic("t")
    producer = bench.client.producer("t")
    producer.send(b"x", event_time=5, txn=begin(bench.client))
    producer.new_watermark().event_time(9).send()
    assert producer.watermarks_ahead == 0


def test_a_producer_that_never_asserts_forgets_its_transactions(bench: Bench) -> None:
    """The producer keeps neither handles nor ids of ended transactions."""
    client = bench.client
    producer = client.producer("t")
    for number in range(300):
        if number % 2:
            with client.transaction() as txn:
                producer.send(b"x", event_time=5, txn=txn)
        else:
            txn_id = begin(client)
            producer.send(b"x", event_time=5, txn=txn_id)
            client.commit(txn_id)
    assert len(producer.session.watermarks._least_times) <= 64


def test_producers_max_counts_active_and_pending_names(tmp_path: Path) -> None:
    """11: the next new name is LimitExceeded; known names and W_IDLE are not; 0 lifts the limit."""
    bench = Bench(tmp_path / "store", watermark_producers_max=2)
    client = bench.client
    client.create_topic("t", 2)
    a, b, c = (client.producer("t", name=name) for name in "ABC")
    a.new_watermark().event_time(5).send()
    txn = begin(client)
    b.new_watermark(txn).event_time(5).send()
    for within in (None, txn):
        with pytest.raises(LimitExceeded):
            c.new_watermark(within).event_time(5).send()
    c.new_watermark().mark_idle().send()
    a.new_watermark().event_time(6).send()
    b.new_watermark().event_time(6).send()
    client.abort(txn)
    a.new_watermark().mark_idle().send()
    c.new_watermark().event_time(7).send()
    assert active(client)[0] == {"B": 6, "C": 7}


def test_a_new_partition_begins_with_the_least_times(bench: Bench) -> None:
    """10: committed state only; an open transaction affects only the partitions that it was in."""
    client = bench.client
    a, b = client.producer("t", name="A"), client.producer("t", name="B")
    a.new_watermark().event_time(5).send()
    b.new_watermark().event_time(7).send()
    with client.transaction() as txn:
        a.new_watermark(txn).event_time(50).send()
        client.admin.update_topic("t", partitions=5)
        assert active(client) == [{"A": 5, "B": 7}] * 5
    assert active(client) == [{"A": 50, "B": 7}] * 3 + [{"A": 5, "B": 7}] * 2
    assert a.new_watermark().event_time(60).send().partitions == [0, 1, 2, 3, 4]
    assert active(client) == [{"A": 60, "B": 7}] * 5
    assert active(bench.reopen()) == [{"A": 60, "B": 7}] * 5


def test_another_new_partition_does_not_run_ahead_of_the_last_one(bench: Bench) -> None:
    """10: partitions differ after a transaction that began before a partition was added."""
    client = bench.client
    a = client.producer("t", name="A")
    a.new_watermark().event_time(5).send()
    with client.transaction() as txn:
        a.new_watermark(txn).event_time(50).send()
        client.admin.update_topic("t", partitions=4)
    client.admin.update_topic("t", partitions=5)
    assert active(client) == [{"A": 50}] * 3 + [{"A": 5}] * 2


def test_a_topic_without_watermarks_has_new_partitions_without(bench: Bench) -> None:
    """13: no row, no cost."""
    bench.client.admin.update_topic("t", partitions=4)
    used = bench.client.store.read(
        lambda view: [view.watermark(n).is_used for n in numbers(topic_of(view.catalog, 1))]
    )
    assert used == [False] * 4


def test_closing_leaves_the_producer_active_unless_told(bench: Bench) -> None:
    """10: idle_on_close appends W_IDLE, once; consumers still wait for a job that failed."""
    client = bench.client
    with client.producer("t", name="A") as producer:
        producer.new_watermark().event_time(5).send()
    with client.producer("t", name="B", idle_on_close=True) as producer:
        producer.new_watermark().event_time(6).send()
    with pytest.raises(ZeroDivisionError), client.producer("t", "C", idle_on_close=True) as failed:
        failed.new_watermark().event_time(7).send()
        raise ZeroDivisionError
    assert active(client) == [{"A": 5, "C": 7}] * 3
    with pytest.raises(AlreadyClosed):  # 12: as for send
        producer.new_watermark()
    producer.close()
    assert active(client) == [{"A": 5, "C": 7}] * 3


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_partitions_have_the_asserted_times(tmp_path: Path, seed: int) -> None:
    """4: producers, transactions and added partitions, against a dictionary."""
    print("seed", seed)
    chance = random.Random(seed)
    bench = Bench(tmp_path / "store", ledger_entries_max=5, watermark_open_transaction_check=2)
    client = bench.client
    client.create_topic("t", 2)
    producers = {name: client.producer("t", name=name) for name in "ABC"}
    known: dict[str, int] = {}
    txns: list[tuple[object, list[tuple[str, int | None]]]] = []
    for _ in range(80):
        act = chance.random()
        name = chance.choice("ABC")
        time = None if chance.random() < 0.2 else chance.randrange(1, 40)
        if act < 0.4 or (act < 0.8 and not txns):
            new = producers[name].new_watermark()
            (new.mark_idle() if time is None else new.event_time(time)).send()
            take(known, name, time)
        elif act < 0.5:
            txns.append((begin(client), []))
        elif act < 0.8:
            txn, rows = chance.choice(txns)
            new = producers[name].new_watermark(txn)  # type: ignore[arg-type]
            (new.mark_idle() if time is None else new.event_time(time)).send()
            rows.append((name, time))
        elif txns:
            txn, rows = txns.pop(chance.randrange(len(txns)))
            if chance.random() < 0.3:
                client.abort(txn)  # type: ignore[arg-type]
                continue
            client.commit(txn)  # type: ignore[arg-type]
            for row in rows:
                take(known, *row)
        assert active(client) == [known] * 2, f"seed {seed}"
    assert active(bench.reopen()) == [known] * 2


def take(active: dict[str, int], name: str, time: int | None) -> None:
    if time is None:
        active.pop(name, None)
    else:
        active[name] = max(time, active.get(name, time))
