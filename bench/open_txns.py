"""What 10,000 open transactions cost somebody else: a plain send, and opening the store.

    PYTHONPATH=src python bench/open_txns.py

Two stores, one with the open transactions (a message each, in another topic) and one without, are
measured in turn; figures are medians, the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from pathlib import Path

import txlog

WORK = Path(__file__).resolve().parent / ".work" / "open"
HOUR_MS = 3_600_000
SENDS = 500


def prepare(path: Path, open_txns: int) -> None:
    """A store with one topic to measure and one that the open transactions use."""
    txlog.init(str(path))
    with txlog.open(str(path)) as client:
        client.create_topic("busy", 4)
        client.create_topic("quiet")
        busy = client.producer("busy")
        for number in range(open_txns):
            busy.send(b"open", partition=number % 4, txn=client.transaction(HOUR_MS))
        client.producer("quiet").send(b"first")
        client.checkpoint()


def measure(path: Path) -> tuple[float, float]:
    """(seconds to open and read one message, seconds of one durable send)."""
    began = time.perf_counter()
    with txlog.open(str(path)) as client:
        assert next(iter(client.read("quiet", limit=1))).num_rows == 1
        opened = time.perf_counter() - began
        producer = client.producer("quiet")
        producer.send(b"warm")
        began = time.perf_counter()
        for _ in range(SENDS):
            producer.send(b"plain")
        return opened, (time.perf_counter() - began) / SENDS


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    paths = {"none": WORK / "none", "open": WORK / "open"}
    try:
        prepare(paths["none"], 0)
        prepare(paths["open"], given.open)
        found: dict[str, list[tuple[float, float]]] = {"none": [], "open": []}
        for _ in range(given.rounds):
            for name, path in paths.items():
                found[name].append(measure(path))
        sys.stdout.write(f"{given.open} open transactions; medians of {given.rounds} rounds\n")
        for at, what in enumerate(("open the store, read one message", "one durable send")):
            none, busy = (statistics.median(r[at] for r in found[n]) for n in ("none", "open"))
            sys.stdout.write(
                f"{what}: {none * 1e3:.3f} ms without, {busy * 1e3:.3f} ms with, "
                f"ratio {busy / none:.2f}\n"
            )
    finally:
        shutil.rmtree(WORK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
