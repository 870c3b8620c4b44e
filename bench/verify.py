"""Measures how fast a store is verified, beside the least that reading its bytes can cost.

    python bench/verify.py [--messages N] [--rounds N] [--store PATH]

Peers, all over the same files in the same run, interleaved, medians: `cat` of every file to
/dev/null, reading and CRC32C in one Python process, `txlog verify` fast and deep in a process of
their own, and in this process. The files are in the page cache: what is measured is the work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import pyarrow as pa  # noqa: E402
from crc32c import crc32c  # noqa: E402

import txlog  # noqa: E402

MESSAGE = 200
BATCH = 10_000
PIECE = 1 << 20


def fill(store: Path, messages: int) -> None:
    """Half plain, half in transactions of 1,000; acknowledged in part, sealed but for the end."""
    txlog.init(str(store), durability="os", coordinators=4)
    with txlog.open(str(store)) as client:
        client.create_topic("t", 2)
        client.create_subscription("t", "s")
        producer = client.producer("t")
        for start in range(0, messages, BATCH):
            table = pa.table(
                {
                    "value": pa.array(
                        [os.urandom(MESSAGE // 2).hex().encode() for _ in range(BATCH)]
                    ),
                    "key": pa.array([b"%d" % (n % 1000) for n in range(BATCH)]),
                }
            )
            half = BATCH // 2
            producer.send_batch(table.slice(0, half))
            for at in range(half, BATCH, 1000):
                with client.transaction() as txn:
                    producer.send_batch(table.slice(at, 1000), txn=txn)
            if start % (10 * BATCH) == 0:
                client.checkpoint(roll_all=True)


def files_of(store: Path) -> list[Path]:
    """Every file of the store."""
    return sorted(path for path in store.rglob("*") if path.is_file())


def cat(store: Path) -> None:
    """Read everything by cat."""
    with Path(os.devnull).open("wb") as nowhere:
        subprocess.run(["cat", *map(str, files_of(store))], stdout=nowhere, check=True)


def checksum(store: Path) -> None:
    """Read everything, and its CRC32C."""
    for path in files_of(store):
        crc = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE):
                crc = crc32c(piece, crc)


def command(store: Path, *flags: str) -> None:
    """`txlog verify` as a process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        [sys.executable, "-m", "txlog", "-S", str(store), "verify", *flags],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment,
    )


def inside(store: Path, *, deep: bool) -> None:
    """`txlog.verify` in this process."""
    assert txlog.verify(str(store), deep=deep)["errors"] == 0


def main() -> None:
    """Fill a store, or take one, and print a line a peer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(asked.store or f"{folder}/store")
        if asked.store is None:
            fill(store, asked.messages)
        size = sum(path.stat().st_size for path in files_of(store))
        peers: dict[str, Callable[[], None]] = {
            "cat": lambda: cat(store),
            "read and crc32c": lambda: checksum(store),
            "txlog verify": lambda: command(store),
            "txlog verify --deep": lambda: command(store, "--deep"),
            "txlog.verify": lambda: inside(store, deep=False),
            "txlog.verify, deep": lambda: inside(store, deep=True),
        }
        taken: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(asked.rounds):
            for name, peer in peers.items():
                began = time.perf_counter()
                peer()
                taken[name].append(time.perf_counter() - began)
        count = len(files_of(store))
        print(f"{count} files, {size / 1e6:.0f} MB, {asked.rounds} rounds, medians")
        base = statistics.median(taken["read and crc32c"])
        for name, seconds in taken.items():
            median = statistics.median(seconds)
            print(
                f"{name:20} {median:7.3f} s  {size / 1e6 / median:7.0f} MB/s  {median / base:5.2f}"
            )


if __name__ == "__main__":
    main()
