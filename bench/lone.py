"""The price of a message that comes alone through `txlog serve`.

    python -m bench lone [--seconds N] [--rate N] [--cases pairs,shared,fan]

A bare client of the protocol, in this process, sends messages at equal intervals to the server, in
a process of its own, and acknowledges each message that it receives. The cases:

    pairs   100 topics, each with a producer and an exclusive consumer
    shared  20 topics, each with ten Shared consumers of one subscription
    fan     one topic with 200 subscriptions

Processor time is that of the server alone (user and system). A busy machine changes it little; the
times by the clock are worth something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import txlog
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.messages import FIELDS, MessageMetadata

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
WARM_S, LATE_S = 2.0, 60.0
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
    options = parser.parse_args()
    for case in options.cases.split(","):
        rate = options.rate / 20 if case == "fan" else options.rate
        with tempfile.TemporaryDirectory() as folder:
            print(case, asyncio.run(_measured(Path(folder), CASES[case], rate, options.seconds)))
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
        return await self.answers.get()

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
    folder: Path, case: tuple[int, int, int, int], rate: float, seconds: float
) -> str:
    topics, subscriptions, consumers, kind = case
    store = folder / "store"
    txlog.init(str(store))
    with txlog.open(str(store)) as client:
        for number in range(topics):
            client.create_topic(f"lone-{number}")
    port, server = _served(store)
    load = Load(subscriptions)
    connections, producers = list[Connection](), list[Connection]()
    for topic in range(topics):
        name = f"persistent://public/default/lone-{topic}"
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
        producer = await Connection(load).open(port)
        await producer.ask("producer", topic=name, producer_id=1, request_id=2)
        producers.append(producer)
    try:
        sequence = await _sent(load, producers, rate, WARM_S, 0)
        load.send_ms.clear()
        load.receive_ms.clear()
        before, began = _processor_s(server.pid), time.monotonic()
        count = await _sent(load, producers, rate, seconds, sequence) - sequence
        used, took = _processor_s(server.pid) - before, time.monotonic() - began
    finally:
        for connection in [*connections, *producers]:
            await connection.close()
        server.send_signal(signal.SIGTERM)
        server.wait(30)
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


def _served(store: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """The port of a server that listens, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "txlog", "--store", str(store), "serve"),
            *("--pulsar", f"127.0.0.1:{port}", "--http", "off"),
        ],
        stderr=subprocess.DEVNULL,
    )
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return port, server
        except OSError:
            assert server.poll() is None, "the server ended"
            time.sleep(0.05)


def _processor_s(pid: int) -> float:
    """The processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    sys.exit(main())
