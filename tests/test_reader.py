"""A reader goes where it is told, knows the last message, and says truly whether one follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, pending, send, send_txn
from txlog import Bound, Message, MessageId, Reader
from txlog.errors import InvalidArgument, MessageNotFound, NotAllowed

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    made.client.create_topic("t", partitions=2)
    yield made
    made.close()


def rest(reader: Reader) -> list[bytes | None]:
    return [message.value for message in reader]


def following(reader: Reader) -> bytes | None:
    message: Message | None = reader.read_next()
    assert message is not None
    return message.value


def test_message_is_available_until_the_last_was_read(bench: Bench) -> None:
    """What was read ahead is available, too."""
    send(bench.client, b"1", b"2", b"3")
    reader = bench.client.reader("t")
    for value in (b"1", b"2", b"3"):
        assert reader.has_message_available()
        assert following(reader) == value
    assert not reader.has_message_available()
    send(bench.client, b"4", partition=1)
    assert reader.has_message_available()


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
    """What was read ahead of them is not lost."""
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


def test_seek_refuses_what_is_no_position(bench: Bench) -> None:
    [other] = send(bench.client, b"1", partition=1)
    reader = bench.client.reader("t/0")
    with pytest.raises(InvalidArgument, match="not read"):
        reader.seek(other)
    with pytest.raises(MessageNotFound):
        reader.seek(MessageId(99, 0))
    for wrong in ("first", True):
        with pytest.raises(InvalidArgument, match="not a position"):
            reader.seek(wrong)


@pytest.mark.parametrize(
    ("position", "left"),
    [
        (None, [b"1", b"2", b"3"]), (Bound("start"), [b"1", b"2", b"3"]), (Bound("end"), []),
        (Bound("last", 1), [b"3"]), (Bound("skip", 1), [b"2", b"3"]),
        (Bound("time", START_MS + 1000), [b"2", b"3"]),
    ],
)  # fmt: skip
def test_subscription_begins_at_its_position(
    bench: Bench, position: Bound | None, left: list[bytes]
) -> None:
    for value in (b"1", b"2", b"3"):
        send(bench.client, value)
        bench.clock.advance(1000)
    bench.client.create_subscription("t", "s", position=position)
    assert [message.value for message in pending(bench.client)] == left


def test_subscription_at_an_id_passes_over_nothing_elsewhere(bench: Bench) -> None:
    """An id selects its partition: a position of the other one says nothing of this one."""
    first = send(bench.client, b"1", b"2")
    other = send(bench.client, b"a", b"b", partition=1)
    cases = (("s", first[1], [b"2", b"a", b"b"]), ("r", other[1], [b"1", b"2", b"b"]))
    for name, place, left in cases:
        bench.client.create_subscription("t", name, position=Bound("id", place))
        found = pending(bench.client, subscription=name)
        assert sorted(message.value or b"" for message in found) == left
