"""Measures how long after a commit a waiting call of another process has the message, and idling.

    python bench/latency.py [--messages N] [--rounds N] [--idle S] [--durability os|sync]

One process acts, at uneven intervals; another waits. A line for each kind of waiting (KINDS): ms
from the return of the call to what was waited for, median and p99 over the rounds. Then the
processor time and the wake-ups of 1 and of 100 consumers that wait for nothing in threads, and of
1,000 in an event loop, each with a subscription of its own, of that many seconds; and what these
take for a commit that is not for them. PYTHONPATH says which txlog is measured, so that two
versions can be run in turn. With --results also into bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "src"))

from results import put  # noqa: E402

import txlog  # noqa: E402
from txlog import Client  # noqa: E402

KINDS = {
    "consumer": "a send to `receive`",
    "reader": "a send to `read_next`",
    "wait": "a send to `client.wait(messages=)`",
    "preview": "a send in an open transaction to `read_next` (isolation uncommitted)",
    "previews": "the same to `receive` of a subscription",
    "keys": "an acknowledgement to `receive` of the next of its key (key-shared)",
    "watermark": "a watermark to `receive`",
    "backlog": "an acknowledgement to `client.wait(backlogs=)`",
    "nack": "the moment when the delay of a peer's nack is over to `receive`",
}
DELAY_MS = 100
IDLE_COUNTS = (1, 100)
TASKS = 1000


def main() -> None:
    """A line for each kind of waiting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=5.0)
    parser.add_argument("--durability", choices=("os", "sync"), default="sync")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--results", action="store_true")
    asked = parser.parse_args()
    lines = ["`python bench/latency.py`; two cores, durable sends.", "", "```"]

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    print(f"{txlog.__file__}, {os.cpu_count()} cores, {asked.durability}", flush=True)
    for kind in asked.kinds:
        rounds = [latencies(kind, asked.messages, asked.durability) for _ in range(asked.rounds)]
        every = sorted(one for found in rounds for one in found)
        medians = [statistics.median(found) for found in rounds]
        say(
            f"median {statistics.median(every):7.2f} ms "
            f"({min(medians):.2f} to {max(medians):.2f})  "
            f"p99 {every[len(every) * 99 // 100]:7.2f} ms  {KINDS[kind]}"
        )
    for count in IDLE_COUNTS:
        cpu_s, switches = idle(count, asked.idle)
        say(
            f"{count:4} idle consumers, {asked.idle:g} s: {cpu_s * 1000:8.1f} ms of processor, "
            f"{switches} wake-ups"
        )
    if importlib.util.find_spec("txlog.aio") is not None:
        cpu_s, woken_s = asyncio.run(idle_tasks(TASKS, asked.idle))
        say(
            f"{TASKS} idle tasks, {asked.idle:g} s: {cpu_s * 1000:8.1f} ms of processor; "
            f"{woken_s * 1000:.1f} ms at a commit of another topic"
        )
    if asked.results:
        put("## Waiting", [*lines, "```"])


def new_store(folder: str, durability: str) -> str:
    """A store with a topic and a subscription."""
    path = str(Path(folder) / "store")
    txlog.init(path, durability=durability)
    with txlog.open(path) as client:
        client.create_topic("t")
        client.create_subscription("t", "s", type="shared")
        client.create_subscription("t", "u", type="shared", isolation="uncommitted")
        client.create_subscription("t", "k", type="key-shared")
    return path


def latencies(kind: str, messages: int, durability: str) -> list[float]:
    """ms from the return of each send to the message, in another process."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = new_store(folder, durability)
        mine, theirs = context.Pipe()
        sender = context.Process(target=act, args=(kind, path, messages, theirs))
        sender.start()
        with txlog.open(path) as client:
            mine.recv()
            received = received_at(kind, client, messages)
            got = []
            for _ in range(messages):
                mine.send("wait")
                got.append(received())
            sent = mine.recv()
        sender.join()
    return [(there - here) / 1e6 for here, there in zip(sent, got, strict=True)]


def received_at(kind: str, client: Client, messages: int) -> Callable[[], int]:
    """A function that waits for one message, and says when it had it."""
    if kind in ("preview", "reader"):
        isolation = "uncommitted" if kind == "preview" else "committed"
        reader = client.reader("t", isolation=isolation)

        def read() -> int:
            assert reader.read_next(timeout_ms=None) is not None
            return time.monotonic_ns()

        return read
    if kind in ("wait", "backlog"):
        count = 0

        def wait() -> int:
            nonlocal count
            count += 1
            if kind == "wait":
                assert client.wait(["t"], messages=count)["met"]
            else:
                assert client.wait(["t"], backlogs={"s": messages - count})["met"]
            return time.monotonic_ns()

        return wait
    consumer = client.consumer(
        "t",
        {"previews": "u", "keys": "k"}.get(kind, "s"),
        enable_watermarking=kind == "watermark",
    )

    def receive() -> int:
        message = consumer.receive(timeout_ms=None)
        at = time.monotonic_ns()
        if message is not None and message.message_id is not None:
            consumer.acknowledge(message)
        return at

    return receive


def act(kind: str, path: str, messages: int, pipe: Connection) -> None:
    """Do each time what ends a wait, some time after the other side waits; then say when."""
    with txlog.open(path) as client:
        once = action(kind, client, messages)
        pipe.send("ready")
        done = []
        for number in range(messages):
            pipe.recv()
            time.sleep(0.02 + (number * 7 % 13) * 0.007)
            done.append(once(number) or time.monotonic_ns())
        pipe.send(done)


def action(kind: str, client: Client, messages: int) -> Callable[[int], int | None]:
    """What ends a wait; it returns when that was, if not just now."""
    producer, txn = client.producer("t"), None
    if kind in ("preview", "previews"):
        txn = client.begin()["txn"]
    if kind in ("keys", "backlog", "nack"):
        return of_peer(kind, client, messages)

    def send(number: int) -> None:
        if kind == "watermark":
            producer.new_watermark().event_time(1000 + number).send()
        else:
            producer.send(b"x" * 100, txn=txn)

    return send


def of_peer(kind: str, client: Client, messages: int) -> Callable[[int], int | None]:
    """What a peer does with messages that it has in hand."""
    producer = client.producer("t")
    peer = client.consumer("t", "k" if kind == "keys" else "s")
    every = (b"%d" % number for number in itertools.count())
    keys = [*itertools.islice(filter(is_of_the_second, every), messages)]
    for key in keys:
        producer.send(b"x", key=key)
    held = [peer.receive() for _ in range(messages)]

    def act(number: int) -> int | None:
        message = held[number]
        assert message is not None
        if kind == "nack":
            peer.negative_acknowledge(message, DELAY_MS)
            return time.monotonic_ns() + DELAY_MS * 10**6
        if kind == "keys":
            producer.send(b"x", key=keys[number])
            time.sleep(0.02)
        peer.acknowledge(message)
        return None

    return act


def is_of_the_second(key: bytes) -> bool:
    """Whether the second of two consumers gets a key: the slots are split evenly."""
    return zlib.crc32(key) & 0xFFFF >= 0x8000


def idle(count: int, seconds: float) -> tuple[float, int]:
    """(processor time in s, voluntary context switches) of consumers that wait for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = new_store(folder, "os")
        with txlog.open(path) as client:
            client.producer("t").send(b"x")
            consumers = [client.consumer("t", "s") for _ in range(count)]
            message = consumers[0].receive()
            assert message is not None
            consumers[0].acknowledge(message)
            wait_ms = int(seconds * 1000) + 7000
            threads = [
                threading.Thread(target=one.receive, kwargs={"timeout_ms": wait_ms}, daemon=True)
                for one in consumers
            ]
            for thread in threads:
                thread.start()
            time.sleep(6)  # until all rest: the first look asks whether each peer is alive
            before = resource.getrusage(resource.RUSAGE_SELF)
            time.sleep(seconds)
            after = resource.getrusage(resource.RUSAGE_SELF)
            for thread in threads:
                thread.join()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, after.ru_nvcsw - before.ru_nvcsw


async def idle_tasks(count: int, seconds: float) -> tuple[float, float]:
    """Processor time in s of tasks that wait for nothing, and for a commit of another topic."""
    import txlog.aio

    with tempfile.TemporaryDirectory() as folder:
        path = new_store(folder, "os")
        async with txlog.aio.open(path) as client:
            await client.create_topic("elsewhere")
            other = await client.producer("elsewhere")
            consumers = [await client.consumer("t", f"s{n}", create=True) for n in range(count)]
            tasks = [asyncio.create_task(one.receive()) for one in consumers]
            await asyncio.sleep(5)  # until all rest
            before = time.process_time()
            await asyncio.sleep(seconds)
            idle_s = time.process_time() - before
            await other.send(b"x")
            await asyncio.sleep(1)
            woken_s = time.process_time() - before - idle_s
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in consumers:
                await one.close()
    return idle_s, woken_s


if __name__ == "__main__":
    main()
