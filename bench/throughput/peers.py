"""The workloads, once for txlog and once for each peer, over the same content.

A workload makes its own store in an empty directory, prepares what it needs, and returns units a
second (transactions or messages) of the timed part alone. A unit is durable before it counts: txlog
with durability sync, SQLite with WAL and synchronous=FULL, DuckDB by its commit.

    W1  transactions of 2 x 10 messages on two partitions and 10 acknowledgements
    W1t the same by 16 threads of one process; SQLite has a connection for each
    W2  transactions of 10,000 messages, from an Arrow table
    W3  batches of 1,000 messages consumed and acknowledged, one transaction a batch
    W4  all messages read, without acknowledgement
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

import txlog

VALUE_BYTES = 100
W1_THREADS = 16
BULK_ROWS = 10_000
CONSUME_ROWS = 1_000
PARTITION_ROWS = 10
TXN_ACKS = 10
SQLITE_SCHEMA = """
    CREATE TABLE messages (partition INTEGER, entry INTEGER, txn INTEGER, publish_time INTEGER,
        value BLOB, PRIMARY KEY (partition, entry)) WITHOUT ROWID;
    CREATE TABLE acks (subscription INTEGER, partition INTEGER, entry INTEGER,
        PRIMARY KEY (subscription, partition, entry)) WITHOUT ROWID;
    CREATE TABLE cursors (subscription INTEGER PRIMARY KEY, entry INTEGER);
    CREATE TABLE txns (id INTEGER PRIMARY KEY, state TEXT, time INTEGER);
"""
INSERT_MESSAGE = "INSERT INTO messages VALUES (?, ?, ?, ?, ?)"


def values(count: int) -> list[bytes]:
    """Messages that do not compress to nothing: JSON of VALUE_BYTES bytes."""
    out = []
    for i in range(count):
        head = b'{"id":%d,"amount":%d,"text":"' % (i, i * 7919 % 10_007)
        body = hashlib.blake2b(head, digest_size=40).hexdigest().encode()
        out.append((head + body)[: VALUE_BYTES - 2].ljust(VALUE_BYTES - 2, b"x") + b'"}')
    return out


class Seconds:
    """A stopwatch as a context manager."""

    def __enter__(self) -> Seconds:
        self._start = time.perf_counter()
        self.elapsed = 0.0
        return self

    def __exit__(self, *exc: object) -> None:
        self.elapsed = time.perf_counter() - self._start


Step = Callable[[int], None]


def _rate(count: int, steps: list[Step]) -> float:
    """Steps a second; each function runs in its own thread, on its share of `count` numbers."""

    def run(first: int) -> None:
        for number in range(first, count, len(steps)):
            steps[first](number)

    with Seconds() as timed:
        if len(steps) == 1:
            run(0)
        else:
            with ThreadPoolExecutor(len(steps)) as pool:
                for one in [pool.submit(run, first) for first in range(len(steps))]:
                    one.result()
    return count / timed.elapsed


# --- txlog -------------------------------------------------------------------------------------


def _store(where: Path) -> txlog.Client:
    path = str(where / "store")
    txlog.init(path)
    return txlog.open(path)


def _fill(client: txlog.Client, topic: str, count: int, partitions: int = 1) -> None:
    """Plain messages, BULK_ROWS a frame."""
    client.create_topic(topic, partitions=partitions)
    producer = client.producer(topic)
    column = pa.array(values(count), pa.binary())
    for start in range(0, count, BULK_ROWS):
        producer.send_batch(pa.table({"value": column.slice(start, BULK_ROWS)}))


def txlog_w1(where: Path, count: int, threads: int = 1) -> float:
    with _store(where) as client:
        _fill(client, "in", count * TXN_ACKS)
        client.create_subscription("in", "s")
        ids = [
            txlog.MessageId(ledger, entry)
            for table in client.read("in")
            for ledger, entry in zip(
                table.column("ledger").to_pylist(), table.column("entry").to_pylist(), strict=True
            )
        ]
        client.create_topic("out", partitions=2)
        producer = client.producer("out")
        partition = pa.array([0] * PARTITION_ROWS + [1] * PARTITION_ROWS, pa.int32())
        payload = values(len(partition))

        def step(number: int) -> None:
            batch = pa.RecordBatch.from_arrays(
                [pa.array(payload, pa.binary()), partition], names=["value", "partition"]
            )
            acked = ids[number * TXN_ACKS : (number + 1) * TXN_ACKS]
            with client.transaction() as txn:
                producer.send_batch_async(batch, txn=txn)
                client.acknowledge_async("in", "s", acked, txn=txn)

        return _rate(count, [step] * threads)


def txlog_w2(where: Path, count: int) -> float:
    with _store(where) as client:
        client.create_topic("out")
        producer = client.producer("out")
        table = pa.table({"value": pa.array(values(BULK_ROWS), pa.binary())})
        with Seconds() as timed:
            for _ in range(count):
                with client.transaction() as txn:
                    producer.send_batch(table, txn=txn)
    return count * BULK_ROWS / timed.elapsed


def txlog_w3(where: Path, count: int) -> float:
    with _store(where) as client:
        _fill(client, "in", count)
        client.create_subscription("in", "s")
        consumer = client.consumer("in", "s")
        done = 0
        with Seconds() as timed:
            while done < count:
                table = consumer.receive_batch(CONSUME_ROWS)
                with client.transaction() as txn:
                    consumer.acknowledge(table, txn=txn)
                if not table.num_rows:
                    raise RuntimeError(f"only {done} of {count} messages came")
                done += table.num_rows
        consumer.close()
    return count / timed.elapsed


def txlog_w4(where: Path, count: int) -> float:
    with _store(where) as client:
        _fill(client, "in", count)
        with Seconds() as timed:
            found = sum(len(table.column("value")) for table in client.read("in"))
        if found != count:
            raise RuntimeError(f"read {found} of {count} messages")
    return count / timed.elapsed


# --- SQLite ------------------------------------------------------------------------------------


def sqlite_open(where: Path) -> sqlite3.Connection:
    """A fast database: WAL, statements from the cache of sqlite3, no implicit begin."""
    db = sqlite3.connect(
        where / "peer.db", isolation_level=None, timeout=60, check_same_thread=False
    )
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def sqlite_fill(db: sqlite3.Connection, count: int, partition: int = 0) -> None:
    rows = values(count)
    for start in range(0, count, BULK_ROWS):
        _sqlite_append(db, partition, start, rows[start : start + BULK_ROWS], start)


def _sqlite_append(
    db: sqlite3.Connection, partition: int, entry: int, rows: list[bytes], txn: int
) -> None:
    now = _now_ms()
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO txns VALUES (?, 'COMMITTED', ?)", (txn, now))
    db.executemany(
        INSERT_MESSAGE, ((partition, entry + i, txn, now, value) for i, value in enumerate(rows))
    )
    db.execute("COMMIT")


def sqlite_w1(where: Path, count: int, threads: int = 1) -> float:
    dbs = [sqlite_open(where) for _ in range(threads)]
    dbs[0].executescript(SQLITE_SCHEMA)
    payload = values(2 * PARTITION_ROWS)

    def step(db: sqlite3.Connection, txn: int) -> None:
        now = _now_ms()
        first = txn * PARTITION_ROWS
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO txns VALUES (?, 'COMMITTED', ?)", (txn, now))
        db.executemany(
            INSERT_MESSAGE,
            [
                (i // PARTITION_ROWS, first + i % PARTITION_ROWS, txn, now, value)
                for i, value in enumerate(payload)
            ],
        )
        db.executemany(
            "INSERT INTO acks VALUES (1, 0, ?)",
            [(entry,) for entry in range(txn * TXN_ACKS, (txn + 1) * TXN_ACKS)],
        )
        db.execute("COMMIT")

    found = _rate(count, [partial(step, db) for db in dbs])
    for db in dbs:
        db.close()
    return found


def sqlite_w2(where: Path, count: int) -> float:
    db = sqlite_open(where)
    db.executescript(SQLITE_SCHEMA)
    table = pa.table({"value": pa.array(values(BULK_ROWS), pa.binary())})
    with Seconds() as timed:
        for txn in range(count):
            _sqlite_append(db, 0, txn * BULK_ROWS, table.column("value").to_pylist(), txn)
    db.close()
    return count * BULK_ROWS / timed.elapsed


def sqlite_w3(where: Path, count: int) -> float:
    """The fastest form for SQLite: one cursor row moves, without a row for each message."""
    db = sqlite_open(where)
    db.executescript(SQLITE_SCHEMA)
    sqlite_fill(db, count)
    db.execute("INSERT INTO cursors VALUES (1, 0)")
    done = 0
    with Seconds() as timed:
        while done < count:
            rows = db.execute(
                "SELECT partition, entry, txn, publish_time, value FROM messages "
                "WHERE partition = 0 AND entry >= ? ORDER BY entry LIMIT ?",
                (done, CONSUME_ROWS),
            ).fetchall()
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE cursors SET entry = ? WHERE subscription = 1", (rows[-1][1],))
            db.execute("INSERT INTO txns VALUES (?, 'COMMITTED', ?)", (count + done, _now_ms()))
            db.execute("COMMIT")
            done += len(rows)
    db.close()
    return count / timed.elapsed


def sqlite_w4(where: Path, count: int) -> float:
    db = sqlite_open(where)
    db.executescript(SQLITE_SCHEMA)
    sqlite_fill(db, count)
    with Seconds() as timed:
        rows = db.execute(
            "SELECT partition, entry, txn, publish_time, value FROM messages ORDER BY 1, 2"
        ).fetchall()
    if len(rows) != count:
        raise RuntimeError(f"read {len(rows)} of {count} messages")
    db.close()
    return count / timed.elapsed


# --- DuckDB ------------------------------------------------------------------------------------


def duckdb_w2(where: Path, count: int) -> float:
    table = pa.table(
        {
            "entry": pa.array(range(BULK_ROWS), pa.int64()),
            "value": pa.array(values(BULK_ROWS), pa.binary()),
        }
    )
    with duckdb.connect(str(where / "peer.duckdb")) as db:
        db.execute("CREATE TABLE messages (txn BIGINT, entry BIGINT, value BLOB)")
        db.register("batch", table)
        with Seconds() as timed:
            for txn in range(count):
                db.execute("BEGIN")
                db.execute("INSERT INTO messages SELECT ?, entry + ?, value FROM batch", [txn, txn])
                db.execute("COMMIT")
    return count * BULK_ROWS / timed.elapsed


# --- The store of the cold open ----------------------------------------------------------------


def cold_stores(where: Path, topics: int, messages: int) -> None:
    """Store `messages` in `topics`, the same in txlog (checkpointed) and in SQLite."""
    each = messages // topics
    rows = values(each)
    table = pa.table({"value": pa.array(rows, pa.binary())})
    with _store(where) as client:
        for number in range(topics):
            client.create_topic(f"topic-{number:04}")
            client.producer(f"topic-{number:04}").send_batch(table)
        client.checkpoint()
    db = sqlite_open(where)
    db.executescript(SQLITE_SCHEMA)
    for number in range(topics):
        _sqlite_append(db, number, 0, rows, number)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


WORKLOADS: dict[str, tuple[str, dict[str, Callable[[Path, int], float]]]] = {
    "W1": ("transactions/s, 2 x 10 messages + 10 acks", {"txlog": txlog_w1, "sqlite": sqlite_w1}),
    "W1t": (
        f"the same by {W1_THREADS} threads",
        {
            "txlog": partial(txlog_w1, threads=W1_THREADS),
            "sqlite": partial(sqlite_w1, threads=W1_THREADS),
        },
    ),
    "W2": (
        "messages/s produced, 10,000 a transaction, from Arrow",
        {"txlog": txlog_w2, "sqlite": sqlite_w2, "duckdb": duckdb_w2},
    ),
    "W3": (
        "messages/s consumed, 1,000 a batch and transaction",
        {"txlog": txlog_w3, "sqlite": sqlite_w3},
    ),
    "W4": ("messages/s read, no acknowledgement", {"txlog": txlog_w4, "sqlite": sqlite_w4}),
}
