"""Commits that overlap: their order, shared flushes, and how each commit fails.

Source: spec/transactions 5; docs/design/transactions, "Commits in flight".
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txlog
from tests.disk.faults import FaultyDisk
from tests.engine_kit import Bench, ids, mutex_of, send, values
from tests.harness import KILLED, python, ready, run
from tests.tiers import graded
from txlog import Client, Producer, Transaction, TxnId
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import Use
from txlog.engine.session.transactions.commits import CommitFuture
from txlog.engine.view import View
from txlog.errors import (
    AlreadyClosed,
    DiskFailed,
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnStatus,
    NotAllowed,
    OutcomeUnknown,
    StoreFull,
    SubscriptionNotFound,
    TransactionConflict,
    TryAgain,
)

SEED = 20261129
pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1, "u": 2}, [("t", "s")], durability="sync"),
]


@pytest.fixture(autouse=True)
def forget_producers() -> Iterator[None]:
    yield
    PRODUCERS.clear()


class Gate:
    """Holds the first flush of the journal until it is opened."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        disk.before("datasync", self._hold, "journal/*", nth=0)
        self.flushes = 0

    def _hold(self) -> None:
        self.flushes += 1
        self.reached.set()
        assert self._opened.wait(60)

    def open(self) -> None:
        """Let all flushes go on."""
        self._opened.set()


@contextmanager
def held_flush(bench: Bench) -> Iterator[Gate]:
    """A client whose flushes wait; leaving the block lets them go on."""
    disk = bench.faulty()
    bench.client.transaction().abort()  # ids are reserved: only commits flush from now on
    producer_of(bench.client)
    gate = Gate(disk)
    try:
        yield gate
    finally:
        gate.open()


PRODUCERS: dict[Client, Producer] = {}


def producer_of(client: Client) -> Producer:
    """A producer that is opened before any flush waits: to open one needs the store."""
    if client not in PRODUCERS:
        PRODUCERS[client] = client.producer("t")
    return PRODUCERS[client]


def begun(client: Client, *sent: bytes) -> Transaction:
    """A transaction with deferred messages."""
    txn = client.transaction()
    producer = producer_of(client)
    for value in sent:
        producer.send_async(value, txn=txn)
    return txn


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


# --- order, and shared flushes -------------------------------------------------------------------


def test_commits_behind_a_flush_share_the_next_one(bench: Bench) -> None:
    with held_flush(bench) as gate:
        client = bench.client
        first = begun(client, b"0").commit_async()
        assert gate.reached.wait(60)
        later = [begun(client, value).commit_async() for value in numbered(9, 1)]
        assert not first.done() and not any(future.done() for future in later)
    answers = [future.result(60) for future in (first, *later)]
    assert [answer.status for answer in answers] == ["COMMITTED"] * 10
    assert gate.flushes == 2
    assert values(client) == numbered(10)
    assert values(bench.reopen()) == numbered(10)


def test_a_commit_that_waits_comes_after_those_in_flight(bench: Bench) -> None:
    with held_flush(bench) as gate:
        client = bench.client
        futures = [begun(client, value).commit_async() for value in numbered(3)]
        assert gate.reached.wait(60)
        waiting = threading.Thread(target=begun(client, b"3").commit)
        waiting.start()
    waiting.join(60)
    assert all(future.done() for future in futures)
    assert values(client) == numbered(4)


def test_threads_commit_in_the_order_of_their_calls(bench: Bench) -> None:
    client = bench.client
    order: list[bytes] = []
    lock = threading.Lock()

    def work(name: int) -> None:
        for number in range(20):
            value = b"%d %d" % (name, number)
            txn = begun(client, value)
            with lock:
                txn.commit_async()
                order.append(value)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    client.flush()
    assert values(client) == order


def test_a_repeated_commit_stays_in_front(bench: Bench) -> None:
    """An operation that must be repeated after a sweep repeats its commit, and those behind it."""
    with held_flush(bench) as gate:
        client = bench.client
        begun(client, b"0").commit_async()
        assert gate.reached.wait(60)
        first, second = begun(client, b"1"), begun(client, b"2")
        tries: list[Use] = []

        def decide(view: View, now: Instant, use: Use) -> Decision[tuple[TxnId, int] | None]:
            tries.append(use)
            assert isinstance(use, TxnId)
            return Decision([], answer=None if len(tries) == 1 else (use, 1))

        first.defer(decide, CallScope(), lambda answer: answer)
        futures = [first.commit_async(), second.commit_async()]
    assert [future.result(60).status for future in futures] == ["COMMITTED"] * 2
    assert len(tries) == 2
    assert values(client) == numbered(3)


# --- failures ------------------------------------------------------------------------------------


def test_a_refused_commit_concerns_no_other(bench: Bench) -> None:
    client = bench.client
    message_ids = send(client, b"in")
    holder = client.transaction()
    client.acknowledge("t", "s", message_ids, txn=holder)
    transactions = [begun(client, value) for value in numbered(3)]
    client.acknowledge_async("t", "s", message_ids, txn=transactions[1])
    futures = [txn.commit_async() for txn in transactions]
    assert isinstance(futures[1].exception(60), TransactionConflict)
    assert [futures[n].result(60).status for n in (0, 2)] == ["COMMITTED"] * 2
    assert transactions[1].state == "ABORTED"
    holder.commit()
    assert values(client) == [b"in", b"0", b"2"]


def test_a_failed_flush_fails_all_commits_behind_it(bench: Bench) -> None:
    disk = bench.faulty()
    client = bench.client
    client.transaction().abort()
    producer_of(client)
    reached, opened = threading.Event(), threading.Event()

    def fail() -> None:
        reached.set()
        assert opened.wait(60)
        raise DiskFailed("the flush failed", path="journal")

    disk.before("datasync", fail, "journal/*")
    first = begun(client, b"0").commit_async()
    assert reached.wait(60)
    later = [begun(client, value) for value in numbered(3, 1)]
    futures = [txn.commit_async() for txn in later]
    opened.set()
    assert isinstance(first.exception(60), OutcomeUnknown)
    for future in futures:
        assert isinstance(future.exception(60), TryAgain), future.exception()
    assert [txn.state for txn in later] == ["OPEN"] * 3
    for txn in later:
        assert txn.commit_async().result(60).status == "COMMITTED"
    assert values(client)[-3:] == numbered(3, 1)
    assert values(bench.reopen())[-3:] == numbered(3, 1)


def test_a_key_that_is_connected_elsewhere_fences_what_follows(bench: Bench) -> None:
    client = bench.client
    client.transaction_key = "k"
    client.epoch = client.connect("k")["epoch"]
    committed = begun(client, b"0").commit_async()
    committed.result(60)
    fenced = begun(client, b"1")
    bench.another().connect("k")
    error = fenced.commit_async().exception(60)
    assert isinstance(error, ExpiredTransaction), error
    assert values(client) == [b"0"]


def test_a_refused_operation_aborts_at_the_commit(bench: Bench) -> None:
    client = bench.client
    message_ids = send(client, b"in")
    holder = client.transaction()
    client.acknowledge("t", "s", message_ids, txn=holder)
    txn = begun(client, b"a")
    later = client.acknowledge_async("t", "s", message_ids, txn=txn)
    _ = txn.id  # writes the operations, and one is refused
    future = txn.commit_async()
    assert isinstance(future.exception(60), TransactionConflict)
    assert txn.state == "ABORTED"
    with pytest.raises(TransactionConflict):
        later.result()
    holder.abort()
    assert values(client) == [b"in"]


# --- a transaction whose commit is in flight -----------------------------------------------------


def test_it_takes_no_operation_and_answers_once(bench: Bench) -> None:
    with held_flush(bench) as gate:
        client = bench.client
        producer = producer_of(client)
        txn = begun(client, b"a")
        future = txn.commit_async()
        assert gate.reached.wait(60)
        assert txn.state == "COMMITTING"
        assert txn.commit_async() is future
        with pytest.raises(InvalidTxnStatus):
            producer.send_async(b"b", txn=txn)
        with pytest.raises(InvalidTxnStatus):
            producer.send(b"b", txn=txn)
        assert future.cancel() is False
    assert future.result(60) == txn.outcome
    assert txn.state == "COMMITTED"
    with pytest.raises(InvalidTxnStatus):
        txn.abort()
    assert values(client) == [b"a"]


def test_an_empty_one_commits(bench: Bench) -> None:
    txn = bench.client.transaction()
    assert txn.commit_async().result(60).status == "COMMITTED"
    assert txn.id == txn.outcome.txn_id if txn.outcome else False


def test_callbacks_may_commit_and_close_but_not_wait(bench: Bench) -> None:
    client = bench.client
    heard: list[object] = []
    done = threading.Event()
    with held_flush(bench) as gate:
        client = bench.client
        first = begun(client, b"a").commit_async()
        assert gate.reached.wait(60)
        second = begun(client, b"b").commit_async()

        def told(_: object) -> None:
            with pytest.raises(NotAllowed):
                second.result()
            heard.append(begun(client, b"c").commit().status)
            client.close()
            done.set()

        first.add_done_callback(told)
    assert done.wait(60)
    assert heard == ["COMMITTED"]
    assert second.result(60).status == "COMMITTED"
    assert values(bench.another()) == [b"a", b"b", b"c"]


def test_a_receipt_waits_for_the_commit_in_flight(bench: Bench) -> None:
    with held_flush(bench) as gate:
        client = bench.client
        begun(client, b"a").commit_async()
        assert gate.reached.wait(60)
        txn = client.transaction()
        receipt = producer_of(client).send(b"b", txn=txn)
        txn.commit_async()
        threading.Timer(0.05, gate.open).start()
        assert receipt.txn_index == 1
    assert txn.state == "COMMITTED"


def test_commits_keep_nothing_of_those_before_them(bench: Bench) -> None:
    client = bench.client
    waiting: deque[CommitFuture] = deque()
    for number in range(300):
        waiting.append(begun(client, b"%d" % number).commit_async())
        if len(waiting) > 10:
            waiting.popleft().result(60)
    gc.collect()
    alive = sum(type(each) is Transaction for each in gc.get_objects())
    assert alive < 50


def test_a_callback_that_ends_its_thread_does_no_harm(bench: Bench) -> None:
    client = bench.client

    def leave(_: object) -> None:
        raise SystemExit

    begun(client, b"a").commit_async().add_done_callback(leave)
    assert begun(client, b"b").commit_async().result(60).status == "COMMITTED"
    client.close()
    assert values(bench.another()) == [b"a", b"b"]


# --- ends ----------------------------------------------------------------------------------------


def test_close_and_flush_wait_for_commits(bench: Bench) -> None:
    client = bench.another()
    flushed = begun(client, b"a").commit_async()
    client.flush()
    assert flushed.done()
    futures = [begun(client, value).commit_async() for value in numbered(5)]
    client.close()
    assert all(future.done() for future in futures)
    assert values(bench.client) == [b"a", *numbered(5)]
    with pytest.raises(AlreadyClosed):
        begun(client)
    for thread in threading.enumerate():
        if thread.name == "txlog-commit":
            thread.join(60)
            assert not thread.is_alive()


def test_the_interpreter_waits_for_commits(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    txlog.init(store)
    with txlog.open(store) as client:
        client.create_topic("t")
        run(python("unclosed_commits", store))
        assert values(client) == numbered(50)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_is_refused(bench: Bench) -> None:
    with held_flush(bench) as gate:
        future = begun(bench.client, b"a").commit_async()
        txn = begun(bench.client, b"b")
        assert gate.reached.wait(60)
        child = os.fork()
        if not child:
            refused = 0
            for call in (txn.commit_async, txn.commit, future.result):
                try:
                    call()
                except AlreadyClosed:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert future.result(60).status == "COMMITTED"
    txn.commit()
    assert values(bench.client) == [b"a", b"b"]


def test_an_interrupt_while_it_waits_leaves_the_commit_in_flight(bench: Bench) -> None:
    with held_flush(bench) as gate:
        client = bench.client
        begun(client, b"a").commit_async()
        assert gate.reached.wait(60)
        txn = begun(client, b"b")
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            txn.commit()
        assert caught.value.__notes__
    client.flush()
    assert txn.state == "COMMITTED"
    assert values(client) == [b"a", b"b"]


@pytest.mark.parametrize("part", graded(range(8), 2))
def test_a_killed_process_has_a_prefix_of_whole_transactions(tmp_path: Path, part: int) -> None:
    chance = random.Random(f"{SEED} {part}")
    nth = chance.randrange(1, 60)
    store = str(tmp_path / "store")
    txlog.init(store)
    with txlog.open(store) as client:
        client.create_topic("t")
        client.create_topic("u")
    where = f"seed {SEED}, part {part}, call {nth}"
    died = run(ready("commits_in_flight", store, nth), code=KILLED, where=where)
    answered = {line.encode() for line in died.stdout.splitlines()}
    with txlog.open(store) as client:
        stored = values(client, "t")
        assert stored == values(client, "u"), where
        assert stored == numbered(len(stored)), where
        assert answered <= set(stored), where


# --- pipelines -----------------------------------------------------------------------------------


def test_a_pipeline_holds_back_above_its_bound(bench: Bench) -> None:
    with held_flush(bench) as gate:
        client = bench.client
        producer = producer_of(client)
        pipeline = client.pipeline(max_in_flight=3)
        begun_ones: list[int] = []

        def work() -> None:
            for number in range(6):
                with pipeline.transaction() as txn:
                    begun_ones.append(number)
                    producer.send_async(b"%d" % number, txn=txn)

        thread = threading.Thread(target=work)
        thread.start()
        assert gate.reached.wait(60)
        thread.join(0.2)
        assert len(begun_ones) == 3 == pipeline.in_flight
    thread.join(60)
    pipeline.wait()
    assert pipeline.committed == 6
    assert values(client) == numbered(6)


def test_a_pipeline_raises_the_error_of_a_commit_once(bench: Bench) -> None:
    client = bench.client
    message_ids = send(client, b"in")
    holder = client.transaction()
    client.acknowledge("t", "s", message_ids, txn=holder)
    producer = client.producer("t")
    with client.pipeline(max_in_flight=2) as pipeline:
        with pipeline.transaction() as txn:
            client.acknowledge_async("t", "s", message_ids, txn=txn)
        with pytest.raises(TransactionConflict):
            for _ in range(3):
                with pipeline.transaction() as txn:
                    producer.send_async(b"a", txn=txn)
    assert set(values(client)) <= {b"in", b"a"}
    holder.abort()
    assert ids(client)


def test_a_block_that_raises_aborts_its_transaction_only(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t")
    with client.pipeline() as pipeline:
        for number in range(4):
            try:
                with pipeline.transaction() as txn:
                    producer.send_async(b"%d" % number, txn=txn)
                    if number == 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
    assert values(client) == [b"0", b"1", b"3"]


@pytest.mark.parametrize("bound", [0, 1_001, True, 2.5])
def test_a_wrong_bound_is_refused(bench: Bench, bound: object) -> None:
    with pytest.raises(InvalidArgument):
        bench.client.pipeline(max_in_flight=bound)  # type: ignore[arg-type]


def test_a_full_disk_refuses_one_commit(bench: Bench) -> None:
    disk = bench.faulty()
    client = bench.client
    client.transaction().abort()
    txn = begun(client, b"a")
    disk.fail_at("pwrite", StoreFull("the disk is full"), "journal/*")
    error = txn.commit_async().exception(60)
    disk.clear()
    assert isinstance(error, StoreFull), error
    assert txn.state == "OPEN"
    txn.commit()
    assert values(client) == [b"a"]


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_a_refused_frame_keeps_an_id_that_another_thread_assigned(
    bench: Bench, is_in_flight: bool
) -> None:
    """Kills: a transaction that stays open until its time-out, because no caller has its id."""
    client = bench.client
    message_ids = send(client, b"in")
    bench.another().subscription("t", "s").delete()
    txn = client.transaction()
    seen: list[object] = []

    def ask() -> None:
        seen.append(txn.id)

    def commit() -> None:
        with pytest.raises(SubscriptionNotFound):
            txn.commit()

    threads = [threading.Thread(target=ask), threading.Thread(target=commit)]
    with mutex_of(client).held():
        threads[0].start()
        while not client.store._queue:
            pass  # the frame that opens the transaction comes first
        client.acknowledge_async("t", "s", message_ids, txn=txn)
        if is_in_flight:
            future = txn.commit_async()
        else:
            threads[1].start()
            while len(client.store._queue) < 2:
                pass
    if is_in_flight:
        assert isinstance(future.exception(60), SubscriptionNotFound)
    else:
        threads[1].join(60)
    threads[0].join(60)
    assert seen == [txn.id] and txn.state == "ABORTED"
    assert not client.transactions()


def test_a_commit_cannot_depend_on_one_of_another_client(bench: Bench) -> None:
    """Kills: a dependent commit that succeeds although the other client's commit fails later."""
    client, other = bench.client, bench.another()
    first = client.transaction()
    client.producer("u").send(b"1", txn=first)
    future = first.commit_async()
    dependent = other.transaction()
    other.producer("u").send(b"2", txn=dependent)
    with pytest.raises(InvalidArgument, match="of this client"):
        dependent.commit_async(after=future)
    future.result()
    dependent.commit()
