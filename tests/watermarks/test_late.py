"""History and lateness: functions of the rows alone, equal to a walk over them one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import START_MS, Bench, begin, read, say
from tests.tiers import graded
from txlog import Bound, MessageId, Position, TxnId
from txlog.base.rows.watermarks import WatermarkRow
from txlog.engine.plan.reading import watermarks as watermark_rows
from txlog.errors import InvalidArgument

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s", "shared")]),
]
SET, IDLE, SNAPSHOT = "set", "idle", "snapshot"


def figures(bench: Bench, subscription: str | None = None, **options: Any) -> tuple[Any, Any]:
    answer = bench.client.topic("t").watermarks.show(subscription, **options)
    return answer["max_event_time"], answer["late_messages"]


def send(bench: Bench, time: int | None, partition: int = 0, txn: TxnId | None = None) -> MessageId:
    sent = bench.client.producer("t").send(b"x", event_time=time, partition=partition, txn=txn)
    return sent.message_id or MessageId(0, 0)


def history(bench: Bench, **options: Any) -> list[WatermarkRow]:
    return bench.client.topic("t").watermarks.history(**options)


def short(rows: Sequence[Mapping[str, object]]) -> list[tuple[Any, ...]]:
    names = ("partition", "position", "marker_type", "producer", "event_time", "regressed")
    return [tuple(row[name] for name in names) for row in rows]


def test_late_is_older_than_the_value_just_before(bench: Bench) -> None:
    """2: an equal time is on time, and a message without event time is never late."""
    assert figures(bench) == (None, 0)
    send(bench, 5)
    assert figures(bench) == (5, 0)  # no producer had asserted a time
    say(bench.client, "A", 10)
    for time in (9, 10, None, 12, 3):
        send(bench, time)
    assert figures(bench) == (12, 2)
    send(bench, 9, partition=1)
    assert figures(bench, partition=1) == (9, 1)
    assert figures(bench) == (12, 3)
    assert figures(bench, lateness=False) == (None, None)


def test_a_time_in_a_marker_takes_effect_after_its_messages(bench: Bench) -> None:
    """2, rule 1: messages of the same transaction may be older."""
    say(bench.client, "A", 10)
    txn = begin(bench.client)
    for time in (11, 9, 50):
        send(bench, time, txn=txn)
    say(bench.client, "A", 60, txn=txn)
    assert figures(bench) == (None, 0)
    bench.client.commit(txn)
    assert figures(bench) == (50, 1)
    send(bench, 59)
    assert figures(bench) == (59, 2)
    assert figures(bench, at=MessageId(1, 1)) == (50, 1)


def test_up_to_where_a_subscription_is(bench: Bench) -> None:
    """With -s up to the tracking position, with --at up to a row."""
    say(bench.client, "A", 10)
    ids = [send(bench, time) for time in (8, 9, 20)]
    assert figures(bench, "s") == (None, 0)
    bench.client.acknowledge("t", "s", [ids[0], ids[2]])
    assert figures(bench, "s") == (8, 1)
    assert figures(bench, at=ids[1]) == (9, 2)
    bench.client.acknowledge("t", "s", [ids[1]])
    assert figures(bench, "s") == (20, 2)


def test_history_has_the_assertions_that_took_effect(bench: Bench) -> None:
    """spec/cli 8.6: in journal order; `regressed` compares with the time at that position."""
    client = bench.client
    watermarks = client.topic("t").watermarks
    assert history(bench) == []
    say(client, "A", 10)
    txn = begin(client)
    for time in (20, None, 5):
        say(client, "A", time, txn=txn)
    say(client, "B", 7, txn=txn)
    say(client, "A", 9)
    bench.clock.advance(1000)
    client.commit(txn)
    watermarks.snapshot()
    watermarks.idle("A")
    say(client, "A", 3)
    open_txn = begin(client)
    say(client, "C", 1, txn=open_txn)
    client.flush()
    in_0 = [
        (0, Position(1, 0), SET, "A", 10, False),
        (0, Position(1, 1), SET, "A", 9, True),
        (0, Position(1, 2), IDLE, "A", None, False),
        (0, Position(1, 2), SET, "A", 5, False),  # the same marker had set it idle before
        (0, Position(1, 2), SET, "B", 7, False),
        (0, Position(1, 3), SNAPSHOT, None, None, False),
        (0, Position(1, 4), IDLE, "A", None, False),
        (0, Position(1, 5), SET, "A", 3, False),
    ]
    rows = history(bench)
    assert short(history(bench, partition=0)) == in_0
    assert [row for row in short(rows) if row[0] == 0] == in_0
    assert [row["partition"] for row in rows[:4]] == [0, 1, 0, 1]  # by frame
    assert [row["txn"] for row in rows if row["partition"] == 0] == [
        None,
        None,
        txn,
        txn,
        txn,
        None,
        None,
        None,
    ]
    assert {row["txn_state"] for row in rows if row["txn"] is not None} == {"committed"}
    assert [row["by"] for row in rows if row["marker_type"] == IDLE] == [
        None,
        None,
        *["admin"] * 2,
    ]
    assert [row["publish_time"] for row in rows[:5]] == [START_MS] * 4 + [START_MS + 1000]
    for limit in range(len(rows) + 2):
        assert history(bench, limit=limit) == rows[max(0, len(rows) - limit) :]
    assert history(bench, producer="A", limit=3) == [r for r in rows if r["producer"] == "A"][-3:]
    assert history(bench, since=START_MS + 1) == rows[4:]
    assert short(history(bench, partition=0, limit=1)) == in_0[-1:]
    with pytest.raises(InvalidArgument):
        history(bench, limit=-1)


def test_after_a_trim_lateness_counts_the_remaining_messages(bench: Bench) -> None:
    """7: a ledger begins with a snapshot, so later values do not change."""
    client = bench.client
    say(client, "A", 10)
    send(bench, 5)
    client.checkpoint(roll_all=True)
    message_ids = send(bench, 9)
    say(client, "A", 8)
    rows_before = history(bench, partition=0)
    assert figures(bench) == (9, 2)
    client.admin.trim("t", Bound("id", message_ids), force_unacked=True)
    assert figures(bench) == (9, 1)
    assert history(bench, partition=0) == rows_before[1:]
    assert [row["marker_type"] for row in rows_before] == [SET, SNAPSHOT, SET]
    assert rows_before[-1]["regressed"]


def test_a_large_message_is_judged_as_any_other(tmp_path: Path) -> None:
    """The reader builds its row from its file, and does not read its value."""
    bench = Bench(tmp_path / "store", max_message_bytes=1024)
    client = bench.client
    client.create_topic("t", 2)
    say(client, "A", 10)
    producer = client.producer("t", chunking=True)
    for time in (9, 10):
        producer.send(b"x" * 5000, event_time=time, partition=0)
    send(bench, 3)
    client.checkpoint(roll_all=True)
    assert figures(bench) == (10, 2)


def test_a_damaged_file_leaves_the_figures_out(bench: Bench) -> None:
    """12: the value needs no message; unknown figures are null, never guessed."""
    client = bench.client
    say(client, "A", 10)
    send(bench, 9)
    client.checkpoint(roll_all=True)
    (path,) = Path(bench.path).rglob("partition=0/ledger-*.parquet")
    client.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))
    answer = bench.another().topic("t").watermarks.show()
    assert (answer["watermark"], answer["status"]) == (10, "active")
    assert (answer["max_event_time"], answer["late_messages"]) == (None, None)


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_random_histories_equal_a_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The vectorized count over pieces, chunks and ledgers, against a walk message by message."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(watermark_rows, "ROWS_AT_ONCE", chance.choice([1, 3, 7, 100_000]))
    bench = Bench(
        tmp_path / "store",
        ledger_entries_max=chance.choice([9, 50, 1_000_000]),
        watermark_snapshot_markers_max=chance.choice([2, 1000]),
    )
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s", type="shared")
    txns: list[TxnId] = []
    for _ in range(150):
        act = chance.choice(["send"] * 6 + ["say"] * 2 + ["idle", "begin", "end", "ack", "point"])
        txn = chance.choice([None, *txns])
        if act == "send":
            time = chance.choice([None, chance.randrange(1, 100)])
            send(bench, time, chance.randrange(2), txn)
        elif act in ("say", "idle"):
            time = chance.randrange(1, 100) if act == "say" else None
            say(client, chance.choice("ABC"), time, txn=txn)
        elif act == "begin":
            txns.append(begin(client))
        elif act == "end" and txns:
            ended = txns.pop(chance.randrange(len(txns)))
            (client.commit if chance.random() < 0.7 else client.abort)(ended)
        elif act == "ack":
            ids = [message.message_id for message in read(client) if message.message_id is not None]
            if ids:
                client.acknowledge("t", "s", chance.sample(ids, min(len(ids), 5)))
        elif act == "point":
            client.checkpoint(roll_all=chance.random() < 0.3)
    client.flush()
    for index in range(2):
        check_walk(bench, index)


def check_walk(bench: Bench, index: int) -> None:
    """Compare with the values at the positions just before each message."""
    watermarks = bench.client.topic("t").watermarks
    greatest, late = None, 0
    seen: dict[tuple[int, int], int | None] = {}
    last = watermarks.show(partition=index)["partition_list"][0]["position"]
    position = watermarks.show("s", partition=index)["partition_list"][0]["position"]
    wanted_at_s: tuple[int | None, int] = (None, 0)
    for message in read(bench.client, "t", partitions=[index]):
        at = message.message_id
        assert at is not None
        entry = (at.ledger, at.entry)
        if entry not in seen:
            state_before = _before(bench, index, entry)
            seen[entry] = (
                None
                if state_before is None
                else watermarks.show(at=MessageId(*state_before), lateness=False)["watermark"]
            )
        value, time = seen[entry], message.event_time
        if time is not None:
            greatest = time if greatest is None else max(greatest, time)
            late += value is not None and time < value
        if position is not None and entry <= (position.ledger, position.entry):
            wanted_at_s = (greatest, late)
    assert figures(bench, partition=index) == (greatest, late)
    assert figures(bench, "s", partition=index) == wanted_at_s
    if last is not None:
        assert figures(bench, at=MessageId(last.ledger, last.entry)) == (greatest, late)


def _before(bench: Bench, index: int, entry: tuple[int, int]) -> tuple[int, int] | None:
    """The position of the row before an entry."""
    ledger, number = entry
    if number:
        return (ledger, number - 1)
    known_items = bench.client.store.read(
        lambda view: [
            (end.ledger, end.entries - 1) for end in view.topic(index + 1).ledgers if end.entries
        ]
    )
    return max((known_item for known_item in known_items if known_item < entry), default=None)
