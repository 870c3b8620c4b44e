"""Refunds of the real invoices that are paid 14 days later, replayed with a scaled clock.

    python examples/refunds.py                  the whole year, an event day at a time
    python examples/refunds.py 20000 --step 1   the first lines, an event hour at a time

Every line goes to one topic at the time of its invoice. A line with a negative quantity is a
refund, and is delivered 14 days after that time; all others at once. The clock of the store follows
the events, a step at a time: a year passes in seconds. After each step one shared subscription
receives all due messages, and the program compares them with the file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import txlog
from txlog import Consumer
from txlog.clock import ManualClock

DATA = Path(__file__).resolve().parent.parent / "data" / "online-retail.parquet"
HOUR_MS = 3_600_000
DELAY_MS = 14 * 24 * HOUR_MS
INSTANT = pa.timestamp("ms", "UTC")
TOPIC, SUBSCRIPTION = "lines", "payments"


def lines(limit: int | None = None) -> pa.Table:
    """The file as messages: value, event_time, and deliver_at for refunds."""
    table = pq.read_table(DATA)
    table = table if limit is None else table.slice(0, limit)
    at = pc.strptime(table["InvoiceDate"], "%Y-%m-%d %H:%M:%S", "ms").cast(INSTANT)
    is_refund = pc.less(table["Quantity"].cast(pa.int64()), 0)
    due = pc.add(at, pa.scalar(DELAY_MS, pa.duration("ms")))
    number = pa.array(range(table.num_rows)).cast(pa.string())
    names = ("InvoiceNo", "StockCode", "Quantity", "UnitPrice")
    value = pc.binary_join_element_wise(number, *(table[name] for name in names), " ")
    return pa.table(
        {
            "value": value.cast(pa.binary()),
            "event_time": at,
            "deliver_at": pc.if_else(is_refund, due, pa.scalar(None, INSTANT)),
        }
    )


@dataclass
class Replay:
    """The messages of the subscription: when, by the clock of the store, and how often."""

    got: Counter[bytes] = field(default_factory=Counter)
    early: int = 0
    late_ms: int = 0  # the longest delay of a message after its time
    refunds: int = 0
    waiting: int = 0  # refunds that were not due yet when the last line had been sent
    rows_read: int = 0
    row_groups_decoded: int = 0

    def take(self, consumer: Consumer, now_ms: int) -> None:
        """Receive and acknowledge all due messages."""
        while (table := consumer.receive_batch(10_000)).num_rows:
            consumer.acknowledge(table)
            self.got.update(table["value"].to_pylist())
            due = pc.coalesce(table["deliver_at"], table["event_time"]).cast(pa.int64())
            first, last = pc.min(due).as_py(), pc.max(due).as_py()
            self.refunds += table.num_rows - table["deliver_at"].null_count
            self.early += 0 if last <= now_ms else pc.sum(pc.greater(due, now_ms)).as_py()
            self.late_ms = max(self.late_ms, now_ms - first)


def replay(folder: str, table: pa.Table, step_ms: int, restart_steps: int = 0) -> Replay:
    """Send and receive the whole file, a step of event time at a time.

    restart_steps: after so many steps, seal all ledgers and open the store again; 0: never
    """
    times = table["event_time"].cast(pa.int64()).to_pylist()
    refunds = table.num_rows - table["deliver_at"].null_count
    clock, seen = ManualClock(times[0]), Replay()
    txlog.init(folder, clock=clock, durability="os")
    client = txlog.open(folder, clock=clock)
    client.create_topic(TOPIC)
    client.create_subscription(TOPIC, SUBSCRIPTION, type="shared")
    at = step = 0
    end_ms = times[-1] + DELAY_MS + step_ms
    while clock.now().wall_ms < end_ms:
        clock.advance(step_ms)
        now_ms, step = clock.now().wall_ms, step + 1
        stop = bisect_left(times, now_ms)
        if stop > at:
            client.producer(TOPIC).send_batch(table.slice(at, stop - at))
            at = stop
        with client.consumer(TOPIC, SUBSCRIPTION) as consumer:
            seen.take(consumer, now_ms)
        if at == len(times) and not seen.waiting:
            seen.waiting = refunds - seen.refunds
        if restart_steps and step % restart_steps == 0:
            client.checkpoint(roll_all=True)  # from here on the sent messages are in sealed files
            _count(seen, client)
            client.close()
            client = txlog.open(folder, clock=clock)
    _count(seen, client)
    client.close()
    return seen


def _count(seen: Replay, client: txlog.Client) -> None:
    reading = client.reading()
    seen.rows_read += reading["rows_read"]
    seen.row_groups_decoded += reading["row_groups_decoded"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay the file and print what happened; exit code 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=int, nargs="?", help="only the first so many")
    parser.add_argument("--step", type=int, default=24, help="hours of event time a step")
    given = parser.parse_args(arguments)
    table = lines(given.lines)
    with tempfile.TemporaryDirectory() as folder:
        seen = replay(folder, table, given.step * HOUR_MS, restart_steps=50)
    refunds = table.num_rows - table["deliver_at"].null_count
    is_exact = seen.got == Counter(table["value"].to_pylist())
    for name, value in (
        ("lines sent", table.num_rows),
        ("lines received", sum(seen.got.values())),
        ("refunds", refunds),
        ("refunds received", seen.refunds),
        ("refunds waiting behind the last line", seen.waiting),
        ("early", seen.early),
        ("latest, hours of event time", seen.late_ms // HOUR_MS),
        ("rows read", seen.rows_read),
        ("row groups decoded", seen.row_groups_decoded),
        ("each line exactly once", "yes" if is_exact else "NO"),
    ):
        sys.stdout.write(f"{name:40}{value:>12}\n")
    sys.exit(0 if is_exact and not seen.early else 1)


if __name__ == "__main__":
    main()
