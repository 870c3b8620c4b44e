"""The answers of `txlog watermark` from Python: materialized and emitted values, holders, waits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import START_MS, Bench, begin, ids, say
from txlog import Bound, Client, MessageId, Position
from txlog.base.ranges import START
from txlog.base.rows.watermarks import WatermarkShown
from txlog.engine.session.reading.watermark_ground import Subscribed
from txlog.engine.session.reading.watermark_session import WatermarkSession
from txlog.errors import (
    InvalidArgument,
    LimitExceeded,
    MessageNotFound,
    PartitionUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s", "shared")]),
]


def show(client: Client, subscription: str | None = None, **options: Any) -> WatermarkShown:
    return client.topic("t").watermarks.show(subscription, **options)


def picked(answer: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(answer[name] for name in names)


FOUR = ("status", "watermark", "emitted", "holder")


def test_emitted_stays_where_materialized_falls(bench: Bench) -> None:
    """8: a late joiner; the answer has both values, and the producer that holds."""
    client = bench.client
    producer = client.producer("t")
    ground = Subscribed(client.store, lambda view: [(1, 1), (1, 2)])
    session = WatermarkSession(client.store, ground)
    assert picked(show(client, "s"), *FOUR) == ("unknown", None, None, None)
    say(client, "A", 50)
    client.flush()
    assert session.moved()
    say(client, "B", 20)
    assert picked(show(client, "s"), *FOUR) == ("active", 20, 50, "B")
    assert picked(show(client), *FOUR) == ("active", 20, None, "B")
    assert show(client, "s")["lag_ms"] == START_MS - 50
    assert show(client)["lag_ms"] == START_MS - 20
    first = producer.send(b"x", partition=1).message_id
    say(client, "B", 70)
    assert picked(show(client, "s"), *FOUR) == ("active", 20, 50, "B")
    assert show(client, "s")["first_unacked"] == first
    assert [row["watermark"] for row in show(client, "s")["partition_list"]] == [50, 20]
    assert picked(show(client), *FOUR) == ("active", 50, None, "A")
    assert first is not None
    client.acknowledge("t", "s", [first])
    assert picked(show(client, "s"), *FOUR) == ("active", 50, 50, "A")
    assert show(client, "s")["first_unacked"] is None
    client.subscription("t", "s").seek(START)
    assert show(client, "s")["emitted"] is None  # the seek began a new epoch


def test_all_idle_has_no_value(bench: Bench) -> None:
    """4: a value exists only for ACTIVE; the status gives the reason."""
    client = bench.client
    say(client, "A", 50)
    assert client.topic("t").watermarks.idle("A")["was_active"]
    assert not client.topic("t").watermarks.idle("A")["was_active"]
    assert picked(show(client), *FOUR) == ("idle", None, None, None)
    rows = client.store.read(lambda view: view.ledger_table(1, 0, 3))
    assert rows["producer"].to_pylist() == ["A"] * 3
    assert rows["value"].to_pylist() == [None, b"admin", b"admin"]


def test_one_unknown_partition_makes_the_topic_unknown(bench: Bench) -> None:
    """8: then no value is delivered."""
    client = bench.client
    first = client.producer("t").send(b"x", partition=0).message_id
    say(client, "A", 50)
    answer = show(client, "s")
    assert picked(answer, *FOUR) == ("unknown", None, None, None)
    assert answer["first_unacked"] == first
    assert [row["status"] for row in answer["partition_list"]] == ["unknown", "active"]


def test_a_message_of_a_marker_is_named(bench: Bench) -> None:
    """6: P stays before a marker until all its messages are acknowledged."""
    client = bench.client
    producer = client.producer("t", "A")
    with client.transaction() as txn:
        for _ in range(2):
            producer.send(b"x", event_time=5, partition=0, txn=txn)
        producer.new_watermark(txn).event_time(9).send()
    first_id, two = ids(client)
    client.acknowledge("t", "s", [first_id])
    answer = show(client, "s", partition=0)
    assert (answer["first_unacked"], answer["status"]) == (two, "unknown")
    client.acknowledge("t", "s", [two])
    assert picked(show(client, "s"), *FOUR) == ("active", 9, None, "A")


def test_the_answer_of_set(bench: Bench) -> None:
    """spec/cli 8.6: `regressed` compares with the active time, and with the transaction's
    own rows.
    """
    client = bench.client
    watermarks = client.topic("t").watermarks
    assert watermarks.set(50, "A") == {
        "topic": "t",
        "producer": "A",
        "event_time": 50,
        "regressed": False,
        "txn": None,
        "partition_list": [
            {"partition": 0, "position": Position(1, 0)},
            {"partition": 1, "position": Position(2, 0)},
        ],
    }
    assert watermarks.set(50, "A")["regressed"] is False
    assert watermarks.set(49, "A")["regressed"] is True
    txn = begin(client)
    steps: list[tuple[int | None, bool]] = [
        (40, True),
        (60, False),
        (55, True),
        (None, True),
        (3, False),
        (2, True),
    ]
    for time, expected in steps:
        if time is None:
            assert watermarks.idle("A", txn=txn)["was_active"] is expected
        else:
            answer = watermarks.set(time, "A", txn=txn)
            assert (answer["regressed"], answer["txn"]) == (expected, txn)
            assert [row["position"] for row in answer["partition_list"]] == [None, None]
    assert show(client)["pending_txns"] == 1
    client.commit(txn)
    assert picked(show(client), "watermark", "pending_txns") == (3, 0)


def test_producers_where_a_subscription_is(bench: Bench) -> None:
    """With -s, the state at its position; a producer in open transactions only is idle."""
    client = bench.client
    say(client, "A", 50)
    client.producer("t").send(b"x", partition=1)
    say(client, "B", 20)
    txn = begin(client)
    say(client, "C", 30, txn=txn)
    names = ("partition", "producer", "event_time", "holds", "idle", "pending_txns")
    client.flush()
    watermarks = client.topic("t").watermarks
    assert [picked(row, *names) for row in watermarks.producers()] == [
        (index, *row)
        for index in (0, 1)
        for row in (
            ("A", 50, False, False, 0),
            ("B", 20, True, False, 0),
            ("C", None, False, True, 1),
        )
    ]
    assert [picked(row, *names)[1:4] for row in watermarks.producers("s")] == [
        ("A", 50, False),
        ("B", 20, True),
        ("C", None, False),
        ("A", 50, True),
        ("C", None, False),
    ]
    client.abort(txn)
    assert len(watermarks.producers()) == 4


def test_at_a_place(bench: Bench) -> None:
    """1: a value belongs to its position, whatever follows."""
    client = bench.client
    for time in (10, 20, 30):
        say(client, "A", time)
    client.topic("t").watermarks.snapshot()
    for time in (40, 50):
        say(client, "A", time)
    watermarks = [show(client, at=MessageId(2, entry))["watermark"] for entry in range(6)]
    assert watermarks == [10, 20, 30, 30, 40, 50]
    rows = [show(client, at=MessageId(2, entry))["partition_list"] for entry in (1, 2, 5)]
    assert [(len(row), row[0]["partition"]) for row in rows] == [(1, 1)] * 3
    assert [row[0]["snapshot_position"] for row in rows] == [None, Position(2, 3), Position(2, 3)]
    for bad in (MessageId(2, 6), MessageId(9, 0)):
        with pytest.raises(MessageNotFound):
            show(client, at=bad)
    with pytest.raises(MessageNotFound):
        client.topic("t/0").watermarks.show(at=MessageId(2, 0))


def test_snapshots_are_written_where_anything_was_asserted(bench: Bench) -> None:
    """7: by command; the value does not change."""
    client = bench.client
    watermarks = client.topic("t").watermarks
    assert watermarks.snapshot()["written"] == 0
    say(client, "A", 10)
    answer = watermarks.snapshot()
    assert answer["written"] == 2
    assert [row["position"] for row in answer["partition_list"]] == [Position(1, 1), Position(2, 1)]
    assert picked(show(client), *FOUR) == ("active", 10, None, "A")


def test_a_partition_that_is_away_refuses_and_is_shown(bench: Bench) -> None:
    """10, 12: no row is appended; show still answers."""
    client = bench.client
    say(client, "A", 10)
    client.admin.set_offline("t", 1)
    watermarks = client.topic("t").watermarks
    with pytest.raises(PartitionUnavailable):
        watermarks.set(20, "A")
    with pytest.raises(PartitionUnavailable):
        watermarks.idle("A")
    with pytest.raises(PartitionUnavailable):
        watermarks.snapshot()
    answer = show(client, "s")
    assert (answer["status"], answer["watermark"]) == ("unavailable", None)
    rows = [(row["status"], row["watermark"]) for row in answer["partition_list"]]
    assert rows == [("active", 10), ("unavailable", 10)]


def test_bad_input(tmp_path: Path) -> None:
    """The same errors as the commands."""
    bench = Bench(tmp_path / "store", watermark_producers_max=1)
    client = bench.client
    client.create_topic("t")
    with pytest.raises(TopicNotFound):
        client.topic("nothing")
    watermarks = client.topic("t").watermarks
    with pytest.raises(SubscriptionNotFound):
        watermarks.show("nobody")
    for bad in (0, -1, 1 << 63):
        with pytest.raises(InvalidArgument):
            watermarks.set(bad, "A")
    for name in ("", "a b", "(other)"):
        with pytest.raises(InvalidArgument):
            watermarks.idle(name)
    with pytest.raises(TopicNotFound):
        watermarks.show(partition=1)
    watermarks.set(5, "(unnamed)")
    with pytest.raises(LimitExceeded):
        watermarks.set(5, "A")
    assert watermarks.idle("(unnamed)")["was_active"]


def test_looking_changes_nothing(bench: Bench) -> None:
    """A read-only client gets the same answers."""
    say(bench.client, "A", 10)
    bench.client.flush()
    reader = bench.another(read_only=True)
    assert picked(show(reader, "s"), *FOUR) == ("active", 10, None, "A")
    assert len(reader.topic("t").watermarks.producers()) == 2


def test_status_and_describe_agree_with_show(bench: Bench) -> None:
    """spec/cli 8.1, 8.4: at the end of the log; for a subscription, at its position."""
    client = bench.client

    def check() -> int | None:
        client.flush()
        (row,) = client.status()["topic_list"]
        assert row["watermark"] == show(client)["watermark"]
        for described, subscription in (
            (client.describe_topic("t"), None),
            (client.subscription("t", "s").describe(), "s"),
        ):
            partitions = show(client, subscription)["partition_list"]
            assert [partition["watermark"] for partition in described["partition_list"]] == [
                partition["watermark"] for partition in partitions
            ]
        watermark: int | None = row["watermark"]
        return watermark

    assert check() is None
    client.producer("t").send(b"x", partition=0)
    say(client, "A", 50)
    assert check() == 50
    rows = client.subscription("t", "s").describe()["partition_list"]
    assert [row["watermark"] for row in rows] == [None, 50]
    client.acknowledge("t", "s", ids(client))
    say(client, "B", 20)
    assert check() == 20
    client.admin.update_topic("t", partitions=3)
    assert check() == 20
    client.admin.set_offline("t", 1)
    assert check() is None
    client.admin.set_online("t", 1)
    say(client, "A", None)
    say(client, "B", None)
    assert check() is None


def test_the_first_message_of_a_partition_is_no_watermark_row(bench: Bench) -> None:
    """3: rows that are not data count as messages nowhere."""
    client = bench.client

    def first() -> list[Any]:
        client.flush()
        return [row["first"] for row in client.describe_topic("t")["partition_list"]]

    assert first() == [None, None]
    for time in (1, 2, 3):
        say(client, "A", time)
    assert first() == [None, None]
    client.producer("t").send(b"x", partition=0)
    say(client, "A", 4)
    client.producer("t").send(b"y", partition=0)
    assert first() == [MessageId(1, 3), None]
    client.checkpoint(roll_all=True)  # the next ledger begins with a snapshot
    message_id = client.producer("t").send(b"z", partition=0).message_id
    assert message_id is not None
    client.admin.trim("t", Bound("id", message_id), force_unacked=True)
    assert first()[0] == message_id
    assert message_id.entry == 1
