"""A topic in another store: each message once and in order, whatever interrupts the copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, ids, send, send_txn
from tests.harness import KILLED, ready, run
from tests.tiers import graded
from txlog import Bound, Client, Message, Range
from txlog.cli.main import main
from txlog.client import topic_copy
from txlog.errors import InvalidArgument, InvalidMessage, NotAllowed, SnapshotExpired, TryAgain

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2}, [])]


@pytest.fixture
def other(tmp_path: Path, bench: Bench) -> Iterator[Client]:
    """Another store."""
    txlog.init(str(tmp_path / "other"), clock=bench.clock)
    with txlog.open(str(tmp_path / "other"), clock=bench.clock) as client:
        yield client


def fill(client: Client) -> None:
    """Plain messages and transactions, so that batches of three end within transactions."""
    for round_ in range(3):
        for partition in (0, 1):
            send(client, *(b"%d plain %d" % (round_, n) for n in range(4)), partition=partition)
            name = b"%d in %d, " % (round_, partition)
            send_txn(client, *(name + b"%d" % n for n in range(5)), partition=partition)


def kept(message: Message) -> tuple[Any, ...]:
    """The parts of a message that a copy keeps."""
    return (
        message.value,
        message.key,
        message.properties,
        message.event_time,
        message.deliver_at,
        message.partition,
    )


def kept_of(value: bytes) -> tuple[Any, ...]:
    """The parts that a copy keeps of a message that has only a value."""
    return (value, None, {}, None, None, 0)


def contents(client: Client, topic: str = "t") -> list[list[tuple[Any, ...]]]:
    """The messages of each partition, in order."""
    count = client.describe_topic(topic)["partitions"]
    return [[kept(m) for m in client.reader(topic, partitions=[p])] for p in range(count)]


def test_copy_keeps_messages_order_and_partitions(bench: Bench, other: Client) -> None:
    fill(bench.client)
    due = bench.clock.now().wall_ms + 3_600_000
    bench.client.producer("t").send(
        None, key=b"k", properties={"a": "1"}, event_time=7, deliver_at=due, partition=1
    )
    answer = txlog.copy_topic(bench.client, other, "t")
    assert answer == {"topic": "t", "to": "t", "messages": 55, "continued": False}
    assert contents(other) == contents(bench.client)
    assert other.topic("t").next_delayed() is not None


def test_second_copy_adds_only_what_is_new(bench: Bench, other: Client) -> None:
    fill(bench.client)
    txlog.copy_topic(bench.client, other, "t", "named")
    assert txlog.copy_topic(bench.client, other, "t", "named")["messages"] == 0
    send(bench.client, b"new", partition=1)
    bench.client.admin.trim("t", Bound("id", ids(bench.client)[-1]), force_unacked=True)
    answer = txlog.copy_topic(bench.client, other, "t", "named")
    assert (answer["messages"], answer["continued"]) == (1, True)
    assert len(contents(other, "named")[1]) == 28


def test_copy_goes_on_behind_what_was_trimmed_before_it_was_copied(
    bench: Bench, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running copy raises SnapshotExpired; the next copy takes the remaining messages."""
    monkeypatch.setattr(topic_copy, "BATCH_MESSAGES", 2)
    bench.client.admin.set_setting("ledger_entries_max", 5)
    send(bench.client, *(b"%d" % n for n in range(20)), partition=0)
    middle = Bound("id", ids(bench.client)[15])

    def trim(messages: int) -> None:
        if messages == 4:
            bench.client.admin.trim("t", middle, force_unacked=True)

    with pytest.raises(SnapshotExpired):
        txlog.copy_topic(bench.client, other, "t", tell=trim)
    txlog.copy_topic(bench.client, other, "t")
    left = contents(bench.client)[0]
    assert contents(other)[0] == [kept_of(b"%d" % n) for n in range(4)] + left
    assert len(left) < 16


def test_records_keep_their_schema(bench: Bench, other: Client) -> None:
    schema = txlog.Schema(
        "json",
        '{"type":"record","name":"Order","fields":[{"name":"who","type":"string"}]}',
    )
    bench.client.create_topic("orders", schema=schema)
    bench.client.producer("orders").send(b'{"who":"ana"}')
    txlog.copy_topic(bench.client, other, "orders")
    [message] = other.reader("orders")
    assert (message.decode(), message.schema_version) == ({"who": "ana"}, 1)


@pytest.mark.parametrize("after", graded(range(1, 12), 2))
def test_interrupted_copy_goes_on(
    bench: Bench, other: Client, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Batches end behind whole transactions, so no message is left out or doubled."""
    monkeypatch.setattr(topic_copy, "BATCH_MESSAGES", 3)
    fill(bench.client)
    left = after

    def interrupt(messages: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        txlog.copy_topic(bench.client, other, "t", tell=interrupt)
    txlog.copy_topic(bench.client, other, "t")
    assert contents(other) == contents(bench.client)


def test_of_two_copies_at_once_the_slower_one_stops(
    bench: Bench, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next batch does not follow the last one, so the copy might already have its messages."""
    monkeypatch.setattr(topic_copy, "BATCH_MESSAGES", 3)
    fill(bench.client)

    def overtake(messages: int) -> None:
        monkeypatch.setattr(topic_copy, "BATCH_MESSAGES", 1)
        with pytest.raises(KeyboardInterrupt):
            txlog.copy_topic(bench.client, other, "t", tell=interrupt)

    def interrupt(messages: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(TryAgain):
        txlog.copy_topic(bench.client, other, "t", tell=overtake)
    monkeypatch.setattr(topic_copy, "BATCH_MESSAGES", 4)

    def overrun(messages: int) -> None:
        txlog.copy_topic(bench.client, other, "t")

    txlog.copy_topic(bench.client, other, "t", tell=overrun)
    assert contents(other) == contents(bench.client)


@pytest.mark.parametrize("nth", graded(range(5, 400, 10), (105,)))
def test_copy_that_is_killed_goes_on(bench: Bench, other: Client, nth: int) -> None:
    fill(bench.client)
    path = other.store.disk.description
    child = run(ready("copy_topic", bench.path, path, "t", nth), code=None)
    assert child.returncode in (0, KILLED), child.stderr
    txlog.copy_topic(bench.client, other, "t")
    assert contents(other) == contents(bench.client)


def test_range_bounds_what_is_copied(bench: Bench, other: Client) -> None:
    fill(bench.client)
    first = [m.message_id for m in bench.client.reader("t", partitions=[0])]
    stop = Bound("id", first[2])
    txlog.copy_topic(bench.client, other, "t", range=Range(stop=stop))
    assert contents(other)[0] == contents(bench.client)[0][:2]
    within = next(id_ for id_ in first if id_ is not None and id_.index == 2)
    with pytest.raises(InvalidArgument, match="transactions"):
        txlog.copy_topic(bench.client, other, "t", range=Range(stop=Bound("id", within)))
    txlog.copy_topic(bench.client, other, "t")
    assert contents(other) == contents(bench.client)


def test_range_of_a_copy_that_goes_on_is_kept(bench: Bench, other: Client) -> None:
    send(bench.client, *(b"%d" % n for n in range(10)), partition=0)
    place = [Bound("id", id_) for id_ in ids(bench.client)]
    copied = []
    for span in (
        Range(stop=place[2]),
        Range(start=place[6], stop=place[7]),
        Range(start=place[1], stop=place[8]),
        Range(),
    ):
        txlog.copy_topic(bench.client, other, "t", range=span)
        copied.append([message[0] for message in contents(other)[0]])
    assert [b"".join(values) for values in copied] == [b"01", b"016", b"0167", b"016789"]


@pytest.mark.parametrize("stop", [Bound("last", 2), Bound("skip", 3)])
def test_range_that_ends_within_a_transaction_is_refused(
    bench: Bench, other: Client, stop: Bound
) -> None:
    """The next copy would go on behind the transaction, without its rest."""
    send_txn(bench.client, *(b"%d" % n for n in range(5)), partition=0)
    with pytest.raises(InvalidArgument, match="transaction"):
        txlog.copy_topic(bench.client, other, "t", range=Range(stop=stop))
    txlog.copy_topic(bench.client, other, "t", range=Range(stop=Bound("skip", 5)))
    assert contents(other) == contents(bench.client)


def test_copy_onto_itself_is_refused(bench: Bench, tmp_path: Path) -> None:
    send(bench.client, b"x", partition=0)
    (tmp_path / "link").symlink_to(bench.path)
    with (
        txlog.open(str(tmp_path / "link"), clock=bench.clock) as same,
        pytest.raises(NotAllowed, match="itself"),
    ):
        txlog.copy_topic(bench.client, same, "t")
    txlog.copy_topic(bench.client, bench.client, "t", "again")
    assert contents(bench.client, "again") == contents(bench.client) == [[kept_of(b"x")], []]


def test_source_that_was_restored_from_an_older_copy_is_refused(
    bench: Bench, other: Client, tmp_path: Path
) -> None:
    """Its new messages get the positions of messages that were copied already."""
    send(bench.client, b"0", partition=0)
    bench.client.copy(str(tmp_path / "backup"))
    send(bench.client, b"1", b"2", partition=0)
    txlog.copy_topic(bench.client, other, "t")
    txlog.restore(str(tmp_path / "backup"), str(tmp_path / "restored"), clock=bench.clock)
    with txlog.open(str(tmp_path / "restored"), clock=bench.clock) as restored:
        send(restored, b"other", partition=0)
        with pytest.raises(NotAllowed, match="restored"):
            txlog.copy_topic(restored, other, "t")
        txlog.copy_topic(restored, other, "t", "anew")
        assert contents(other, "anew") == contents(restored)


def test_copy_that_was_killed_before_the_schemas_adds_them(bench: Bench, other: Client) -> None:
    record = '{"type":"record","name":"Order","fields":[%s]}'
    first = txlog.Schema("json", record % '{"name":"who","type":"string"}')
    more = '{"name":"who","type":"string"},{"name":"n","type":"int","default":0}'
    bench.client.create_topic("orders", schema=first)
    bench.client.topic("orders").schemas.add(txlog.Schema("json", record % more))
    bench.client.producer("orders").send(b'{"who":"ana","n":1}')
    for name, schema in (("none", None), ("one", first)):
        other.create_topic(name, schema=schema)
        txlog.copy_topic(bench.client, other, "orders", name)
        assert [message.schema_version for message in other.reader(name)] == [2]
    other.create_topic("bytes")
    other.producer("bytes").send(b"of another program")
    txlog.copy_topic(bench.client, other, "orders", "bytes")
    assert other.topic("bytes").schemas.list() == []


def test_topic_that_was_made_again_is_copied_anew(bench: Bench, other: Client) -> None:
    send(bench.client, b"x")
    txlog.copy_topic(bench.client, other, "t")
    other.admin.delete_topic("t", force=True)
    assert txlog.copy_topic(bench.client, other, "t")["messages"] == 1
    assert contents(other) == contents(bench.client)


def test_topic_with_other_partitions_is_refused(bench: Bench, other: Client) -> None:
    other.create_topic("t", 3)
    with pytest.raises(NotAllowed, match="order"):
        txlog.copy_topic(bench.client, other, "t")


def test_command_copies(bench: Bench, other: Client, capfd: pytest.CaptureFixture[str]) -> None:
    fill(bench.client)
    path = other.store.disk.description
    assert main(["topic", "copy", "t", "--to-store", path, "-S", bench.path]) == 0
    assert "copied 54 messages of t to t" in capfd.readouterr().err
    assert main(["topic", "copy", "t", "--to-store", path, "-S", bench.path, "--json"]) == 0
    assert '"messages":0,"continued":true' in capfd.readouterr().out


RECORD = pa.schema([pa.field("n", pa.int64(), nullable=False)])
MIXED = {
    "json": [(b'{"n":"old"}', False), (b'{"n":1}', False), (None, True), (b'{"n":2}', True)],
    "avro": [(b"\x02", False), (b"old", False), (None, True), (b"\x04", True)],
}


@pytest.mark.parametrize("type", MIXED)
@pytest.mark.parametrize("padding", [0, 2 << 20])
def test_copy_keeps_which_messages_have_a_record(
    bench: Bench, other: Client, type: Any, padding: int
) -> None:
    """Messages that came before the schema, or do not match it, too: the copy refuses no message.

    padding: bytes of a value, for a batch that is adopted as a file
    """
    bench.client.create_topic("mixed")
    producer = bench.client.producer("mixed")
    for value in [b"x" * padding, *(value for value, has in MIXED[type] if not has)]:
        producer.send(value)
    bench.client.topic("mixed").schemas.add(RECORD, type=type)
    for value in (value for value, has in MIXED[type] if has):
        producer.send(value)

    def rows(client: Client) -> list[tuple[Any, Any]]:
        return [(row.value, row.schema_version) for row in client.reader("mixed")]

    for _ in range(2):
        txlog.copy_topic(bench.client, other, "mixed")
        assert rows(other) == rows(bench.client)
    assert [version for _, version in rows(other)] == [None, None, None, None, 1]
    assert other.describe_topic("mixed")["mismatched"] == 3


def test_copy_that_fails_at_once_leaves_no_topic(bench: Bench, other: Client) -> None:
    """A later failure leaves whole batches, the error counts them, and the next call goes on."""
    other.admin.set_setting("max_message_bytes", 100)
    bench.client.create_topic("large", schema=RECORD)
    bench.client.topic("large").schemas.add(RECORD.append(pa.field("m", pa.string())))
    bench.client.producer("large").send(b'{"n":1,"m":"%s"}' % (b"x" * 200))
    with pytest.raises(InvalidMessage):
        txlog.copy_topic(bench.client, other, "large")
    assert other.topics() == []
    send(bench.client, b"small", partition=0)
    send(bench.client, b"x" * 200, partition=1)
    with pytest.raises(InvalidMessage, match="1 message was copied before; the next call goes on"):
        txlog.copy_topic(bench.client, other, "t")
    other.admin.set_setting("max_message_bytes", 1000)
    assert txlog.copy_topic(bench.client, other, "t")["continued"]
    assert contents(other) == contents(bench.client)
