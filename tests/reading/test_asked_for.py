"""The cost of a read follows its result, not the history: counts of rows, plans and objects."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import FrozenInstanceError, replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import START_MS, Bench, say, send_txn, values
from tests.tiers import graded
from txlog import Bound, Message, Range, messages
from txlog.base.ids import TopicName
from txlog.base.ranges import END, START
from txlog.cli.main import main
from txlog.cli.output.records import Records
from txlog.client.client import Client
from txlog.engine.folds.catalog import number_of
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading import dispatch, ranges
from txlog.engine.view import Files, View
from txlog.errors import InvalidArgument

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s", "shared")], ledger_entries_max=60),
]


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each read of files and frames returned."""
    counted: list[int] = []
    noted = Files._noted

    def count(self: Files, table: pa.Table) -> pa.Table:
        counted.append(len(table))
        return noted(self, table)

    monkeypatch.setattr(Files, "_noted", count)
    return counted


def mixed(bench: Bench, seed: int, sends: int = 60) -> list[bytes]:
    """Send plain messages and transactions in a random order; returns all values in read order."""
    chance = random.Random(seed)
    producer = bench.client.producer("t")
    for at in range(sends):
        rows = pa.table({"value": [b"%d.%d" % (at, n) for n in range(chance.randint(1, 7))]})
        if chance.random() < 0.2:
            say(bench.client, "clock", START_MS + at)
        if chance.random() < 0.5:
            producer.send_batch(rows)
        else:
            with bench.client.transaction() as txn:
                producer.send_batch(rows, txn=txn)
    return values(bench.client)


@pytest.mark.parametrize("seed", graded(range(4), 1))
def test_the_position_of_the_last_n_equals_a_count_from_the_start(bench: Bench, seed: int) -> None:
    """spec/cli 6: -N is the position after the messages before, wherever a marker or
    ledger ends.
    """
    total = len(mixed(bench, seed))

    def check(view: View) -> None:
        topic = find_topic(view, TopicName.parse("t"))
        number = number_of(topic, 0)
        start = ranges.start_of(view, number)
        for count in range(total + 3):
            skipped = max(0, total - count)
            expected = dispatch.plan(view, number, start, skipped).after if skipped else start
            assert ranges.resolve_bound(view, topic, 0, Bound("last", count)) == expected
            if count <= total:
                assert ranges.resolve_bound(view, topic, 0, Bound("skip", skipped)) == expected

    bench.client.store.read(check)


@pytest.mark.parametrize("seed", graded(range(4), 1))
def test_bounds_count_unacknowledged_messages(bench: Bench, seed: int) -> None:
    """spec/cli 8.2: the first and last unacknowledged messages, inside and outside of markers."""
    mixed(bench, seed)
    chance = random.Random(seed)
    with bench.client.consumer("t", "s") as consumer:
        got = consumer.receive_batch(1000)
        consumer.acknowledge(got.filter([chance.random() < 0.7 for _ in range(len(got))]))
    remaining = values(bench.client, range=Range(kind="unacked", subscription="s"))
    assert remaining
    for count in (
        *range(9),
        len(remaining) // 2,
        len(remaining) - 1,
        len(remaining),
        len(remaining) + 1,
    ):
        last = Range(Bound("last", count), kind="unacked", subscription="s")
        assert values(bench.client, range=last) == remaining[max(0, len(remaining) - count) :]
        first = Range(START, Bound("skip", count), kind="unacked", subscription="s")
        assert values(bench.client, range=first) == remaining[:count]
        range_ = Range(Bound("skip", count), END, kind="unacked", subscription="s")
        assert values(bench.client, range=range_) == remaining[count:]
    with pytest.raises(InvalidArgument, match="are counted, not found by @"):
        values(bench.client, range=Range(Bound("time", 1), kind="unacked", subscription="s"))


def test_the_end_is_found_from_the_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a plan over all messages to find where the last one begins."""
    total = len(mixed(bench, 1, 200))
    seen: list[object] = []
    candidates = dispatch._candidates

    def counted(*arguments: object) -> Iterator[object]:
        for candidate in candidates(*arguments):  # type: ignore[arg-type]
            seen.append(candidate)
            yield candidate

    monkeypatch.setattr(dispatch, "_candidates", counted)
    for last in (Bound("last", 1), Bound("skip", total - 1)):
        seen.clear()
        assert len(values(bench.client, range=Range(last, END))) == 1
        assert len(seen) < 100


LOOKS = [
    ["peek", "t", "--first", "2"],
    ["peek", "t", "--last", "2"],
    ["peek", "t", "-s", "s"],
    ["peek", "t", "-s", "s", "--first", "2"],
    ["peek", "t", "-s", "s", "--random", "2"],
    ["peek", "t", "--random", "2"],
]


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_peek_reads_only_the_rows_it_shows(
    bench: Bench, rows_read: list[int], words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards against reading every row and dropping all but a few."""
    total = len(mixed(bench, 2, 300))
    assert total > 1000
    rows_read.clear()
    assert main(["-S", bench.path, *words, "-f", "lines"]) == 0
    count = len(capfd.readouterr().out.splitlines())
    assert count == (10 if words == LOOKS[2] else 2)
    # rows between two nearby picks are read with them
    assert sum(rows_read) <= (1000 if "--random" in words else count)


@pytest.mark.parametrize("end", ["--first", "--last"])
def test_peek_of_one_partition_prints_as_it_reads(
    bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Guards against one table of all requested rows, and all their text in one string."""
    expected = mixed(bench, 4, 700)
    count = len(expected) - 9
    written: list[int] = []
    original = Records.pieces

    def pieces(self: Records, table: pa.Table) -> Iterator[bytes | memoryview]:
        written.append(len(table))
        return original(self, table)

    monkeypatch.setattr(Records, "pieces", pieces)
    monkeypatch.setattr(Client, "read", partialmethod(Client.read, batch_messages=500))
    assert main(["-S", bench.path, "peek", "t", end, str(count), "-f", "lines"]) == 0
    lines = capfd.readouterr().out.encode().splitlines()
    assert lines == (expected[:count] if end == "--first" else expected[-count:])
    assert sum(written) == count
    assert max(written) <= 500


def test_peek_around_an_id_reads_its_neighbours(
    bench: Bench, rows_read: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards against a read to the end, or from the start, for three messages around one."""
    inner = send_txn(bench.client, *(b"t%d" % n for n in range(30)))[1]
    all_values = mixed(bench, 3, 100)
    txn_id_after = send_txn(bench.client, b"x", b"y", b"z")[1]
    all_values += [b"x", b"y", b"z"]
    for location, at in ((inner[10], 10), (txn_id_after[1], len(all_values) - 2), (inner[0], 0)):
        rows_read.clear()
        assert main(["-S", bench.path, "peek", "t", "--around", str(location), "-f", "lines"]) == 0
        lines = capfd.readouterr().out.encode().splitlines()
        assert lines == all_values[max(0, at - 3) : at + 4]
        assert sum(rows_read) <= len(lines) + 1
    marker = f"{inner[0].ledger}:{inner[0].entry}"
    assert main(["-S", bench.path, "peek", "t", "--at", marker, "-f", "lines"]) == 0
    assert capfd.readouterr().out.encode().splitlines() == all_values[:30]


def test_a_backlog_is_read_in_few_calls(bench: Bench, rows_read: list[int]) -> None:
    """Guards against a read for every hundred rows, each with its own cost."""
    total = len(mixed(bench, 4, 150))
    rows_read.clear()
    for by in ("age", "key", "ledger"):
        backlog = bench.client.subscription("t", "s").backlog(by)
        assert sum(group["messages"] for group in backlog) == total
    assert sum(rows_read) == 3 * total
    assert len(rows_read) <= 3 * 2


def test_a_backlog_reads_each_file_once(bench: Bench, rows_read: list[int]) -> None:
    """Guards against a read for each transaction, and for the messages between two."""
    total = len(mixed(bench, 6, 150))
    bench.client.checkpoint()
    files = [*Path(bench.path, "topics").rglob("*ledger-*")]
    oldest = bench.client.subscription("t", "s").backlog("age")[0]["oldest_time"]
    assert oldest == min(message.publish_time for message in bench.client.reader("t"))
    for by in ("age", "key", "ledger"):
        rows_read.clear()
        backlog = bench.client.subscription("t", "s").backlog(by)
        assert sum(group["messages"] for group in backlog) == sum(rows_read) == total
        assert len(rows_read) <= len(files)


def test_one_message_of_a_reader_makes_few(bench: Bench, rows_read: list[int]) -> None:
    """Guards against a thousand rows and objects for one message, and small batches for a long
    read.
    """
    everything = mixed(bench, 5, 400)
    last_message_id = bench.client.reader("t").get_last_message_id()
    assert last_message_id is not None
    total = len(everything)
    for start, remaining_count in ((None, total), (last_message_id, 1), (Bound("last", 500), 500)):
        rows_read.clear()
        with bench.client.reader("t", start) as reader:
            first = reader.read_next()
            assert first is not None
            assert sum(rows_read) <= 10
            assert len([first, *reader]) == remaining_count
            reader.seek("earliest")
            rows_read.clear()
            assert [reader.read_next().value for _ in range(10)] == everything[:10]  # type: ignore[union-attr]
            assert sum(rows_read) <= 10
    rows_read.clear()
    assert [message.value for message in bench.client.reader("t")] == everything
    assert sum(rows_read) == len(everything)
    assert len(rows_read) <= 2 + -(-len(everything) // 1000) + len(everything) // 60


def test_messages_are_made_without_their_constructor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against setting sixteen fields one by one for each message.

    The messages are as frozen and as equal as before.
    """
    send_txn(bench.client, b"a", b"b")
    bench.client.producer("t").send(b"c", key=b"k", properties={"p": "1"}, event_time=5)
    table = next(iter(bench.client.read("t")))
    calls: list[object] = []
    construct = Message.__init__
    monkeypatch.setattr(Message, "__init__", lambda self, **options: calls.append(options))
    new_messages = list(messages(pa.concat_tables([table] * 1001)))
    assert not calls
    monkeypatch.setattr(Message, "__init__", construct)
    assert len(new_messages) == 3003
    for at, message in enumerate(new_messages):
        assert type(message) is Message
        assert message == new_messages[at % 3] == replace(message)
        assert hash(message) == hash(new_messages[at % 3])
    plain = Message(
        topic="t",
        partition=0,
        message_id=new_messages[0].message_id,
        value=b"c",
        key=b"k",
        properties={"p": "1"},
        publish_time=START_MS,
        event_time=5,
        visible_time=START_MS,
    )
    last = replace(new_messages[2], message_id=new_messages[0].message_id)
    assert last == plain
    assert (new_messages[0].txn_state, new_messages[0].txn, new_messages[2].txn) == (
        "committed",
        new_messages[1].txn,
        None,
    )
    assert new_messages[0].txn is not None
    with pytest.raises(FrozenInstanceError):
        new_messages[0].value = b"x"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(new_messages[0])) == new_messages[0]


@pytest.mark.parametrize(
    ("form", "read"),
    [("lines", {"value", "deliver_at"}), ("%k:%v\\n", {"key", "value", "deliver_at"})],
)
def test_consume_reads_the_columns_of_its_format(
    bench: Bench,
    form: str,
    read: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    expected = mixed(bench, 5)
    names: set[str] = set()
    rows = Files.rows

    def noted(
        self: Files, requests: Any, expected_rows: Sequence[str], large: Any
    ) -> list[pa.Table]:
        names.update(expected_rows)
        return rows(self, requests, expected_rows, large)

    monkeypatch.setattr(Files, "rows", noted)
    assert main(["-S", bench.path, "consume", "t", "-f", form]) == 0
    written = capfdbinary.readouterr().out
    assert names == read
    line = b"%s\n" if form == "lines" else b":%s\n"
    assert written == b"".join(line % value for value in expected)


def test_only_the_columns_asked_for_have_values(bench: Bench) -> None:
    expected = mixed(bench, 6)
    for names in ([], ["value"], ["key", "publish_time"], ["topic", "ledger"]):
        rows = pa.concat_tables(list(bench.client.read("t", columns=names)))
        whole = pa.concat_tables(list(bench.client.read("t")))
        assert len(rows) == len(expected)
        for name in ("topic", "ledger", "entry", "index", *names):
            assert rows[name].equals(whole[name])
        assert (rows["value"].null_count == 0) == ("value" in names)
    with pytest.raises(InvalidArgument, match="no column valu"):
        next(bench.client.read("t", columns=["valu"]))
