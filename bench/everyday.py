"""What one call or one command costs, in turns with SQLite and DuckDB.

    python -m bench everyday [--messages N] [--rounds N] [--only WORD] [--results]

The store has N messages of 100 bytes with key, properties and event time, half of them in
transactions of 100, written with durability `os`. A SQLite table (WAL, NORMAL) and a DuckDB file
have the same rows. A call is given in microseconds of processor time. A command is given in clock
seconds and in its peak memory in MB, and its reference is DuckDB in a process of its own. Each
figure is the median of the rounds. With --results the table also goes into bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import txlog
from bench.results import put
from txlog import Bound, Client

TOGETHER = 100
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
CALLS = 200  # of one kind in a round
OBJECTS = 20_000
DELAYED = 10  # the topic of delayed messages has a tenth as many messages
Calls = dict[str, tuple[int, Callable[[], object], Callable[[], object] | None]]


def rows_of(first: int, count: int) -> pa.Table:
    """The messages, as columns of a batch."""
    numbers = range(first, first + count)
    pairs = [[("shop", str(n % 50)), ("try", "1")] for n in numbers]
    return pa.table(
        {
            "key": [b"k%d" % (n % 1000) for n in numbers],
            "value": [b"%0100d" % n for n in numbers],
            "properties": pa.array(pairs, pa.map_(pa.string(), pa.string())),
            "event_time": pa.array([START_MS + n for n in numbers], pa.timestamp("ms", "UTC")),
        }
    )


def fill(folder: Path, messages: int) -> None:
    """Make the store, the table and the DuckDB file."""
    store = str(folder / "store")
    txlog.init(store, durability="os", free_bytes_min=0)
    with txlog.open(store) as client, duckdb.connect(str(folder / "duck.db")) as duck:
        for name in ("orders", "sent", "later"):
            client.create_topic(name)
        client.create_subscription("orders", "billing", type="shared")
        duck.execute(
            "CREATE TABLE orders (n BIGINT, key BLOB, value BLOB, properties MAP(VARCHAR, VARCHAR),"
            " event_time TIMESTAMPTZ)"
        )
        producer = client.producer("orders")
        for first in range(0, messages, TOGETHER):
            rows = rows_of(first, TOGETHER)
            if first // TOGETHER % 2:
                with client.transaction() as txn:
                    producer.send_batch(rows, txn=txn)
            else:
                producer.send_batch(rows)
        for first in range(0, messages, 10_000):
            rows = rows_of(first, min(10_000, messages - first))
            numbered = rows.append_column("n", pa.array(range(first, first + len(rows))))
            duck.register("batch", numbered)
            duck.execute("INSERT INTO orders BY NAME FROM batch")
        waits = messages // DELAYED
        soon = int(time.time() * 1000) + DAY_MS
        for first in range(0, waits, 1000):
            rows = rows_of(first, min(1000, waits - first))
            at = pa.array([soon + n * 7919 % waits for n in range(len(rows))], pa.int64())
            client.producer("later").send_batch(
                rows.append_column("deliver_at", at.cast(pa.timestamp("ms", "UTC")))
            )
    with sqlite(folder) as table:
        table.execute("PRAGMA journal_mode = WAL")
        table.execute("CREATE TABLE orders (n INTEGER PRIMARY KEY, key, value, properties, time)")
        table.execute("CREATE TABLE sent (n INTEGER PRIMARY KEY, key, value, properties, time)")
        table.execute("CREATE TABLE done (n INTEGER PRIMARY KEY)")
        table.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?)", (row_of(n) for n in range(messages))
        )


def row_of(number: int) -> tuple[object, ...]:
    """The same message as a row of the table."""
    value, said = b"%0100d" % number, f'{{"shop":"{number % 50}","try":"1"}}'
    return number, b"k%d" % (number % 1000), value, said, START_MS + number


def sqlite(folder: Path) -> sqlite3.Connection:
    """A connection that, like the store, does not flush at each commit."""
    made = sqlite3.connect(folder / "sqlite.db")
    made.execute("PRAGMA synchronous = NORMAL")
    return made


def calls(client: Client, table: sqlite3.Connection, messages: int) -> Calls:
    """By name: the units in a call, the call of txlog, the call of SQLite."""
    producer, consumer = client.producer("sent"), client.consumer("orders", "billing")
    with client.reader("orders", Bound("skip", messages // 2)) as reader:
        found = reader.read_next()
    middle = None if found is None else found.message_id
    ten, thousand, given = rows_of(0, 10), rows_of(0, 1000), {"shop": "7", "try": "1"}
    numbers = iter(range(10**9))

    def read_one(start: Any) -> object:
        with client.reader("orders", start) as reader:
            return reader.read_next()

    def insert(count: int) -> object:
        with table:
            rows = ((None, *row_of(next(numbers))[1:]) for _ in range(count))
            return table.executemany("INSERT INTO sent VALUES (?, ?, ?, ?, ?)", rows)

    def acknowledged() -> object:
        message = consumer.receive()
        assert message is not None
        return consumer.acknowledge(message)

    def taken() -> object:
        with table:
            query = "SELECT * FROM orders AS o WHERE n > ? AND NOT EXISTS (FROM_DONE) LIMIT 1"
            done = "SELECT 1 FROM done AS d WHERE d.n = o.n"
            [row] = table.execute(query.replace("FROM_DONE", done), (next(numbers) % messages,))
            return table.execute("INSERT OR IGNORE INTO done VALUES (?)", (row[0],))

    def in_one(act: Callable[[Any], object]) -> object:
        with client.transaction() as txn:
            return act(txn)

    def in_txn(send: Callable[[bytes, Any], object]) -> object:
        return in_one(lambda txn: [send(b"%0100d" % n, txn) for n in range(1000)])

    def at(sql: str) -> Callable[[], object]:
        return lambda: table.execute(sql).fetchone()

    return {
        "a new reader at an id, read_next": (
            1, lambda: read_one(middle), at(f"SELECT * FROM orders WHERE n = {messages // 2}")),
        "a reader at the last message, read_next": (
            1, lambda: read_one(Bound("last", 1)), at("SELECT * FROM orders ORDER BY n DESC")),
        "a message by iteration": (
            OBJECTS, lambda: sum(1 for _ in islice(client.reader("orders"), OBJECTS)),
            lambda: table.execute(f"SELECT * FROM orders LIMIT {OBJECTS}").fetchall()),
        "receive and acknowledge": (1, acknowledged, taken),
        "send": (1, lambda: producer.send(b"%0100d" % next(numbers)), lambda: insert(1)),
        "send with key, properties, time": (
            1, lambda: producer.send(b"x" * 100, key=b"k", properties=given, event_time=START_MS),
            lambda: insert(1)),
        "send_batch of 10": (1, lambda: producer.send_batch(ten), lambda: insert(10)),
        "send_batch of 1,000": (1, lambda: producer.send_batch(thousand), lambda: insert(1000)),
        "transaction of 1,000 send": (
            1, lambda: in_txn(lambda value, txn: producer.send(value, txn=txn)),
            lambda: insert(1000)),
        "transaction of a batch of 1,000": (
            1, lambda: in_one(lambda txn: producer.send_batch(thousand, txn=txn)),
            lambda: insert(1000)),
        "transaction of 1,000 send_async": (
            1, lambda: in_txn(lambda value, txn: producer.send_async(value, txn=txn)),
            lambda: insert(1000)),
        "uncommitted, a batch of 1,000": (
            1, lambda: client.reader("orders", isolation="uncommitted").receive_batch(1000), None),
    }  # fmt: skip


# A command, and the statement of DuckDB that does the same.
COMMANDS: dict[str, tuple[str, str | None]] = {
    "peek --first 1": ("peek orders --first 1", "FROM orders ORDER BY n LIMIT 1"),
    "peek": ("peek orders", "FROM orders ORDER BY n DESC LIMIT 10"),
    "peek -s": ("peek orders -s billing", "FROM orders ORDER BY n DESC LIMIT 10"),
    "consume -n 1": ("consume orders -n 1", "FROM orders ORDER BY n LIMIT 1"),
    "sub backlog": (
        "sub backlog billing",
        "SELECT count(*), sum(octet_length(value)), min(event_time) FROM orders",
    ),
    "query count": ("query 'SELECT count(*) FROM orders'", "SELECT count(*) FROM orders"),
    "query sum": (
        "query 'SELECT sum(size_bytes) FROM orders'",
        "SELECT sum(octet_length(value)) FROM orders",
    ),
    "query by key": (
        "query 'SELECT key, count(*) FROM orders GROUP BY key'",
        "SELECT key, count(*) FROM orders GROUP BY key",
    ),
    "query to tsv": ("query -f tsv 'SELECT * FROM orders'", "COPY tsv"),
    "query to json": ("query -f ndjson 'SELECT * FROM orders'", "COPY json"),
    "consume -f lines": ("consume orders -f lines", "COPY lines"),
    "consume -f tsv": ("consume orders -f tsv", "COPY tsv"),
    "consume -f json": ("consume orders -f ndjson", "COPY json"),
    "consume -f %v": (r"consume orders -f '%v\n'", "COPY lines"),
    "consume uncommitted": ("consume orders --isolation uncommitted -f lines", "COPY lines"),
    "views": ("views", None),
    "report": ("report --out {folder}/report.html --force", None),
    "delay list": ("delay list later", None),
}
COPIES = {
    "COPY tsv": "COPY orders TO '/dev/stdout' (FORMAT csv, DELIMITER '\\t')",
    "COPY json": "COPY orders TO '/dev/stdout' (FORMAT json)",
    "COPY lines": "COPY (SELECT decode(value) FROM orders) TO '/dev/stdout' (FORMAT csv)",
}
DUCK = (
    "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True);"
    " c.execute('SET enable_progress_bar = false');"
    " r = c.sql(sys.argv[2]); r and r.to_arrow_table()"
)


# Linux counts the memory of the process that forks as well, so a small one starts the command.
LAUNCH = (
    "import resource, subprocess, sys, time; begun = time.perf_counter();"
    " code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL);"
    " clock, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN);"
    " print(clock, used.ru_maxrss, used.ru_utime + used.ru_stime);"
    " sys.exit(code)"
)


def ran(words: list[str], env: Mapping[str, str] | None = None) -> tuple[float, float, float]:
    """Run a process without its output; returns clock seconds, peak MB, processor seconds."""
    launch = [sys.executable, "-S", "-c", LAUNCH, *words]
    own = {**os.environ, **(env or {})}
    done = subprocess.run(launch, stdout=subprocess.PIPE, check=True, text=True, env=own)
    said = done.stdout.split()
    return float(said[0]), float(said[1]) / 1024, float(said[2])


def measured_calls(folder: Path, messages: int, rounds: int, only: str) -> Iterator[str]:
    """Yield a line for each call."""
    yield "| call, us of processor time | txlog | SQLite | ratio |"
    yield "|---|---|---|---|"
    with txlog.open(str(folder / "store")) as client, sqlite(folder) as table:
        for name, (units, ours, theirs) in calls(client, table, messages).items():
            if only not in name:
                continue
            times = [per_call(run, units, rounds) for run in (ours, theirs) if run is not None]
            yield line(name, times, 1)


def per_call(run: Callable[[], object], units: int, rounds: int) -> float:
    """Microseconds of processor time for a unit: the median of the rounds, after a first call."""
    run()
    found: list[float] = []
    for _ in range(rounds):
        count, begun = 0, time.process_time()
        while count < CALLS and time.process_time() - begun < 1:
            run()
            count += 1
        found.append((time.process_time() - begun) * 1e6 / count / units)
    return statistics.median(found)


def measured_commands(folder: Path, rounds: int, only: str) -> Iterator[str]:
    """Yield a line for each command."""
    yield "| command, s by the clock | txlog | DuckDB | ratio | MB |"
    yield "|---|---|---|---|---|"
    tool = [sys.executable, "-m", "txlog", "-S", f"{folder}/store", "-q"]
    for name, (words, sql) in COMMANDS.items():
        if only not in name:
            continue
        ours: list[tuple[float, float, float]] = []
        theirs: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            ours.append(ran([*tool, *shlex.split(words.format(folder=folder))]))
            if sql is not None:
                duck = [sys.executable, "-c", DUCK, str(folder / "duck.db"), COPIES.get(sql, sql)]
                theirs.append(ran(duck))
        times = [statistics.median(s for s, _, _ in runs) for runs in (ours, theirs) if runs]
        yield line(name, times, 2) + f" {max(mb for _, mb, _ in ours):.0f} |"


def measured_bytecode(folder: Path, rounds: int, only: str) -> Iterator[str]:
    """Yield a line for each command, with bytecode and where Python finds none and keeps none."""
    if only not in "bytecode":
        return
    yield "| bytecode: command, s of processor time | missing | kept | ratio |"
    yield "|---|---|---|---|"
    missing = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(folder / "none")}
    tool = [sys.executable, "-m", "txlog", "-S", f"{folder}/store", "-q"]
    for words in ("--version", "topic list", "produce sent -m hello", "query 'SELECT 1'"):
        command = [*tool, *shlex.split(words)]
        ran(command)  # which writes the bytecode
        seconds = [
            statistics.median(ran(command, env)[2] for _ in range(rounds)) for env in (missing, {})
        ]
        yield line(words, seconds, 2)


def line(name: str, times: list[float], digits: int) -> str:
    """A row of the table: txlog, its reference if it has one, and their ratio."""
    shown = [f"{one:,.{digits}f}" for one in times]
    more = [f"{times[0] / times[1]:.1f}"] if len(times) > 1 else ["-", "-"]
    return f"| {' | '.join([name, *shown, *more])} |"


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="those whose name has this word")
    parser.add_argument("--results", action="store_true", help="write them into RESULTS.md, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, options.messages)
        out: list[str] = []
        for found in (
            measured_calls(folder, options.messages, options.rounds, options.only),
            ("",),
            measured_commands(folder, options.rounds, options.only),
            ("",),
            measured_bytecode(folder, options.rounds, options.only),
        ):
            for one in found:
                print(one, flush=True)
                out.append(one)
        if options.results:
            put(
                "## Everyday work",
                [f"{options.messages:,} messages, `python -m bench everyday`.", "", *out],
            )
