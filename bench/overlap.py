"""Commits that overlap: transactions a second beside SQLite, by commits in flight and processes.

    python -m bench overlap [--seconds N] [--flush-ms MS …] [--loads LOAD …] [--only CASE …]
                            [--folder DIR] [--results]

Each worker repeats a durable transaction for some seconds: W1 has 2 x 10 messages of 100 bytes and
10 acknowledgements, `ten` has ten messages. `commit` waits for each commit, `8` and `32` are
commits in flight of `Client.pipeline`, `4p` is four processes with 32 in flight each. SQLite (WAL,
synchronous=FULL) makes the same rows with as many processes, in the same run; a ratio is to it.
--flush-ms makes each flush take so much longer, by a preloaded library that gcc compiles. --only
leaves the other cases out. The section says how busy the machine was: with a load above the number
of its processors, compare the processor time, not the rates.
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
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from bench import results, scratch_folder
from bench.throughput import peers

ROWS, ACKS = peers.PARTITION_ROWS, peers.TXN_ACKS
DEPTHS, PROCESSES = (0, 1, 8, 32), (2, 4, 8)
SOURCE = Path(__file__).with_name("slow_flush.c")
MESSAGES = 200_000  # there to be acknowledged, shared by the workers of W1
Step = Callable[[int], None]


def _slow_library(folder: Path) -> str:
    library = str(folder / "slow_flush.so")
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-o", library, str(SOURCE), "-ldl"], check=True
    )
    return library


def _make(where: Path, peer: str, load: str) -> None:
    where.mkdir(parents=True)
    if peer == "sqlite":
        db = peers.sqlite_open(where)
        db.executescript(peers.SQLITE_SCHEMA)
        db.close()
        return
    txlog.init(str(where / "store"))
    with txlog.open(str(where / "store")) as client:
        client.create_topic("out", partitions=2)
        client.create_topic("in")
        client.create_subscription("in", "s")
        if load == "w1":
            rows = pa.table({"value": pa.array(peers.values(10_000), pa.binary())})
            producer = client.producer("in")
            for _ in range(MESSAGES // 10_000):
                producer.send_batch(rows)
            client.checkpoint()


def _sqlite_step(db: sqlite3.Connection, load: str, worker: int) -> Step:
    count = 2 * ROWS if load == "w1" else ROWS
    payload = peers.values(count)

    def step(number: int) -> None:
        txn = worker * 10_000_000 + number
        now, first = time.time_ns() // 1_000_000, txn * ROWS
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO txns VALUES (?, 'COMMITTED', ?)", (txn, now))
        db.executemany(
            peers.INSERT_MESSAGE,
            [(i // ROWS, first + i % ROWS, txn, now, value) for i, value in enumerate(payload)],
        )
        if load == "w1":
            acked = [(entry,) for entry in range(txn * ACKS, (txn + 1) * ACKS)]
            db.executemany("INSERT INTO acks VALUES (1, 0, ?)", acked)
        db.execute("COMMIT")

    return step


def _txlog_body(client: txlog.Client, load: str, worker: int, workers: int) -> Callable[..., None]:
    producer = client.producer("out")
    count = 2 * ROWS if load == "w1" else ROWS
    payload = peers.values(count)
    partition = pa.array([row // ROWS for row in range(count)], pa.int32())
    share = MESSAGES // workers
    ids: list[Any] = []
    if load == "w1":
        for table in client.read("in"):
            ids += zip(table["ledger"].to_pylist(), table["entry"].to_pylist(), strict=True)
        ids = [txlog.MessageId(*each) for each in ids[worker * share : (worker + 1) * share]]

    def body(txn: txlog.Transaction, number: int) -> None:
        rows = pa.RecordBatch.from_arrays(
            [pa.array(payload, pa.binary()), partition], ["value", "partition"]
        )
        producer.send_batch_async(rows, txn=txn)
        if load == "w1":
            acked = ids[number * ACKS : (number + 1) * ACKS]
            client.acknowledge_async("in", "s", acked, txn=txn)

    return body


def work(options: argparse.Namespace) -> None:
    """A worker: says `ready`, waits for a line, then prints its figures."""
    where, load = Path(options.where), options.load
    limit = MESSAGES // options.workers // ACKS if load == "w1" else 1 << 60
    took: list[float] = []

    def run(step: Step) -> dict[str, float]:
        print("ready", flush=True)
        sys.stdin.readline()
        began, cpu, number = time.perf_counter(), time.process_time(), 0
        at = began
        while at < began + options.seconds and number < limit:
            step(number)
            number, before, at = number + 1, at, time.perf_counter()
            took.append(at - before)
        return {"number": number, "began": began, "cpu": cpu}

    if options.peer == "sqlite":
        db = peers.sqlite_open(where)
        figures = run(_sqlite_step(db, load, options.worker))
    else:
        client = txlog.open(str(where / "store"))
        body = _txlog_body(client, load, options.worker, options.workers)
        if options.depth:
            with client.pipeline(max_in_flight=options.depth) as pipeline:

                def piped(number: int) -> None:
                    with pipeline.transaction() as txn:
                        body(txn, number)

                figures = run(piped)
        else:

            def alone(number: int) -> None:
                with client.transaction() as txn:
                    body(txn, number)

            figures = run(alone)
    elapsed = time.perf_counter() - figures["began"]  # with what was in flight
    cpu = time.process_time() - figures["cpu"]
    number = max(1, int(figures["number"]))
    print(
        json.dumps(
            {
                "rate": number / elapsed,
                "cpu_us": cpu / number * 1e6,
                "p50_ms": statistics.median(took) * 1000,
            }
        ),
        flush=True,
    )
    sys.stdin.readline()


def measured(
    folder: Path,
    peer: str,
    load: str,
    depth: int,
    workers: int,
    seconds: float,
    env: dict[str, str],
) -> dict[str, float]:
    """Transactions a second of all workers, processor time and median of one."""
    shutil.rmtree(folder, ignore_errors=True)
    _make(folder, peer, load)
    command = [sys.executable, "-m", "bench", "overlap", "--work", "--where", str(folder)]
    command += ["--peer", peer, "--load", load, "--depth", str(depth), "--seconds", str(seconds)]
    command += ["--workers", str(workers)]
    running = [
        subprocess.Popen(
            [*command, "--worker", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        for worker in range(workers)
    ]

    def told(line: str) -> None:
        for child in running:
            assert child.stdin is not None
            child.stdin.write(line)
            child.stdin.flush()

    def heard() -> list[str]:
        return [child.stdout.readline() for child in running if child.stdout is not None]

    heard()
    told("go\n")
    found = [json.loads(line) for line in heard()]
    told("end\n")
    for child in running:
        child.wait(60)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "rate": sum(each["rate"] for each in found),
        "cpu_us": statistics.mean(each["cpu_us"] for each in found),
        "p50_ms": statistics.mean(each["p50_ms"] for each in found),
    }


def main() -> int:
    """Measure and print; with --results write the section, too."""
    parser = argparse.ArgumentParser(prog=sys.argv[0], description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--flush-ms", type=float, nargs="*", default=[0, 0.5, 2.6, 7])
    parser.add_argument("--loads", nargs="*", default=["w1", "ten"], choices=["w1", "ten"])
    parser.add_argument("--only", nargs="*", metavar="CASE", help="commit, 1, 8, 32, 2p, 4p, 8p")
    parser.add_argument(
        "--folder", type=scratch_folder, help="for the stores; by default a temporary one"
    )
    parser.add_argument("--results", action="store_true")
    for hidden in ("--where", "--peer", "--load"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--depth", "--workers", "--worker"):
        parser.add_argument(hidden, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return 0
    lines = [
        "| flush, ms more | load | case | SQLite/s | txlog/s | ratio | processor us | SQLite us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    began = os.getloadavg()[0]
    cases = [(depth, 1) for depth in DEPTHS] + [(32, workers) for workers in PROCESSES]
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch).resolve()
        library = _slow_library(folder)
        for flush_ms in options.flush_ms:
            env = {"LD_PRELOAD": library, "FLUSH_MS": str(flush_ms)} if flush_ms else {}
            for load in options.loads:
                peer: dict[int, dict[str, float]] = {}
                for depth, workers in cases:
                    name = f"{workers}p" if workers > 1 else str(depth) if depth else "commit"
                    if options.only and name not in options.only:
                        continue
                    run = (load, depth, workers, options.seconds, env)
                    if workers not in peer:
                        peer[workers] = measured(folder / "peer", "sqlite", *run)
                    ours, theirs = measured(folder / "ours", "txlog", *run), peer[workers]
                    lines.append(
                        f"| {flush_ms:g} | {load} | {name} | {theirs['rate']:,.0f} "
                        f"| {ours['rate']:,.0f} | {ours['rate'] / theirs['rate']:.2f} "
                        f"| {ours['cpu_us']:,.0f} | {theirs['cpu_us']:,.0f} |"
                    )
                    print(lines[-1], flush=True)
    busy = (
        f"Load of the machine at the beginning and the end: {began:.1f} and "
        f"{os.getloadavg()[0]:.1f}, on {os.cpu_count()} processors."
    )
    print(busy)
    if options.results:
        results.put("## Commits that overlap", [results.command(), "", busy, "", *lines])
    return 0
