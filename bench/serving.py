"""`txlog serve`, Apache Pulsar standalone and pulsar-lite: same machine, same clients.

    python -m bench serving [--messages N] [--systems txlog,pulsar,lite] [--runs N]

Maven fetches Apache Pulsar (pulsar-server-distribution) and pip fetches pulsar-lite; both stay in
bench/.work. Messages have 100 bytes. The stock Python client produces and consumes; it is the
bottleneck there. The stock Java client does the same, and reads a topic while a transaction is open
on it. The Java client (tests/clients/java) also commits transactions over two topics with one
message each. The figures are medians of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pulsar

from bench.guarantees import peer, pulsar_java
from tests.clients import bed

PAYLOAD = os.urandom(50).hex().encode()
SYNC = 300  # messages that are sent one by one
TRANSACTIONS = 1000


def main() -> int:
    """Measure, and print a table and the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--systems", default="txlog,pulsar,lite")
    options = parser.parse_args()
    peer.WORK.mkdir(exist_ok=True)
    found: dict[str, dict[str, list[float]]] = {}
    for run in range(options.runs):  # in turns, so that other programs disturb all systems alike
        for name in options.systems.split(","):
            with tempfile.TemporaryDirectory(dir=peer.WORK) as folder:
                figures = measured(SYSTEMS[name](Path(folder)), options.messages)
            print(f"run {run}: {name}: {json.dumps(figures)}", file=sys.stderr)
            for what, value in figures.items():
                found.setdefault(what, {}).setdefault(name, []).append(value)
    names = options.systems.split(",")
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for what, by_name in found.items():
        cells = [
            f"{statistics.median(by_name[name]):,.6g}" if name in by_name else "-" for name in names
        ]
        print(f"| {what} | " + " | ".join(cells) + " |")
    return 0


class Lite(pulsar_java.JavaClient):
    """pulsar-lite, from a virtual environment of its own."""

    def command(self) -> Sequence[object]:
        home = peer.WORK / "lite"
        if not home.exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            subprocess.run([home / "bin" / "pip", "install", "-q", "pulsar-lite"], check=True)
        (program,) = home.glob("lib/python*/site-packages/pulsar_lite/bin/pulsar-lite")
        return [program, "--addr", f"127.0.0.1:{self.port()}", "--db-path", self.folder / "db"]


SYSTEMS: dict[str, type[pulsar_java.JavaClient]] = {
    "txlog": pulsar_java.Serve,
    "pulsar": pulsar_java.Pulsar,
    "lite": Lite,
}


# --- measuring -------------------------------------------------------------------------------


def measured(system: pulsar_java.JavaClient, count: int) -> dict[str, float]:
    """The figures of one system, without the cases that it does not support."""
    system.command()  # makes the files, so that the start does not
    began = time.monotonic()
    figures: dict[str, float] = {}
    try:
        system.start()
        assert system.service is not None
        figures["start, s"] = round(time.monotonic() - began, 2)
        client = system.connect()
        for what, act in MEASURES.items():
            figures[what] = act(client, count)
        figures |= _rates(system.url, 3 * count)
        for at_once in (1, 50):
            rate = _transactions(system.url, at_once)
            if rate:
                figures[f"transactions/s, {at_once} at once"] = rate
        figures["memory, MB"] = round(sum(map(_memory_mb, peer.tree(system.service.pid))))
        client.close()
    finally:
        system.stop()
    return figures


def sync(client: Any, count: int) -> float:
    """Messages a second; the producer waits for each answer."""
    producer = client.create_producer("persistent://public/default/sync", batching_enabled=False)
    began = time.monotonic()
    for _ in range(SYNC):
        producer.send(PAYLOAD)
    return round(SYNC / (time.monotonic() - began))


def unbatched(client: Any, count: int) -> float:
    """Messages a second; the producer neither waits nor batches."""
    return _sent(client, "async", count // 4, batching_enabled=False)


def batched(client: Any, count: int) -> float:
    """Messages a second in batches of up to 1,000."""
    return _sent(
        client,
        "batched",
        count,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=10,
        batching_max_allowed_size_in_bytes=1 << 20,
    )


def _sent(client: Any, topic: str, count: int, **options: Any) -> float:
    producer = client.create_producer(
        f"persistent://public/default/{topic}",
        block_if_queue_full=True,
        max_pending_messages=20_000,
        send_timeout_millis=120_000,
        **options,
    )
    failed = []

    def done(result: Any, message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    began = time.monotonic()
    for _ in range(count):
        producer.send_async(PAYLOAD, done)
    producer.flush()
    seconds = time.monotonic() - began
    assert not failed, failed[:3]
    return round(count / seconds)


def consumed(client: Any, count: int) -> float:
    """Messages a second of a consumer that acknowledges cumulatively after each thousand."""
    consumer = client.subscribe(
        "persistent://public/default/batched",
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=10_000,
    )
    began = time.monotonic()
    for n in range(count):
        message = consumer.receive(timeout_millis=60_000)
        if n % 1000 == 999:
            consumer.acknowledge_cumulative(message)
    seconds = time.monotonic() - began
    consumer.close()
    return round(count / seconds)


MEASURES: dict[str, Callable[[Any, int], float]] = {
    "produce one by one, messages/s": sync,
    "produce async, messages/s": unbatched,
    "produce batched, messages/s": batched,
    "consume, messages/s": consumed,
}


RATES = (
    "produce batched, Java, messages/s",
    "read, Java, messages/s",
    "read beside an open transaction, Java, messages/s",
)


def _rates(url: str, count: int) -> dict[str, float]:
    """Messages a second of the Java client; nothing if Maven is missing or a case fails."""
    said = _java("clients.Rates", url, "persistent://public/default/rates", str(count))
    return dict(zip(RATES, map(float, said), strict=False))


def _transactions(url: str, at_once: int) -> float | None:
    """Transactions a second of the Java client; None without Maven or without transactions."""
    topic = f"persistent://public/default/txn-{at_once}-"
    count = TRANSACTIONS if at_once > 1 else TRANSACTIONS // 5
    said = _java("clients.Bench", url, topic, str(count), str(at_once))
    return float(said[0]) if said else None


def _java(program: str, *given: str) -> list[str]:
    """The words that a Java program prints; none without Maven."""
    try:
        command = bed.PROGRAMS["java"]()
    except bed.Unavailable as error:
        print(error, file=sys.stderr)
        return []
    command[command.index("clients.Main")] = program
    made = subprocess.run(
        [*command, *given], capture_output=True, text=True, check=False, timeout=300
    )
    return made.stdout.split()  # if it failed: the figures before that


def _memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
