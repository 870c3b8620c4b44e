"""Measures what should not bend: the same call in a small and in a large store.

    python bench/curves.py [--only NAME] [--src PATH]

writes     write calls and bytes of a durable send, with 1 to 16 processes that send at once
topics     opening a store with many topics, ms; with a send, with a receive that finds nothing
idle       a receive that finds nothing, ms: of a topic by partitions, of a pattern by topics; the
           first, and one of those that wait behind it
ended      the first transaction of a process behind many ended ones, ms
consumers  attaching one more key-shared consumer, its first receive and an idle one, ms
acks       the first receive of the second consumer, where acknowledgements are fragments, ms

Processor time, the least of some rounds, in one process; of stores that were checkpointed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Line = tuple[str, ...]
SENDS = 200


def table(head: Line, lines: Iterator[Line]) -> None:
    """Print lines as they come, below their heads."""
    print(" ".join(f"{name:>16}" for name in head))
    for line in lines:
        print(" ".join(f"{value:>16}" for value in line), flush=True)
    print()


# --- writes ------------------------------------------------------------------------------------

SENDER = """
import sys, txlog
def io():
    fields = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(fields["syscw"]), int(fields["wchar"])
with txlog.open(sys.argv[1]) as client:
    client.checkpoint_automatically = False
    producer = client.producer("t")
    print("ready", flush=True)
    sys.stdin.readline()
    calls, size = io()
    for _ in range({sends}):
        producer.send(b"m" * 100)
    after = io()
    print(after[0] - calls, after[1] - size, flush=True)
"""


def writes(folder: Path) -> None:
    """Write calls and bytes a durable send, the first of a fresh process among them."""
    import txlog

    def lines() -> Iterator[Line]:
        for processes in (1, 2, 4, 8, 16):
            path = str(folder / f"writes{processes}")
            txlog.init(path, durability="sync")
            with txlog.open(path) as client:
                client.create_topic("t")
                for _ in range(500):
                    client.producer("t").send(b"before")
            running = [
                subprocess.Popen(
                    [sys.executable, "-c", SENDER.format(sends=SENDS), path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=dict(os.environ),
                )
                for _ in range(processes)
            ]
            for one in running:
                assert one.stdout is not None
                one.stdout.readline()
            found = [one.communicate("\n")[0].split() for one in running]
            sends = SENDS * processes
            yield (
                str(processes),
                f"{sum(int(calls) for calls, _ in found) / sends:.2f}",
                f"{sum(int(size) for _, size in found) / sends:.0f}",
            )

    table(("processes", "writes a send", "bytes a send"), lines())


def _ms(work: Callable[[], object], rounds: int = 5) -> str:
    """The least time of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return f"{best * 1000:.2f}"


def _new(folder: Path, name: str, **settings: int) -> str:
    import txlog

    path = str(folder / name)
    txlog.init(path, durability="os", free_bytes_min=0, **settings)  # type: ignore[arg-type]
    return path


def topics(folder: Path) -> None:
    """What a store with many topics costs whoever uses one of them."""
    import txlog

    def lines() -> Iterator[Line]:
        for count in (1, 1_000, 10_000):
            path = _new(folder, f"topics{count}")
            with txlog.open(path) as client:
                client.checkpoint_automatically = False
                for number in range(count):
                    client.create_topic(f"t{number}")
                client.create_subscription("t0", "s")
                client.checkpoint()

            def opened(path: str = path) -> None:
                txlog.open(path).close()

            def sent(path: str = path) -> None:
                with txlog.open(path) as client:
                    client.checkpoint_automatically = False
                    client.producer("t0").send(b"m")

            def received(path: str = path) -> None:
                with txlog.open(path) as client, client.consumer("t0", "s") as consumer:
                    client.checkpoint_automatically = False
                    consumer.receive_batch(timeout_ms=0)

            yield str(count), _ms(opened), _ms(sent), _ms(received)

    table(("topics", "open ms", "open, send ms", "open, receive ms"), lines())


def idle(folder: Path) -> None:
    """What waiting costs: receives that find nothing."""
    import txlog

    def lines() -> Iterator[Line]:
        for kind, count in (
            ("partitions", 1),
            ("partitions", 1_000),
            ("partitions", 10_000),
            ("pattern", 10),
            ("pattern", 600),
        ):
            path = _new(folder, f"{kind}{count}")
            with txlog.open(path) as client:
                client.checkpoint_automatically = False
                wanted: object = "t0"
                if kind == "partitions":
                    client.create_topic("t0", partitions=count)
                    client.create_subscription("t0", "s")
                else:
                    wanted = re.compile("t.*")
                    for number in range(count):
                        client.create_topic(f"t{number}")
                        client.create_subscription(f"t{number}", "s")
                consumer = client.consumer(wanted, "s")  # type: ignore[call-overload]
                first = _ms(lambda one=consumer: one.receive_batch(timeout_ms=0), 1)
                for _ in range(2):
                    consumer.receive_batch(timeout_ms=0)
                yield kind, str(count), first, _ms(lambda one=consumer: one.receive_batch())

    table(("of", "count", "first ms", "waiting ms"), lines())


def ended(folder: Path) -> None:
    """The first transaction of a process, which loads its coordinator."""
    import txlog

    def lines() -> Iterator[Line]:
        for count in (0, 10_000, 100_000):
            path = _new(folder, f"ended{count}", coordinators=1)
            with txlog.open(path) as client:
                client.checkpoint_automatically = False
                for number in range(count):
                    client.commit(client.begin()["txn"])
                    if number % 10_000 == 9_999:
                        client.checkpoint()
                client.checkpoint()
                client.create_topic("t")

            def transaction(path: str = path) -> None:
                with txlog.open(path) as client:
                    client.checkpoint_automatically = False
                    with client.transaction() as txn:
                        client.producer("t").send(b"m", txn=txn)

            yield str(count), _ms(lambda path=path: txlog.open(path).close()), _ms(transaction)

    table(("ended", "open ms", "open, transact ms"), lines())


def consumers(folder: Path) -> None:
    """One more consumer of a key-shared subscription."""
    import txlog

    def lines() -> Iterator[Line]:
        for count in (10, 100, 1000):
            path = _new(folder, f"consumers{count}")
            with txlog.open(path) as client, txlog.open(path) as other:
                client.checkpoint_automatically = other.checkpoint_automatically = False
                client.create_topic("t")
                client.create_subscription("t", "s", type="key-shared")
                there = [client.consumer("t", "s", type="key-shared") for _ in range(count)]
                for number in range(100):
                    client.producer("t").send(b"m", key=b"%d" % number)
                attached: list[txlog.Consumer] = []

                def attach(
                    other: txlog.Client = other, to: list[txlog.Consumer] = attached
                ) -> None:
                    to.append(other.consumer("t", "s", type="key-shared"))

                attach_ms = _ms(attach, 3)
                first = _ms(lambda to=attached: to[-1].receive_batch(timeout_ms=0), 1)
                for _ in range(3):
                    attached[-1].receive_batch(timeout_ms=0)
                again = _ms(lambda to=attached: to[-1].receive_batch(timeout_ms=0))
                yield str(len(there)), attach_ms, first, again

    table(("consumers", "attach ms", "first receive ms", "idle receive ms"), lines())


def acks(folder: Path) -> None:
    """Every second message acknowledged, by ids: the fragments a second consumer has to read."""
    import pyarrow as pa

    import txlog

    def lines() -> Iterator[Line]:
        for count in (10_000, 100_000, 1_000_000):
            path = _new(folder, f"acks{count}", unacked_max=2 * count)
            with txlog.open(path) as client:
                client.checkpoint_automatically = False
                client.create_topic("t")
                client.create_subscription("t", "s", type="shared")
                producer = client.producer("t")
                for _ in range(count // 10_000):
                    producer.send_batch(pa.table({"value": [b"m"] * 10_000}))
                with client.consumer("t", "s", type="shared") as consumer:
                    while (rows := consumer.receive_batch(10_000, timeout_ms=0)).num_rows:
                        consumer.acknowledge(rows.take(list(range(0, rows.num_rows, 2))))
                client.checkpoint()

            def received(path: str = path) -> None:
                with (
                    txlog.open(path) as client,
                    client.consumer("t", "s", type="shared") as consumer,
                ):
                    client.checkpoint_automatically = False
                    consumer.receive_batch(100, timeout_ms=0)

            yield str(count), _ms(received, 3)

    table(("messages", "first receive ms"), lines())


MEASURES: dict[str, Callable[[Path], None]] = {
    "writes": writes, "topics": topics, "idle": idle, "ended": ended, "consumers": consumers,
    "acks": acks,
}  # fmt: skip


def main() -> None:
    """Run what was asked for, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=sorted(MEASURES))
    parser.add_argument("--src", default=str(ROOT / "src"), help="the program to measure")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = options.src
    sys.path.insert(0, options.src)
    for name, measure in MEASURES.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder))


if __name__ == "__main__":
    main()
