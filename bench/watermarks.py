"""What event-time watermarks cost: asserting, finding a value anywhere, acknowledging.

    python -m bench watermarks               10,000,000 messages, minutes
    python -m bench watermarks --messages 200000 --markers 200 --rounds 1
    python -m bench watermarks --results     also into bench/RESULTS.md

After each thousandth message a producer asserts a watermark, which is a row of the log. The peer is
a SQLite table of these rows with an index by producer and position; its query takes the least of
the producers' latest rows. Both answer for the same positions. Stores have durability `os` unless a
line says flushed. A process of its own opens each cold store; the page cache is warm for both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from bench.results import command, put
from txlog.base.ids import MessageId
from txlog.client.client import Client
from txlog.engine.folds.catalog import numbers, topic_of
from txlog.engine.plan.reading.watermarks import WatermarkGenerator

HERE = Path(__file__).resolve().parent
HEADING = "## Watermarks"
START_MS = 1_800_000_000_000
PRODUCERS = 20
VALUE_BYTES = 60
INSTANT = pa.timestamp("ms", "UTC")
Place = tuple[int, int]

# Runs in a process of its own, so that first calls have their full cost.
COLD = """
import json, sys, time
import txlog, txlog.client.client, txlog.engine.store.store, pyarrow.parquet, pyarrow.compute
began = time.perf_counter()
client = txlog.open(sys.argv[1])
opened = time.perf_counter()
with client.consumer("t", "s", enable_watermarking=True) as consumer:
    rows = consumer.receive_batch(1).num_rows
    value = consumer.get_last_watermark()
    done = time.perf_counter()
assert not rows and value is not None, (rows, value)
read = client.reading()
print(json.dumps({"open_s": opened - began, "value_s": done - opened, "value": value.event_time,
                  "rows": read["rows_read"], "groups": read["row_groups_decoded"]}))
"""
COLD_PEER = """
import json, sys, time
import sqlite3
began = time.perf_counter()
db = sqlite3.connect(sys.argv[1])
(value,) = db.execute(sys.argv[2], {"place": int(sys.argv[3])}).fetchone()
print(json.dumps({"value_s": time.perf_counter() - began, "value": value}))
"""
PEER = """
SELECT min((SELECT event_time FROM watermarks
            WHERE producer = known.producer AND place <= :place ORDER BY place DESC LIMIT 1))
FROM (SELECT DISTINCT producer FROM watermarks WHERE place <= :place) AS known
"""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def new_client(path: Path, partitions: int = 1, **settings: int | str) -> Client:
    """A store with a topic, and a client that writes no checkpoint in the middle of a figure."""
    shutil.rmtree(path, ignore_errors=True)
    given: dict[str, Any] = {"durability": "os", **settings}
    txlog.init(str(path), **given)
    client = txlog.open(str(path))
    client.create_topic("t", partitions)
    client.checkpoint_automatically = False
    return client


def rows(rng: random.Random, count: int, first_ms: int) -> pa.Table:
    """Messages with an event time each, a millisecond apart."""
    data = rng.randbytes(count * VALUE_BYTES)
    ends = array("i", range(0, (count + 1) * VALUE_BYTES, VALUE_BYTES))
    values = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    times = array("q", range(first_ms, first_ms + count))
    at = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(times)]).cast(INSTANT)
    return pa.table({"value": values, "event_time": at})


def median(rounds: int, look: Callable[[], float]) -> float:
    """The median of what `look` returns in each round."""
    return statistics.median(look() for _ in range(rounds))


# --- asserting -------------------------------------------------------------------------------


def asserting(path: Path, partitions: int, total: int, durability: str) -> tuple[float, float]:
    """The seconds of a send and of a watermark, in turns."""
    client = new_client(path, partitions, durability=durability)
    producer = client.producer("t", name="A")
    [table] = [rows(random.Random(1), 1, START_MS)]
    spent = [0.0, 0.0]
    for step in range(total):
        began = time.perf_counter()
        producer.send_batch(table)
        between = time.perf_counter()
        producer.new_watermark().event_time(START_MS + step).send()
        spent[1] += time.perf_counter() - between
        spent[0] += between - began
    client.close()
    return spent[0] / total, spent[1] / total


def committing(path: Path, partitions: int, total: int) -> tuple[float, float]:
    """The seconds of a transaction of ten messages, without and with a watermark, in turns."""
    client = new_client(path, partitions)
    producer = client.producer("t", name="A")
    table = rows(random.Random(2), 10, START_MS)
    spent = [0.0, 0.0]
    for step in range(2 * total):
        began = time.perf_counter()
        with client.transaction() as txn:
            producer.send_batch(table, txn=txn)
            if step % 2:
                producer.new_watermark(txn).event_time(START_MS + step).send()
        spent[step % 2] += time.perf_counter() - began
    client.close()
    return spent[0] / total, spent[1] / total


# --- a long log ------------------------------------------------------------------------------


def fill(path: Path, messages: int, markers: int) -> list[tuple[Place, str, int]]:
    """Send all messages; returns (position, producer, event time) of each watermark row."""
    client = new_client(path)
    client.create_subscription("t", "s")
    client.checkpoint_automatically = True
    rng, batch, found = random.Random(3), messages // markers, []
    producers = [client.producer("t", name=f"till-{number}") for number in range(PRODUCERS)]
    for step in range(markers):
        producer = producers[rng.randrange(PRODUCERS)]
        producer.send_batch(rows(rng, batch, START_MS + step * batch))
        placed = producer.new_watermark().event_time(START_MS + step * batch).send()
        place = placed.positions[0]
        found.append(
            ((place.ledger, place.entry), str(producer.producer_name), START_MS + step * batch)
        )
    client.checkpoint(roll_all=True)
    client.close()
    return found


def shares(path: Path) -> tuple[int, float, int]:
    """(number of snapshots, their share of the partition's bytes, number of ledgers)."""
    client = txlog.open(str(path))

    def look(view: Any) -> tuple[int, float, int]:
        [number] = numbers(topic_of(view.catalog, 1))
        figures, ledgers = view.watermark(number).figures, view.topic(number).ledgers
        size = sum(end.payload_bytes for end in ledgers)
        return figures.snapshots, figures.snapshot_bytes / size, len(ledgers)

    found = client.store.read(look)
    client.close()
    return found


def seeking(path: Path, places: list[Place]) -> list[tuple[int | None, int, float]]:
    """For each position (watermark, rows read, seconds), by a new generator each."""
    client = txlog.open(str(path))
    found = []
    for place in places:

        def look(view: Any, place: Place = place) -> tuple[int | None, int, float]:
            [number] = numbers(topic_of(view.catalog, 1))
            generator = WatermarkGenerator(number)
            began = time.perf_counter()
            generator.seek(view, place)
            spent = time.perf_counter() - began
            return generator.get_watermark(), generator.rows_folded, spent

        found.append(client.store.read(look))
    client.close()
    return found


def make_peer(path: Path, known: list[tuple[Place, str, int]]) -> None:
    """The rows in SQLite, with an index that serves the question."""
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE watermarks (place INTEGER PRIMARY KEY, producer TEXT, event_time INT)")
    db.executemany(
        "INSERT INTO watermarks VALUES (?, ?, ?)",
        [(flat(place), producer, at) for place, producer, at in known],
    )
    db.execute("CREATE INDEX by_producer ON watermarks (producer, place, event_time)")
    db.commit()
    db.execute("ANALYZE")
    db.close()


def flat(place: Place) -> int:
    """A position as one number."""
    return place[0] << 32 | place[1]


def asking_peer(path: Path, places: list[Place]) -> list[tuple[int | None, float]]:
    """For each position (watermark, seconds). The statement is prepared once."""
    db = sqlite3.connect(path)
    found = []
    for place in places:
        began = time.perf_counter()
        (value,) = db.execute(PEER, {"place": flat(place)}).fetchone()
        found.append((value, time.perf_counter() - began))
    db.close()
    return found


def fastest(passes: list[list[Any]]) -> list[Any]:
    """The fastest pass for each position, so that other programs do not count."""
    return [min(of, key=lambda one: one[-1]) for of in zip(*passes, strict=True)]


def places_of(path: Path, count: int, seed: int) -> list[Place]:
    """Random places of the partition."""
    client = txlog.open(str(path))

    def look(view: Any) -> list[tuple[int, int]]:
        [number] = numbers(topic_of(view.catalog, 1))
        return [(end.ledger, end.entries) for end in view.topic(number).ledgers if end.entries]

    ledgers = client.store.read(look)
    client.close()
    rng, total = random.Random(seed), sum(entries for _, entries in ledgers)
    found = []
    for _ in range(count):
        at = rng.randrange(total // 100, total)
        for ledger, entries in ledgers:
            if at < entries:
                found.append((ledger, at))
                break
            at -= entries
    return found


def child(script: str, *given: str) -> dict[str, Any]:
    """Run a script in a process of its own; returns the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *given], capture_output=True, text=True, env=dict(os.environ)
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cold(path: Path, peer: Path, place: Place) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of COLD for a consumer at a position, and of COLD_PEER for the same position."""
    client = txlog.open(str(path))
    client.subscription("t", "s").seek(MessageId(*place))
    standing = client.store.read(
        lambda view: view.cursor(next(iter(view.catalog.subscriptions)), 1).mark_delete
    )
    client.close()
    return child(COLD, str(path)), child(COLD_PEER, str(peer), PEER, str(flat(standing[:2])))


# --- consuming -------------------------------------------------------------------------------


def acknowledging(path: Path, total: int, every: int, batch: int) -> list[float]:
    """Seconds to receive and acknowledge a message, on three topics in turn.

    The first has no watermarks, the second one at its start, the third one after `every` messages.
    """
    client = new_client(path)
    rng = random.Random(4)
    consumers = []
    for name, has_rows in (("plain", False), ("quiet", False), ("marked", True)):
        client.create_topic(name)
        producer = client.producer(name, name="A")
        if name != "plain":
            producer.new_watermark().event_time(START_MS).send()
        for first in range(0, total, every):
            producer.send_batch(rows(rng, every, START_MS + first))
            if has_rows:
                producer.new_watermark().event_time(START_MS + first + every).send()
        consumers.append(
            client.consumer(name, "s", create=True, enable_watermarking=name != "plain")
        )
    spent, counts = [0.0] * 3, [0] * 3
    while min(counts) < total:
        for at, consumer in enumerate(consumers):
            began = time.perf_counter()
            taken = 0
            while taken < every and counts[at] + taken < total:
                table = consumer.receive_batch(batch)
                if table.num_rows:
                    consumer.acknowledge(table)
                taken += table.num_rows
            counts[at] += taken
            spent[at] += time.perf_counter() - began
    for consumer in consumers:
        consumer.close()
    client.close()
    return [one / total for one in spent]


def offering(path: Path, partitions: int, calls: int, *, beside: bool = False) -> float:
    """The seconds to find that no watermark moved; beside: write to another topic before each."""
    client = new_client(path, partitions)
    client.producer("t", name="A").new_watermark().event_time(START_MS).send()
    with client.consumer("t", "s", create=True, enable_watermarking=True) as consumer:
        assert consumer.receive_batch().num_rows == 0
        session = consumer._session
        assert session is not None and session.last is not None and not session.moved()
        if beside:
            client.create_topic("other")
            other, spent = client.producer("other"), 0.0
            for _ in range(calls):
                other.send(b"x")
                began = time.perf_counter()
                session.moved()
                spent += time.perf_counter() - began
        else:
            began = time.perf_counter()
            for _ in range(calls):
                session.moved()
            spent = time.perf_counter() - began
    client.close()
    return spent / calls


def only_watermarks(path: Path, producers: int, total: int) -> tuple[int, float]:
    """Snapshots and their share of the bytes, with many producers and small messages."""
    client = new_client(path, watermark_producers_max=0)
    rng = random.Random(5)
    known = [client.producer("t", name=f"sensor-{number:05}") for number in range(producers)]
    for step in range(total):
        producer = known[step % producers]
        producer.send_batch(rows(rng, 10, START_MS + step))
        producer.new_watermark().event_time(START_MS + step).send()
    client.close()
    count, share, _ = shares(path)
    return count, share


# --- all of it -------------------------------------------------------------------------------


def us(seconds: float) -> str:
    """A figure in microseconds."""
    return f"{seconds * 1e6:,.1f} us"


def measure(work: Path, messages: int, markers: int, rounds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table: what, target, figure."""
    small = min(5_000, max(50, messages // 2_000))
    for durability, count in (("os", small), ("sync", max(20, small // 5))):
        for partitions in (1, 8):
            pairs = [
                asserting(work / "assert", partitions, count, durability) for _ in range(rounds)
            ]
            sent, marked = (statistics.median(one) for one in zip(*pairs, strict=True))
            yield (
                f"send one message; a watermark on {partitions} partitions"
                f"{', both flushed' if durability == 'sync' else ''}",
                "",
                f"{us(sent)}; {us(marked)}",
            )
    for partitions in (1, 8):
        pairs = [committing(work / "commit", partitions, small) for _ in range(rounds)]
        plain, with_mark = (statistics.median(one) for one in zip(*pairs, strict=True))
        yield (
            f"transaction of 10 messages on {partitions} partitions; with a watermark in it",
            "",
            f"{us(plain)}; {us(with_mark)}",
        )
    for partitions in (1, 8):
        cost = median(
            max(3, rounds),
            lambda count=partitions: offering(work / "offer", count, 10 * small),
        )
        target = "≤ 2 us" if partitions == 1 else ""
        yield f"offer when nothing moved, {partitions} partitions", target, f"{cost * 1e6:.2f} us"
        cost = median(
            max(3, rounds),
            lambda count=partitions: offering(work / "offer", count, small, beside=True),
        )
        yield "… when another topic was written to", "", f"{cost * 1e6:.2f} us"
    for batch, count in ((1, small), (100, 20 * small)):
        every = min(1_000, count)
        runs = [acknowledging(work / "ack", count, every, batch) for _ in range(rounds)]
        plain, quiet, moving = (statistics.median(one) for one in zip(*runs, strict=True))
        yield (
            f"receive and acknowledge {batch} at a time, a message: without; "
            f"with; with one each {every:,}",
            "",
            f"{us(plain)}; {us(quiet)}; {us(moving)}",
        )
    yield from long_log(work, messages, markers, rounds)
    for producers in (20, min(2_000, messages // 100)):
        count, share = only_watermarks(work / "share", producers, max(4 * producers, 2 * small))
        yield (
            f"snapshots and their share, {producers:,} producers, 10 messages each time",
            "≤ 10 %",
            f"{count:,}; {share:.2%}",
        )


def long_log(
    work: Path, messages: int, markers: int, rounds: int
) -> Iterator[tuple[str, str, str]]:
    """The value at random places of a long log, and of one full of markers."""
    store, peer = work / "store", work / "peer.sqlite"
    places_count = 200
    dense = messages // 10
    for name, count, of in (
        ("", messages, markers),
        (f", a marker each 10 of {dense:,} messages", dense, dense // 10),
    ):
        known = fill(store, count, of)
        make_peer(peer, known)
        count, share, ledgers = shares(store)
        yield (
            f"snapshots; share of the bytes; ledgers{name}",
            "≤ 10 %",
            f"{count:,}; {share:.3%}; {ledgers}",
        )
        places = places_of(store, places_count, seed=6)
        found = fastest([seeking(store, places) for _ in range(rounds)])
        asked = fastest([asking_peer(peer, places) for _ in range(rounds)])
        assert [one[0] for one in found] == [one[0] for one in asked]
        read = [one[1] for one in found]
        yield (
            f"value at {places_count} random places, rows read: median, most{name}",
            "≤ 1,001",
            f"{statistics.median(read):,.0f}, {max(read):,}",
        )
        for what, of in (("", found), (" of the peer", asked)):
            spent = sorted(one[-1] for one in of)
            yield (
                f"… milliseconds{what}, fastest of {rounds}: median, most",
                "" if what else "≤ 20 ms",
                f"{statistics.median(spent) * 1e3:.2f}, {spent[-1] * 1e3:.2f}",
            )
        pairs = [cold(store, peer, place) for place in places[: 3 * rounds]]
        assert all(ours["value"] == theirs["value"] for ours, theirs in pairs)
        opened, first, rows_read, groups = (
            statistics.median(one[0][what] for one in pairs)
            for what in ("open_s", "value_s", "rows", "groups")
        )
        yield (
            "first value of a consumer in a new process: open the store",
            "",
            (f"{opened * 1e3:.1f} ms"),
        )
        yield (
            "… then attach and be handed it, rows read, row groups decoded",
            "≤ 20 ms",
            f"{first * 1e3:.1f} ms, {rows_read:,.0f}, {groups:.0f}",
        )
        theirs = statistics.median(one[1]["value_s"] for one in pairs)
        yield "… the peer, opened and asked", "", f"{theirs * 1e3:.1f} ms"
        shutil.rmtree(store)


def section(found: list[tuple[str, str, str]], messages: int, markers: int) -> list[str]:
    """The figures as the lines of a section of RESULTS.md."""
    return [
        f"{messages:,} messages of {VALUE_BYTES} bytes, {markers:,} watermark rows of {PRODUCERS} "
        f"producers; {command()}; Python "
        f"{platform.python_version()}, pyarrow {pa.__version__}, SQLite {sqlite3.sqlite_version}. "
        "The peer is a SQLite table of the watermark rows alone, with an index.",
        "",
        "| what | target | figure |",
        "|---|---|---:|",
        *(f"| {what} | {target} | {figure} |" for what, target, figure in found),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--markers", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=HERE / ".work")
    parser.add_argument("--results", action="store_true", help="write into bench/RESULTS.md")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    found: list[tuple[str, str, str]] = []
    try:
        for row in measure(given.work, given.messages, given.markers, given.rounds):
            found.append(row)
            say(f"{row[0]:80} {row[1]:10} {row[2]}")
    finally:
        shutil.rmtree(given.work, ignore_errors=True)
    if given.results:
        put(HEADING, section(found, given.messages, given.markers))
