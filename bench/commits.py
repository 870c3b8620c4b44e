"""Measures how long commits take while automatic checkpoints come and go beside them.

    PYTHONPATH=src python bench/commits.py [--seconds S] [--durability os|sync] [--store FOLDER]

One process commits transactions of 100 messages of 100 bytes over four partitions, one behind the
other. A line: how many, ms of the median, the 99th percentile, that of a thousand, and the longest,
and how many checkpoints were made meanwhile. PYTHONPATH says which txlog is measured, so that two
versions can be run in turn.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import pyarrow as pa

import txlog

ROWS, PARTITIONS = 100, 4


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--durability", choices=("os", "sync"), default="sync")
    parser.add_argument("--store", help="make the store below this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.store) as folder:
        txlog.init(f"{folder}/store")
        taken = sorted(commits(f"{folder}/store", options.seconds, options.durability))
        newest = max(os.listdir(f"{folder}/store/manifest"), default="0")
    shown = ", ".join(
        f"{name} {taken[min(len(taken) - 1, int(part * len(taken)))]:.2f}"
        for name, part in (("median", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1))
    )
    print(f"{len(taken):,} commits, ms: {shown}; {int(newest.split('.')[0])} checkpoints")
    return 0


def commits(path: str, seconds: float, durability: str) -> list[float]:
    """Commit for so long; ms of each transaction."""
    rows = pa.table(
        {
            "value": pa.array([b"x" * 100] * ROWS, pa.binary()),
            "partition": pa.array([at % PARTITIONS for at in range(ROWS)], pa.int32()),
        }
    )
    taken: list[float] = []
    with txlog.open(path, durability=durability) as client:
        client.create_topic("t", partitions=PARTITIONS)
        producer = client.producer("t")
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            with client.transaction() as txn:
                producer.send_batch_async(rows, txn=txn)
            taken.append((time.perf_counter() - began) * 1e3)
    return taken


if __name__ == "__main__":
    raise SystemExit(main())
