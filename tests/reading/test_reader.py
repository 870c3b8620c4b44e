"""A reader seeks to any position, knows the last message, and whether another message follows."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import START_MS, Bench, begin, pending, read, rows, send, send_txn
from tests.tiers import graded
from txlog import Bound, Client, Message, MessageId, Range, Reader, messages
from txlog.base.choices import Isolation
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    SnapshotExpired,
    TopicNotFound,
)

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2})]


def rest(reader: Reader) -> list[bytes | None]:
    return [message.value for message in reader]


def following(reader: Reader) -> bytes | None:
    message: Message | None = reader.read_next()
    assert message is not None
    return message.value


def test_message_is_available_until_the_last_was_read(bench: Bench) -> None:
    """Messages that were read ahead count as available."""
    send(bench.client, b"1", b"2", b"3")
    reader = bench.client.reader("t")
    for value in (b"1", b"2", b"3"):
        assert reader.has_message_available()
        assert following(reader) == value
    assert not reader.has_message_available()
    send(bench.client, b"4", partition=1)
    assert reader.has_message_available()


def test_a_batch_begins_with_the_messages_read_ahead(bench: Bench) -> None:
    """Single reads and batches share one order: no message is skipped, none comes twice."""
    ids = send(bench.client, *(b"%d" % n for n in range(6)))
    reader = bench.client.reader("t")
    assert following(reader) == b"0"
    assert [row.value for row in rows([reader.receive_batch(2)])] == [b"1", b"2"]
    assert following(reader) == b"3"
    reader.seek(ids[2])
    assert following(reader) == b"2"
    send(bench.client, b"other", partition=1)
    assert [row.value for row in rows([reader.receive_batch()])] == [b"3", b"4", b"5"]
    assert [row.value for row in rows([reader.receive_batch()])] == [b"other"]
    with pytest.raises(InvalidArgument, match="max_messages is 0"):
        reader.receive_batch(0)  # an empty batch would mean the end of the log


def test_a_seek_drops_messages_read_ahead_of_its_partition(bench: Bench) -> None:
    """Messages read ahead from other partitions stay, in batches and single reads."""
    ids = send(bench.client, b"a0", b"a1", partition=0)
    send(bench.client, b"b0", b"b1", partition=1)
    reader = bench.client.reader("t")
    assert following(reader) == b"a0"
    reader.seek(ids[0])
    found_rows = rows([reader.receive_batch(), reader.receive_batch()])
    assert [found_row.value for found_row in found_rows] == [b"b0", b"b1", b"a0", b"a1"]


def test_open_transaction_is_not_available(bench: Bench) -> None:
    txn = begin(bench.client)
    bench.client.producer("t").send(b"x", partition=0, txn=txn)
    reader = bench.client.reader("t")
    assert not reader.has_message_available()
    assert reader.get_last_message_ids() == {0: None, 1: None}
    bench.client.commit(txn)
    assert reader.has_message_available()


def test_last_message_id_is_never_a_marker(bench: Bench) -> None:
    """Pulsar #21456."""
    [plain] = send(bench.client, b"a", partition=1)
    _, ids = send_txn(bench.client, b"1", b"2")
    begin(bench.client)
    reader = bench.client.reader("t")
    assert reader.get_last_message_ids() == {0: ids[-1], 1: plain}
    with pytest.raises(NotAllowed, match="2 partitions"):
        reader.get_last_message_id()
    assert bench.client.reader("t/0").get_last_message_id() == ids[-1]


def test_last_message_id_is_none_once_all_was_trimmed(bench: Bench) -> None:
    send(bench.client, b"a")
    bench.client.checkpoint(roll_all=True)
    bench.client.admin.trim("t", Bound("end"))
    assert bench.client.reader("t/0").get_last_message_id() is None


def test_a_loop_goes_on_where_a_seek_has_led(bench: Bench) -> None:
    """Guards against a loop that keeps the messages that it had read ahead."""
    ids = send(bench.client, b"a", b"b", b"c", b"d")
    with bench.client.reader("t") as reader:
        results = []
        for message in reader:
            results.append(message.value)
            if len(results) == 2:
                reader.seek(ids[3])
    assert results == [b"a", b"b", b"d"]


def test_seek_by_id_begins_with_that_message(bench: Bench) -> None:
    ids = send(bench.client, b"1", b"2", b"3")
    _, inner = send_txn(bench.client, b"4", b"5")
    reader = bench.client.reader("t/0")
    assert rest(reader) == [b"1", b"2", b"3", b"4", b"5"]
    reader.seek(ids[1])
    assert rest(reader) == [b"2", b"3", b"4", b"5"]
    reader.seek(inner[1])
    assert rest(reader) == [b"5"]
    reader.seek("earliest")
    assert following(reader) == b"1"
    reader.seek("latest")
    assert rest(reader) == []
    reader.seek(Bound("last", 2))
    assert rest(reader) == [b"4", b"5"]


def test_seek_by_id_leaves_the_other_partitions(bench: Bench) -> None:
    """Messages read ahead from other partitions are not lost."""
    ids = send(bench.client, b"1", b"2")
    send(bench.client, b"a", b"b", partition=1)
    reader = bench.client.reader("t")
    assert following(reader) == b"1"
    reader.seek(ids[0])
    assert sorted(value or b"" for value in rest(reader)) == [b"1", b"2", b"a", b"b"]


def test_seek_by_time_begins_with_the_first_message_from_then_on(bench: Bench) -> None:
    send(bench.client, b"1")
    bench.clock.advance(1000)
    send(bench.client, b"2")
    send(bench.client, b"x", partition=1)
    reader = bench.client.reader("t")
    reader.seek(START_MS + 500)
    assert sorted(value or b"" for value in rest(reader)) == [b"2", b"x"]


@pytest.mark.parametrize("seed", graded(range(4), 1))
def test_a_time_is_found_in_the_order_of_the_log_when_the_clock_was_set_back(
    tmp_path: Path, seed: int
) -> None:
    """R32: the first message in the log with that time or a later one, whatever times follow."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = Bench(tmp_path / "store", ledger_entries_max=7)
    bench.client.create_topic("t")
    sent: list[tuple[int, bytes]] = []
    for number in range(40):
        at = START_MS + rng.randrange(-20, 20) * 1000
        bench.clock.set_wall(at)
        value = b"%d" % number
        if rng.random() < 0.3:
            send_txn(bench.client, value)
        else:
            send(bench.client, value)
        sent.append((at, value))
        if rng.random() < 0.1:
            bench.client.checkpoint(roll_all=rng.random() < 0.5)
    for at in range(START_MS - 21_000, START_MS + 21_000, 500):
        first = next((n for n, (time, _) in enumerate(sent) if time >= at), len(sent))
        expected = [value for _, value in sent[first:]]
        reader = bench.client.reader("t")
        reader.seek(at)
        assert rest(reader) == expected, at
        assert [
            m.value for m in read(bench.client, range=Range(start=Bound("time", at)))
        ] == expected
    bench.close()


def test_seek_refuses_what_is_no_position(bench: Bench) -> None:
    [other] = send(bench.client, b"1", partition=1)
    reader = bench.client.reader("t/0")
    with pytest.raises(InvalidArgument, match="not read"):
        reader.seek(other)
    with pytest.raises(MessageNotFound):
        reader.seek(MessageId(99, 0))
    for wrong in ("first", True):
        with pytest.raises(InvalidArgument, match="not a position"):
            reader.seek(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "left"),
    [
        (None, [b"1", b"2", b"3"]),
        (Bound("start"), [b"1", b"2", b"3"]),
        (Bound("end"), []),
        (Bound("last", 1), [b"3"]),
        (Bound("skip", 1), [b"2", b"3"]),
        (Bound("time", START_MS + 1000), [b"2", b"3"]),
    ],
)
def test_subscription_begins_at_its_position(
    bench: Bench, position: Bound | None, left: list[bytes]
) -> None:
    for value in (b"1", b"2", b"3"):
        send(bench.client, value)
        bench.clock.advance(1000)
    bench.client.create_subscription("t", "s", position=position)
    assert [message.value for message in pending(bench.client)] == left


def test_subscription_at_an_id_passes_over_nothing_elsewhere(bench: Bench) -> None:
    """An id selects its partition; in the other partitions no message is skipped."""
    first = send(bench.client, b"1", b"2")
    other = send(bench.client, b"a", b"b", partition=1)
    cases = (("s", first[1], [b"2", b"a", b"b"]), ("r", other[1], [b"1", b"2", b"b"]))
    for name, location, remaining in cases:
        bench.client.create_subscription("t", name, position=Bound("id", location))
        pending_messages = pending(bench.client, subscription=name)
        assert sorted(message.value or b"" for message in pending_messages) == remaining


# --- one moment ------------------------------------------------------------------------------


def both(client: Client, value: bytes) -> None:
    """Commit a message in t and one in u, as one transaction."""
    with client.transaction() as txn:
        client.producer("t").send(value, partition=0, txn=txn)
        client.producer("t").send(value, partition=1, txn=txn)
        client.producer("u").send(value, partition=0, txn=txn)


def by_topic(tables: Iterable[pa.Table]) -> dict[str, list[bytes]]:
    out: dict[str, list[bytes]] = {"t/0": [], "t/1": [], "u/0": []}
    for message in rows(tables):
        out[f"{message.topic}/{message.partition}"].append(message.value or b"")
    return out


@pytest.fixture
def two(bench: Bench) -> Bench:
    bench.client.create_topic("u")
    return bench


@pytest.mark.parametrize("isolation", ["committed", "uncommitted"])
def test_several_topics_are_read_as_of_one_moment(two: Bench, isolation: Isolation) -> None:
    """Spec 8: a commit during the read appears in none of the topics, not even in later ones."""
    other = two.another()
    both(other, b"before")
    tables = two.client.read(["t", "u"], batch_messages=1, isolation=isolation)
    results = [next(tables)]
    for step in range(2):  # the reader is slow and still reads t
        both(other, b"%d" % step)
        results.append(next(tables))
    results += tables
    assert by_topic(results) == {"t/0": [b"before"], "t/1": [b"before"], "u/0": [b"before"]}


def test_a_preview_stays_a_preview_though_its_transaction_commits(two: Bench) -> None:
    """Guards against a message that is neither before the end of the read nor among its
    previews.
    """
    other = two.another()
    send(other, b"1", b"2")
    txn = begin(other)
    for topic in ("t", "u"):
        other.producer(topic).send(b"open", partition=0, txn=txn)
    tables = two.client.read(["t", "u"], batch_messages=1, isolation="uncommitted")
    results = [next(tables)]
    other.commit(txn)
    other.checkpoint()
    results += tables
    assert by_topic(results) == {"t/0": [b"1", b"2", b"open"], "t/1": [], "u/0": [b"open"]}
    assert [m.txn_state for m in rows(results)] == [None, None, "open", "open"]


def test_previews_that_were_moved_meanwhile_end_the_moment(two: Bench) -> None:
    """A sealed sidecar no longer says when its rows were written."""
    other = two.another()
    txn = begin(other)
    for topic in ("t", "u"):
        other.producer(topic).send(b"open", partition=0, txn=txn)
    tables = two.client.read(["t", "u"], isolation="uncommitted")
    assert by_topic([next(tables)])["t/0"] == [b"open"]
    other.commit(txn)
    other.checkpoint(roll_all=True)
    with pytest.raises(SnapshotExpired, match="moved while they were read"):
        next(tables)


def test_following_several_topics_a_transaction_is_whole_in_one_round(two: Bench) -> None:
    """The tables between two empty tables, a round, have all or nothing of each transaction."""
    other = two.another()
    both(other, b"0")
    tables = two.client.read(["t", "u"], batch_messages=1, follow=True)
    got = [next(tables)]
    both(other, b"1")
    send(other, b"plain", topic="u")
    got += [next(tables) for _ in range(2)]
    assert by_topic(got) == {"t/0": [b"0"], "t/1": [b"0"], "u/0": [b"0"]}
    got += [next(tables) for _ in range(4)]
    each = [b"0", b"1"]
    assert by_topic(got) == {"t/0": each, "t/1": each, "u/0": [*each, b"plain"]}
    assert not next(tables).num_rows


def test_a_busy_partition_does_not_keep_the_others_from_being_read(bench: Bench) -> None:
    """Guards against a reader that finds new messages in partition 0 each time, and never
    reads 1.
    """
    other = bench.another()
    send(other, b"a")
    send(other, b"b", partition=1)
    with bench.client.reader("t") as reader:
        seen: list[bytes] = []
        for _ in range(4):
            seen += [message.value or b"" for message in messages(reader.receive_batch(1))]
            send(other, b"a")
        assert b"b" in seen


def test_messages_acknowledged_during_the_read_still_belong_to_it(two: Bench) -> None:
    """Spec, invariant 6: the acknowledgement and the output of a transaction come together."""
    other = two.another()
    sent = send(other, b"1", b"2", b"3")
    other.create_subscription("t", "s")
    unacked = Range(kind="unacked", subscription="s")
    tables = two.client.read("t", range=unacked, batch_messages=1)
    results = [next(tables)]
    with other.transaction() as txn:
        other.acknowledge("t", "s", sent, txn=txn)
        other.producer("u").send(b"out", txn=txn)
    results += tables
    assert by_topic(results)["t/0"] == [b"1", b"2", b"3"]
    assert by_topic(two.client.read("t", range=unacked))["t/0"] == []


def test_messages_trimmed_before_they_were_read_end_the_moment(two: Bench) -> None:
    other = two.another()
    send(other, b"1")
    send(other, b"2", topic="u")
    tables = two.client.read(["t", "u"])
    assert by_topic([next(tables)])["t/0"] == [b"1"]
    other.checkpoint(roll_all=True)
    other.admin.trim("u", Bound("end"))
    with pytest.raises(SnapshotExpired, match="trimmed while they were read"):
        next(tables)


def test_files_that_a_checkpoint_removes_are_read_from_where_it_put_them(two: Bench) -> None:
    other = two.another()
    both(other, b"x")
    other.checkpoint()
    tables = two.client.read(["t", "u"], batch_messages=1)
    results = [next(tables)]
    for _ in range(3):
        both(other, b"later")
        other.checkpoint(roll_all=True)
        other.admin.gc(apply=True, keep_ms=0)
    results += tables
    assert by_topic(results) == {"t/0": [b"x"], "t/1": [b"x"], "u/0": [b"x"]}


def test_missing_topic_is_said_before_anything_is_read(two: Bench) -> None:
    send(two.client, b"1")
    with pytest.raises(TopicNotFound):
        next(two.client.read(["t", "nosuch"]))
    with pytest.raises(InvalidArgument, match="no topic"):
        next(two.client.read([]))
    with pytest.raises(InvalidArgument, match="has an end"):
        next(two.client.read(["t"], range=Range(kind="unacked", subscription="s"), follow=True))
