"""Owns a store for the tests of reports, with content for every section and a manual clock."""

from __future__ import annotations

import txlog
from txlog.base.settings import DAY_MS, HOUR_MS
from txlog.client.client import Client
from txlog.clock import ManualClock

START_MS = 1_795_132_800_000  # 2026-11-20, midnight in UTC
HOURS = 30
KEY = '<script>alert("k")</script>\u202eyek'  # of a transaction
LONG = "a-topic-with-a-rather-long-name-as-people-do-choose-them-now-and-then-for-a-reason"


class Stop(Exception):
    """Aborts a transaction."""


def full_store(path: str, *, hours: int = HOURS) -> ManualClock:
    """Fill a store hour by hour: commits, aborts, delays, watermarks, files, an open transaction.

    returns: its clock, at the end of the last hour
    """
    clock = ManualClock(START_MS)
    txlog.init(path, clock=clock, durability="os")
    with txlog.open(path, clock=clock) as client:
        client.create_topic("orders", partitions=2)
        for name in ("invoices", "refunds", LONG):
            client.create_topic(name)
        client.create_subscription("orders", "billing")
        client.create_subscription("orders", "packers", type="shared")
        client.create_subscription("invoices", "mail")
        for hour in range(hours):
            _hour(client, clock, hour)
            clock.advance(HOUR_MS)
        _end(client, clock)
    with txlog.open(path, clock=clock, transaction_key=KEY) as client:
        client.producer("orders").send(b"hidden", txn=client.begin()["txn"])
        client.flush()
    return clock


def _hour(client: Client, clock: ManualClock, hour: int) -> None:
    """2 to 6 messages in orders, one in invoices, by one transaction; refunds now and then."""
    with client.transaction() as txn:
        for number in range(2 + hour % 5):
            client.producer("orders").send(b"x" * (hour + 1), key=b"%d" % number, txn=txn)
        clock.advance(30)
        client.producer("invoices").send(b"invoice", txn=txn)
    if hour % 7 == 0:
        client.producer("refunds").send(b"refund")
        try:
            with client.transaction(write_through=True) as txn:
                client.producer("refunds").send(b"never", txn=txn)
                raise Stop
        except Stop:
            pass
    now_ms = clock.now().wall_ms
    for producer, behind_ms in (("till-1", HOUR_MS // 2), ("till-2", 2 * HOUR_MS)):
        builder = client.producer("orders", producer).new_watermark()
        builder.event_time(now_ms - behind_ms).send()
    if hour % 10 == 9:
        client.checkpoint(roll_all=hour < 15)


def _end(client: Client, clock: ManualClock) -> None:
    """A producer that is idle, and messages that wait for their time."""
    client.topic("orders").watermarks.idle("till-1")
    producer, now_ms = client.producer("orders"), clock.now().wall_ms
    for after_ms in (30_000, 400_000, 500_000, 9 * HOUR_MS, 3 * DAY_MS):
        producer.send(b"later", deliver_at=now_ms + after_ms)
