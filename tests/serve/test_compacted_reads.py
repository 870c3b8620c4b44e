"""Consumers of stock clients that read compacted messages: the newest of each key, then the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.serve.deliveries import subscribed
from tests.serve.served import Raw, served
from tests.serve.test_more_messages import positions
from txlog.base.ranges import END
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.messages import ERRORS

pytestmark = pytest.mark.usefixtures("quick_disk")
EXCLUSIVE, SHARED = 0, 1
LOG = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (None, b"none"), (b"c", b"4"), (b"c", None)]
NEWEST = [b"2", b"3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    path = tmp_path_factory.mktemp("s") / "s"
    txlog.init(str(path), ledger_entries_max=5)
    with served(path) as url:
        yield path, url


@pytest.fixture(params=[False, True], ids=["log", "trimmed"])
def compacted(request: pytest.FixtureRequest, place: tuple[Path, str]) -> Iterator[Any]:
    """A topic that was compacted, with its log or without: (client, URL, name)."""
    path, url = place
    name = f"{request.node.name.split('[')[0]}-{request.param}"
    with txlog.open(str(path)) as client:
        client.create_topic(name)
        for key, value in LOG:
            client.producer(name).send(value, key=key)
        with client.transaction() as txn:
            for key in (b"x", b"y", b"x"):
                client.producer(name).send(b"of " + key, key=key, txn=txn)
        client.producer(name).send(b"", key=b"b", properties={"is": "later"})
        client.producer(name).send(None, key=b"b")
        client.producer(name).send(b"2", key=b"b")
        client.producer(name).send(b"d", key=b"d")
        client.producer(name).send(None, key=b"d")
        client.admin.compact_topic(name)
        if request.param:
            client.checkpoint(roll_all=True)
            client.admin.trim(name, END, force_unacked=True)
        yield client, url, name


def reads(raw: Raw, name: str, **options: Any) -> None:
    """Begin to read compacted messages in memory."""
    fields = {"durable": False, "subType": EXCLUSIVE, "read_compacted": True} | options
    subscribed(raw, name, **fields)


def values(raw: Raw, count: int, permits: int = 100) -> list[tuple[Any, bytes]]:
    """(id, value) of the next messages, where no message is in a batch."""
    raw.send("flow", consumer_id=1, messagePermits=permits)
    pairs: list[tuple[Any, bytes]] = []
    while len(pairs) < count:
        frame = raw.frame()
        if frame.kind != wire.BY_FIELD["message"]:
            continue
        _, payload = wire.split_message(frame.trailer)
        pairs.append((frame.body.message_id, bytes(payload)))
    return pairs


def test_a_reader_gets_the_newest_of_each_key_and_then_the_log(compacted: Any) -> None:
    client, url, name = compacted
    expected = [message.value for message in client.reader(name, read_compacted=True)]
    assert expected == [b"3", b"of y", b"of x", b"2"]
    client.producer(name).send(b"5", key=b"a")
    with Raw(url) as raw:
        reads(raw, name)
        first_read = values(raw, 5)
        assert [value for _, value in first_read] == [*expected, b"5"]
        ids = [(place.ledgerId, place.entryId) for place, _ in first_read]
        assert ids == sorted(set(ids))
        assert positions(raw)[1] == ids[-1]
        raw.send("redeliverUnacknowledgedMessages", consumer_id=1)
        second_read = values(raw, 5)
        assert [value for _, value in second_read] == [*expected, b"5"]
    for at, (start, _) in enumerate(first_read):
        with Raw(url) as raw:
            reads(raw, name, start_message_id=start)
            assert values(raw, 1)[0][1] == [*expected, b"5"][at], at


def test_last_message_id_belongs_to_a_readable_message(compacted: Any) -> None:
    """Kills: the id of the log's last message, which is deleted, so that readers wait for ever."""
    _, url, name = compacted
    with Raw(url) as raw:
        reads(raw, name)
        last = values(raw, 4)[-1][0]
        assert positions(raw)[1] == (last.ledgerId, last.entryId)


def test_durable_consumer_acknowledges_compacted_messages(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("durable")
        for key, value in LOG:
            client.producer("durable").send(value, key=key)
        client.admin.compact_topic("durable")
        client.producer("durable").send(b"5", key=b"a")
        subscribed(raw, "durable", subType=EXCLUSIVE, read_compacted=True)
        pairs = values(raw, 3)
        assert [value for _, value in pairs] == [*NEWEST, b"5"]
        message_ids = [message_id for message_id, _ in pairs]
        raw.ask("ack", "ackResponse", consumer_id=1, ack_type=0, message_id=message_ids)
        [row] = client.subscriptions("durable")
        assert row["backlog"] == 0


@pytest.mark.parametrize("durable", [True, False])
def test_shared_consumers_do_not_read_compacted_messages(
    durable: bool, place: tuple[Path, str]
) -> None:
    _, url = place
    with Raw(url) as raw:
        raw.send(
            "subscribe", request_id=1, consumer_id=1, topic="shared", subscription="s",
            subType=SHARED, durable=durable, read_compacted=True,
        )  # fmt: skip
        assert raw.read("error").error == ERRORS["NotAllowedError"]
