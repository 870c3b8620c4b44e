"""Owns the stock clients that use the server in the machine from outside of it.

An answer that a client gets has its place in the record of the disks by the size of the record at
that time. The server answered after its flush, so the flush is in the record before that size. A
client notes the size before it sends a message, so the record before has no byte of the message.
"""

from __future__ import annotations

import itertools
import logging
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

STEP = 1_000_000_000  # from one entry to the next, in the ids of the protocol
FIRST_CALL = 90_000_000  # above every call number of the processes inside
PRODUCERS = 3
READY_S = 120
WATCH = "watch"  # the subscription of the consumer


class Clients:
    """Producers and a consumer; `events` has their calls and answers, with sizes of the record.

    kill: called when so many messages are answered: the server dies and begins again
    """

    def __init__(
        self,
        address: str,
        record: Path,
        seed: int,
        sends: int,
        kills: int = 0,
        kill: Callable[[], None] = lambda: None,
    ) -> None:
        self.events: list[tuple[int, dict[str, Any]]] = []
        self._address, self._record = address, record
        self._seed, self._sends = seed, sends
        self._dues = [PRODUCERS * sends * number // (kills + 1) for number in range(1, kills + 1)]
        self._kill = kill
        self._answered = 0
        self._calls = itertools.count(FIRST_CALL)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def tell(self, process: str, kind: str, op: str, call: int, **fields: Any) -> None:
        """Note an event at the size that the record has now."""
        event = {"process": process, "call": call, "type": kind, "op": op, **fields}
        with self._lock:
            self.events.append((self._record.stat().st_size, event))

    def run(self) -> None:
        """Wait for the server, and use it until all messages are sent."""
        self._await_server()
        import pulsar

        logger = logging.getLogger("pulsar")
        logger.setLevel(logging.CRITICAL if self._dues else logging.ERROR)
        client = pulsar.Client(
            f"pulsar://{self._address}:6650", logger=logger, operation_timeout_seconds=60
        )
        with ThreadPoolExecutor(PRODUCERS + 1) as pool:
            receiver = pool.submit(self._receive, pulsar, client)
            numbers = range(1, PRODUCERS + 1)
            senders = [pool.submit(self._send, pulsar, client, number) for number in numbers]
            wait(senders)
            self._over.set()
            for work in (receiver, *senders):
                work.result()
        client.close()

    def _await_server(self) -> None:
        for _ in range(READY_S):
            try:
                socket.create_connection((self._address, 6650), timeout=1).close()
            except OSError:
                threading.Event().wait(1)
            else:
                return
        raise TimeoutError("the server in the machine does not listen")

    def _send(self, pulsar: Any, client: Any, number: int) -> None:
        """Send in batches; each client makes its own kind of batch."""
        name, rng = f"client-{number}", random.Random(f"{self._seed} {number}")
        by_key = pulsar.BatchingType.KeyBased if number == 2 else pulsar.BatchingType.Default
        producer = client.create_producer(
            "orders",
            producer_name=name,
            batching_enabled=number != 3,
            batching_type=by_key,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
        )
        count = 0
        while count < self._sends:
            for _ in range(rng.choice((1, 5, 40))):
                count += 1
                self._send_one(pulsar, producer, name, count, rng)
            with suppress(pulsar.PulsarException):  # each message has its own answer
                producer.flush()
        with suppress(pulsar.PulsarException):  # the server may die now
            producer.close()

    def _send_one(
        self, pulsar: Any, producer: Any, name: str, count: int, rng: random.Random
    ) -> None:
        call, value = next(self._calls), f"{name}:{count}"
        key = f"k{count % 5}"
        session = f"{name} {key}"  # batching by key keeps the order of each key only
        args = {"topic": "orders", "value": value, "key": key, "session": session}
        self.tell(name, "invoke", "send", call, args=args)

        def told(result: Any, message_id: Any) -> None:
            if result != pulsar.Result.Ok:
                self.tell(name, "unknown", "send", call, error=str(result))
                return
            if message_id.ledger_id() < 0:  # it was stored, and the server died before its answer
                self.tell(name, "ok", "send", call, answer={"duplicate": True})
            else:
                answer = {"partition": message_id.partition(), "id": text_of(message_id)}
                self.tell(name, "ok", "send", call, answer=answer)
            self._count()

        content = value.encode() + b" " * rng.choice((1, 20, 900, 6000))
        producer.send_async(content, told, partition_key=key)

    def _count(self) -> None:
        """Count an answer, and have the server killed if it is time."""
        with self._lock:
            self._answered += 1
            is_due = bool(self._dues) and self._answered >= self._dues[0]
            if is_due:
                del self._dues[0]
        if is_due:
            self._kill()

    def _receive(self, pulsar: Any, client: Any) -> None:
        """Receive and acknowledge, on a subscription of its own; the server confirms neither."""
        where = {"topic": "orders", "subscription": WATCH, "consumer": "watcher"}
        call = next(self._calls)
        args = {**where, "kind": "shared", "initial": "earliest", "is_ahead": True}
        self.tell("watcher", "invoke", "subscribe", call, args=args)
        consumer = client.subscribe(
            "orders",
            WATCH,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )
        self.tell("watcher", "ok", "subscribe", call, answer={})
        while not self._over.is_set():
            call = next(self._calls)
            self.tell("watcher", "invoke", "receive", call, args=where)
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                self.tell("watcher", "ok", "receive", call, answer={"messages": []})
                continue
            row = {
                "topic": "orders",
                "partition": message.message_id().partition(),
                "id": text_of(message.message_id()),
                "value": message.data().split(b" ")[0].decode(),
            }
            self.tell("watcher", "ok", "receive", call, answer={"messages": [row]})
            ids = {"ids": [row["id"]]}
            self.tell("watcher", "invoke", "acknowledge", next(self._calls), args={**where, **ids})
            consumer.acknowledge(message)
        with suppress(pulsar.PulsarException):
            consumer.close()


def text_of(message_id: Any) -> str:
    """An id of a message that is in no transaction, as the store writes it."""
    entry, alone = divmod(message_id.entry_id(), STEP)
    index = alone - 1 if alone else max(message_id.batch_index(), 0)
    return f"{message_id.ledger_id()}:{entry + index}"
