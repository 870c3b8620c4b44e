"""Measures a compaction by key, and a table view, beside DuckDB's arg_max over the same Parquet.

    python bench/keys.py [--messages N] [--keys N] [--rounds N]

Processor seconds and elapsed seconds, medians of rounds that are interleaved. The first compaction
reads everything; its dry run does the same and writes nothing, so that it can be repeated.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import txlog  # noqa: E402

BATCH = 50_000
NEWEST = """
    SELECT key, arg_max(value, ledger * (1::BIGINT << 40) + entry) FROM read_parquet(?)
    WHERE key IS NOT NULL GROUP BY key
"""  # by (ledger, entry), a struct, it takes four times as long


def fill(client: txlog.Client, messages: int, keys: int) -> None:
    """Send messages of 100 bytes with random keys, and seal them."""
    chance, producer = random.Random(7), client.producer("t")
    for start in range(0, messages, BATCH):
        size = min(BATCH, messages - start)
        named = [b"user-%06d" % chance.randrange(keys) for _ in range(size)]
        bodies = [b"%010d" % (start + at) + bytes(90) for at in range(size)]
        producer.send_batch(pa.table({"key": named, "value": bodies}))
    client.checkpoint(roll_all=True)


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Processor seconds and elapsed seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    return time.process_time() - cpu, time.perf_counter() - wall


def by_duckdb(files: list[str]) -> pa.Table:
    """The newest value of each key."""
    with duckdb.connect() as connection:
        return connection.sql(NEWEST, params=[files]).to_arrow_table()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        txlog.init(folder)
        with txlog.open(folder) as client:
            client.create_topic("t")
            fill(client, given.messages, given.keys)
            files = [str(path) for path in Path(folder).glob("topics/*/*/t/*/ledger-*.parquet")]
            acts: dict[str, Callable[[], object]] = {
                "compact-topic --dry-run": lambda: client.admin.compact_topic("t", dry_run=True),
                "DuckDB arg_max": lambda: by_duckdb(files),
                "table view of the log": lambda: len(client.table_view("t")),
            }
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in acts}
            for _ in range(given.rounds):
                for name, act in acts.items():
                    found[name].append(timed(act))
            for name, act in (
                ("compact-topic", lambda: client.admin.compact_topic("t")),
                ("table view once compacted", lambda: client.table_view("t")),
                ("send", lambda: client.producer("t").send(b"one more", key=b"user-000001")),
                ("compact-topic of one more", lambda: client.admin.compact_topic("t")),
            ):
                found[name] = [timed(act)]
    for name, times in found.items():
        cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:28} {cpu:6.2f} s processor {wall:6.2f} s elapsed")


if __name__ == "__main__":
    main()
