"""Topics made at first use: off by default, by producers and subscribers only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
import txlog.aio
from txlog import Client
from txlog.engine.store.store import Store
from txlog.errors import InvalidArgument, TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def path(tmp_path: Path) -> str:
    store_path = str(tmp_path / "store")
    txlog.init(
        store_path,
        free_bytes_min=0,
        durability="os",
        allow_auto_topic_creation=True,
        default_num_partitions=3,
    )
    return store_path


@pytest.fixture
def client(path: str) -> Iterator[Client]:
    with txlog.open(path) as new_client:
        yield new_client


def partitions(client: Client) -> dict[str, int]:
    return {row["topic"]: row["partitions"] for row in client.topics()}


def test_producers_and_subscribers_make_what_is_missing(client: Client, path: str) -> None:
    client.create_topic("mine", 2)
    client.producer("mine").send(b"a")
    client.producer("a/b/sent").send(b"b")
    client.consumer("received", "s", create=True).close()
    client.consumer(["one", "mine"], "s", create=True).close()
    client.consumer("glanced", "s", durable=False).close()

    async def main() -> None:
        async with txlog.aio.open(path) as store, store.producer("awaited") as producer:
            await producer.send(b"c")

    asyncio.run(main())
    assert partitions(client) == {
        "mine": 2, "a/b/sent": 3, "received": 3, "one": 3, "glanced": 3, "awaited": 3,
    }  # fmt: skip


def test_other_calls_create_no_topic(client: Client) -> None:
    calls: list[Any] = [
        lambda: client.reader("a"),
        lambda: client.consumer("a", "s"),
        lambda: client.create_subscription("a", "s"),
        lambda: client.topic("a"),
        lambda: client.table_view("a"),
        lambda: client.producer("a/0"),
        lambda: client.consumer("a/0", "s", create=True),
        lambda: list(client.read("a")),
    ]
    for call in calls:
        with pytest.raises(TopicNotFound):
            call()
    assert partitions(client) == {}


def test_a_name_that_differs_in_case_only_makes_nothing(client: Client) -> None:
    client.create_topic("Orders")
    with pytest.raises(TopicNotFound, match="orders does not exist"):
        client.producer("orders")
    assert partitions(client) == {"Orders": 1}


def test_a_deleted_topic_is_made_again_by_a_new_producer_only(client: Client) -> None:
    old = client.producer("t")
    client.admin.delete_topic("t")
    with pytest.raises(TopicNotFound, match="was deleted"):
        old.send(b"a")
    client.producer("t").send(b"b")
    assert [message.value for message in client.reader("t")] == [b"b"]


def test_two_first_users_at_once_create_one_topic(client: Client, path: str) -> None:
    """The second user finds the topic missing at first and existing when it writes."""

    write = Store.write
    with txlog.open(path) as other, pytest.MonkeyPatch.context() as patch:

        def late(store: Store, *args: Any, **options: Any) -> object:
            if store is client.store:
                other.create_topic("t", 1, if_not_exists=True)
            return write(store, *args, **options)

        patch.setattr(Store, "write", late)
        client.producer("t").send(b"a")
    assert partitions(client) == {"t": 1}


def test_it_is_off_by_default_and_refused_when_wrong(tmp_path: Path) -> None:
    path = str(tmp_path / "plain")
    txlog.init(path, free_bytes_min=0, durability="os")
    with txlog.open(path) as client:
        for call in (client.producer, lambda name: client.consumer(name, "s", create=True)):
            with pytest.raises(TopicNotFound):
                call("t")
        client.admin.set_setting("allow_auto_topic_creation", True)
        client.producer("t")
        assert partitions(client) == {"t": 1}
        with pytest.raises(InvalidArgument, match="default_num_partitions"):
            client.admin.set_setting("default_num_partitions", 0)
    with txlog.open(path, read_only=True) as reader, pytest.raises(TopicNotFound):
        reader.producer("u")
