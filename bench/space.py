"""Measures what giving space back gives, and what it costs a producer beside it.

    python bench/space.py [--rounds N] [--out PATH]

1. Bytes: a sidecar half of whose data was aborted, held up by an open transaction; bytes on disk
   below the topic before and after `admin compact`, and after a trim. Once with a store that keeps
   no files for older readers, so that what is counted is what is there.
2. Throughput: transactions of 10 messages, durable, by one producer alone and beside another
   process that compacts and trims in a loop, interleaved, medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import txlog  # noqa: E402
from txlog.base.ranges import Bound  # noqa: E402

MESSAGE = 1000
TRANSACTIONS = 400
MESSAGES = 50
BESIDE = """
import sys
import txlog
from txlog.base.ranges import Bound
with txlog.open(sys.argv[1]) as client:
    print("ready", flush=True)
    rounds = 0
    while not sys.stdin.closed and rounds < 100000:
        client.admin.compact("t")
        client.admin.trim("t", Bound("last", 2000), force_unacked=True)
        rounds += 1
        print(rounds, flush=True)
"""


def on_disk(store: Path) -> tuple[int, int]:
    """(bytes of the topic's files, allocated bytes of the whole store)."""
    files = [path for path in store.rglob("*") if path.is_file()]
    rows = sum(path.stat().st_size for path in files if "topics" in path.parts)
    return rows, sum(path.stat().st_blocks * 512 for path in files)


def fill(store: Path) -> None:
    """Half of the transactions are aborted; one stays open, so that nothing can be sealed."""
    txlog.init(str(store), durability="os", coordinators=1, reader_grace_ms=0)
    with txlog.open(str(store)) as client:
        client.create_topic("t")
        producer = client.producer("t")
        held = client.begin(3_600_000)["txn"]
        for number in range(TRANSACTIONS):
            txn = client.begin()["txn"]
            producer.send(b"held", txn=held)
            for _ in range(MESSAGES):
                producer.send(os.urandom(MESSAGE), txn=txn)
            (client.commit if number % 2 else client.abort)(txn)
        client.checkpoint(roll_all=True)
        client.checkpoint()


def bytes_report(folder: Path) -> list[str]:
    """Fill, compact, trim; a line for each."""
    store = folder / "bytes"
    fill(store)
    before = on_disk(store)
    with txlog.open(str(store)) as client:
        messages = sum(table.num_rows for table in client.read("t"))
        began = time.perf_counter()
        client.admin.compact("t")
        took = time.perf_counter() - began
        after = on_disk(store)
        assert messages == sum(table.num_rows for table in client.read("t"))
        client.admin.trim("t", Bound("end"), force_unacked=True)
        client.checkpoint()
        trimmed = on_disk(store)
    data = TRANSACTIONS * MESSAGES * MESSAGE
    return [
        f"{data / 1e6:.1f} MB of messages, half of them aborted, one transaction open throughout",
        f"before        {before[0]:>12,} bytes below topics/ {before[1]:>12,} allocated in all",
        f"after compact {after[0]:>12,} bytes ({after[0] / before[0]:.1%}) {after[1]:>12,}"
        f" allocated; {took:.2f} s, {messages:,} messages visible before and after",
        f"after trim    {trimmed[0]:>12,} bytes ({trimmed[0] / before[0]:.1%})"
        f" {trimmed[1]:>12,} allocated",
    ]


def produce(store: Path, seconds: float) -> float:
    """Messages a second of one producer; every fourth transaction is aborted."""
    with txlog.open(str(store)) as client:
        producer = client.producer("t")
        sent, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            txn = client.begin()["txn"]
            for _ in range(10):
                producer.send(os.urandom(200), txn=txn)
            (client.commit if sent % 40 else client.abort)(txn)
            sent += 10
        return sent / (time.perf_counter() - began)


def beside_report(folder: Path, rounds: int, seconds: float) -> list[str]:
    """Alone and beside maintenance, in turns."""
    store = folder / "beside"
    txlog.init(str(store), coordinators=1, reader_grace_ms=0)
    with txlog.open(str(store)) as client:
        client.create_topic("t")
    alone: list[float] = []
    beside: list[float] = []
    passes: list[int] = []
    for _ in range(rounds):
        alone.append(produce(store, seconds))
        other = subprocess.Popen(
            [sys.executable, "-c", BESIDE, str(store)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert other.stdout is not None
        other.stdout.readline()
        beside.append(produce(store, seconds))
        other.terminate()
        passes.append(len(other.stdout.read().splitlines()))
        other.wait()
    ratio = statistics.median(beside) / statistics.median(alone)
    return [
        f"alone  {statistics.median(alone):>10,.0f} messages/s, median of {rounds}"
        f" ({min(alone):,.0f} to {max(alone):,.0f})",
        f"beside {statistics.median(beside):>10,.0f} messages/s, median of {rounds}"
        f" ({min(beside):,.0f} to {max(beside):,.0f}); {statistics.median(passes):.0f} passes of"
        f" compact and trim in {seconds:g} s; {ratio:.2f} of alone",
    ]


def main() -> None:
    """Run both and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT) as name:
        lines = bytes_report(Path(name))
        lines += beside_report(Path(name), options.rounds, options.seconds)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
