"""Measures `send_async` beside SQLite committing the same batches, each durable.

    python bench/sending.py [--messages N] [--rounds N] [--in-txn N] [--store FOLDER]

One thread sends messages of 100 bytes without waiting, to one topic and to four in turn, with
`block_if_queue_full`, until all are stored; the numbers of its frames are counted. Then SQLite
(WAL, synchronous=FULL) inserts the same messages with as many commits. With `--in-txn`: one
transaction of so many `send_async`, beside one of SQLite. Messages a second, medians; the last
columns are processor microseconds a message and frames.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import txlog  # noqa: E402
from txlog.client.client import Client  # noqa: E402

VALUE = bytes(range(100))
Figures = tuple[float, float, float]  # seconds, processor seconds, frames or commits


def sent(client: Client, topics: int, count: int) -> Figures:
    """Messages sent without waiting, to topics in turn."""
    producers = [client.producer(f"t{n}", block_if_queue_full=True) for n in range(topics)]
    before, began, used = client.wait_for_change(0), time.perf_counter(), time.process_time()
    for _ in range(count // topics):
        for producer in producers:
            producer.send_async(VALUE)
    client.flush()
    spent = time.perf_counter() - began, time.process_time() - used
    return *spent, client.wait_for_change(0) - before


def in_transaction(client: Client, count: int) -> Figures:
    """One transaction of messages that are left for its commit."""
    producer = client.producer("t0")
    began, used = time.perf_counter(), time.process_time()
    with client.transaction() as txn:
        for _ in range(count):
            producer.send_async(VALUE, txn=txn)
    return time.perf_counter() - began, time.process_time() - used, 1


def inserted(db: sqlite3.Connection, count: int, commits: int) -> Figures:
    """The same messages in SQLite, with so many commits."""
    began, used = time.perf_counter(), time.process_time()
    done = 0
    for n in range(commits):
        until = count * (n + 1) // commits
        db.execute("BEGIN")
        for _ in range(until - done):
            db.execute("INSERT INTO messages (value) VALUES (?)", (VALUE,))
        db.execute("COMMIT")
        done = until
    return time.perf_counter() - began, time.process_time() - used, commits


def main() -> None:
    """A line for each of txlog and SQLite, with one topic and with four."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-txn", type=int, default=1_000)
    parser.add_argument("--store", help="make the stores below this folder")
    given = parser.parse_args()
    found: dict[tuple[str, str], list[Figures]] = {}
    counts: dict[str, int] = {}
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.store) as folder:
            path = f"{folder}/store"
            txlog.init(path)
            db = sqlite3.connect(f"{folder}/peer.db", isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, value BLOB)")
            with txlog.open(path) as client:
                for n in range(4):
                    client.create_topic(f"t{n}")
                client.producer("t0").send(b"first")
                for name, topics in (("1 topic", 1), ("4 topics", 4)):
                    ours = sent(client, topics, given.messages)
                    theirs = inserted(db, given.messages, int(ours[2]))
                    found.setdefault((name, "txlog"), []).append(ours)
                    found.setdefault((name, "sqlite"), []).append(theirs)
                    counts[name] = given.messages
                name = f"a transaction of {given.in_txn}"
                found.setdefault((name, "txlog"), []).append(in_transaction(client, given.in_txn))
                found.setdefault((name, "sqlite"), []).append(inserted(db, given.in_txn, 1))
                counts[name] = given.in_txn
            db.close()
    print(f"{'what':24} {'who':8} {'messages/s':>12} {'ms':>10} {'us cpu':>8} {'frames':>7}")
    for (name, who), rounds in found.items():
        wall, cpu, frames = (statistics.median(column) for column in zip(*rounds, strict=True))
        count = counts[name]
        print(
            f"{name:24} {who:8} {count / wall:12,.0f} {wall * 1e3:10,.1f} "
            f"{cpu / count * 1e6:8.2f} {frames:7,.0f}"
        )


if __name__ == "__main__":
    main()
