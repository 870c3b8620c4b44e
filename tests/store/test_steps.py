"""The cost of small calls, in calls of functions: nothing creeps in unnoticed.

Seconds say little on a shared machine; these are the same in each run. Other versions of Python
make other bytecodes of the same source, so functions are counted. A change that needs more calls
raises a bound here, and its commit says why.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

import txlog
from tests.engine_kit import Bench
from txlog import Bound, Client
from txlog.base.choices import SubscriptionType
from txlog.engine.storage import columns, segment_reader

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1}, durability="sync")]
SOURCE = str(Path(txlog.__file__).parent)
WARM, COUNTED = 40, 11
Step = Callable[[], object]


KERNELS = pa.compute.__file__


def calls_of(step: Step, source: str = SOURCE) -> int:
    """Functions of txlog, or of another source, that a step calls."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += frame.f_code.co_filename.startswith(source)

    tracer, was_collecting = sys.gettrace(), gc.isenabled()
    gc.disable()  # a collection would drop objects of other tests
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(tracer)
        if was_collecting:
            gc.enable()
    return count


def rows(messages: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x"] * messages, pa.binary())})


def transaction(client: Client) -> Step:
    producer, ten = client.producer("t"), rows(10)

    def step() -> None:
        with client.transaction() as txn:
            producer.send_batch_async(ten, txn=txn)

    return step


def send(client: Client) -> Step:
    producer = client.producer("t")
    return lambda: producer.send(b"x")


def receive(client: Client) -> Step:
    client.producer("t").send_batch(rows(WARM + COUNTED))
    client.create_subscription("t", "s")
    consumer = client.consumer("t", "s")

    def step() -> None:
        message = consumer.receive()
        assert message is not None
        consumer.acknowledge(message)

    return step


def backlog(client: Client, together: int, kind: SubscriptionType) -> None:
    """Messages for a subscription s of a type, in frames of ten batches."""
    for _ in range((WARM + COUNTED) // 10 + 1):
        client.producer("t").send_batch(rows(10 * together))
    client.create_subscription("t", "s", type=kind)


def batch(client: Client) -> Step:
    backlog(client, 1_000, "exclusive")
    consumer = client.consumer("t", "s")

    def step() -> None:
        table = consumer.receive_batch(1_000)
        with client.transaction() as txn:
            consumer.acknowledge(table, txn=txn)

    return step


def send_all(client: Client) -> Step:
    producer = client.producer("t")
    return lambda: producer.send(b"x", key=b"k", properties={"a": "1"}, event_time=1)


def send_in_txn(client: Client, *, write_through: bool) -> Step:
    producer = client.producer("t")
    txn = client.transaction(write_through=write_through)
    return lambda: producer.send(b"x", txn=txn)


def send_ten(client: Client) -> Step:
    producer, ten = client.producer("t"), rows(10)
    return lambda: producer.send_batch(ten)


def reader_at(client: Client, start: Bound) -> Step:
    """Open a reader of by_iteration's messages and read one; start "skip": at that message's id."""
    by_iteration(client)
    message = client.reader("t", start).read_next()
    assert message is not None and message.message_id is not None
    where = message.message_id if start.kind == "skip" else start

    def step() -> None:
        with client.reader("t", where) as reader:
            assert reader.read_next() is not None

    return step


def shared(client: Client) -> Step:
    backlog(client, 100, "shared")
    consumer = client.consumer("t", "s")
    return lambda: consumer.acknowledge(consumer.receive_batch(100))


CASES: dict[str, tuple[Callable[[Client], Step], int]] = {
    "transaction": (transaction, 316),
    "send": (send, 207),
    "receive": (receive, 210),
    "batch": (batch, 637),
    "shared": (shared, 418),
    "send with key, properties, time": (send_all, 211),
    "send in a transaction": (partial(send_in_txn, write_through=False), 6),
    "send in a transaction, written": (partial(send_in_txn, write_through=True), 189),
    "send_batch of 10": (send_ten, 202),
    "reader at an id": (partial(reader_at, start=Bound("skip", 150)), 251),
    "reader at the end": (partial(reader_at, start=Bound("last", 1)), 261),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_that_a_small_call_calls(bench: Bench, case: str) -> None:
    """A durable transaction of ten messages called 323 before decision 0261, and 285 before
    decision 0295: a flush that needs no mutex costs 20 more. A batch that is received asks which
    LSN each of its reads needs (docs/design/transactions.md, "Reads beside a flush"): 7 more. A
    look for unflushed frames of a reader also looks for a newer journal file: 1 more.
    """
    make, most = CASES[case]
    step = make(bench.client)
    for _ in range(WARM):
        step()
    counted = sorted(calls_of(step) for _ in range(COUNTED))
    assert most * 0.8 < counted[COUNTED // 2] <= most


def test_a_frame_of_another_process(bench: Bench) -> None:
    """The mean of many frames, as each process follows the frames of all others.

    Decision 300 made 39 calls of 29, with a fifth fewer bytecodes: no code looks for frames that
    one fold can take at once.
    """
    client, other = bench.client, bench.another()
    step, own_step = transaction(client), transaction(other)
    for _ in range(WARM):
        own_step()
        own_step()
        step()
    for _ in range(COUNTED):
        step()
    assert 30 * COUNTED < calls_of(other.store.refresh) <= 41 * COUNTED


def by_iteration(client: Client) -> Step:
    """Two thousand messages, a thousand in transactions of a hundred; most are in files."""
    producer, hundred = client.producer("t"), rows(100)
    for _ in range(12):
        producer.send_batch(hundred)
        with client.transaction() as txn:
            producer.send_batch(hundred, txn=txn)
    client.checkpoint()
    client.checkpoint_automatically = False
    return lambda: sum(1 for _ in islice(client.reader("t"), 2000))


def test_functions_for_a_message_by_iteration(bench: Bench) -> None:
    """Two calls, for the generator and the message, and 0.75 for batches of small pieces."""
    step = by_iteration(bench.client)
    step()
    assert 2 * 2000 < calls_of(step) <= 2.8 * 2000


@pytest.mark.parametrize("start", [Bound("skip", 50), Bound("skip", 150), Bound("last", 1)])
def test_a_few_messages_are_read_without_kernels(bench: Bench, start: Bound) -> None:
    """Plain messages and a transaction's: a kernel takes as long for one row as for a hundred.

    Nine before, for messages of a transaction.
    """
    step = reader_at(bench.client, start)
    step()
    assert calls_of(step, KERNELS) == 0


def test_a_row_group_is_shaped_once_for_all_that_is_cut_out_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a conversion, at 35 us, for each of ten pieces that come from two files in turn."""
    step = by_iteration(bench.client)
    shaped: list[int] = []

    def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
        shaped.append(table.num_rows)
        return columns.conform(table, schema)

    monkeypatch.setattr(segment_reader, "conform", conform)
    step()
    assert shaped == [1212, 1212]  # the topic's part and the sidecar's, with their markers
    step()
    assert len(shaped) <= 4
