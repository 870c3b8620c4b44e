"""A stock producer or consumer that records its calls: recorded.py URL TOPIC OUTPUT, with its part
in RECORDED.

tests/clients/recorded.py explains the plan and the file that it writes. The program goes on until
SIGTERM, or until it is killed, as it may be at any moment. The client of Python confirms no
acknowledgement, so a consumer's acknowledgements count as answered when the server has closed it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pulsar

from tests.history.events import Recorder

ANSWER_S = 20  # how long the client tries before a call fails
PAUSE_S = 0.05
POLL_MS = 300
DELAY_MS = 400
over = Event()


class Log:
    """The calls of this process; threads of the client record some answers."""

    def __init__(self, path: str, process: str) -> None:
        stream = Path(path).open("a")  # noqa: SIM115 - open until the process ends
        self._recorder = Recorder(lambda: time.time_ns() // 1_000_000, stream, time.monotonic_ns)
        self._process = process
        self._lock = Lock()

    def invoke(self, op: str, **args: Any) -> int:
        with self._lock:
            return self._recorder.invoke(self._process, op, **args)

    def ok(self, call: int, **answer: Any) -> None:
        with self._lock:
            self._recorder.ok(call, **answer)

    def unknown(self, call: int, error: object) -> None:
        with self._lock:
            self._recorder.unknown(call, str(error))

    def tried(self, op: str, act: Callable[[], Any], **args: Any) -> Any:
        """Make a call again and again until it succeeds; None: the program is to end."""
        while not over.is_set():
            call = self.invoke(op, **args)
            try:
                result = act()
            except pulsar.ConsumerBusy as error:
                with self._lock:
                    self._recorder.fail(call, error)
            except pulsar.PulsarException as error:
                self.unknown(call, error)
            else:
                self.ok(call)
                return result
            over.wait(PAUSE_S)
        return None


def produce(part: dict[str, Any], client: Any, log: Log, topic: str) -> None:
    """Send, from the first message on that may not be stored."""
    options: dict[str, Any] = {}
    if part["Kind"] == "key_shared":
        options["batching_type"] = pulsar.BatchingType.KeyBased
    producer = None
    while producer is None and not over.is_set():
        try:
            producer = client.create_producer(
                topic,
                producer_name=part["Name"],
                batching_enabled=part["DelayMs"] > 0,
                batching_max_publish_delay_ms=max(part["DelayMs"], 1),
                block_if_queue_full=True,
                send_timeout_millis=0,
                **options,
            )
        except pulsar.PulsarException:
            over.wait(PAUSE_S)  # the server is away, or has the producer of an earlier life yet
    number = part["First"]
    while producer is not None and not over.is_set():
        for _ in range(part["Burst"]):
            send(part, producer, log, topic, number)
            number += 1
        flushed(producer)
        over.wait(PAUSE_S)
    if producer is not None:
        flushed(producer)
        producer.close()


def send(part: dict[str, Any], producer: Any, log: Log, topic: str, number: int) -> None:
    """Send a message."""
    name, value = part["Name"], f"{part['Name']}:{number}"
    args: dict[str, Any] = {"topic": topic, "producer": name, "sequence": number}
    details: dict[str, Any] = {"sequence_id": number}
    session = f"{name} {part['Life']}"
    if part["Keys"]:
        args["key"] = details["partition_key"] = f"k{number % part['Keys']}"
    if part["Kind"] == "key_shared":
        session += f" {args['key']}"  # a batch for each key has an order of its own
    if not part["Delayed"]:
        args["session"] = session  # delayed messages go ahead of batches
    elif number % part["Delayed"] == 1:
        args["deliver_at_ms"] = details["deliver_at"] = time.time_ns() // 1_000_000 + DELAY_MS
    call = log.invoke("send", value=value, **args)
    producer.send_async(value.encode(), answering(log, call), **details)


def answering(log: Log, call: int) -> Callable[[Any, Any], None]:
    """A callback that records the answer to a message."""

    def told(result: Any, message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            log.unknown(call, result)
        elif message_id.ledger_id() < 0:
            log.ok(call, duplicate=True)
        else:
            log.ok(call, partition=max(message_id.partition(), 0), id=text_of(message_id))

    return told


def flushed(producer: Any) -> None:
    try:
        producer.flush()
    except pulsar.PulsarException:
        return  # each message has its own answer


def text_of(message_id: Any) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"


def consume(part: dict[str, Any], client: Any, log: Log, topic: str) -> None:
    """Receive and acknowledge; after some messages go on with another consumer."""
    kinds = {
        "exclusive": pulsar.ConsumerType.Exclusive,
        "failover": pulsar.ConsumerType.Failover,
        "shared": pulsar.ConsumerType.Shared,
        "key_shared": pulsar.ConsumerType.KeyShared,
    }
    count = 0
    while not over.is_set():
        count += 1
        where = {"topic": topic, "subscription": "s"}
        where["consumer"] = f"{part['Name']}.{part['Life']}.{count}"
        consumer = log.tried(
            "subscribe",
            lambda: client.subscribe(
                topic,
                "s",
                consumer_type=kinds[part["Kind"]],
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=part["Queue"],
                batch_index_ack_enabled=True,
            ),
            **where,
            kind=part["Kind"],
            initial="earliest",
            is_ahead=True,
        )
        if consumer is not None:
            receive(part, consumer, log, where)


def receive(part: dict[str, Any], consumer: Any, log: Log, where: dict[str, Any]) -> None:
    """Receive some messages, acknowledge them and close the consumer."""
    acks: list[int] = []
    while len(acks) < part["Close"] and not over.is_set():
        call = log.invoke("receive", **where)
        try:
            message = consumer.receive(POLL_MS)
        except pulsar.Timeout:
            log.ok(call, messages=[])
            continue
        message_id, value = message.message_id(), message.data().decode()
        row = {"topic": where["topic"], "id": text_of(message_id), "value": value}
        log.ok(call, messages=[{**row, "partition": max(message_id.partition(), 0)}])
        is_cumulative = {"cumulative": True} if part["Cumulative"] else {}
        acks.append(log.invoke("acknowledge", **where, values=[value], **is_cumulative))
        if is_cumulative:
            consumer.acknowledge_cumulative(message)
        else:
            consumer.acknowledge(message)
    closing = log.invoke("close", **where)
    try:
        consumer.close()
    except pulsar.PulsarException as error:
        for call in [closing, *acks]:
            log.unknown(call, error)
    else:
        log.ok(closing)
        for call in acks:
            log.ok(call, by="close")


def main() -> None:
    """Do a part until SIGTERM."""
    part = json.loads(os.environ["RECORDED"])
    url, topic, _ = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    quiet = logging.getLogger("pulsar")
    quiet.setLevel(logging.CRITICAL)
    client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=ANSWER_S)
    log = Log(part["File"], part["Name"])
    {"producer": produce, "consumer": consume}[part["Role"]](part, client, log, topic)
    os._exit(0)


if __name__ == "__main__":
    main()
