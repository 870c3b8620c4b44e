"""Compaction by key: the messages that readers get, compared with a dict, through all upkeep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.engine_kit import begin, rows
from tests.upkeep.compaction_kit import (
    LARGE,
    bench_of,
    compacted,
    files,
    pairs,
    put,
    state,
    trim_all,
)
from txlog import Bound, MessageId, Range, messages
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.upkeep.space import topic_compaction
from txlog.engine.upkeep.space.topic_compaction import _TopicCompaction
from txlog.errors import (
    Corruption,
    InvalidArgument,
    MessageNotFound,
    PartitionUnavailable,
    SnapshotExpired,
    TopicNotFound,
)
from txlog.lake.sql.segments import listed

pytestmark = pytest.mark.usefixtures("quick_disk")


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


@pytest.mark.deep
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


@pytest.mark.parametrize("partition", [0, 1])
def test_policies_keep_what_no_compaction_has_read(tmp_path: Path, partition: int) -> None:
    """Also in a partition that was empty when the topic was compacted (simulation, seed 3)."""
    bench = bench_of(tmp_path, 2)
    client = bench.client
    client.set_policies("t", retention_ms=1)
    put(client, (b"a", b"old"), partition=0)
    client.admin.compact_topic("t")
    put(client, (b"b", b"newest"), partition=partition)
    bench.clock.advance(10)
    client.admin.trim("t", by_policy=True)
    assert (b"b", b"newest") in pairs(compacted(client))
    client.admin.compact_topic("t")
    client.admin.trim("t", by_policy=True)
    assert client.topics()[0]["messages"] == 0
    assert pairs(compacted(client)) == [(b"a", b"old"), (b"b", b"newest")]


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
