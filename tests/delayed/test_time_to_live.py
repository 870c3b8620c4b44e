"""The time to live of delayed messages: its start, and the warning to the producer.

Source: spec/delayed 8, 10.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.delayed.test_policies import counted
from tests.engine_kit import START_MS, Bench, read, values
from tests.tiers import graded
from txlog import Client, Range
from txlog.base.times import format_time
from txlog.cli.main import main
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
HOUR = 3_600_000
LARGE = b"x" * 5000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = Bench(tmp_path / "store", max_message_bytes=4096, ledger_entries_max=5)
    new_bench.client.create_topic("t", ttl_ms=HOUR)
    new_bench.client.create_subscription("t", "s")
    return new_bench


def left(client: Client) -> list[bytes]:
    found_values = values(client, range=Range(kind="unacked", subscription="s"))
    assert client.subscription("t", "s").describe()["backlog"] == len(found_values)
    return [value[:5] for value in found_values]


def test_by_default_it_counts_from_publish_and_ignores_deliver_at(bench: Bench) -> None:
    """8: a delay longer than the time to live loses the message."""
    client = bench.client
    client.producer("t").send(b"0", deliver_after=5 * HOUR)
    bench.clock.advance(HOUR)
    client.producer("t").send(b"1")
    assert client.subscription("t", "s").expire()["skipped"] == 0
    bench.clock.advance(1)
    assert client.subscription("t", "s").expire(dry_run=True)["skipped"] == 1
    assert client.subscription("t", "s").expire()["skipped"] == 1
    assert left(client) == [b"1"]


@pytest.mark.parametrize("scope", [{"topic": "t"}, {"namespace": "public/default"}, {}])
def test_it_may_count_from_deliver_at(bench: Bench, scope: dict[str, str]) -> None:
    """10: plain, in a transaction, large; also not before the message is visible."""
    client = bench.client
    client.admin.set_delayed_policies(**scope, ttl_from="deliver_at")  # type: ignore[arg-type]
    producer = client.producer("t", chunking=True)
    producer.send(b"past", deliver_at=5)
    producer.send(b"none")
    producer.send(b"wait", deliver_after=HOUR)
    producer.send(b"x" * 5000, deliver_after=HOUR)
    with client.transaction() as txn:
        producer.send(b"txn0", txn=txn)
        producer.send(b"txn1", txn=txn, deliver_after=HOUR)
        producer.send(b"txn2", txn=txn)
    later = [b"wait", b"xxxxx", b"txn1"]
    handle = client.subscription("t", "s")
    for at in (0, HOUR):
        bench.clock.set_wall(START_MS + at)
        assert handle.expire()["skipped"] == 0
    bench.clock.set_wall(START_MS + HOUR + 1)
    assert handle.expire(dry_run=True)["skipped"] == 4
    client.checkpoint(roll_all=True)
    assert left(bench.reopen()) == later
    bench.clock.set_wall(START_MS + 2 * HOUR)
    assert bench.client.subscription("t", "s").expire()["skipped"] == 0
    bench.clock.advance(1)
    with bench.client.consumer("t", "s") as consumer:
        assert consumer.receive_batch().num_rows == 0
    assert left(bench.client) == []


def test_a_given_age_counts_from_publish(bench: Bench) -> None:
    """`sub expire --older-than` and skip mean the age of the message."""
    client = bench.client
    client.admin.set_delayed_policies("t", ttl_from="deliver_at")
    client.producer("t").send(b"0", deliver_after=5 * HOUR)
    bench.clock.advance(2)
    assert client.subscription("t", "s").expire()["skipped"] == 0
    assert client.subscription("t", "s").expire(1)["skipped"] == 1


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_expired_messages_equal_a_simple_list(tmp_path: Path, seed: int) -> None:
    """Against a trivial oracle: mixed sends, acknowledgements, checkpoints, clock jumps."""
    print("seed", seed)
    chance = random.Random(seed)
    bench = Bench(
        tmp_path / "store",
        max_message_bytes=4096,
        ledger_entries_max=4,
        mutable_ids_max=chance.choice((1, 3, 500_000)),
        max_num_buckets=chance.randint(1, 5),
        ledger_step_per_bucket=chance.randint(0, 5),
    )
    client = bench.client
    client.create_topic("t", ttl_ms=100)
    client.create_subscription("t", "s")
    client.admin.set_delayed_policies("t", ttl_from="deliver_at")
    expected: dict[bytes, int] = {}  # value -> when it may expire
    number = 0
    for _ in range(60):
        act = chance.randrange(6)
        if act <= 2:
            now = bench.clock.now().wall_ms
            rows = chance.randint(1, 5)
            times = [
                chance.choice((None, None, now + chance.randint(-50, 200))) for _ in range(rows)
            ]
            names = [b"%05d" % (number + at) for at in range(rows)]
            number += rows
            table = pa.table(
                {"value": names, "deliver_at": pa.array(times, pa.timestamp("ms", "UTC"))}
            )
            if act == 2:
                with client.transaction() as txn:
                    client.producer("t").send_batch(table, txn=txn)
            else:
                client.producer("t").send_batch(table)
            for name, at in zip(names, times, strict=True):
                expected[name] = max(now, at or now) + 100
        elif act == 3:
            bench.clock.advance(chance.randint(0, 60))
        elif act == 4 and expected:
            message_ids = {m.value: m.message_id for m in read(client)}
            name = chance.choice(sorted(expected))
            message_id = message_ids[name]
            assert message_id is not None
            client.acknowledge("t", "s", [message_id])
            del expected[name]
        elif chance.random() < 0.3:
            client.checkpoint(roll_all=chance.random() < 0.5)
            client = bench.reopen()
        expired_names = [name for name, at in expected.items() if at < bench.clock.now().wall_ms]
        assert client.subscription("t", "s").expire()["skipped"] <= len(expired_names)
        for name in expired_names:
            del expected[name]
        assert left(client) == sorted(expected)


def test_expiry_reads_no_message_that_is_not_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10: the cost of a poll follows the due messages, not the waiting ones."""
    client = bench.client
    client.admin.set_delayed_policies("t", ttl_from="deliver_at")
    for waits in range(8):
        client.producer("t").send_batch(
            pa.table({"value": [b"%d" % waits] * 50, "deliver_after": [5 * HOUR + waits] * 50})
        )
    client.producer("t").send(b"due")
    bench.clock.advance(HOUR + 1)
    numbers: list[int] = []
    rows = View.rows

    def counting(view: View, requests: Any, names: Any = ()) -> Any:
        numbers.append(sum(stop - start for _, start, stop in requests) * ("deliver_at" in names))
        return rows(view, requests, names)

    monkeypatch.setattr(View, "rows", counting)
    assert client.subscription("t", "s").expire()["skipped"] == 1
    for _ in range(3):
        assert client.subscription("t", "s").expire()["skipped"] == 0
    assert sum(numbers) == 1


# --- warnings -------------------------------------------------------------------------------------


def test_the_producer_is_warned_of_messages_that_expire_first(bench: Bench) -> None:
    """8: the message is stored all the same; the receipt has the warning, and it is counted."""
    client = bench.client
    producer = client.producer("t", chunking=True)
    assert not producer.send(b"x", deliver_after=HOUR).beyond_ttl
    for value in (b"x", LARGE):
        assert producer.send(value, deliver_after=HOUR + 1).beyond_ttl
        with client.transaction() as txn:
            assert producer.send(value, deliver_after=HOUR + 1, txn=txn).beyond_ttl
    table = pa.table({"value": [b"x"] * 4, "deliver_after": [HOUR + 1, None, HOUR, HOUR + 9]})
    receipt = producer.send_batch(table)
    assert receipt.beyond_ttl == 2
    assert [each_receipt.beyond_ttl for each_receipt in receipt.receipts()] == [
        True,
        False,
        False,
        True,
    ]
    assert len(read(client)) == 9
    assert counted(bench.reopen()) == {"refused": 0, "beyond": 6}


@pytest.mark.parametrize(("change", "beyond"), [
    ({}, True),
    ({"ttl_from": "deliver_at"}, False),
    ({"active": False}, False),
    ({"fixed_delivery_delay_ms": HOUR}, False),
    ({"fixed_delivery_delay_ms": HOUR + 1}, True),
])  # fmt: skip
def test_there_is_no_warning_for_a_delivery_in_time(
    bench: Bench, change: dict[str, Any], beyond: bool
) -> None:
    bench.client.admin.set_delayed_policies("t", **change)
    producer = bench.client.producer("t")
    assert producer.send(b"x", deliver_after=2 * HOUR).beyond_ttl == beyond
    bench.client.set_policies("t", ttl_ms=None)
    assert not producer.send(b"x", deliver_after=2 * HOUR).beyond_ttl


def test_produce_warns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TXLOG_STORE", bench.path)
    monkeypatch.setenv("TXLOG_NOW", format_time(START_MS))
    arguments = ["produce", "t", "-m", "a", "-m", "b", "-q", "--deliver-after"]
    assert main([*arguments, "61m"]) == 0
    assert capfd.readouterr().err == (
        "warning: 2 messages will expire before delivery: the time to live of t ends earlier\n"
    )
    assert main([*arguments, "60m"]) == 0
    assert capfd.readouterr().err == ""
