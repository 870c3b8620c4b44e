"""Owns the measurement of SQL: the view of committed messages against the same files read raw.

    python -m bench.query [--messages 2000000] [--tries 7]

A store with transactions of 1,000 messages of 100 bytes, a fifth plain, all sealed and clean. Both
sides run the same DuckDB over the same files in one process, in turns; medians in ms. The check of
the files' checksums is measured apart, and so is `txlog query` as a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

import txlog
from txlog import filechecks
from txlog.querying import Query

TXN_MESSAGES = 1000
KEYS = 1000
QUERIES = {
    "payload": "SELECT sum(octet_length(value)) AS x, max(hash(value)) AS y FROM {of}",
    "group by key": "SELECT key, count(*) AS n FROM {of} GROUP BY key",
    "count": "SELECT count(*) AS n FROM {of}",
    "1 % of time": "SELECT count(value) AS n FROM {of} WHERE lsn < {lsn}",
}


def fill(path: str, messages: int) -> None:
    """Make the store."""
    rng = random.Random(7)
    txlog.init(path, durability="os", ledger_entries_max=25_000, free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t", 4)
        producer = client.producer("t")
        for number in range(messages // TXN_MESSAGES):
            rows = pa.table({
                "key": [b"%d" % rng.randrange(KEYS) for _ in range(TXN_MESSAGES)],
                "value": [rng.randbytes(50).hex().encode() for _ in range(TXN_MESSAGES)],
            })  # fmt: skip
            if number % 5:
                with client.transaction() as txn:
                    producer.send_batch(rows, txn=txn)
            else:
                producer.send_batch(rows)
        client.checkpoint(roll_all=True)


def median_ms(tries: int, *runs: Callable[[], object]) -> list[float]:
    """The medians of several runs, taken in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(tries):
        for run, found in zip(runs, times, strict=True):
            before = time.perf_counter()
            run()
            found.append((time.perf_counter() - before) * 1e3)
    return [statistics.median(found) for found in times]


def compare(client: txlog.Client, tries: int) -> None:
    """Print the view against the raw files."""
    relation = client.relation("t")
    assert not relation.unclean
    assert not relation.tail.num_rows
    paths = [str(Path(client.path, source.ref.path)) for source in relation.direct]
    lsn = relation.lsn // 100
    print(f"{len(paths)} files, {sum(map(os.path.getsize, paths)) >> 20} MiB\n")
    print("| ms | raw | view | ratio |\n|---|---|---|---|")
    raw = duckdb.connect()
    for name, sql in QUERIES.items():
        plain = sql.format(of=f"read_parquet({paths})", lsn=lsn)
        with Query(client, sql.format(of="t", lsn=lsn)) as query:
            found = median_ms(
                tries, lambda q=plain: raw.sql(q).to_arrow_table(),  # type: ignore[misc]
                lambda q=query: q.rows().read_all(),  # type: ignore[misc]
            )  # fmt: skip
        print(f"| {name} | {found[0]:.1f} | {found[1]:.1f} | {found[1] / found[0]:.2f} |")
    raw.close()

    def check() -> None:
        filechecks.forget()
        client.check_files(relation.direct)

    [checking] = median_ms(tries, check)
    print(f"\nchecksums of all files: {checking:.0f} ms")
    opened = median_ms(tries, lambda: Query(client, "SELECT count(*) FROM t").close())
    print(f"opening a query, files checked before: {opened[0]:.0f} ms")


def processes(path: str, tries: int) -> None:
    """Print what whole processes take."""
    sql = QUERIES["group by key"].format(of="t")
    commands = {
        "python -c pass": ["-c", "pass"],
        "import pyarrow, duckdb": ["-c", "import pyarrow, duckdb"],
        "txlog --version": ["-m", "txlog", "--version"],
        "txlog query, group by key": ["-m", "txlog", "query", "-S", path, sql, "-f", "csv"],
    }
    found = median_ms(
        tries,
        *(
            lambda words=words: subprocess.run(  # type: ignore[misc]
                [sys.executable, *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            for words in commands.values()
        ),
    )
    print("\n| whole process | ms |\n|---|---|")
    for name, taken in zip(commands, found, strict=True):
        print(f"| {name} | {taken:.0f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--store", help="one that an earlier run has made, or will make")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.store or os.path.join(folder, "store")
        if not os.path.exists(path):
            fill(path, asked.messages)
        with txlog.open(path, read_only=True) as client:
            compare(client, asked.tries)
        processes(path, asked.tries)


if __name__ == "__main__":
    main()
