"""Sending without waiting: queues, one frame for all queued messages, an answer for each message.

The numbers are the rules in session/sending/outbox. A queue that must not be sent by time has a
delay of a day. To delay answers, the tests hold the mutex of the store.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, mutex_of, values
from tests.harness import KILLED, SEED, python, ready, run
from tests.tiers import graded
from txlog import Client, Producer
from txlog.base.settings import DAY_MS, PENDING_BYTES_MAX
from txlog.engine.session.sending.outbox import SendFuture
from txlog.errors import (
    AlreadyClosed,
    InvalidArgument,
    InvalidMessage,
    NotAllowed,
    PartitionUnavailable,
    ProducerFenced,
    ProducerQueueIsFull,
    ReadOnlyStore,
    StoreLocked,
    TopicNotFound,
    TryAgain,
    TxlogError,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2, "u": 1}, max_message_bytes=100000),
]
SOON = 30  # seconds: for events that come at once


def patient(client: Client, topic: str = "u", name: str | None = None, **options: Any) -> Producer:
    """A producer whose batches no time-out sends."""
    return client.producer(topic, name, batching_max_publish_delay_ms=DAY_MS, **options)


def lsn(client: Client) -> int:
    return client.wait_for_change(0)


def held(client: Client) -> Any:
    """For `with`: no other call gets into the store meanwhile."""
    return mutex_of(client).held()


def sending_thread(client: Client) -> threading.Thread:
    """The thread that sends the queued messages of a client."""
    thread = client._outbox()._sender._thread  # type: ignore[union-attr]
    assert thread is not None
    return thread


def fly(producer: Producer, *given_values: bytes) -> list[SendFuture]:
    """Send and wait until the sender has taken the messages; the mutex must be held."""
    sent = [producer.send_async(value) for value in given_values]
    queue = producer.session._queues.get(None)
    assert queue is not None
    sender = queue._sender
    with sender.lock:
        sender.hurry()
    while queue.items:
        sender._thread.join(0.001)  # type: ignore[union-attr]
    return sent


# --- order and frames -------------------------------------------------------------------------


def test_messages_are_stored_in_order_and_answered_as_send_would(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("u")
    sent = [producer.send_async(b"%d" % n) for n in range(3_000)]
    producer.flush()
    assert all(future.done() for future in sent)
    assert values(client, "u") == [b"%d" % n for n in range(3_000)]
    assert [message.message_id for message in client.reader("u")] == [
        future.result().message_id for future in sent
    ]
    last = producer.send(b"last")
    assert last.message_id is not None
    assert (sent[-1].result().message_id, sent[-1].result().partition) < (last.message_id, 1)


def test_all_fields_of_a_message_arrive_and_a_key_finds_its_partition(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t")
    plain = producer.send_async("tëxt")
    keyed = [producer.send_async(b"%d" % n, key=f"key {n}") for n in range(20)]
    full = producer.send_async(
        b"full", key=b"k", properties={"a": "b"}, event_time=5, deliver_after=0
    )
    fixed = producer.send_async(b"fixed", partition=1)
    empty = producer.send_async(None, key=b"k")
    producer.flush()
    messages = {message.message_id: message for message in client.reader("t")}
    assert messages[plain.result().message_id].value == "tëxt".encode()
    producer_again = client.producer("t")
    for n, future in enumerate(keyed):
        assert messages[future.result().message_id].value == b"%d" % n
        assert producer_again.send(b"", key=f"key {n}").partition == future.result().partition
    read = messages[full.result().message_id]
    assert (read.value, read.key, read.properties, read.event_time) == (
        b"full",
        b"k",
        {"a": "b"},
        5,
    )
    assert fixed.result().partition == 1
    assert messages[empty.result().message_id].value is None


def counted(flush: Callable[[int], None], flushes: list[int], fd: int) -> None:
    flushes.append(fd)
    flush(fd)


def test_four_topics_are_one_frame_and_one_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "sync", durability="sync")
    client = bench.client
    producers = []
    for n in range(4):
        client.create_topic(f"topic-{n}", partitions=n + 1)
        producers.append(patient(client, f"topic-{n}", f"name-{n}" if n % 2 else None))
    producers[0].send(b"first")  # so that the journal has preallocated space
    lsn_before = lsn(client)
    flushes: list[int] = []
    for call in ("fdatasync", "fsync"):
        whole = getattr(os, call)
        monkeypatch.setattr(os, call, partial(counted, whole, flushes))
    sent = [producer.send_async(b"%d" % n) for n in range(10) for producer in producers]
    client._outbox().flush()
    assert lsn(client) == lsn_before + 1
    assert len(flushes) == 1
    assert all(producer.done() and producer.exception() is None for producer in sent)
    for n in range(4):
        found_values = values(client, f"topic-{n}")
        assert sorted(found_values) == sorted(
            [b"%d" % k for k in range(10)] + [b"first"] * (n == 0)
        )
    other = bench.reopen()
    assert len(values(other, "topic-3")) == 10
    bench.close()


def test_two_producers_of_one_topic_share_its_entries(bench: Bench) -> None:
    client = bench.client
    first, second = patient(client), patient(client)
    sent = [(first if n % 2 else second).send_async(b"%d" % n) for n in range(10)]
    client.flush()
    assert [m.message_id and m.message_id.entry for m in client.reader("u")] == list(range(10))
    assert values(bench.reopen(), "u") == [
        *(b"%d" % n for n in range(0, 10, 2)),
        *(b"%d" % n for n in range(1, 10, 2)),
    ]
    assert sorted(f.result().message_id.entry for f in sent) == list(range(10))  # type: ignore[union-attr]


# --- when a batch is sent
# --------------------------------------------------------------------------


def test_time_sends_a_message(bench: Bench) -> None:
    producer = bench.client.producer("u", batching_max_publish_delay_ms=1)
    patient(bench.client, "t").send_async(b"later, but not by itself")
    assert producer.send_async(b"x").result(SOON).message_id is not None


@pytest.mark.parametrize(
    ("options", "value", "most"),
    [
        ({"batching_max_messages": 3}, b"x", 3),
        ({"batching_max_allowed_size_in_bytes": 100}, b"x" * 25, 4),
    ],
)
def test_each_bound_sends_what_is_queued(
    bench: Bench, options: dict[str, Any], value: bytes, most: int
) -> None:
    client = bench.client
    producer, other = patient(client, **options), patient(client, "t")
    lsn_before = lsn(client)
    with_it = other.send_async(b"goes along")
    sent = [producer.send_async(value) for _ in range(most - 1)]
    assert lsn(client) == lsn_before
    assert not any(future.done() for future in [*sent, with_it])
    sent.append(producer.send_async(value))
    assert all(future.result(SOON) for future in sent)
    assert with_it.done()
    assert lsn(client) == lsn_before + 1


@pytest.mark.parametrize(
    "wait",
    [
        lambda client, producer: producer.flush(),
        lambda client, producer: client.flush(),
        lambda client, producer: producer.close(),
        lambda client, producer: producer.send(b"y"),
        lambda client, producer: producer.send_batch(pa.table({"value": [b"y"]})),
        lambda client, producer: producer.new_message().value(b"y").send(),
        lambda client, producer: producer.new_watermark().event_time(5).send(),
    ],
)
def test_a_waiting_call_sends_queued_messages_first(
    bench: Bench, wait: Callable[[Client, Producer], object]
) -> None:
    client = bench.client
    producer = patient(client)
    sent = producer.send_async(b"x")
    wait(client, producer)
    assert sent.done()
    assert values(client, "u") in ([b"x"], [b"x", b"y"])


def test_a_full_queue_refuses_or_waits(bench: Bench) -> None:
    client = bench.client
    producer = patient(client, max_pending_messages=2)
    with held(client):
        sent = [producer.send_async(b"%d" % n) for n in range(2)]
        with pytest.raises(ProducerQueueIsFull) as caught:
            producer.send_async(b"2")
        assert caught.value.fields["limit"] == 2
    assert all(future.result(SOON) for future in sent)
    assert producer.send_async(b"3") is not None  # there is room again
    waiting = patient(client, "t", max_pending_messages=2, block_if_queue_full=True)
    for n in range(50):
        waiting.send_async(b"%d" % n, partition=0)
    client.close()
    assert values(bench.reopen(), "u") == [b"0", b"1", b"3"]
    assert values(bench.client) == [b"%d" % n for n in range(50)]


def test_bytes_fill_a_queue_too(bench: Bench) -> None:
    producer = patient(bench.client, batching_max_allowed_size_in_bytes=PENDING_BYTES_MAX)
    half = b"x" * (PENDING_BYTES_MAX // 2)
    with held(bench.client):
        large = [producer.send_async(half), producer.send_async(half)]
        with pytest.raises(ProducerQueueIsFull):
            producer.send_async(b"x")
    assert all(isinstance(future.exception(SOON), InvalidMessage) for future in large)


@pytest.mark.parametrize(
    "options",
    [
        {"batching_max_messages": 0},
        {"batching_max_messages": True},
        {"max_pending_messages": 1.5},
        {"batching_max_publish_delay_ms": -1},
        {"block_if_queue_full": 1},
        {"batching": 3},
    ],
)
def test_wrong_options_are_refused(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        bench.client.producer("u", **options)


# --- errors -----------------------------------------------------------------------------------


def test_a_bad_message_fails_alone(bench: Bench) -> None:
    """Rule 2: whether the routing refuses it or the decision under the lock."""
    client = bench.client
    client.admin.set_offline("t/1")
    client.admin.set_delayed_policies("t", max_delivery_delay_ms=1_000)
    producer = patient(client, "t")
    bad: dict[str, tuple[dict[str, Any], type[TxlogError]]] = {
        "large": ({"value": b"x" * 200_000}, InvalidMessage),
        "absent": ({"partition": 7}, InvalidArgument),
        "below": ({"deliver_after": -1}, InvalidArgument),
        "both": ({"deliver_after": 1, "deliver_at": 1}, InvalidArgument),
        "late": ({"deliver_after": 5_000}, InvalidMessage),
        "properties": ({"properties": {str(n): "" for n in range(1_001)}}, InvalidMessage),
        "offline": ({"partition": 1}, PartitionUnavailable),
    }
    sent: dict[str, SendFuture] = {}
    for n, (name, (given_values, _)) in enumerate(bad.items()):
        sent[name] = producer.send_async(**{"value": b"bad", "partition": 0, **given_values})
        sent[f"good {n}"] = producer.send_async(b"%d" % n, partition=0)
    _flush(producer)
    for name, (_, kind) in bad.items():
        assert type(sent[name].exception()) is kind, name
    client.admin.set_online("t/1")
    assert values(client) == [b"%d" % n for n in range(len(bad))]
    assert [sent[f"good {n}"].exception() for n in range(len(bad))] == [None] * len(bad)
    producer.flush()  # every error was raised or read before


@pytest.mark.parametrize(
    "given",
    [
        {"value": 5},
        {"value": b"x", "key": 5},
        {"value": b"x", "event_time": 1.5},
        {"value": b"x", "event_time": 1 << 70},
        {"value": b"x", "sequence_id": "1"},
        {"value": b"x", "properties": {"a": 1}},
        {"value": "\ud800"},
    ],
)
def test_a_wrong_type_is_refused_at_once(bench: Bench, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        bench.client.producer("u").send_async(**given)


def test_an_error_that_no_caller_has_seen_is_raised_once(bench: Bench) -> None:
    client = bench.client
    producer, other = patient(client), patient(client, "t")
    producer.send_async(b"x", partition=9)
    other.flush()  # the error belongs to another producer
    with pytest.raises(InvalidArgument, match="partition 9"):
        producer.flush()
    producer.flush()
    producer.send_async(b"x", partition=8)
    with pytest.raises(InvalidArgument, match="partition 8"):
        client.flush()
    future = producer.send_async(b"x", partition=7)
    _flush(producer)
    assert isinstance(future.exception(), InvalidArgument)
    producer.flush()
    producer.send_async(b"x", partition=6)
    with pytest.raises(ValueError, match="mine"), producer:
        raise ValueError("mine")
    late = patient(client)
    late.send_async(b"x", partition=5)
    with pytest.raises(InvalidArgument, match="partition 5"):
        client.close()
    with pytest.raises(AlreadyClosed):
        late.send_async(b"x")


def _flush(producer: Producer) -> None:
    producer.session._outbox[0]()._sender.settle(None)  # type: ignore[union-attr]


def test_a_fenced_producer_fails_all_and_others_go_on(bench: Bench) -> None:
    client = bench.client
    old, other = patient(client, "u", "name"), patient(client, "u")
    lost = [old.send_async(b"lost") for _ in range(3)]
    future = other.send_async(b"kept")
    client.producer("u", "name")
    _flush(other)
    assert all(isinstance(each_future.exception(), ProducerFenced) for each_future in lost)
    assert future.exception() is None
    assert values(client, "u") == [b"kept"]


def test_a_deleted_topic_fails_its_producer_alone(bench: Bench) -> None:
    client = bench.client
    consumer, other = patient(client, "u"), patient(client, "t")
    lost, future = [consumer.send_async(b"%d" % n) for n in range(2)], other.send_async(b"kept")
    client.admin.delete_topic("u", force=True)
    _flush(other)
    assert all(isinstance(each_future.exception(), TopicNotFound) for each_future in lost)
    assert future.exception() is None


def test_a_store_that_fails_fails_all_that_is_queued(bench: Bench) -> None:
    """Rule 2: a message after a failed one is not stored, as a repeat could not keep the order."""
    client, other = bench.another(lock_timeout_ms=0), bench.client
    first, second = patient(client, "u", "name"), patient(client, "t")
    first.send(b"before", sequence_id=0)

    def while_locked(view: object) -> None:
        with held(client):
            flying.extend(fly(first, b"1"))
            queued.append(first.send_async(b"2"))
            queued.append(second.send_async(b"3"))
        for future in [*flying, *queued]:
            errors.append(future.exception(SOON))

    flying: list[SendFuture] = []
    queued: list[SendFuture] = []
    errors: list[BaseException | None] = []
    other.store.locked(while_locked)
    assert isinstance(errors[0], StoreLocked)
    assert [type(error) for error in errors[1:]] == [TryAgain, TryAgain]
    future_again = first.send_async(b"4")
    first.flush()
    assert future_again.exception() is None
    assert values(client, "u") == [b"before", b"4"]


def test_a_store_for_reading_refuses_at_once(bench: Bench) -> None:
    reader = bench.another(read_only=True)
    with pytest.raises(ReadOnlyStore):
        reader.producer("u").send_async(b"x")


# --- deduplication ----------------------------------------------------------------------------


def test_sequences_are_stored_once(bench: Bench) -> None:
    client = bench.client
    producer = patient(client, "u", "name")
    first = [producer.send_async(b"%d" % n, sequence_id=n) for n in range(5)]
    producer.flush()
    futures_again = [producer.send_async(b"%d" % n, sequence_id=n) for n in range(3, 8)]
    twice = producer.send_async(b"7", sequence_id=7)  # in the same batch
    producer.flush()
    assert [future.result().duplicate for future in futures_again] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert (
        futures_again[0].result().message_id is None
    )  # the store knows the id of the newest message only
    assert futures_again[1].result().message_id == first[4].result().message_id
    assert twice.result().duplicate
    assert twice.result().message_id == futures_again[-1].result().message_id
    assert producer.last_sequence_id() == 7
    assert producer.send(b"6", sequence_id=6).duplicate
    numbered = producer.send_async(b"8")
    assert producer.send(b"9").duplicate is False  # the numbers go on
    assert not numbered.result().duplicate
    assert producer.last_sequence_id() == 9
    assert values(bench.reopen(), "u") == [b"%d" % n for n in range(10)]


# --- futures ----------------------------------------------------------------------------------


def test_futures_work_with_concurrent_futures_and_asyncio(bench: Bench) -> None:
    producer = bench.client.producer("u")
    sent = [producer.send_async(b"%d" % n) for n in range(20)]
    assert not sent[-1].cancel()
    assert isinstance(sent[0], futures.Future)
    assert futures.wait(sent, SOON).not_done == set()
    assert {future.result() for future in futures.as_completed(sent)} == {
        future.result() for future in sent
    }

    async def waiting() -> list[Any]:
        given_futures = [producer.send_async(b"%d" % n, partition=n) for n in range(2)]
        results_before = asyncio.gather(
            *map(asyncio.wrap_future, given_futures), return_exceptions=True
        )
        done = await results_before
        return [*done, await asyncio.wrap_future(given_futures[0])]

    stored, refused, repeated = asyncio.run(waiting())
    assert stored == repeated
    assert isinstance(refused, InvalidArgument)


def test_a_future_is_waited_for_no_longer_than_asked(bench: Bench) -> None:
    producer = bench.client.producer("u")
    producer.send(b"first")
    with held(bench.client):
        sent = producer.send_async(b"x")
        with pytest.raises(TimeoutError):
            sent.result(0.01)
    assert sent.result(SOON).partition == 0


def test_callbacks_come_in_order_and_may_send_but_not_wait(bench: Bench) -> None:
    client = bench.client
    producer = patient(client)
    seen: list[object] = []
    more: list[SendFuture] = []

    def first(future: futures.Future[Any]) -> None:
        seen.append(future.result().message_id.entry)
        more.append(producer.send_async(b"from a callback"))
        for wait in (producer.flush, client.flush, more[0].result):
            with pytest.raises(NotAllowed):
                wait()
            seen.append("refused")

    sent = [producer.send_async(b"%d" % n) for n in range(3)]
    sent[0].add_done_callback(first)
    for one in sent[1:]:
        one.add_done_callback(lambda done: seen.append(done.result().message_id.entry))  # type: ignore[union-attr]
    producer.flush()
    producer.flush()
    assert seen == [0, "refused", "refused", "refused", 1, 2]
    assert values(client, "u")[-1] == b"from a callback"
    sent[0].add_done_callback(lambda done: seen.append("at once"))
    assert seen[-1] == "at once"


def test_a_call_within_another_call_does_not_wait_for_ever(bench: Bench) -> None:
    """From `__del__` or a signal handler: the sender would wait for the outer call to end."""
    client = bench.client
    producer = patient(client)
    sent: list[SendFuture] = []

    def look(view: object) -> None:
        sent.append(producer.send_async(b"x"))
        for wait in (sent[0].result, producer.flush, lambda: producer.send(b"y")):
            with pytest.raises(NotAllowed):
                wait()

    client.store.read(look)
    producer.flush()
    assert sent[0].result().partition == 0


# --- its end ----------------------------------------------------------------------------------


def test_close_waits_for_all(bench: Bench) -> None:
    sent = [patient(bench.client).send_async(b"%d" % n) for n in range(3)]
    bench.client.close()
    assert all(future.done() for future in sent)
    assert sorted(values(bench.reopen(), "u")) == [b"0", b"1", b"2"]


def test_closing_in_a_callback_ends_the_sender(bench: Bench) -> None:
    client = bench.client
    producer = patient(client)
    sent = producer.send_async(b"x")
    sent.add_done_callback(lambda done: client.close())
    thread = sending_thread(client)
    _flush(producer)
    thread.join(SOON)
    assert not thread.is_alive()
    with pytest.raises(AlreadyClosed):
        client.topics()
    assert values(bench.reopen(), "u") == [b"x"]


@pytest.mark.deep
def test_a_garbage_collected_client_ends_its_thread(bench: Bench) -> None:
    client = txlog.open(bench.path)
    producer = client.producer("u")
    producer.send_async(b"x")
    producer.flush()
    thread = sending_thread(client)
    ref = weakref.ref(client._outbox())
    del client, producer
    gc.collect()
    assert ref() is None
    thread.join(SOON)
    assert not thread.is_alive()


def test_a_program_that_ends_without_closing_loses_nothing(bench: Bench) -> None:
    """The end of the interpreter sends all queued messages."""
    run(python("unclosed", bench.path))  # not `ready`, whose children end without exit handlers
    assert values(bench.client, "u") == [b"%d" % n for n in range(500)]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(bench: Bench) -> None:
    """Rule 6, R27."""
    client = bench.client
    producer = patient(client)
    sent = producer.send_async(b"x")
    child = os.fork()
    if not child:
        code = 1
        try:
            for call in (lambda: producer.send_async(b"y"), sent.result, producer.flush):
                with pytest.raises(AlreadyClosed):
                    call()
            client.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    producer.flush()
    assert values(client, "u") == [b"x"]


def test_queued_messages_of_a_transaction_are_sent_on_their_own(bench: Bench) -> None:
    client = bench.client
    producer = patient(client)
    with client.transaction() as txn:
        plain = producer.send_async(b"plain")
        inside = producer.send_async(b"inside", txn=txn)
        assert producer.send(b"too", txn=txn).txn_index == 2
        assert not plain.done()  # a plain message does not belong to the transaction
    assert inside.result().txn_index == 1
    assert values(client, "u") == [b"inside", b"too"]
    producer.flush()
    assert values(client, "u") == [b"inside", b"too", b"plain"]


def test_many_threads_keep_their_own_order(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("u", block_if_queue_full=True, max_pending_messages=100)

    def run(thread: int) -> None:
        for n in range(300):
            producer.send_async(b"%d %d" % (thread, n))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for each_thread in threads:
        each_thread.start()
    for each_thread in threads:
        each_thread.join()
    producer.flush()
    pairs = [tuple(map(int, value.split())) for value in values(client, "u")]
    for thread in range(4):
        assert [n for who, n in pairs if who == thread] == list(range(300))


# --- a process that is killed -----------------------------------------------------------------


@pytest.mark.parametrize("part", graded(range(6), 1))
def test_a_killed_process_loses_only_what_was_not_answered(tmp_path: Path, part: int) -> None:
    """Rule 3: every answered message exists exactly once, and no message without those
    before it.
    """

    def made(name: str) -> Path:
        txlog.init(str(tmp_path / name))
        with txlog.open(str(tmp_path / name)) as client:
            client.create_topic("t", partitions=2)
            client.create_topic("u")
        return tmp_path / name

    chance = random.Random(f"{SEED} {part}")
    nth = chance.randrange(1, 25)
    store = made("store")
    where = f"seed {SEED}, part {part}, call {nth}"
    died = run(ready("async_sends", store, nth), code=KILLED, where=where)
    answered = [line.split() for line in died.stdout.splitlines()]
    with txlog.open(str(store)) as client:
        for which, topic in enumerate("ut"):
            found_values = values(client, topic)
            assert found_values == [b"%d" % n for n in range(len(found_values))], where
            assert {n.encode() for w, n in answered if int(w) == which} <= set(found_values), where
        name = client.producer("t", "name")
        futures_again = [name.send_async(b"%d" % n, sequence_id=n, partition=0) for n in range(200)]
        name.flush()
        assert sum(future.result().duplicate for future in futures_again) == len(found_values), (
            where
        )
        assert values(client, "t") == [b"%d" % n for n in range(200)], where
