"""Durable transactions of ten messages on one topic, by many processes and threads.

For a number of seconds each worker repeats a transaction of TXN_ROWS messages of 100 bytes, with
its flush. The peer is SQLite (WAL, synchronous=FULL) in the same run: a row for each message with
partition and entry, a row for each transaction, a connection for each worker. A line has the
transactions a second of all workers together, those of the slowest and the fastest worker, and the
median and p99 of a commit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import txlog
from bench.throughput import peers

TXN_ROWS = 10
VALUE = b"x" * 100
NEXT_ENTRY = "SELECT coalesce(max(entry) + 1, 0) FROM messages WHERE partition = 0"
CASES = ("1p", "4t", "16t", "2p", "4p", "8p")


class Found(NamedTuple):
    """One round: transactions a second of all, the slowest and the fastest worker; commit ms."""

    rate: float
    least: float
    most: float
    median_ms: float
    p99_ms: float


def txlog_step(client: txlog.Client) -> Callable[[], None]:
    """A function that commits one durable transaction by txlog."""
    producer = client.producer("orders")

    def step() -> None:
        table = pa.RecordBatch.from_arrays([pa.array([VALUE] * TXN_ROWS, pa.binary())], ["value"])
        with client.transaction() as txn:
            producer.send_batch_async(table, txn=txn)

    return step


def sqlite_step(path: str) -> Callable[[], None]:
    """A function that commits one durable transaction by SQLite."""
    db = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    db.execute("PRAGMA synchronous=FULL")

    def step() -> None:
        now = time.time_ns() // 1_000_000
        db.execute("BEGIN IMMEDIATE")
        txn = db.execute("INSERT INTO txns (state, time) VALUES ('COMMITTED', ?)", (now,)).lastrowid
        [(first,)] = db.execute(NEXT_ENTRY)
        db.executemany(
            peers.INSERT_MESSAGE, [(0, first + i, txn, now, VALUE) for i in range(TXN_ROWS)]
        )
        db.execute("COMMIT")

    return step


def work(where: Path, peer: str, threads: int, seconds: float) -> None:
    """A worker process: prints `ready`, waits for a line, then prints the ms of each commit."""
    client = txlog.open(str(where / "store")) if peer == "txlog" else None
    path = str(where / "peer.db")
    steps = [sqlite_step(path) if client is None else txlog_step(client) for _ in range(threads)]
    for step in steps:
        step()
    took: list[list[float]] = [[] for _ in steps]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    until = time.perf_counter() + seconds

    def run(step: Callable[[], None], out: list[float]) -> None:
        began = time.perf_counter()
        while began < until:
            step()
            ended = time.perf_counter()
            out.append((ended - began) * 1000)
            began = ended

    running = [threading.Thread(target=run, args=pair) for pair in zip(steps, took, strict=True)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    sys.stdout.write(json.dumps(took) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()  # a checkpoint at closing would disturb workers that still run
    if client is not None:
        client.close()


def measured(where: Path, peer: str, case: str, seconds: float) -> Found:
    """One round of a case: `4t` is four threads, `4p` four processes."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    if peer == "txlog":
        txlog.init(str(where / "store"))
        with txlog.open(str(where / "store")) as client:
            client.create_topic("orders")
    else:
        db = sqlite3.connect(where / "peer.db")
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(peers.SQLITE_SCHEMA)
        db.close()
    count, kind = int(case[:-1]), case[-1]
    words = [sys.executable, "-m", "bench.throughput.many", "--where", str(where), "--work", peer]
    words += ["--seconds", str(seconds), "--threads", str(count if kind == "t" else 1)]
    workers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(count if kind == "p" else 1)
    ]
    os.sync()
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
    took = [ms for one in workers if one.stdout for ms in json.loads(one.stdout.readline())]
    for worker in workers:
        worker.communicate("\n")
    shutil.rmtree(where)
    every = sorted(ms for one in took for ms in one)
    counts = [len(one) / seconds for one in took]
    return Found(
        len(every) / seconds,
        min(counts),
        max(counts),
        statistics.median(every),
        every[len(every) * 99 // 100],
    )


def table(where: Path, cases: list[str], seconds: float, rounds: int) -> list[str]:
    """The lines of the table, peers interleaved, medians of the rounds."""
    found: dict[tuple[str, str], list[Found]] = {}
    for _ in range(rounds):
        for case in cases:
            for peer in ("txlog", "sqlite"):
                found.setdefault((case, peer), []).append(measured(where, peer, case, seconds))
    lines = [
        "| workers | txlog/s | SQLite/s | ratio | slowest, fastest worker/s | commit ms | p99 ms "
        "| SQLite p99 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        ours, theirs = (
            Found(*(statistics.median(column) for column in zip(*found[case, peer], strict=True)))
            for peer in ("txlog", "sqlite")
        )
        what = f"{case[:-1]} {'threads' if case[-1] == 't' else 'processes'}"
        lines.append(
            f"| {what} | {ours.rate:,.0f} | {theirs.rate:,.0f} | {ours.rate / theirs.rate:.2f} "
            f"| {ours.least:,.0f}, {ours.most:,.0f} | {ours.median_ms:.2f} | {ours.p99_ms:.2f} "
            f"| {theirs.p99_ms:.2f} |"
        )
    return lines


def main() -> None:
    """Be one worker."""
    parser = argparse.ArgumentParser(description="A worker of `python -m bench throughput`.")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--where", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--work", choices=("txlog", "sqlite"))
    given = parser.parse_args()
    work(given.where, given.work, given.threads, given.seconds)


if __name__ == "__main__":
    main()
