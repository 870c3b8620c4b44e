"""Compaction by key: the messages that readers get, compared with a dict, through all upkeep."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txlog
from tests.engine_kit import Bench, begin, little_memory, rows
from tests.tiers import graded
from txlog import Bound, Client, Message, MessageId, Range, messages
from txlog.base.ranges import END
from txlog.engine.folds.topic import Compaction
from txlog.engine.plan.reading import newest
from txlog.engine.storage.disk.posix import PosixFile
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX
from txlog.engine.storage.segment import SegmentStream, encode_part
from txlog.engine.upkeep import service
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.upkeep.space import topic_compaction
from txlog.engine.upkeep.space.topic_compaction import NewestKeys, _TopicCompaction
from txlog.engine.view import View
from txlog.errors import (
    Corruption,
    InvalidArgument,
    MessageNotFound,
    PartitionUnavailable,
    Refused,
    SnapshotExpired,
    TopicNotFound,
    TxlogError,
)
from txlog.lake.sql.segments import listed

pytestmark = pytest.mark.usefixtures("quick_disk")
LARGE = 99  # copies of a value: more bytes than a message may have without chunks


def bench_of(folder: Path, partitions: int = 1, **settings: int) -> Bench:
    """A store with a topic, and ledgers of five entries."""
    options: dict[str, Any] = {"coordinators": 1, "reader_grace_ms": 0, "ledger_entries_max": 5}
    bench = Bench(folder / "store", **{**options, **settings})
    bench.client.create_topic("t", partitions)
    return bench


def put(client: Client, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> None:
    """Send (key, value) one by one."""
    for key, value in pairs:
        client.producer("t").send(value, key=key, **options)


def compacted(client: Client, start: Any = None, **options: Any) -> list[Message]:
    """The messages of a reader with read_compacted."""
    with client.reader("t", start, read_compacted=True, **options) as reader:
        return list(reader)


def pairs(found_messages: list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values."""
    return [(message.key, message.value) for message in found_messages]


def state(client: Client, number: int = 1) -> Compaction | None:
    """The compaction that the fold has recorded."""
    return client.store.read(lambda view: view.topic(number).compaction)


def files(bench: Bench) -> list[Path]:
    """The files of compacted rows that exist."""
    return sorted(Path(bench.path).rglob("_compacted/*.parquet"))


def trim_all(client: Client) -> int:
    """Trim all messages; returns how many were trimmed."""
    client.checkpoint(roll_all=True)
    return client.admin.trim("t", END, force_unacked=True)["messages"]


# --- which messages stay --------------------------------------------------------------------------


def test_newest_of_each_key_comes_first_and_then_the_log(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    put(client, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"no key"), (b"c", b""))
    compacted_rows_before = compacted(client)
    assert pairs(compacted_rows_before) == [
        (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"no key"), (b"c", b""),
    ]  # fmt: skip
    answer = client.admin.compact_topic("t")
    assert (answer["messages"], answer["keys_kept"], answer["without_key"]) == (5, 3, 1)
    assert (answer["keys_deleted"], answer["partitions"], answer["files"]) == (0, 1, 1)
    put(client, (b"a", b"4"), (None, b"later"))
    compacted_rows_after = compacted(client)
    assert pairs(compacted_rows_after) == [
        (b"b", b"2"), (b"a", b"3"), (b"c", b""), (b"a", b"4"), (None, b"later"),
    ]  # fmt: skip
    assert compacted_rows_after[:3] == [
        compacted_rows_before[1],
        compacted_rows_before[2],
        compacted_rows_before[4],
    ]  # ids, times, all
    assert len(rows(client.read("t"))) == 7  # the log is as it was
    assert rows(client.read("t", range=Range(kind="compacted"))) == compacted_rows_after


def test_null_deletes_its_key_and_an_empty_value_does_not(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    put(client, (b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", b""), (b"never", None))
    answer = client.admin.compact_topic("t")
    assert (answer["keys_kept"], answer["keys_deleted"]) == (1, 2)
    assert pairs(compacted(client)) == [(b"b", b"")]
    put(client, (b"a", b"again"), (b"b", None))
    assert pairs(compacted(client)) == [(b"b", b""), (b"a", b"again"), (b"b", None)]
    client.admin.compact_topic("t")
    assert pairs(compacted(client)) == [(b"a", b"again")]
    put(client, (b"a", None))
    # no message is left, and the fold has recorded it
    assert client.admin.compact_topic("t")["files"] == 0
    assert compacted(client) == []


def test_transactions_count_once_they_are_visible_and_aborted_ones_never(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    first, second, third = (begin(client) for _ in range(3))
    put(client, (b"a", b"of the first"), (b"b", b"of the first"), txn=first)
    put(client, (b"a", b"of the second"), (b"x", b"of the second"), txn=second)
    put(client, (b"a", b"plain"))
    put(client, (b"b", b"aborted"), (b"y", b"aborted"), txn=third)
    client.commit(second)
    client.abort(third)
    client.admin.compact_topic("t")
    assert pairs(compacted(client)) == [(b"a", b"of the second"), (b"x", b"of the second")]
    client.commit(first)
    expected = pairs(compacted(client))
    assert expected[2:] == [(b"a", b"of the first"), (b"b", b"of the first")]
    client.admin.compact_topic("t")
    compacted_rows = compacted(client)
    assert pairs(compacted_rows) == [expected[1], *expected[2:]]
    assert [message.txn for message in compacted_rows] == [second, first, first]
    trim_all(client)
    assert compacted(client) == compacted_rows


def test_delayed_and_large_messages_are_messages_like_others(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_message_bytes=64)
    client = bench.client
    put(client, (b"a", b"1"), (b"a", b"later"), deliver_after=10_000)
    large = client.producer("t", chunking=True)
    large.send(b"l" * LARGE, key=b"b")
    put(client, (b"c", b"2"))
    large.send(b"L" * LARGE, key=b"c")
    compacted_rows = compacted(client)
    client.admin.compact_topic("t")
    compacted_rows_after = compacted(client)
    assert compacted_rows_after == [compacted_rows[1], compacted_rows[2], compacted_rows[4]]
    assert pairs(compacted_rows_after)[1:] == [(b"b", b"l" * LARGE), (b"c", b"L" * LARGE)]
    trim_all(client)
    assert compacted(bench.reopen()) == compacted_rows_after


def test_values_that_fill_a_ledger_make_several_files(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, ledger_bytes_max=4096)
    client = bench.client
    put(client, *((b"%d" % number, bytes(1000)) for number in range(200)))
    answer = client.admin.compact_topic("t")
    assert answer["files"] == len(files(bench)) > 1
    assert [message.key for message in compacted(client)] == [b"%d" % n for n in range(200)]
    message_id = compacted(client)[150].message_id
    assert [m.key for m in compacted(client, message_id)] == [b"%d" % n for n in range(150, 200)]
    with client.reader("t", read_compacted=True) as reader:
        sample = [*messages(reader.receive_batch(7)), *messages(reader.receive_batch(180))]
        assert reader.has_message_available()
        sample += list(reader)
        assert not reader.has_message_available()
    assert sample == compacted(client)


# --- positions ---------------------------------------------------------------------------------


def test_a_start_is_a_position_of_the_log_also_where_it_was_trimmed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    message_ids: list[MessageId] = []
    for number in range(12):
        bench.clock.advance(1000)
        sent = client.producer("t").send(b"%d" % number, key=b"%d" % (number % 6))
        assert sent.message_id is not None
        message_ids.append(sent.message_id)
    client.admin.compact_topic("t")
    put(client, (b"0", b"12"))
    through = [row["compacted_through"] for row in client.describe_topic("t")["partition_list"]]
    assert through == [message_ids[11]]
    for trimmed in (False, True):
        if trimmed:
            assert client.admin.trim("t", Bound("id", message_ids[10]), force_unacked=True)[
                "ledgers"
            ]
        assert [m.value for m in compacted(client)] == [b"%d" % n for n in range(6, 13)]
        assert [m.value for m in compacted(client, message_ids[8])] == [
            b"%d" % n for n in range(8, 13)
        ]
        assert [m.value for m in compacted(client, message_ids[2])] == [
            b"%d" % n for n in range(6, 13)
        ]
        at = compacted(client)[3].publish_time
        assert at is not None
        assert [m.value for m in compacted(client, at)] == [b"%d" % n for n in range(9, 13)]
        assert compacted(client, "latest") == []
        part = Range(Bound("id", message_ids[3]), Bound("id", message_ids[9]), kind="compacted")
        assert [m.value for m in rows(client.read("t", range=part))] == [b"6", b"7", b"8"]
    with client.reader("t", read_compacted=True) as reader:
        assert len(list(reader)) == 7
        reader.seek(message_ids[9])
        assert [m.value for m in reader] == [b"9", b"10", b"11", b"12"]
        reader.seek("earliest")
        assert reader.read_next() is not None


def test_a_start_within_a_transaction(tmp_path: Path) -> None:
    """Guards against comparing marks as tuples; the last entry is the entry of the horizon."""
    client = bench_of(tmp_path).client
    with client.transaction() as txn:
        put(client, *((b"%d" % number, b"x") for number in range(6)), txn=txn)
    message_id = compacted(client)[0].message_id
    assert message_id is not None
    for trimmed in (False, True):
        client.admin.compact_topic("t")
        if trimmed:
            trim_all(client)
        for number in range(6):
            each_message_id = MessageId(message_id.ledger, message_id.entry, number + 1)
            remaining_values = [b"%d" % n for n in range(number, 6)]
            assert [m.key for m in compacted(client, each_message_id)] == remaining_values
            assert [
                m.key for m in compacted(client, Bound("after", each_message_id))
            ] == remaining_values[1:]


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_consumer_in_memory_gets_back_what_the_log_has_no_more(
    is_trimmed: bool, tmp_path: Path
) -> None:
    client = bench_of(tmp_path).client
    put(client, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"))
    with client.transaction() as txn:
        put(client, (b"x", b"5"), (b"y", b"6"), txn=txn)
    client.admin.compact_topic("t")
    if is_trimmed:
        trim_all(client)
    expected = compacted(client)
    with client.consumer("t", "s", durable=False, read_compacted=True) as consumer:
        rows = consumer.receive_batch(10)
        assert [message.message_id for message in messages(rows)] == [
            message.message_id for message in expected
        ]
        consumer.acknowledge(expected[0])
        for count in (1, 2):
            consumer.negative_acknowledge(expected[1:])
            repeated = [*messages(consumer.receive_batch(2)), *messages(consumer.receive_batch(9))]
            assert [message.value for message in repeated] == [m.value for m in expected[1:]]
            assert {message.redelivery_count for message in repeated} == {count}
    with pytest.raises(InvalidArgument):
        client.consumer("t", "s", create=True, read_compacted=True)


def test_meaningless_options_are_refused(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    for wrong in (Bound("skip", 3), Bound("last", 3), Bound("sub", "s")):
        with pytest.raises(InvalidArgument):
            compacted(client, wrong)
    with pytest.raises(InvalidArgument):
        compacted(client, isolation="uncommitted")
    with pytest.raises(InvalidArgument):
        compacted(client, enable_watermarking=True)
    with pytest.raises(TopicNotFound):
        client.admin.compact_topic("missing")
    client.admin.set_offline("t", 0)
    with pytest.raises(PartitionUnavailable):
        client.admin.compact_topic("t")


def test_a_reader_keeps_the_compaction_that_it_began_with(tmp_path: Path) -> None:
    """A later compaction hides deleted keys, so this reader gets each later deletion as a
    message.
    """
    bench = bench_of(tmp_path, reader_grace_ms=60_000)
    client = bench.client
    put(client, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    client.admin.compact_topic("t")
    with client.reader("t", read_compacted=True) as reader:
        assert len(reader.receive_batch(1)) == 1
        put(client, (b"a", None), (b"b", b"4"))
        client.admin.compact_topic("t")
        client.checkpoint()
        rest_pairs = pairs(list(reader))
    assert rest_pairs == [(b"b", b"2"), (b"c", b"3"), (b"a", None), (b"b", b"4")]
    assert pairs(compacted(client)) == [(b"c", b"3"), (b"b", b"4")]


def test_a_reader_whose_files_were_removed_gets_snapshot_expired(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    put(client, (b"a", b"1"), (b"b", b"2"))
    client.admin.compact_topic("t")
    with client.reader("t", read_compacted=True) as reader:
        assert len(reader.receive_batch(1)) == 1
        for _ in range(3):
            put(client, (b"c", b"3"))
            client.admin.compact_topic("t")
            client.checkpoint()
        with pytest.raises(SnapshotExpired):
            reader.receive_batch()


# --- over time -------------------------------------------------------------------------------


def test_the_next_compaction_reads_what_came_since(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, *((b"%d" % (number % 4), b"%d" % number) for number in range(40)))
    client.admin.compact_topic("t")
    assert client.admin.compact_topic("t")["partitions"] == 0
    trim_all(client)
    put(client, (b"1", b"new"))
    answer = client.admin.compact_topic("t")
    assert (answer["messages"], answer["keys_kept"]) == (5, 4)
    assert pairs(compacted(client)) == [
        (b"0", b"36"), (b"2", b"38"), (b"3", b"39"), (b"1", b"new"),
    ]  # fmt: skip
    known_state = state(client)
    assert known_state is not None
    assert len(known_state.ledgers) == 1
    for _ in range(2):
        client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert len(files(bench)) == 1  # the earlier file was removed


def test_retention_waits_for_messages_that_are_not_compacted(tmp_path: Path) -> None:
    """In Pulsar, compaction is a subscription that retention waits for; a trim by command waits for
    none.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    client.admin.set_retention_policies("t", retention_ms=1000)
    put(client, *((b"%d" % number, b"x") for number in range(10)))
    client.admin.compact_topic("t")
    put(client, *((b"%d" % number, b"y") for number in range(5, 12)))
    bench.clock.advance(100_000)
    assert client.admin.trim("t", by_policy=True)["messages"] == 10
    assert [m.value for m in compacted(client)] == [b"x"] * 10 + [b"y"] * 7
    client.admin.compact_topic("t")
    bench.clock.advance(100_000)
    assert client.admin.trim("t", by_policy=True)["messages"] == 7
    assert [m.value for m in compacted(client)] == [b"x"] * 5 + [b"y"] * 7
    put(client, (b"0", b"z"), (b"1", b"z"))
    assert trim_all(client) == 2
    assert len(compacted(client)) == 12  # a read from the start gets the messages that exist
    with pytest.raises(MessageNotFound):
        compacted(client, compacted(client)[-1].message_id)  # R22: never a silent jump


def test_a_null_stays_while_another_partition_has_a_value_of_its_key(tmp_path: Path) -> None:
    client = bench_of(tmp_path, 2).client
    put(client, (b"k", b"old"), (b"only", b"1"), partition=0)
    put(client, (b"k", b"new"), (b"other", b"1"), partition=1)
    client.admin.compact_topic("t")
    put(client, (b"k", None), (b"other", None), partition=1)
    assert client.admin.compact_topic("t")["keys_deleted"] == 1
    assert pairs(compacted(client)) == [(b"k", b"old"), (b"only", b"1"), (b"k", None)]
    put(client, (b"k", None), partition=0)
    put(client, (b"z", b"1"), partition=1)
    client.admin.compact_topic("t")
    assert pairs(compacted(client)) == [(b"only", b"1"), (b"z", b"1")]


def test_all_partitions_are_of_one_moment(tmp_path: Path) -> None:
    """A transaction over two partitions is in the compacted messages of both, or of none."""
    client = bench_of(tmp_path, 2).client
    for number in range(6):
        with client.transaction() as txn:
            for partition in (0, 1):
                value = b"%d" % number
                client.producer("t").send(value, key=b"k", partition=partition, txn=txn)
        if number % 2:
            client.admin.compact_topic("t")
            compacted_rows = compacted(client)
            assert [m.value for m in compacted_rows] == [b"%d" % number] * 2
            assert [m.partition for m in compacted_rows] == [0, 1]
    horizons = [state(client, number) for number in (1, 2)]
    assert len({horizon.lsn for horizon in horizons if horizon is not None}) == 1


def test_a_deleted_topic_takes_its_compacted_messages_along(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, (b"a", b"1"))
    client.admin.compact_topic("t")
    client.checkpoint()
    client.admin.delete_topic("t")
    for _ in range(2):
        client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert files(bench) == []
    client.create_topic("t")
    assert compacted(client) == []
    assert not client.admin.gc()["files"]


def test_a_topic_that_is_deleted_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a missing second check under the write lock."""
    bench = bench_of(tmp_path)
    client, other = bench.client, bench.another()
    put(client, (b"a", b"1"))

    def gone(*arguments: Any, **options: Any) -> None:
        compare_rows(*arguments, **options)
        other.admin.delete_topic("t")
        other.create_topic("t")

    with monkeypatch.context() as patch:
        patch.setattr(topic_compaction, "compare_rows", gone)
        client.admin.compact_topic("t")
    assert state(client, 2) is None
    assert files(bench) == []


def test_a_dry_run_gives_the_same_answer_and_writes_nothing(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    put(client, *((b"%d" % (number % 5), b"x") for number in range(20)), (b"1", None))
    lsn = client.store.read(lambda view: view.lsn)
    plan = client.admin.compact_topic("t", dry_run=True)
    assert client.store.read(lambda view: view.lsn) == lsn
    assert files(bench) == []
    assert {**client.admin.compact_topic("t"), "dry_run": True} == plan


def test_a_dry_run_that_is_overtaken_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run takes no lock.

    Guards against a report of damage where a checkpoint removed old files.
    """
    bench = bench_of(tmp_path)
    client, other = bench.client, bench.another()
    put(client, (b"a", b"1"))
    client.admin.compact_topic("t")
    put(client, (b"b", b"2"))
    scan, left = _TopicCompaction._scan, 3

    def overtaken(self: _TopicCompaction, *arguments: Any) -> None:
        nonlocal left
        times, left = left, 0
        for _ in range(times):  # files stay as long as one of two manifests names them
            put(other, (b"c", b"3"))
            other.admin.compact_topic("t")
            other.checkpoint()
        scan(self, *arguments)

    monkeypatch.setattr(_TopicCompaction, "_scan", overtaken)
    with pytest.raises(SnapshotExpired):
        client.admin.compact_topic("t", dry_run=True)
    put(client, (b"d", b"4"))
    assert client.admin.compact_topic("t", dry_run=True)["keys_kept"] == 4
    client.checkpoint()
    files(bench)[-1].unlink()
    with pytest.raises(Corruption):
        bench.reopen().admin.compact_topic("t", dry_run=True)


def test_every_command_knows_the_compacted_files(tmp_path: Path) -> None:
    """Segments, inspect, offload, verify and a copy of the store."""
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, (b"a", b"1"), (b"b", b"2"))
    client.admin.compact_topic("t")
    client.checkpoint()
    compacted_rows = compacted(client)
    known_state = state(client)
    assert known_state is not None
    (row,) = [row for row in listed(client, None) if row["state"] == "compacted"]
    assert (row["ledger"], row["rows"]) == (known_state.ledgers[0], 2)
    assert client.inspect(f"ledger:{known_state.ledgers[0]}")["state"] == "compacted"
    location = tmp_path / "archive"
    location.mkdir()
    answer = client.admin.offload("t", str(location))
    assert answer["files"] == 1
    assert compacted(client) == compacted_rows
    for value in (b"2", b"3"):
        put(client, (b"b", value))
        client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert files(bench) == []
    client.admin.compact_topic("t")
    client.checkpoint()
    client.copy(str(tmp_path / "copy"))
    bench.close()
    assert not txlog.verify(bench.path, deep=True)["problem_list"]
    with txlog.open(str(tmp_path / "copy")) as copied:
        assert pairs(compacted(copied)) == [(b"a", b"1"), (b"b", b"3")]


# --- any history -------------------------------------------------------------------------------


class Oracle:
    """The compacted messages of a topic as a dict for each partition, message by message."""

    def __init__(self) -> None:
        self.newest: dict[int, dict[bytes, Message]] = {}
        self.seen: dict[int, int] = {}  # how many messages of the log it has read

    def compact(self, log: dict[int, list[Message]]) -> None:
        changed = [
            number
            for number, all_messages in log.items()
            if len(all_messages) > self.seen.get(number, 0)
        ]
        for partition in changed:
            all_messages = log[partition]
            newest = self.newest.setdefault(partition, {})
            for message in all_messages[self.seen.get(partition, 0) :]:
                if message.key is not None:
                    newest.pop(message.key, None)
                    newest[message.key] = message
            self.seen[partition] = len(all_messages)
        for partition in changed:
            newest = self.newest[partition]
            for key in [key for key, message in newest.items() if message.value is None]:
                others = [of for number, of in self.newest.items() if number != partition]
                if all(key not in of or of[key].value is None for of in others):
                    del newest[key]

    def read(self, log: dict[int, list[Message]], partition: int) -> list[Message]:
        return [
            *self.newest.get(partition, {}).values(),
            *log[partition][self.seen.get(partition, 0) :],
        ]


@pytest.mark.parametrize("seed", graded(range(24), 4))
def test_any_history_is_compacted_as_a_dict_says(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the oracle, through trims, checkpoints, reopening and added partitions.

    Every second history runs with so little memory that all work is done in many pieces.
    """
    if seed % 2:
        little_memory(monkeypatch)
    chance = random.Random(seed)
    bench = bench_of(tmp_path, 2, max_message_bytes=64)
    client, oracle = bench.client, Oracle()
    log: dict[int, list[Message]] = {0: [], 1: []}
    open_ones: list[Any] = []
    readers = {number: client.reader(f"t-partition-{number}") for number in log}
    for step in range(40):
        act = chance.randrange(12)
        txn = chance.choice(open_ones) if open_ones and chance.random() < 0.5 else None
        with contextlib.suppress(TxlogError):
            if act <= 5:
                producer = client.producer("t", chunking=True)
                for _ in range(chance.randint(1, 6)):
                    key = chance.choice((None, *(b"%d" % n for n in range(7))))
                    value = chance.choice((None, b"", b"%d" % step, b"%d" % step * LARGE))
                    where = chance.choice((None, 0, 1))
                    producer.send(value, key=key, partition=where, txn=txn)
            elif act == 6:
                open_ones.append(begin(client, 1_000_000))
            elif act == 7 and txn is not None:
                open_ones.remove(txn)
                chance.choice((client.commit, client.commit, client.abort))(txn)
            elif act == 8:
                client.checkpoint(roll_all=chance.random() < 0.5)
        for number, reader in readers.items():
            log[number] += list(reader)  # before a trim removes it
        if act == 9:
            client.admin.compact("t")
        elif act == 10:
            client.admin.compact_topic("t")
            oracle.compact(log)
            if chance.random() < 0.5:
                trim_all(client)
        elif act == 11 and chance.random() < 0.3:
            client = bench.reopen()
            readers = {number: client.reader(f"t-partition-{number}", "latest") for number in log}
        for number in log if act >= 8 else ():
            compacted_rows = compacted(client, partitions=[number])
            assert compacted_rows == oracle.read(log, number), f"seed {seed}, step {step}"
    client.checkpoint()
    bench.close()
    assert not txlog.verify(bench.path, deep=True)["errors"]


def test_damage_is_named_and_repair_keeps_undamaged_rows(tmp_path: Path) -> None:
    """The next compaction reads the messages that the log still has."""
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, *((b"%d" % number, b"x") for number in range(10)))
    client.admin.compact_topic("t")
    trim_all(client)
    put(client, *((b"%d" % number, b"y") for number in range(5, 12)))
    client.admin.compact_topic("t")
    client.checkpoint()
    compacted_rows_before = compacted(client)
    client.close()
    (path,) = files(bench)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    client = bench.reopen()
    with pytest.raises(Corruption, match="_compacted"):
        compacted(client)
    put(client, (b"new", b"z"))
    with pytest.raises(Corruption, match="_compacted"):
        client.admin.compact_topic("t")
    bench.close()
    assert txlog.verify(bench.path, clock=bench.clock)["errors"] == 1
    with pytest.raises(Refused):
        txlog.repair(bench.path, apply=True, clock=bench.clock)
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    assert done["messages_lost"] == 12
    client = bench.reopen()
    assert [m.value for m in compacted(client)] == [b"z"]
    client.admin.compact_topic("t")
    assert compacted(client)[:-1] == compacted_rows_before[5:]
    assert not txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"]


# --- memory ----------------------------------------------------------------------------------


def test_neither_keys_nor_rows_are_held_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits bound its memory, even for one file, for any number of keys, messages or bytes.

    Guards against a table of all newest messages, and a file that is made and compared as a whole.
    """
    monkeypatch.setattr(topic_compaction, "HELD_BYTES", 4_000)
    monkeypatch.setattr(topic_compaction, "DIVIDED_BYTES", 4_000)
    monkeypatch.setattr(newest, "SCAN_MESSAGES", 100)
    monkeypatch.setattr(topic_compaction, "piece_rows", lambda rows, size: 20)
    bench = bench_of(tmp_path, 2, ledger_entries_max=1000)
    client = bench.client
    for start in range(0, 6000, 500):
        keys = [b"%d" % (n // 2) for n in range(start, start + 500)]
        client.producer("t").send_batch(pa.table({"key": keys, "value": [b"x" * 50] * 500}))
    client.checkpoint(roll_all=True)
    held_sizes, pieces, written, put_aside = (list[int]() for _ in range(4))
    add, sealed, pwrite = NewestKeys.add, SegmentStream.sealed, PosixFile.pwrite

    def counted(self: NewestKeys, partition: int, table: pa.Table) -> None:
        add(self, partition, table)
        held_sizes.append(self.held_bytes)

    def streamed(self: SegmentStream, tables: Iterable[pa.Table], keys: int) -> Iterator[bytes]:
        def each() -> Iterator[pa.Table]:
            for table in tables:
                pieces.append(table.num_rows)
                yield table

        for part in sealed(self, each(), keys):
            written.append(len(part))
            yield part

    def aside(self: PosixFile, offset: int, data: Any) -> None:
        pwrite(self, offset, data)
        if TEMPORARY_PREFIX in self.path:
            put_aside.append(sum(len(value) for value in data))

    monkeypatch.setattr(NewestKeys, "add", counted)
    monkeypatch.setattr(SegmentStream, "sealed", streamed)
    monkeypatch.setattr(PosixFile, "pwrite", aside)
    answer = client.admin.compact_topic("t")
    assert (answer["keys_kept"], answer["files"]) == (3000, 2)
    assert max(held_sizes) <= topic_compaction.HELD_BYTES
    assert sum(pieces) == 3000 and max(pieces) == 20 and len(pieces) <= 152
    assert sum(written) == answer["size_after_bytes"]
    assert max(put_aside) < 6_000 and sum(put_aside) > 3000 * 50
    assert [name for name in os.listdir(bench.path) if name.startswith(TEMPORARY_PREFIX)] == []


def test_row_groups_that_were_passed_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group may have the newest message of one key only: its other rows must not stay in
    memory.
    """
    monkeypatch.setattr(newest, "SCAN_MESSAGES", 100)
    bench = bench_of(tmp_path, ledger_entries_max=100)
    client = bench.client
    for ledger in range(20):
        keys = [b"hot"] * 99 + [b"%d" % ledger]
        client.producer("t").send_batch(pa.table({"key": keys, "value": [bytes(1000)] * 100}))
        client.checkpoint(roll_all=True)
    most, files_kept, kept_tables = 0, 0, list[pa.Table]()
    staying_rows = _TopicCompaction._staying_rows

    def looked_at(self: _TopicCompaction, *arguments: Any) -> Iterator[pa.Table]:
        nonlocal most, files_kept
        for table in staying_rows(self, *arguments):
            kept_tables.append(table)
            decoded = [
                kept_table.cached_bytes for _, kept_table in self._view.files._readers.values()
            ]
            files_kept = max(files_kept, sum(size > 0 for size in decoded))
            most = max(most, sum(kept_table.get_total_buffer_size() for kept_table in kept_tables))
            yield table

    monkeypatch.setattr(_TopicCompaction, "_staying_rows", looked_at)
    assert client.admin.compact_topic("t")["keys_kept"] == 21
    assert files_kept == 1
    assert most < 100_000  # 21 rows of a thousand bytes; with their row groups it is two million


def test_large_messages_are_fetched_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small messages before do not make a batch of as many large ones."""
    monkeypatch.setattr(newest, "FETCH_BYTES", 10_000)
    bench = bench_of(tmp_path, ledger_entries_max=10_000, max_message_bytes=8_000)
    client = bench.client
    small = pa.table({"key": [b"%d" % n for n in range(1000)], "value": [b"x"] * 1000})
    client.producer("t").send_batch(small)
    client.checkpoint(roll_all=True)
    for number in range(10):
        put(client, (b"l%d" % number, bytes(7_000)))
        client.checkpoint(roll_all=True)
    large = client.producer("t", chunking=True)
    for number in range(3):
        large.send(bytes(30_000), key=b"c%d" % number)
    client.checkpoint(roll_all=True)
    sizes, rows = list[int](), View.rows

    def noted(self: View, requests: Any, names: Any) -> list[pa.Table]:
        found_rows = rows(self, requests, names)
        if "value" in names:
            sizes.append(
                sum(
                    pc.sum(pc.binary_length(found_row["value"])).as_py() for found_row in found_rows
                )
            )
        return found_rows

    monkeypatch.setattr(View, "rows", noted)
    assert client.admin.compact_topic("t")["keys_kept"] == 1013
    assert sorted(sizes) == [1_000, *[7_000] * 10, *[30_000] * 3]


def test_a_dry_run_of_a_read_only_store_gives_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R23: its scratch files are outside the store."""
    little_memory(monkeypatch)
    bench = bench_of(tmp_path, 2)
    put(bench.client, *((b"%d" % (number % 15), b"x") for number in range(40)), (b"1", None))
    plan = bench.client.admin.compact_topic("t", dry_run=True)
    bench.close()
    names = sorted(os.listdir(bench.path))
    for is_dry in (False, True):
        with txlog.open(bench.path, read_only=True, dry_run=is_dry) as client:
            assert client.admin.compact_topic("t", dry_run=True) == plan
    assert sorted(os.listdir(bench.path)) == names
    assert plan["keys_kept"] == 14


def test_scratch_rows_are_compared_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17. Guards against no comparison, or a comparison of the first piece only."""
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, *((b"%d" % number, b"x") for number in range(10)))
    monkeypatch.setattr(topic_compaction, "piece_rows", lambda rows, size: 3)
    number = 0

    def other(table: pa.Table) -> list[memoryview]:
        nonlocal number
        number += 1
        if number == 3:
            at = table.schema.get_field_index("value")
            table = table.set_column(at, "value", pa.array([b"y"] * table.num_rows, pa.binary()))
        return encode_part(table)

    with monkeypatch.context() as patch:
        patch.setattr(topic_compaction, "encode_part", other)
        with pytest.raises(Corruption, match="does not hold the rows"):
            client.admin.compact_topic("t")
    assert state(client) is None
    assert client.admin.compact_topic("t")["keys_kept"] == 10


# --- by itself ---------------------------------------------------------------------------------


def test_a_topic_past_its_threshold_is_compacted_after_a_checkpoint(tmp_path: Path) -> None:
    """All partitions together. Only messages since the last compaction count.

    A topic without a policy is not compacted.
    """
    bench = bench_of(tmp_path, 2)
    client = bench.client
    client.create_topic("other")
    client.producer("other").send(b"x" * 1000, key=b"a")
    answer = client.admin.set_retention_policies("t", compaction_threshold_bytes=100)
    assert answer["policies"]["compaction_threshold_bytes"] == 100
    put(client, (b"a", b"1" * 48), partition=0)
    put(client, (b"b", b"2" * 48), partition=1)  # with their keys 98 bytes
    client.checkpoint()
    assert (state(client, 1), state(client, 2)) == (None, None)
    with client.transaction() as txn:
        client.producer("t").send(b"3", key=b"a", partition=0, txn=txn)
    client.checkpoint()
    first = state(client, 1)
    assert first is not None and state(client, 2) is not None and state(client, 3) is None
    assert sorted(pairs(compacted(client))) == [(b"a", b"3"), (b"b", b"2" * 48)]
    put(client, (b"a", b"4" * 10), partition=0)
    client.checkpoint()
    assert state(client, 1) == first
    put(client, (b"a", b"5" * 500), partition=0)
    client.checkpoint()
    assert state(client, 1) != first
    client.admin.set_retention_policies("t", compaction_threshold_bytes=-1)
    state_before = state(client, 1)
    put(client, (b"a", b"6" * 500), partition=0)
    client.checkpoint()
    assert state(client, 1) == state_before


def test_a_topic_that_cannot_be_compacted_is_noted_and_keeps_no_other(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    client.create_topic("u")
    client.admin.set_retention_policies(compaction_threshold_bytes=1)
    put(client, (b"a", b"1"))
    client.producer("u").send(b"1", key=b"a")
    client.admin.set_offline("t", 0)
    for _ in range(2):
        client.checkpoint()
    assert state(client, 1) is None
    assert state(client, 2) is not None
    [line] = [line for line in client.reports() if "compacted by key" in line]
    assert line.startswith("t is not compacted by key: ")


def test_no_commit_compacts_and_none_pauses_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the checkpoint compacts; writers go on until the journal is far too long."""
    monkeypatch.setattr(service, "IN_BACKGROUND", True)
    client = bench_of(tmp_path, checkpoint_frames=30, compaction_threshold_bytes=1).client
    client.checkpoint_automatically = True
    begun, go_on, paused = threading.Event(), threading.Event(), list[float | None]()
    compact, wait = topic_compaction.compact_topic, service.Checkpoints._wait
    by = list[threading.Thread]()

    def held(*arguments: Any, **more: Any) -> bool:
        by.append(threading.current_thread())
        begun.set()
        assert go_on.wait(60)
        return compact(*arguments, **more)

    def counted(self: service.Checkpoints, seconds: float | None) -> None:
        paused.append(seconds)
        wait(self, seconds)

    monkeypatch.setattr(topic_compaction, "compact_topic", held)
    while not client._checkpoints.is_running:
        put(client, (b"a", b"1"))
    assert begun.wait(60)
    monkeypatch.setattr(service.Checkpoints, "_wait", counted)
    while client.store.length < 1:
        put(client, (b"a", b"2"))
    put(client, (b"a", b"3"))
    assert not paused
    while client.store.length < service.LONG:
        put(client, (b"a", b"4"))
    put(client, (b"a", b"5"))
    assert paused
    go_on.set()
    client.close()
    assert threading.main_thread() not in by
