"""The price of a message that comes alone through `txlog serve`.

    python -m bench lone [--seconds N] [--rate N] [--cases pairs,shared,fan] [--peer pulsar]

A bare client of the protocol, in this process, sends messages at equal intervals to the server, in
a process of its own, and acknowledges each message that it receives. With --peer each case also
runs against Apache Pulsar standalone, which Maven fetches. The cases:

    pairs   100 topics, each with a producer and an exclusive consumer
    shared  20 topics, each with ten Shared consumers of one subscription
    fan     one topic with 200 subscriptions

Processor time is that of the server alone (user and system), all its threads and children, after
the warm-up. A busy machine changes it little; the times by the clock are worth something on a quiet
machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from typing import Any

from bench.guarantees import pulsar_java, rounds
from bench.guarantees.peer import Peer, processor_s
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.messages import FIELDS, MessageMetadata

LATE_S = 60.0
ONE_BY_ONE = 40  # messages for each second that is asked for
# topics, subscriptions of each, consumers of each subscription, its type (1: Shared, 0: Exclusive)
CASES = {"pairs": (100, 1, 1, 0), "shared": (20, 1, 10, 1), "fan": (1, 200, 1, 0)}


def main() -> int:
    """Measure each case, and print a line for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--rate",
        type=float,
        default=100.0,
        help="messages/s, in fan a twentieth; 0: the next is sent when the last has arrived",
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds; a JVM needs 30")
    parser.add_argument("--peer", choices=["pulsar"], help="measure this one, too")
    options = parser.parse_args()
    servers = [pulsar_java.Serve, *([pulsar_java.Pulsar] if options.peer else [])]
    for case, server in itertools.product(options.cases.split(","), servers):
        rate = options.rate / 20 if case == "fan" else options.rate
        with rounds.place(server, None) as peer:
            load = _measured(peer, CASES[case], rate, options.warm_up, options.seconds)
            print(f"{case}, {peer.title}, {asyncio.run(load)}", flush=True)
    return 0


class Connection:
    """A connection to the server: it answers each message with an acknowledgement."""

    def __init__(self, bench: Load) -> None:
        self._bench = bench
        self._frames = wire.FrameDecoder(1 << 20)
        self.answers = asyncio.Queue[Any]()

    async def open(self, port: int) -> Connection:
        """Connect."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._reading = asyncio.create_task(self._read(reader))
        await self.ask("connect", client_version="Pulsar-CPP-bench", protocol_version=19)
        return self

    async def ask(self, name: str, /, **fields: object) -> Any:
        """Send a command, and wait for its answer."""
        self.tell(name, **fields)
        answer = await self.answers.get()
        assert "error" not in answer.DESCRIPTOR.fields_by_name or not answer.message, answer
        return answer

    def tell(self, name: str, /, **fields: object) -> None:
        """Send a command."""
        self._writer.write(wire.encode_command(name, **fields))

    def message(self, sequence: int, payload: bytes) -> None:
        """Send a message without a batch."""
        head = MessageMetadata(producer_name="", publish_time=1, sequence_id=sequence)
        command = wire.make_command("send", producer_id=1, sequence_id=sequence)
        frame = wire.message_frame(command.SerializeToString(), head.SerializeToString(), payload)
        self._writer.write(b"".join(frame))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            for frame in self._frames.feed(data):
                name = FIELDS[frame.kind]
                if name == "message":
                    self._bench.received(bytes(frame.trailer)[-8:])
                    body = frame.body
                    self.tell(
                        "ack",
                        consumer_id=body.consumer_id,
                        ack_type=0,
                        message_id=[body.message_id],
                    )
                    self.tell("flow", consumer_id=body.consumer_id, messagePermits=1)
                elif name == "send_receipt":
                    self._bench.answered(frame.body.sequence_id)
                elif name == "ping":
                    self.tell("pong")
                elif name != "active_consumer_change":
                    self.answers.put_nowait(frame.body)

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        self._reading.cancel()


class Load:
    """What was sent, and what came back when."""

    def __init__(self, subscriptions: int) -> None:
        self.subscriptions = subscriptions  # each gets every message
        self._sent = dict[int, float]()
        self.send_ms, self.receive_ms = list[float](), list[float]()

    def sent(self, sequence: int) -> bytes:
        """Note a message; returns its payload."""
        self._sent[sequence] = time.perf_counter()
        return os.urandom(92) + sequence.to_bytes(8, "big")

    async def arrived(self, count: int) -> None:
        """Wait until all of the first `count` messages were answered and received."""
        end = time.monotonic() + LATE_S
        while len(self.send_ms) < count or len(self.receive_ms) < count * self.subscriptions:
            assert time.monotonic() < end, "messages are missing"
            await asyncio.sleep(0.002)

    def answered(self, sequence: int) -> None:
        """Note a receipt."""
        self.send_ms.append((time.perf_counter() - self._sent[sequence]) * 1e3)

    def received(self, payload: bytes) -> None:
        """Note a message of a consumer."""
        sent = self._sent[int.from_bytes(payload, "big")]
        self.receive_ms.append((time.perf_counter() - sent) * 1e3)


async def _measured(
    peer: Peer, case: tuple[int, int, int, int], rate: float, warm_s: float, seconds: float
) -> str:
    topics, subscriptions, consumers, kind = case
    port, server = peer.port(), peer.service
    assert server is not None
    load = Load(subscriptions)
    connections, producers = list[Connection](), list[Connection]()
    for topic in range(topics):
        name = f"{pulsar_java.TOPIC}lone-{topic}"
        producer = await Connection(load).open(port)
        await producer.ask("lookupTopic", topic=name, request_id=3)  # a broker then owns the topic
        for subscription, _ in itertools.product(range(subscriptions), range(consumers)):
            connection = await Connection(load).open(port)
            await connection.ask(
                "subscribe",
                topic=name,
                subscription=f"s{subscription}",
                subType=kind,
                consumer_id=1,
                request_id=1,
                consumer_name=f"c{len(connections)}",
            )
            connection.tell("flow", consumer_id=1, messagePermits=1000)
            connections.append(connection)
        await producer.ask("producer", topic=name, producer_id=1, request_id=2)
        producers.append(producer)
    try:
        sequence = await _sent(load, producers, rate, warm_s, 0)
        load.send_ms.clear()
        load.receive_ms.clear()
        before, began = processor_s(server.pid), time.monotonic()
        count = await _sent(load, producers, rate, seconds, sequence) - sequence
        used, took = processor_s(server.pid) - before, time.monotonic() - began
    finally:
        for connection in [*connections, *producers]:
            await connection.close()
    return (
        f"{count / took:.0f} messages/s: {100 * used / took:.0f} % of a core, "
        f"{1e3 * used / count:.2f} ms a message, "
        f"{1e3 * used / count / subscriptions:.3f} ms a delivery; "
        f"send {_text(load.send_ms)} ms, send to receive {_text(load.receive_ms)} ms (p50, p99)"
    )


async def _sent(
    load: Load, producers: list[Connection], rate: float, seconds: float, first: int
) -> int:
    """Send at a rate, and wait for all answers; returns the number of the next message."""
    began, count = time.monotonic(), int((rate or ONE_BY_ONE) * seconds)
    for step in range(count):
        if rate:
            await asyncio.sleep(max(0.0, began + step / rate - time.monotonic()))
        elif step:
            await load.arrived(step)
        sequence = first + step
        producers[sequence % len(producers)].message(sequence, load.sent(sequence))
    await load.arrived(count)
    return first + count


def _text(values: list[float]) -> str:
    listed = sorted(values)
    return f"{statistics.median(listed):.2f}, {listed[int(0.99 * len(listed))]:.2f}"


if __name__ == "__main__":
    sys.exit(main())
