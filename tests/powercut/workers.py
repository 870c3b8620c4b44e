"""Owns the work of the processes in the machine, and the record of their calls and answers.

Each line that a process writes is an event in the words of `tests/history/events.py`. It goes to
the machine's second disk with O_DIRECT, and the process goes on when the write has returned.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import txlog
from txlog import Client, Consumer, Message
from txlog.errors import OutcomeUnknown, TxlogError

from .device import REGION, SECTOR

TOPICS = {"orders": 2, "bills": 2, "audit": 1}
SUBSCRIPTION = "billing"
CALLS = 1_000_000  # of a process
BIG = 300_000  # bytes, above what one frame may have inside the zeros of the journal
FREE_BYTES_MIN = 4 << 20  # the disks of the machine are small


class Teller:
    """Writes the events of one process to the disk of events.

    number: of the process, which chooses its region of the disk
    """

    def __init__(self, disk: str, number: int) -> None:
        self._file = os.open(disk, os.O_WRONLY | os.O_DIRECT)
        self._buffer = mmap.mmap(-1, 1 << 20)
        self._at = number * REGION
        self._process = f"p{number}"
        self._calls = itertools.count(number * CALLS)
        self._ops: dict[int, str] = {}

    def invoke(self, op: str, **args: Any) -> int:
        """A call begins."""
        call = next(self._calls)
        self._ops[call] = op
        self._tell({"call": call, "type": "invoke", "op": op, "args": args})
        return call

    def kill(self) -> int:
        """Note that the server, which is none of the numbered processes, is to die now."""
        call = next(self._calls)
        self._ops[call] = "kill"
        self._tell({"call": call, "type": "invoke", "op": "kill", "args": {}, "process": ""})
        return call

    def ok(self, call: int, **answer: Any) -> None:
        """The call returned."""
        self._tell({"call": call, "type": "ok", "op": self._ops.pop(call), "answer": answer})

    def failed(self, call: int, error: TxlogError) -> None:
        """The call raised: it had no effect, or its outcome is unknown."""
        kind = "unknown" if isinstance(error, OutcomeUnknown) else "fail"
        name = type(error).__name__
        self._tell({"call": call, "type": kind, "op": self._ops.pop(call), "error": name})

    def _tell(self, event: dict[str, Any]) -> None:
        line = json.dumps({"process": self._process, **event}).encode() + b"\n"
        length = -(-len(line) // SECTOR) * SECTOR
        self._buffer[:length] = line.ljust(length, b"\0")
        done = os.pwrite(self._file, memoryview(self._buffer)[:length], self._at)
        assert done == length
        self._at += length


class Worker:
    """One process that works on the store.

    sends:    how many messages each sender sends; the others go on until all have
    finished: memory that the processes share, with a 1 for each process that is done
    """

    def __init__(
        self, path: str, disk: str, number: int, seed: int, sends: int, finished: mmap.mmap
    ) -> None:
        self.path, self.number, self.sends = path, number, sends
        self.tell = Teller(disk, number)
        self.rng = random.Random(f"{seed} {number}")
        self._finished = finished

    def goes_on(self) -> bool:
        """Whether any sender is at work."""
        senders = (number for number, role in enumerate(ROLES, 1) if role is send)
        return not all(self._finished[number] for number in senders)

    def finish(self) -> None:
        """Tell the others that this process is done."""
        self._finished[self.number] = 1

    def call(self, op: str, act: Callable[[], Any], **args: Any) -> Any:
        """Make a call whose answer needs no words."""
        call = self.tell.invoke(op, **args)
        try:
            answer = act()
        except TxlogError as error:
            self.tell.failed(call, error)
            raise
        self.tell.ok(call)
        return answer


def warm_up(path: str) -> None:
    """Load what workers use, so that no process of the slow machine does it again after a fork."""
    txlog.init(path, free_bytes_min=FREE_BYTES_MIN)
    with txlog.open(path, transaction_key="k") as client:
        client.create_topic("t")
        producer = client.producer("t", name="p")
        producer.send_async(b"1", sequence_id=1).result()
        consumer = client.consumer("t", "s", create=True, position="earliest")
        with consumer, client.transaction() as txn:
            producer.send(b"2", txn=txn)
            consumer.acknowledge(consumer.receive_batch(10), txn=txn)
        client.checkpoint(roll_all=True)
        list(client.reader("t"))


def prepare(worker: Worker) -> None:
    """Make the store, its topics and the subscription."""
    worker.call("init", lambda: txlog.init(worker.path, free_bytes_min=FREE_BYTES_MIN))
    with txlog.open(worker.path) as client:
        for topic, partitions in TOPICS.items():
            worker.call(
                "create_topic",
                lambda: client.create_topic(topic, partitions),  # noqa: B023 - called at once
                topic=topic,
                partitions=partitions,
            )
        worker.call(
            "create_subscription",
            lambda: client.create_subscription("orders", SUBSCRIPTION, type="shared"),
            topic="orders",
            subscription=SUBSCRIPTION,
        )


def text(message: Message) -> str:
    """The part of a value that tells messages apart; padding follows it."""
    return (message.value or b"").split(b" ")[0].decode()


def place(message: Message) -> dict[str, Any]:
    """A message in the words of histories."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "id": str(message.message_id),
        "value": text(message),
        "key": (message.key or b"").decode(),
    }


def send(worker: Worker) -> None:
    """Send under a name: one by one, several without waiting, or a number that was stored."""
    name, rng, tell = f"sender-{worker.number}", worker.rng, worker.tell
    with txlog.open(worker.path) as client:
        producer = client.producer("orders", name=name)
        sequence, session = 0, str(worker.number)

        def begin(number: int) -> tuple[int, dict[str, Any]]:
            key = f"k{number % 7}"
            args = {"value": f"{name}:{number}", "key": key, "producer": name, "sequence": number}
            call = tell.invoke("send", topic="orders", session=session, **args)
            padding = b" " * rng.choice((1, 1, 30, 700, 5000, BIG if number % 40 == 0 else 1))
            value = f"{name}:{number}".encode() + padding
            return call, {"value": value, "key": key.encode(), "sequence_id": number}

        while sequence < worker.sends:
            kind = rng.random()
            again = sequence > 0 and kind < 0.1
            count = rng.randrange(2, 9) if kind > 0.7 else 1
            numbers = [sequence] if again else range(sequence + 1, sequence + 1 + count)
            calls = [begin(number) for number in numbers]
            sequence = max(sequence, *numbers)
            if len(calls) == 1:
                ((call, options),) = calls
                answer(worker, call, lambda: producer.send(**options))  # noqa: B023
                continue
            futures = [(call, producer.send_async(**options)) for call, options in calls]
            for call, future in futures:
                answer(worker, call, future.result)


def answer(worker: Worker, call: int, act: Callable[[], Any]) -> None:
    """Tell the receipt of a message, or why there is none."""
    try:
        receipt = act()
    except TxlogError as error:
        worker.tell.failed(call, error)
        return
    fields = {"partition": receipt.partition}
    if receipt.message_id is not None:
        fields["id"] = str(receipt.message_id)
    worker.tell.ok(call, duplicate=receipt.duplicate, **fields)


def bill(worker: Worker) -> None:
    """Receive orders, send a bill and a line of audit for each, acknowledge: in transactions."""
    key = f"biller-{worker.number}"
    tell = worker.tell
    call = tell.invoke("connect_key", key=key)
    with txlog.open(worker.path, transaction_key=key) as client:
        epoch = client.connect(key)["epoch"]
        tell.ok(call, epoch=epoch)
        name = f"c{worker.number}"
        call = tell.invoke(
            "subscribe",
            topic="orders",
            subscription=SUBSCRIPTION,
            consumer=name,
            kind="shared",
            initial="earliest",
        )
        with client.consumer("orders", SUBSCRIPTION) as consumer:
            tell.ok(call)
            while worker.goes_on():
                bill_some(worker, client, consumer, name, key, epoch)


def bill_some(
    worker: Worker, client: Client, consumer: Consumer, name: str, key: str, epoch: int
) -> None:
    """One transaction."""
    tell, rng = worker.tell, worker.rng
    place_ = {"topic": "orders", "subscription": SUBSCRIPTION, "consumer": name}
    call = tell.invoke("receive", **place_)
    table = consumer.receive_batch(rng.choice((1, 3, 10)), timeout_ms=100)
    orders = list(txlog.messages(table))
    tell.ok(call, messages=[place(order) for order in orders])
    if not orders:
        return
    call = tell.invoke("begin", key=key, epoch=epoch)
    txn = client.begin(60_000, key=key, epoch=epoch)["txn"]
    tell.ok(call, txn=str(txn))
    for order in orders:
        for topic in ("bills", "audit"):
            value = f"{topic}:{text(order)}:{txn}"
            call = tell.invoke("send", topic=topic, value=value, txn=str(txn))
            answer(
                worker,
                call,
                lambda: client.producer(topic).send(value + " ", txn=txn),  # noqa: B023
            )
    ids = [order.message_id for order in orders if order.message_id is not None]
    worker.call(
        "acknowledge",
        lambda: consumer.acknowledge(orders, txn=txn),
        **place_,
        ids=[str(each) for each in ids],
        values=[text(order) for order in orders],
        txn=str(txn),
    )
    end = "abort" if rng.random() < 0.2 else "commit"
    act = {"commit": client.commit, "abort": client.abort}[end]
    worker.call(end, lambda: act(txn), txn=str(txn), key=key, epoch=epoch)


def keep(worker: Worker) -> None:
    """Checkpoint, compact, collect, and make topics."""
    rng, count, pause = worker.rng, 0, threading.Event()
    with txlog.open(worker.path) as client:
        while worker.goes_on():
            kind = rng.randrange(5)
            if kind < 2:
                client.checkpoint(roll_all=kind == 0)
            elif kind == 2:
                client.admin.compact("orders")
                client.admin.compact_topic("orders")
            elif kind == 3:
                client.admin.gc(apply=True, keep_ms=0)
            else:
                count += 1
                topic = f"extra-{count}"
                worker.call(
                    "create_topic",
                    lambda: client.create_topic(topic),  # noqa: B023 - called at once
                    topic=topic,
                    partitions=1,
                )
                call = worker.tell.invoke("send", topic=topic, value=f"{topic}:1")
                answer(
                    worker,
                    call,
                    lambda: client.producer(topic).send(f"{topic}:1 "),  # noqa: B023
                )
            worker.call("flush", client.flush)
            pause.wait(0.2)


def read(worker: Worker) -> None:
    """Read on, and record the new messages."""
    with txlog.open(worker.path, read_only=True) as client:
        readers = {topic: client.reader(topic) for topic in TOPICS}
        pause = threading.Event()
        while worker.goes_on():
            for topic, reader in readers.items():
                name = f"{topic}-{worker.number}"
                call = worker.tell.invoke("read", topics=[topic], reader=name)
                worker.tell.ok(call, topics={topic: by_partition(reader)})
            pause.wait(0.3)


def by_partition(messages: Iterable[Message]) -> dict[str, list[list[str]]]:
    """Id and value of messages in order, for each partition."""
    parts: dict[str, list[list[str]]] = {}
    for message in messages:
        row = [str(message.message_id), text(message)]
        parts.setdefault(str(message.partition), []).append(row)
    return parts


ROLES: tuple[Callable[[Worker], None], ...] = (send, bill, send, bill, keep, read)
"""The processes after the first, which prepares the store."""

SENDERS = [f"sender-{number}" for number, role in enumerate(ROLES, 1) if role is send]
