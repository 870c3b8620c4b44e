"""What delayed messages cost: adding, opening, finding due messages, reading past the others.

    python -m bench delayed               10,000,000 messages over 30 days, minutes
    python -m bench delayed --messages 200000 --rounds 1
    python -m bench delayed --results     also into bench/RESULTS.md

The peer of a cold open replays the log into a heap, as a broker without an index does. It reads
only the time column, and builds the heap at once instead of pushing. The clock does not move. A
process of its own opens each store or log; the page cache is warm for both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
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
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.folds import delayed as fold
from txlog.engine.model.ops import Appended
from txlog.engine.upkeep.delayed import buckets as delayed

HERE = Path(__file__).resolve().parent
HEADING = "## Delayed messages"
START_MS = 1_800_000_000_000
DAY_MS = 86_400_000
DAYS = 30
FRAME_ROWS = 10_000
VALUE_BYTES = 60
INSTANT = pa.timestamp("ms", "UTC")
Figures = dict[str, float]

# Runs in a process of its own, so that first calls have their full cost.
CHILD = """
import heapq, json, resource, sys, time
from itertools import islice
import pyarrow as pa
import txlog
from txlog.clock import ManualClock
from txlog.engine.plan.delayed.index import index_of_partition
from txlog.engine.plan.delayed.index import FAR

path, what, start_ms, cutoff_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

import txlog.client.client, txlog.engine.store.store, pyarrow.parquet, pyarrow.compute
out = {{}}
before, began = memory(), time.perf_counter()
client = txlog.open(path, clock=ManualClock(start_ms))
out["open_s"] = time.perf_counter() - began
def number(view):
    [topic] = view.catalog.topics.values()
    return topic.number, next(iter(txlog.engine.folds.catalog.numbers(topic)))
_, partition = client.store.read(number)

def index(view):
    began = time.perf_counter()
    table = index_of_partition(view, partition, start_ms)
    out["next"] = table.next_key()
    out["next_s"] = time.perf_counter() - began
    out["next_memory"] = memory() - before
    began = time.perf_counter()
    [subscription] = view.catalog.subscriptions
    futures, away = table.futures(view.cursor(subscription, partition), (0, -1, 0), make_do=False)
    out["bitmaps_s"] = time.perf_counter() - began
    out["bitmaps_memory"] = memory() - before
    began = time.perf_counter()
    table = index_of_partition(view, partition, cutoff_ms)
    out["advance_s"] = time.perf_counter() - began
    key, popped, began = (start_ms, FAR, 0, 0), 0, time.perf_counter()
    while popped < {pops}:
        found = list(islice(table.poll(key, (FAR, 0, 0)), 1000))
        if not found:
            break
        key = found[-1]
        popped += len(found)
    out["pop_s"], out["popped"] = time.perf_counter() - began, popped
    out["pop_memory"] = memory() - before

def replay(view):
    began = time.perf_counter()
    heap = []
    for end in view.topic(partition).ledgers:
        if not end.entries:
            continue
        at = 0
        for table in view.rows([(end.ledger, 0, end.entries)], ["deliver_at"]):
            times = table.column(0).cast(pa.int64()).to_pylist()
            heap += [
                (due, end.ledger, entry, 0) for entry, due in enumerate(times, at)
                if due is not None and due > start_ms
            ]
            at += len(times)
    heapq.heapify(heap)
    out["next"] = heap[0]
    out["replay_s"] = time.perf_counter() - began
    out["replay_memory"] = memory() - before

client.store.read(index if what == "index" else replay)
print(json.dumps(out))
"""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def rows(rng: random.Random, count: int, *, is_delayed: bool = True) -> pa.Table:
    """Messages with random times within DAYS."""
    data = rng.randbytes(count * VALUE_BYTES)
    ends = array("i", range(0, (count + 1) * VALUE_BYTES, VALUE_BYTES))
    values = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    if not is_delayed:
        return pa.table({"value": values})
    span = DAYS * DAY_MS
    times = array("q", [START_MS + 1 + int(rng.random() * span) for _ in range(count)])
    at = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(times)]).cast(INSTANT)
    return pa.table({"value": values, "deliver_at": at})


def new_client(path: Path) -> Client:
    """A client of a new store with a topic and a shared subscription; its clock does not move."""
    shutil.rmtree(path, ignore_errors=True)
    clock = ManualClock(START_MS)
    txlog.init(str(path), clock=clock, durability="os")
    client = txlog.open(str(path), clock=clock)
    client.create_topic("t")
    client.create_subscription("t", "s", type="shared")
    return client


def fill(path: Path, messages: int) -> Figures:
    """Send all messages; returns the seconds, the counts of bucket work, and buckets' bytes."""
    client = new_client(path)
    rng, sent, slowest, began = random.Random(1), 0, 0.0, time.perf_counter()
    producer = client.producer("t")
    spent = 0.0
    while sent < messages:
        table = rows(rng, min(FRAME_ROWS, messages - sent))
        at = time.perf_counter()
        producer.send_batch(table)
        took = time.perf_counter() - at
        spent, slowest, sent = spent + took, max(slowest, took), sent + table.num_rows
    client.checkpoint(roll_all=True)
    ops = client.store.bucket_ops
    out: Figures = {"send_s": spent, "slowest_s": slowest, "total_s": time.perf_counter() - began}
    for kind in ("seal", "merge", "prune"):
        out[f"{kind}s"] = ops.counts[(kind, "succeeded")]
        out[f"{kind}_s"] = ops.seconds.get(kind, 0.0)
    client.close()
    files = list(path.glob("topics/**/_delayed/*.parquet"))
    out["buckets"], out["bytes"] = len(files), sum(file.stat().st_size for file in files)
    return out


def child(path: Path, what: str, cutoff_ms: int, pops: int) -> dict[str, Any]:
    """Run CHILD in a new process; what: index or replay. Returns the figures that it prints."""
    script = CHILD.format(pops=pops)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), what, str(START_MS), str(cutoff_ms)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def adding_to_the_index(batch: int, total: int) -> float:
    """The fold's seconds for each message of an op with `batch` messages."""
    state, rng = fold.Delayed(), random.Random(2)
    ops = []
    for first in range(0, total, batch):
        times = array("q", [START_MS + 1 + rng.randrange(DAYS * DAY_MS) for _ in range(batch)])
        ops.append(Appended(1, 7, first, batch, 0, None, -1, times=times.tobytes()))
    began = time.perf_counter()
    for lsn, op in enumerate(ops):
        fold.apply(state, lsn, START_MS, op)
    assert len(state.mutable) == total
    return (time.perf_counter() - began) / total


def sending(path: Path, batch: int, total: int, *, is_delayed: bool) -> float:
    """The seconds for each message of a send with `batch` messages, delayed or not."""
    client = new_client(path)
    client.checkpoint_automatically = False
    producer, rng = client.producer("t"), random.Random(3)
    tables = [rows(rng, batch, is_delayed=is_delayed) for _ in range(total // batch)]
    began = time.perf_counter()
    for table in tables:
        producer.send_batch(table)
    spent = time.perf_counter() - began
    client.close()
    return spent / total


def amplification(path: Path, delayed: int, immediate: int) -> Figures:
    """The rows that a consumer reads to find a few immediate messages among many delayed ones."""
    client = new_client(path)
    producer, rng = client.producer("t"), random.Random(4)
    left, gap = delayed, delayed // immediate
    for _ in range(immediate):
        count = min(gap, left)
        for at in range(0, count, FRAME_ROWS):
            producer.send_batch(rows(rng, min(FRAME_ROWS, count - at)))
        left -= count
        producer.send(b"now")
    client.checkpoint(roll_all=True)
    client.close()
    client = txlog.open(str(path), clock=ManualClock(START_MS))
    began = time.perf_counter()
    with client.consumer("t", "s") as consumer:
        table = consumer.receive_batch(1000)
        spent = time.perf_counter() - began
        assert table.num_rows == immediate, table.num_rows
        assert consumer.receive_batch(1000).num_rows == 0
        began = time.perf_counter()
        consumer.receive_batch(1000)
        idle = time.perf_counter() - began
    read = client.reading()
    client.close()
    return {
        "rows_read": read["rows_read"],
        "row_groups": read["row_groups_decoded"],
        "receive_s": spent,
        "idle_s": idle,
    }


def delivering(path: Path, at_ms: int, most: int) -> Figures:
    """Receive and acknowledge up to `most` messages that fall due before the read position."""
    clock = ManualClock(START_MS)
    client = txlog.open(str(path), clock=clock)
    with client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(1000).num_rows == 0
        clock.set_wall(at_ms)
        before, count, began = client.reading(), 0, time.perf_counter()
        while count < most and (table := consumer.receive_batch(1000)).num_rows:
            consumer.acknowledge(table)
            count += table.num_rows
        spent = time.perf_counter() - began
    after = client.reading()
    client.close()
    return {
        "count": count,
        "seconds": spent,
        "rows_read": after["rows_read"] - before["rows_read"],
        "row_groups": after["row_groups_decoded"] - before["row_groups_decoded"],
    }


def merging(path: Path, ids: int) -> Figures:
    """Seal and merge two buckets of `ids` ids while another process sends; returns the seconds."""
    client = new_client(path)
    store, rng = client.store, random.Random(5)
    producer = client.producer("t")
    for _ in range(2 * ids // FRAME_ROWS):
        producer.send_batch(rows(rng, FRAME_ROWS))
    number = store.read(lambda view: next(iter(view.catalog.topics.values())).number)
    beside = subprocess.Popen(
        [sys.executable, "-c", BESIDE, str(path), str(START_MS)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert beside.stdout is not None
    beside.stdout.readline()
    time.sleep(1)
    assert beside.stdin is not None
    beside.stdin.write("merge\n")
    beside.stdin.flush()
    delayed.merge_now(store, number, 1)
    out, _ = beside.communicate("end\n")
    ops = store.bucket_ops
    waits = json.loads(out)
    client.close()
    return {
        "seal_s": ops.seconds.get("seal", 0.0) / max(1, ops.counts[("seal", "succeeded")]),
        "merge_s": ops.seconds.get("merge", 0.0),
        "quiet_s": waits[0],
        "beside_s": waits[1],
    }


BESIDE = """
import json, sys, time, threading
import txlog
from txlog.clock import ManualClock
client = txlog.open(sys.argv[1], clock=ManualClock(int(sys.argv[2])))
client.checkpoint_automatically = False
producer, waits, phase, is_over = client.producer("t"), [0.0, 0.0], [0], []
def listen():
    sys.stdin.readline()
    phase[0] = 1
    sys.stdin.readline()
    is_over.append(1)
threading.Thread(target=listen, daemon=True).start()
producer.send(b"first")
print("ready", flush=True)
while not is_over:
    began = time.perf_counter()
    producer.send(b"x")
    waits[phase[0]] = max(waits[phase[0]], time.perf_counter() - began)
    time.sleep(0.002)
print(json.dumps(waits))
"""


def median(rounds: int, look: Callable[[], float]) -> float:
    """The median of what `look` returns in each round."""
    return statistics.median(look() for _ in range(rounds))


def measure(work: Path, messages: int, rounds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table: what, target, figure."""
    small = min(messages, 200_000)
    for batch, target in ((20, "≤ 0.5 us"), (1, "≤ 5 us")):
        cost = median(max(3, rounds), lambda batch=batch: adding_to_the_index(batch, small))
        yield f"add to the index, {batch} a frame, a message", target, f"{cost * 1e6:.2f} us"
    for batch, total in ((20, small), (1, small // 10), (FRAME_ROWS, 5 * small)):
        pair = [
            median(
                rounds,
                lambda b=batch, t=total, d=is_delayed: sending(work / "send", b, t, is_delayed=d),
            )
            for is_delayed in (False, True)
        ]
        yield (
            f"send, {batch:,} a frame, a message: immediate, delayed",
            "",
            f"{pair[0] * 1e6:.2f} us, {pair[1] * 1e6:.2f} us",
        )
    store = work / "store"
    made = fill(store, messages)
    yield (
        "send all of them, upkeep included, a message",
        "",
        f"{made['send_s'] / messages * 1e6:.2f} us",
    )
    yield (
        "buckets; bytes of them a message",
        "",
        f"{made['buckets']:.0f}; {made['bytes'] / messages:.1f}",
    )
    yield (
        "seals, seconds each; merges, seconds each",
        "≤ 1 s each",
        "; ".join(
            f"{made[f'{kind}s']:.0f}, {made[f'{kind}_s'] / max(1, made[f'{kind}s']):.2f}"
            for kind in ("seal", "merge")
        ),
    )
    cutoff = START_MS + DAYS * DAY_MS // 2
    pops = min(1_000_000, messages // 4)
    found = [child(store, "index", cutoff, pops) for _ in range(max(3, rounds))]
    replayed = [child(store, "replay", cutoff, pops) for _ in range(rounds)]
    assert found[0]["next"] == replayed[0]["next"]

    def of(name: str, runs: list[dict[str, Any]]) -> float:
        return statistics.median(run[name] for run in runs)

    cold, replay = of("next_s", found), of("replay_s", replayed)
    yield "open the store (both)", "", f"{of('open_s', found) * 1e3:.1f} ms"
    yield "first due time, from footers", "≤ 1 % of the replay", f"{cold * 1e3:.1f} ms"
    yield "first due time, replay of the log into a heap", "", f"{replay * 1e3:,.0f} ms"
    yield "the former of the latter", "≤ 1 %", f"{cold / replay:.2%}"
    whole = (of("open_s", found) + cold) / (of("open_s", replayed) + replay)
    yield "… with the opening of the store", "", f"{whole:.2%}"
    yield "all bitmaps", "≤ 100 ms", f"{of('bitmaps_s', found) * 1e3:.1f} ms"
    yield "move the cutoff by 15 days", "", f"{of('advance_s', found) * 1e3:.1f} ms"
    yield (
        "pop, batches of 1,000, an id",
        "≤ 2 us",
        f"{of('pop_s', found) / max(1, of('popped', found)) * 1e6:.2f} us",
    )
    for name, what in (
        ("next", "after the first due time"),
        ("bitmaps", "with all bitmaps"),
        ("pop", "after popping"),
    ):
        target = "≤ 50 MB" if name == "bitmaps" else ""
        size = of(f"{name}_memory", found)
        yield f"memory {what}", target, f"{size / 1e6:.0f} MB, {size / messages:.1f} B a message"
    size = of("replay_memory", replayed)
    yield "memory of the heap", "", f"{size / 1e6:,.0f} MB, {size / messages:.0f} B a message"
    due = delivering(store, START_MS + DAY_MS, 20_000)
    yield (
        f"receive and acknowledge {due['count']:,.0f} due messages, 1,000 at a time, each",
        "",
        f"{due['seconds'] / max(1, due['count']) * 1e6:.1f} us, {due['rows_read']:,.0f} rows read, "
        f"{due['row_groups']:,.0f} row groups decoded",
    )
    shutil.rmtree(store)
    among = min(1_000_000, messages)
    for immediate in (2, 100):
        read = amplification(work / "among", among, immediate)
        yield (
            f"{immediate} immediate among {among:,} delayed",
            f"{immediate} rows read",
            f"{read['rows_read']:.0f} rows read, {read['row_groups']:.0f} row groups, "
            f"{read['receive_s'] * 1e3:.1f} ms; idle {read['idle_s'] * 1e3:.2f} ms",
        )
    ids = min(500_000, messages // 2)
    both = merging(work / "merge", ids)
    yield (
        f"seal {ids:,} ids; merge two such",
        "≤ 1 s each",
        f"{both['seal_s']:.2f} s; {both['merge_s']:.2f} s",
    )
    yield (
        "longest single send of another process: alone, beside the merge",
        "no producer waits",
        f"{both['quiet_s'] * 1e3:.1f} ms, {both['beside_s'] * 1e3:.1f} ms",
    )


def section(found: list[tuple[str, str, str]], messages: int) -> list[str]:
    """The figures as the lines of a section of RESULTS.md."""
    return [
        f"{messages:,} messages of {VALUE_BYTES} bytes, due at random over {DAYS} days; "
        f"{command()}; Python "
        f"{platform.python_version()}, pyarrow {pa.__version__}.",
        "",
        "| what | target | figure |",
        "|---|---|---:|",
        *(f"| {what} | {target} | {figure} |" for what, target, figure in found),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=HERE / ".work")
    parser.add_argument("--results", action="store_true", help="write into bench/RESULTS.md")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    found: list[tuple[str, str, str]] = []
    try:
        for row in measure(given.work, given.messages, given.rounds):
            found.append(row)
            say(f"{row[0]:66} {row[1]:20} {row[2]}")
    finally:
        shutil.rmtree(given.work, ignore_errors=True)
    if given.results:
        put(HEADING, section(found, given.messages))
