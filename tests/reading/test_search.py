"""A search finds what a full read finds, within its budget, and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from txlog.base.ids import MessageId
from txlog.base.ranges import Bound
from txlog.client.client import Client
from txlog.client.reading.search import Found, SearchBudget, Wanted, search
from txlog.clock import ManualClock
from txlog.engine.door.reading import Message, messages
from txlog.errors import TopicNotFound, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")
START_MS = 1_795_132_800_000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A store with plain messages and transactions over three partitions, a second apart."""
    clock, path = ManualClock(START_MS), str(tmp_path / "orders")
    txlog.init(path, clock=clock, durability="os")
    with txlog.open(path, clock=clock) as client:
        client.create_topic("orders", partitions=3)
        client.create_topic("empty")
        producer = client.producer("orders")
        for number in range(60):
            key = f"k{number % 7}"
            producer.send(b"plain %d" % number, key=key)
            with client.transaction() as txn:
                for part in range(number % 4):
                    producer.send(b"Part \xff %d of %d" % (part, number), key=key, txn=txn)
            if number in (20, 40):
                client.checkpoint(roll_all=number == 20)
            clock.advance(1000)
        yield client


def everything(client: Client) -> list[Message]:
    return [row for table in client.read("orders") for row in messages(table)]


def ids(found: Found) -> list[MessageId | None]:
    return [message.message_id for message in messages(found.table)]


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(),
        Wanted(key="k3"),
        Wanted(text="PLAIN 1"),
        Wanted(text="of 19"),
        Wanted(key="k5", text="k5"),
        Wanted(key="nobody"),
        Wanted(since_ms=START_MS + 20_000, until_ms=START_MS + 41_000),
        Wanted(since_ms=START_MS + 59_000),
        Wanted(until_ms=START_MS),
        Wanted(since_ms=START_MS + 10**9),
        Wanted(until_ms=START_MS + 10**9, since_ms=0),
    ],
)
def test_a_search_finds_what_a_full_read_finds(client: Client, wanted: Wanted) -> None:
    """Kills: a message that two searches in a row leave out or return twice."""
    low, high = wanted.since_ms or 0, wanted.until_ms or 1 << 60
    expected = {
        message.message_id
        for message in everything(client)
        if (wanted.key is None or message.key == wanted.key.encode())
        and wanted.text.lower().encode() in (message.value or b"").lower() + (message.key or b"")
        and low <= (message.visible_time or 0) < high
    }
    for hits in (7, 1000):
        budget, got = SearchBudget(hits=hits, seconds=1e9), list[MessageId | None]()
        found = search(client, "orders", wanted, budget)
        while True:
            assert found.table.num_rows <= hits
            got += ids(found)
            assert bool(found.places) == bool(found.stopped)
            if not found.places:
                break
            found = search(client, "orders", wanted, budget, found.places)
        assert len(got) == len(set(got))
        assert set(got) == expected


def test_newest_messages_come_first(client: Client) -> None:
    found = search(client, "orders", Wanted(), SearchBudget(hits=12))
    times = [message.visible_time or 0 for message in messages(found.table)]
    assert times == sorted(times, reverse=True) and found.stopped == "hits"
    one = search(client, "orders/1", Wanted(), SearchBudget(hits=1000))
    assert {message.partition for message in messages(one.table)} == {1} and not one.stopped


@pytest.mark.parametrize(
    ("budget", "stopped"),
    [
        (SearchBudget(rows=10), "rows"),
        (SearchBudget(size_bytes=10), "size_bytes"),
        (SearchBudget(seconds=0), "seconds"),
    ],
)
def test_a_search_says_which_bound_ended_it(
    client: Client, budget: SearchBudget, stopped: str
) -> None:
    found = search(client, "orders", Wanted(key="nobody"), budget)
    assert (found.stopped, found.table.num_rows) == (stopped, 0)
    assert found.places and found.rows < len(everything(client))


def test_a_search_of_nothing(client: Client) -> None:
    assert search(client, "empty", Wanted())[1:] == (0, 0, {}, "")
    with pytest.raises(TopicNotFound):
        search(client, "missing", Wanted())
    with pytest.raises(TxlogError):
        search(client, "empty", Wanted(), places={0: MessageId(1, 0)})


def test_trimmed_messages_end_a_search(client: Client) -> None:
    """Kills: a place in a ledger that a trim has removed, which is an error instead of the end."""
    found = search(client, "orders", Wanted(), SearchBudget(hits=20))
    assert found.places
    client.admin.trim("orders", Bound("end"))
    rest = search(client, "orders", Wanted(), SearchBudget(hits=1000), found.places)
    left = {message.message_id for message in everything(client)}
    assert set(ids(rest)) <= left and not rest.stopped
