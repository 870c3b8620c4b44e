"""`txlog serve` under load for hours, with kills; then a count of messages.

    python -m bench soak [--minutes N] [--connections N] [--rate N] [--kills N] [--folder DIR]

Stock Python clients run in several processes. Each connection has a producer and a Shared consumer;
ten connections share a topic. The scenario kills the server at equal intervals and starts it again
on the same port; it also closes and reopens random clients. Each minute it prints the server's
resident memory, descriptors and threads. At the end it compares the store with the clients' lists:
each acknowledged send must be stored once, and a consumer must have received each stored message.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar

import txlog
from bench import scratch_folder

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 4
SUBSCRIPTION = "soak"
SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


def main() -> int:
    """Run the scenario; returns 1 if a message was lost or stored twice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rate", type=float, default=2.0, help="messages/s of a connection")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--named", action="store_true", help="producers have names")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--folder", type=scratch_folder)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        return Part(options).run()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return soaked(Path(folder), options)


# --- the server and the count ------------------------------------------------------------------


def soaked(folder: Path, options: argparse.Namespace) -> int:
    """Start server and clients, kill the server, count. Returns the exit status."""
    store = folder / "store"
    txlog.init(str(store))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    topics = max(1, options.connections // 10)
    with txlog.open(str(store)) as client:
        for number in range(topics):
            client.create_topic(f"soak-{number}")
            client.create_subscription(f"soak-{number}", SUBSCRIPTION)
    server = served(folder, store, port)
    each = options.connections // PROCESSES
    parts = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--part", f"{number},{each},{topics},{port}"),
                *("--minutes", str(options.minutes), "--rate", str(options.rate)),
                *("--seed", str(options.seed + number)),
                *(["--named"] if options.named else []),
            ],
            stdout=(folder / f"part-{number}").open("w"),
        )
        for number in range(PROCESSES)
    ]
    began, kills = time.monotonic(), 0
    end = began + options.minutes * 60
    minute = 0
    while any(part.poll() is None for part in parts):
        time.sleep(0.5)
        now = time.monotonic()
        if kills < options.kills and now > began + (kills + 1) * (end - began) / (
            options.kills + 1
        ):
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = served(folder, store, port)
            kills += 1
        if now > began + minute * 60:
            minute += 1
            load = os.getloadavg()[0]
            print(
                f"minute {minute - 1}: {used(server.pid)}, kills {kills}, load {load:.1f}",
                flush=True,
            )
    print(f"end: {used(server.pid)}, kills {kills}", flush=True)
    server.terminate()
    server.wait(60)
    answered, seen = set[str](), Counter[str]()
    for number in range(PROCESSES):
        said = json.loads((folder / f"part-{number}").read_text())
        answered |= set(said["answered"])
        seen.update(said["seen"])
    stored = Counter[str]()
    with txlog.open(str(store)) as client:
        for number in range(topics):
            for batch in client.read(f"soak-{number}"):
                stored.update(
                    bytes(value).rstrip(b".").decode() for value in batch["value"].to_pylist()
                )
    lost = answered - stored.keys()
    figures = {
        "answered": len(answered),
        "stored": len(stored),
        "stored twice": sum(1 for times in stored.values() if times > 1),
        "answered, not stored": len(lost),
        "of these seen": len(lost & seen.keys()),
        "stored, never seen": len(stored.keys() - seen.keys()),
        "seen again": sum(seen.values()) - len(seen),
    }
    print(json.dumps(figures))
    if lost:
        print("lost:", *sorted(lost))
    wrong = ("stored twice", "answered, not stored", "stored, never seen")
    return 1 if any(figures[what] for what in wrong) else 0


def served(folder: Path, store: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a server on the port; its log is in `folder`."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "txlog", "--store", str(store), "serve"),
                *("--pulsar", f"127.0.0.1:{port}", "--http", "off"),
            ],
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )


def used(pid: int) -> str:
    """Memory, descriptors and threads of a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return "not there"
    resident = int(status["VmRSS"].split()[0]) // 1024
    return f"{resident} MB, {files} descriptors, {status['Threads'].strip()} threads"


def closed(client: Any) -> None:
    """Close a client; a kill of the server may have closed it already."""
    with suppress(pulsar.PulsarException):
        client.close()


# --- clients -------------------------------------------------------------------------------------


class Part:
    """One process of clients."""

    def __init__(self, options: argparse.Namespace) -> None:
        number, each, topics, port = (int(word) for word in options.part.split(","))
        self._names = [f"p{number}-{index}" for index in range(each)]
        self._topics = {name: f"soak-{place % topics}" for place, name in enumerate(self._names)}
        self._url = f"pulsar://127.0.0.1:{port}"
        self._seconds, self._pause = options.minutes * 60, 1 / (options.rate * each)
        self._random = random.Random(options.seed)
        self._is_named = options.named
        self._refused = set[str]()  # their producers failed and must be opened again
        self._lock = threading.Lock()
        self._answered: list[str] = []
        self._sent = 0
        self._seen: list[str] = []
        self._open: dict[str, tuple[Any, Any]] = {}

    def run(self) -> int:
        """Send at the rate until the time is over, then wait for all answers and messages."""
        for name in self._names:
            self._connect(name)
        end = time.monotonic() + self._seconds
        numbers = dict.fromkeys(self._names, 0)
        due = time.monotonic()
        while time.monotonic() < end:
            name = self._random.choice(self._names)
            if name in self._refused or self._random.random() < 0.002:
                self._again(name)
            text = f"{name}:{numbers[name]}"
            numbers[name] += 1
            self._send(name, text)
            due += self._pause
            time.sleep(max(0, due - time.monotonic()))
        for _ in range(1200):  # the clients must recover from the last kill too
            with self._lock:
                if self._sent == len(self._answered):
                    break
            time.sleep(0.1)
        self._wait_until_quiet()
        with self._lock:
            print(json.dumps({"answered": self._answered, "seen": self._seen}), flush=True)
        for client, _ in self._open.values():
            closed(client)
        return 0

    def _connect(self, name: str) -> None:
        while True:
            client = pulsar.Client(self._url, operation_timeout_seconds=30, logger=SILENT)
            try:
                producer = client.create_producer(
                    self._topics[name],
                    producer_name=f"{name}.{time.monotonic_ns()}" if self._is_named else None,
                    send_timeout_millis=0,
                    block_if_queue_full=True,
                )
                client.subscribe(
                    self._topics[name],
                    SUBSCRIPTION,
                    pulsar.ConsumerType.Shared,
                    message_listener=self._take,
                    receiver_queue_size=100,
                )
            except pulsar.PulsarException:
                closed(client)
                continue
            self._open[name] = (client, producer)
            return

    def _again(self, name: str) -> None:
        client, producer = self._open[name]
        try:
            if name not in self._refused:
                producer.flush()
        except pulsar.PulsarException:
            return
        closed(client)
        self._refused.discard(name)
        self._connect(name)

    def _send(self, name: str, text: str) -> None:
        def answered(result: Any, _: Any) -> None:
            with self._lock:
                if result == pulsar.Result.Ok:
                    self._answered.append(text)
                else:
                    self._sent -= 1
                    self._refused.add(name)

        with self._lock:
            self._sent += 1
        self._open[name][1].send_async(text.encode() + b"." * 100, answered)

    def _take(self, consumer: Any, message: Any) -> None:
        with self._lock:
            self._seen.append(message.data().rstrip(b".").decode())
        consumer.acknowledge(message)

    def _wait_until_quiet(self) -> None:
        before = -1
        while before != len(self._seen):
            before = len(self._seen)
            time.sleep(10)


if __name__ == "__main__":
    sys.exit(main())
