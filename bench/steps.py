"""What a call costs in steps of Python: bytecodes and calls, by stage and by function.

    PYTHONPATH=src python bench/steps.py [CASE ...] [--top N]

Clocks are of little use on a shared machine; steps are the same in each run, but for the sweep
now and then. Each case is repeated until it is warm, then counted with `sys.settrace`. What the
case itself does (a batch of Arrow, ids) is not counted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pyarrow as pa

import txlog
from txlog import Bound, Client, MessageId

SOURCE: Final = str(Path(txlog.__file__).parent) + "/"
WHERE: Final = Path(__file__).resolve().parent / ".work" / "steps"
WARM, COUNTED = 300, 50
VALUE: Final = b"x" * 100
STAGES: Final = {  # by the beginning of a module's name; the first that fits
    "handles": ("api", "arguments", "engine/plan/route", "schemas"),
    "calls and locks": ("engine/store", "engine/storage/disk/locks"),
    "decisions": ("engine/decide", "engine/plan"),
    "folds and index": ("engine/view", "engine/folds", "engine/model"),
    "journal, witness, disk": ("engine/storage", "clock"),
}
Step = Callable[[], object]


class Counted(NamedTuple):
    """Bytecodes and calls of a step, by (module, function)."""

    codes: Counter[tuple[str, str]]
    calls: Counter[tuple[str, str]]

    def by_stage(self) -> Iterator[tuple[str, int, int]]:
        """(stage, bytecodes, calls)."""
        for stage, names in STAGES.items():
            keys = [key for key in self.codes if key[0].startswith(names)]
            yield stage, sum(self.codes[key] for key in keys), sum(self.calls[key] for key in keys)


def counted(step: Step, times: int = COUNTED) -> Counted:
    """Steps of one call, the median of some; those of other code than txlog's are left out."""
    found = sorted((once(step) for _ in range(times)), key=lambda one: one.codes.total())
    return found[times // 2]


def once(step: Step) -> Counted:
    """Steps of one call."""
    codes, calls = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    def trace(frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE):
            return None
        key = (code.co_filename.removeprefix(SOURCE), code.co_name)
        if event == "opcode":
            codes[key] += 1
        elif event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            calls[key] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return Counted(codes, calls)


def rows(messages: int) -> pa.RecordBatch:
    """Messages of 100 bytes."""
    return pa.record_batch([pa.array([VALUE] * messages, pa.binary())], ["value"])


def transaction(client: Client) -> Step:
    """Ten messages to one topic, as in bench/many.py."""
    producer, table = client.producer("t"), rows(10)

    def step() -> None:
        with client.transaction() as txn:
            producer.send_batch_async(table, txn=txn)

    return step


def w1(client: Client) -> Step:
    """Twice ten messages and ten acknowledgements, as W1 of bench/run.py."""
    client.create_topic("out", partitions=2)
    producer = client.producer("out")
    table = rows(20).append_column("partition", pa.array([0] * 10 + [1] * 10, pa.int32()))
    ids = acknowledgeable(client, 10)

    def step() -> None:
        with client.transaction() as txn:
            producer.send_batch_async(table, txn=txn)
            client.acknowledge_async("t", "s", next(ids), txn=txn)

    return step


def acknowledgeable(client: Client, together: int) -> Iterator[list[txlog.MessageId]]:
    """Ids of messages that the subscription s has not acknowledged."""
    client.producer("t").send_batch(rows(together * 10 * (WARM + COUNTED)))
    client.create_subscription("t", "s")
    ledger = next(iter(client.read("t"))).column("ledger")[0].as_py()
    return (
        [txlog.MessageId(ledger, entry) for entry in range(at, at + together)]
        for at in count(0, together)
    )


def send(client: Client) -> Step:
    """One plain message."""
    producer = client.producer("t")
    return lambda: producer.send(VALUE)


def send_all(client: Client) -> Step:
    """One plain message with all that can be beside its value."""
    producer, properties = client.producer("t"), {"shop": "7", "try": "1"}
    return lambda: producer.send(VALUE, key=b"k", properties=properties, event_time=1)


def send_in_txn(client: Client) -> Step:
    """One message to an open transaction."""
    producer, txn = client.producer("t"), client.transaction()
    return lambda: producer.send(VALUE, txn=txn)


def send_ten(client: Client) -> Step:
    """Ten plain messages."""
    producer, table = client.producer("t"), rows(10)
    return lambda: producer.send_batch(table)


def stored(client: Client) -> None:
    """Files with 12,000 messages, half of them in transactions of a hundred."""
    producer, table = client.producer("t"), rows(100)
    for _ in range(60):
        producer.send_batch(table)
        with client.transaction() as txn:
            producer.send_batch(table, txn=txn)
    client.checkpoint()


def reader_at_id(client: Client) -> Step:
    """A new reader at a message of a transaction in the middle, and that message."""
    stored(client)
    message = client.reader("t", Bound("skip", 6_150)).read_next()
    assert message is not None
    return partial(read_one, client, message.message_id)


def reader_at_end(client: Client) -> Step:
    """A new reader at the last message, and that message."""
    stored(client)
    return partial(read_one, client, Bound("last", 1))


def read_one(client: Client, start: MessageId | Bound) -> None:
    with client.reader("t", start) as reader:
        assert reader.read_next() is not None


def iteration(client: Client) -> Step:
    """A thousand messages by iteration, the first ten and a hundred in batches of their own."""
    stored(client)
    return lambda: sum(1 for _ in islice(client.reader("t"), 1_000))


def receive(client: Client) -> Step:
    """One message received and acknowledged."""
    acknowledgeable(client, 1)
    consumer = client.consumer("t", "s")

    def step() -> None:
        message = consumer.receive()
        assert message is not None
        consumer.acknowledge(message)

    return step


def backlog(client: Client, together: int, kind: str) -> None:
    """Messages for a subscription s of a type, in frames of ten thousand."""
    left = together * (WARM + COUNTED + 1)
    while left > 0:
        client.producer("t").send_batch(rows(10_000))
        left -= 10_000
    client.create_subscription("t", "s", type=kind)


def batch(client: Client) -> Step:
    """A thousand messages received, and acknowledged in a transaction, as W3 of bench/run.py."""
    backlog(client, 1_000, "exclusive")
    consumer = client.consumer("t", "s")

    def step() -> None:
        table = consumer.receive_batch(1_000)
        with client.transaction() as txn:
            consumer.acknowledge(table, txn=txn)

    return step


def shared(client: Client) -> Step:
    """A hundred messages of a Shared subscription taken, as in bench/consumers.py."""
    backlog(client, 100, "shared")
    consumer = client.consumer("t", "s")
    return lambda: consumer.acknowledge(consumer.receive_batch(100))


def beside(client: Client) -> Step:
    """The same after another process has taken a hundred: its two frames are followed."""
    backlog(client, 200, "shared")
    consumer, peer = client.consumer("t", "s"), txlog.open(str(WHERE)).consumer("t", "s")

    def step() -> None:
        trace = sys.gettrace()
        sys.settrace(None)
        peer.acknowledge(peer.receive_batch(100))
        sys.settrace(trace)
        consumer.acknowledge(consumer.receive_batch(100))

    return step


def other(client: Client) -> Step:
    """A transaction of another process is followed."""
    writer = txlog.open(str(WHERE))
    write, store = transaction(writer), client._store
    own = transaction(client)
    for _ in range(WARM):  # it uses each coordinator, and follows one frame at a time
        own()
        own()  # so that neither has the same ones in turn
        write()

    def step() -> None:
        trace = sys.gettrace()
        sys.settrace(None)
        write()
        sys.settrace(trace)
        store.refresh()

    return step


CASES: Final = {
    "transaction": transaction,
    "W1": w1,
    "send": send,
    "send with properties": send_all,
    "send in a transaction": send_in_txn,
    "send_batch of 10": send_ten,
    "receive": receive,
    "batch": batch,
    "shared": shared,
    "beside": beside,
    "reader at an id": reader_at_id,
    "reader at the end": reader_at_end,
    "iteration": iteration,
    "other": other,
}


@contextmanager
def store() -> Iterator[Client]:
    """A new store with a topic t."""
    shutil.rmtree(WHERE, ignore_errors=True)
    txlog.init(str(WHERE))
    with txlog.open(str(WHERE)) as client:
        client.create_topic("t")
        yield client
    shutil.rmtree(WHERE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--top", type=int, default=0)
    asked = parser.parse_args()
    for name in asked.cases or CASES:
        with store() as client:
            step = CASES[name](client)
            for _ in range(WARM):
                step()
            found = counted(step)
        print(f"{name:24}{found.codes.total():>7,} bytecodes {found.calls.total():>5,} calls")
        for stage, codes, calls in found.by_stage():
            print(f"  {stage:22}{codes:>7,} {calls:>15,}")
        for key, codes in found.codes.most_common(asked.top):
            print(f"    {codes:>5,} {found.calls[key]:>4,} {key[0]}: {key[1]}")


if __name__ == "__main__":
    main()
