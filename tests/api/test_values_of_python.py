"""Paths, instants and durations in the forms that Python programs have."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import txlog
import txlog.aio
from tests.engine_kit import START_MS, Bench
from txlog.errors import InvalidArgument

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)
LATER = NOW + timedelta(hours=1)
LATER_MS = START_MS + 3_600_000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = Bench(tmp_path / "store")
    new_bench.client.create_topic("orders")
    new_bench.client.create_subscription("orders", "billing", type="shared")
    return new_bench


def test_a_store_is_made_opened_copied_and_checked_by_a_path(tmp_path: Path) -> None:
    made = txlog.init(tmp_path / "shop", txn_timeout_default_ms=timedelta(minutes=2))
    with txlog.open(tmp_path / "shop", lock_timeout_ms=timedelta(seconds=5)) as client:
        assert client.settings.txn_timeout_default_ms == 120_000
        assert client.copy(tmp_path / "copy")["uuid"] == made["uuid"]
    assert txlog.verify(tmp_path / "copy")["errors"] == 0
    assert txlog.doctor(tmp_path / "copy")

    async def open_again() -> int:
        async with txlog.aio.open(tmp_path / "copy", lock_timeout_ms="5s") as client:
            return len(await client.topics())

    assert asyncio.run(open_again()) == 0


def test_a_message_has_the_times_of_python(bench: Bench) -> None:
    producer = bench.client.producer("orders")
    producer.send("é", key="ö", event_time=NOW, deliver_at=LATER)
    producer.send_async(b"two", deliver_after=timedelta(hours=1), event_time=str(NOW)).result()
    producer.new_message().value("three").event_time(NOW).deliver_at(LATER).send()
    rows = list(bench.client.reader("orders"))
    assert [row.event_time for row in rows] == [START_MS] * 3
    assert [row.deliver_at for row in rows] == [LATER_MS] * 3
    assert (rows[0].value, rows[0].key) == ("é".encode(), "ö".encode())


def test_policies_take_a_timedelta(bench: Bench) -> None:
    client, day = bench.client, timedelta(days=1)
    assert client.set_policies("orders", retention_ms=day) == {"retention_ms": 86_400_000}
    assert client.create_topic("kept", ttl_ms=day)
    answer = client.admin.set_retention_policies("orders", ttl_ms=day, ttl_from="publish")
    assert answer["policies"]["ttl_ms"] == 86_400_000
    assert client.admin.set_setting("lock_timeout_ms", timedelta(seconds=7))["value"] == 7_000
    with pytest.raises(InvalidArgument):
        client.set_policies("orders", retention_bytes="1GiB")


def test_a_position_is_a_datetime(bench: Bench) -> None:
    bench.client.producer("orders").send(b"one")
    bench.client.subscription("orders", "billing").seek(LATER)
    with bench.client.consumer("orders", "billing") as consumer:
        assert consumer.receive() is None
        consumer.seek(NOW)
        message = consumer.receive(timedelta(0))
        assert message is not None
        assert consumer.negative_acknowledge(message, timedelta(seconds=1)).returned == 1
    assert [row.value for row in bench.client.reader("orders", NOW)] == [b"one"]
    assert list(bench.client.reader("orders", LATER)) == []


def test_a_wrong_path_is_named_with_the_types_that_go() -> None:
    with pytest.raises(InvalidArgument, match="PathLike"):
        txlog.open(b"shop")  # type: ignore[arg-type]
