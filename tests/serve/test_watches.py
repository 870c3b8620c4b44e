"""Notifications to clients about created and deleted topics, and about the server's stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import txlog
from tests.serve.deliveries import messages, subscribed
from tests.serve.served import Raw, served
from tests.serve.test_sends import opened
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.pulsar.connection import Connection
from txlog.serve.pulsar.messages import COMMANDS, ERRORS
from txlog.serve.pulsar.topics import SLICE_NAMES, TopicListWatcher, TopicPattern, hash_of

OF_SHOP = "persistent://public/default/shop-.*"


def watched(raw: Raw, pattern: str, answer: str = "watchTopicListSuccess") -> Any:
    return raw.ask(
        "watchTopicList", answer, watcher_id=3, namespace="public/default", topics_pattern=pattern
    )


def test_pattern_watch_reports_created_and_deleted_topics(place: tuple[Path, str]) -> None:
    """The changes come from another client of the store, as from another process."""
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("shop-a")
        client.create_topic("other-a")
        client.create_topic("acme/shop/shop-x")
        first = watched(raw, OF_SHOP)
        assert list(first.topic) == ["persistent://public/default/shop-a"]
        assert first.topics_hash == hash_of(set(first.topic))
        assert hash_of({"123456789"}) == "839206e3"  # CRC32C, as Pulsar writes it
        client.create_topic("other-b")
        client.create_topic("shop-b", 2)
        update = raw.read("watchTopicUpdate")
        assert list(update.new_topics) == [
            f"persistent://public/default/shop-b-partition-{at}" for at in range(2)
        ]
        assert (list(update.deleted_topics), update.watcher_id) == ([], 3)
        client.admin.delete_topic("shop-a")
        update = raw.read("watchTopicUpdate")
        assert list(update.new_topics) == []
        assert list(update.deleted_topics) == ["persistent://public/default/shop-a"]
        client.admin.rename_topic("other-a", "shop-d")
        assert list(raw.read("watchTopicUpdate").new_topics) == [f"{OF_SHOP[:-2]}d"]
        client.admin.rename_topic("shop-d", "other-a")
        assert list(raw.read("watchTopicUpdate").deleted_topics) == [f"{OF_SHOP[:-2]}d"]
        raw.ask("watchTopicListClose", "success", watcher_id=3)
        client.create_topic("shop-c")
        assert list(watched(raw, OF_SHOP).topic)[-1].endswith("shop-c")  # and not two answers


def test_a_pattern_that_is_no_regular_expression_is_refused(place: tuple[Path, str]) -> None:
    _, url = place
    with Raw(url) as raw:
        for pattern in ("(", "(a)\\1", "x" * 2_000):
            assert watched(raw, pattern, "error").error == ERRORS["NotAllowedError"]
        assert watched(raw, "persistent://.*)|(.*", "error").error == ERRORS["NotAllowedError"]


def named(raw: Raw, namespace: str = "acme/asked", **fields: object) -> tuple[list[str], Any]:
    """Ask for topics; returns the last parts of their names, and the whole answer."""
    answer = raw.ask(
        "getTopicsOfNamespace", "getTopicsOfNamespaceResponse", namespace=namespace, **fields
    )
    return [topic.removeprefix(f"persistent://{namespace}/") for topic in answer.topics], answer


def test_topics_are_answered_by_pattern_mode_and_hash(place: tuple[Path, str]) -> None:
    """As in a broker, filtered=false leaves the filtering to the client."""
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("acme/asked/shop-a")
        client.create_topic("acme/asked/shop-b", 2)
        client.create_topic("acme/asked/-s-RETRY")
        all_names = ["-s-RETRY", "shop-a", "shop-b-partition-0", "shop-b-partition-1"]
        for mode in (0, 2):
            names, answer = named(raw, mode=mode)
            assert (names, answer.filtered, answer.changed) == (all_names, False, True)
            assert answer.topics_hash == hash_of(answer.topics)
        assert named(raw, mode=1)[0] == []
        for scheme in ("persistent://", "non-persistent://", ""):
            fields: Any = {"topics_pattern": f"{scheme}acme/asked/shop-.", "mode": 2}
            names, answer = named(raw, **fields)
            assert (names, answer.filtered, answer.changed) == (all_names[1:], True, True)
        names_again, same = named(raw, **fields, topics_hash=answer.topics_hash)
        assert (names_again, same.changed, same.topics_hash) == ([], False, answer.topics_hash)
        client.create_topic("acme/asked/shop-c")
        assert named(raw, **fields, topics_hash=answer.topics_hash)[0] == [*all_names[1:], "shop-c"]
        for pattern in ("acme/asked/(?!shop-).*", "(", "x" * 2_000, "acme)|(.*"):
            names, answer = named(raw, topics_pattern=pattern)
            assert (names, answer.filtered) == ([*all_names, "shop-c"], False)


def test_a_pattern_that_takes_long_is_left_to_its_client() -> None:
    """Each name takes a millisecond. A match stops, and a watch goes on where it stopped."""
    costly = TopicPattern("(?:.*a.{200}|.*b.{200}){4}x")
    names = [f"acme/shop/{'ab' * 50}{number}" for number in range(SLICE_NAMES + 1)]
    assert costly.matching(names, limit_s=0) == ([], SLICE_NAMES)
    topics = {number: (name, 1) for number, name in enumerate([*names, "other/shop/a"])}
    look = TopicListWatcher("acme/shop", ".*[05]")
    census = CatalogSnapshot((len(topics),), topics, frozenset())
    connection = cast(Connection, SimpleNamespace(may=lambda *_: None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look.pattern, "matching", partial(look.pattern.matching, limit_s=0))
        assert look.look(connection, census) is None
        result = look.look(connection, census)
        assert result == {f"persistent://{name}" for name in names if name[-1] in "05"}
        del topics[5]
        assert look.look(connection, census) == result - {f"persistent://{names[5]}"}


def test_clients_of_a_deleted_topic_are_closed_at_once(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        opened(raw, "gone")
        subscribed(raw, "gone")
        reader = {"subscription": "r", "durable": False, "subType": 0, "consumer_id": 2}
        subscribed(raw, "gone", **reader)
        raw.read("active_consumer_change")
        client.admin.delete_topic("gone", force=True)
        kinds = sorted(raw.frame().kind for _ in range(3))
        assert kinds == [COMMANDS["CLOSE_PRODUCER"], *[COMMANDS["CLOSE_CONSUMER"]] * 2]
        raw.send("ping")
        raw.read("pong")
        opened(raw, "gone")
        subscribed(raw, "gone")
        raw.message("send", b"new", {"sequence_id": 0}, producer_id=1, sequence_id=0)
        raw.read("send_receipt")
        assert len(messages(raw, 1)) == 1


def test_clients_of_a_renamed_topic_are_closed_and_do_not_find_it(tmp_path: Path) -> None:
    """They come again by the old name: TopicNotFound, or another topic, as after a deletion.

    Kills: a producer that joins the open producer of the renamed topic, by its old name.
    """
    path = tmp_path / "s"
    with served(path, creates_topics=False) as url, txlog.open(str(path)) as client:
        client.create_topic("orders")
        with Raw(url) as raw:
            opened(raw, "orders", "till")
            subscribed(raw, "orders")
            client.admin.rename_topic("orders", "sales")
            kinds = sorted(raw.frame().kind for _ in range(2))
            assert kinds == [COMMANDS["CLOSE_PRODUCER"], COMMANDS["CLOSE_CONSUMER"]]
            again = {"topic": "orders", "producer_id": 1, "producer_name": "till"}
            error = raw.ask("producer", "error", **again)
            assert (error.error, error.message) == (
                ERRORS["TopicNotFound"], "topic orders was renamed (TXL-302)",
            )  # fmt: skip
            client.create_topic("orders")
            opened(raw, "orders", "till")
            raw.message("send", b"new", {"sequence_id": 0}, producer_id=1, sequence_id=0)
            raw.read("send_receipt")
        assert [m.value for m in client.reader("orders")] == [b"new"]
        assert [*client.reader("sales")] == []


def test_consumers_of_a_deleted_subscription_are_closed(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        subscribed(raw, "unsubscribed")
        client.subscription("unsubscribed", "s").delete(force=True)
        assert raw.read("close_consumer").consumer_id == 1


def test_a_client_may_unsubscribe_from_partitions_that_the_server_has_closed(
    place: tuple[Path, str],
) -> None:
    """A client unsubscribes from each partition, and the first deletes the subscription of all.

    Kills: an error for those whose close_consumer and UNSUBSCRIBE passed each other.
    """
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("left", 3)
        for at in range(3):
            subscribed(raw, f"left-partition-{at}", consumer_id=at)
        raw.ask("unsubscribe", "success", consumer_id=0)
        assert {raw.read("close_consumer").consumer_id for _ in range(2)} == {1, 2}
        raw.ask("unsubscribe", "success", consumer_id=1)
        subscribed(raw, "left-partition-0", consumer_id=7)
        error = raw.ask("unsubscribe", "error", consumer_id=2)  # another consumer has it now
        assert "no consumer 2" in error.message
        assert raw.ask("unsubscribe", "error", consumer_id=9).error == error.error
        raw.ask("unsubscribe", "success", consumer_id=7)
        assert client.subscriptions("left") == []


def test_a_producer_that_waits_for_its_turn_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """Kills: a stop that waits for the whole drain timeout."""
    with served(tmp_path / "s") as url:
        raws = [Raw(url) for _ in range(3)]
        for number, raw in enumerate(raws):
            how = {"topic": "till", "producer_id": number, "producer_access_mode": 2}
            assert not raw.ask("producer", "producer_success", **how).producer_ready
            if number == 0:
                assert raw.read("producer_success").producer_ready
        raws[2].ask("close_producer", "success", producer_id=2)
    for number in (0, 1):
        assert raws[number].read("close_producer").producer_id == number
    for raw in raws:
        raw.socket.close()


def test_stopping_server_closes_producers_and_consumers(tmp_path: Path) -> None:
    """The server first sends all receipts, then closes producers and consumers, then hangs up."""
    with served(tmp_path / "s") as url:
        raw = Raw(url)
        opened(raw, "t")
        subscribed(raw, "t")
        for at in range(3):
            raw.message("send", b"x", {"sequence_id": at}, producer_id=1, sequence_id=at)
        for _ in range(3):
            raw.read("send_receipt")
    assert raw.read("close_producer").producer_id == 1
    assert raw.read("close_consumer").consumer_id == 1
    with raw, pytest.raises(EOFError):
        raw.frame()
