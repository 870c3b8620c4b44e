"""`txlog diff`: each kind of difference between two stores has a row; equal stores have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, ids, send, send_txn
from txlog import Client
from txlog.base.ranges import END
from txlog.cli.main import main
from txlog.client import difference as comparing
from txlog.client.difference import difference
from txlog.errors import TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")
KIND = pa.schema([("n", pa.int64())])


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Client, Client]:
    """A store with two topics and a subscription, and its copy."""
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", 2)
    client.create_topic("typed", schema=KIND)
    client.create_subscription("t", "s")
    for partition in (0, 1):
        send(client, *(b"%d" % number for number in range(20)), partition=partition)
        send_txn(client, b"a", b"b", partition=partition)
    client.producer("t").send(None, key=b"k", properties={"p": "1"}, event_time=3, partition=1)
    client.copy(str(tmp_path / "copy"))
    other = txlog.open(str(tmp_path / "copy"), clock=bench.clock)
    other.checkpoint_automatically = False
    return client, other


def found(first: Client, second: Client, topic: str | None = None) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["topic"], row["name"]) for row in difference(first, second, topic)]


CHANGES: dict[str, tuple[Callable[[Client], object], list[tuple[Any, ...]]]] = {
    "message": (
        lambda client: send(client, b"more", partition=1),
        [
            ("partition", "t", "messages"),
            ("cursor", "t", "backlog"),
            ("message", "t", "first that differs"),
        ],
    ),
    "topic": (lambda client: client.create_topic("new"), [("topic", "new", "exists")]),
    "partitions": (
        lambda client: client.admin.update_topic("t", 3),
        [("topic", "t", "partitions")],
    ),
    "schema": (
        lambda client: client.topic("typed").schemas.add(KIND.append(pa.field("m", pa.string()))),
        [("schema", "typed", "version 2")],
    ),
    "schema deleted": (
        lambda client: client.topic("typed").schemas.delete(),
        [("schema", "typed", "version 1")],
    ),
    "policy": (
        lambda client: client.set_policies("t", retention_ms=1000),
        [("policy", "t", "retention_ms")],
    ),
    "namespace": (
        lambda client: client.admin.set_retention_policies(
            None, "public/default", retention_ms=1000
        ),
        [("namespace policy", None, "public/default retention_ms")],
    ),
    "setting": (
        lambda client: client.admin.set_setting("max_message_bytes", 1000),
        [("setting", None, "max_message_bytes")],
    ),
    "subscription": (
        lambda client: client.create_subscription("t", "another"),
        [("subscription", "t", "exists")],
    ),
    "subscription policy": (
        lambda client: client.subscription("t", "s").set_policies(ack_timeout_ms=1000),
        [("subscription", "t", "ack_timeout_ms")],
    ),
    "cursor": (
        lambda client: client.subscription("t/0", "s").skip(3),
        [("cursor", "t", "backlog"), ("cursor", "t", "mark_delete")],
    ),
    "single acknowledgement": (
        lambda client: client.acknowledge("t", "s", [ids(client)[4]]),
        [("cursor", "t", "backlog"), ("cursor", "t", "acknowledged after it")],
    ),
    "offline": (
        lambda client: client.admin.set_offline("typed/0"),
        [("partition", "typed", "online")],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_kind_of_difference_has_a_row(copied: tuple[Client, Client], change: str) -> None:
    first, second = copied
    assert difference(first, second) == []
    act, rows = CHANGES[change]
    act(second)
    second.producer("t").flush()
    assert sorted(found(first, second), key=str) == sorted(rows, key=str)
    assert sorted(found(second, first), key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("at_once", [1, 3, 50])
@pytest.mark.parametrize("place", [0, 1, 5, 21, 22])
def test_first_message_that_differs_is_named(
    copied: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch, at_once: int, place: int
) -> None:
    """By its ids in both stores, which differ; batches of the two end at other messages."""
    monkeypatch.setattr(comparing, "_AT_ONCE", at_once)
    names: list[list[str]] = []
    for client, changed in zip(copied, (-1, place), strict=True):
        client.create_topic("ids" if changed < 0 else "other")
        client.create_topic("u")
        for number in range(22):
            client.producer("u").send(b"v", key=b"changed" if number == changed else None)
        names.append([str(message.message_id) for message in client.reader("u")])
    rows = difference(*copied, "u")
    if place == 22:
        assert rows == []
        return
    [row] = rows
    assert (row["kind"], row["partition"]) == ("message", 0)
    assert (row["store"], row["other"]) == (names[0][place], names[1][place])


def test_a_copied_topic_is_equal_though_its_ids_differ(
    tmp_path: Path, copied: tuple[Client, Client]
) -> None:
    first, _ = copied
    txlog.init(str(tmp_path / "far"))
    with txlog.open(str(tmp_path / "far")) as far:
        txlog.copy_topic(first, far, "typed")
        txlog.copy_topic(first, far, "t")
        assert difference(first, far, "typed") == []
        assert found(first, far, "t") == [("subscription", "t", "exists")]
        far.create_subscription("t", "s", position=END)
        assert found(first, far, "t") == [("cursor", "t", "backlog")] * 2


def test_exit_codes_and_errors(
    copied: tuple[Client, Client], capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [client.store.disk.description for client in copied]
    assert main(["diff", *paths]) == 0
    assert "no difference: 2 topics, 45 messages" in capfd.readouterr().err
    copied[1].create_topic("new")
    assert main(["diff", *paths]) == 8
    assert "1 difference between" in capfd.readouterr().err
    assert main(["diff", *paths, "t"]) == 0
    assert main(["diff", *paths, "none"]) == 3
    assert main(["diff", paths[0], paths[1] + "-none"]) == 3
    with pytest.raises(TopicNotFound):
        difference(*copied, "none")


def test_one_path_is_compared_with_the_store_of_the_line(
    copied: tuple[Client, Client],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-S", "store", "diff", "copy"]) == 0
    copied[1].create_topic("new")
    capfd.readouterr()
    assert main(["-S", "store", "diff", "copy", "--json"]) == 8
    alone = capfd.readouterr().out
    assert main(["diff", "store", "copy", "--json"]) == 8
    assert alone == capfd.readouterr().out != "[]\n"
