"""What clients are told of topics that come and go, and when the server stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.serve.served import Raw, served
from tests.serve.test_deliveries import messages, subscribed
from tests.serve.test_sends import opened
from txlog.serve.pulsar.messages import COMMANDS, ERRORS
from txlog.serve.pulsar.watches import hash_of

OF_SHOP = "persistent://public/default/shop-.*"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    path = tmp_path_factory.mktemp("s") / "s"
    with served(path) as url:
        yield path, url


def watched(raw: Raw, pattern: str, answer: str = "watchTopicListSuccess") -> Any:
    return raw.ask(
        "watchTopicList", answer, watcher_id=3, namespace="public/default", topics_pattern=pattern
    )


def test_who_watches_a_pattern_is_told_what_comes_and_goes(place: tuple[Path, str]) -> None:
    """Changes of another handle of the store, as another process has one."""
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
        raw.ask("watchTopicListClose", "success", watcher_id=3)
        client.create_topic("shop-c")
        assert list(watched(raw, OF_SHOP).topic)[-1].endswith("shop-c")  # and not two answers


def test_a_pattern_that_is_no_regular_expression_is_refused(place: tuple[Path, str]) -> None:
    _, url = place
    with Raw(url) as raw:
        for pattern in ("(", "(a)\\1", "x" * 2_000):
            assert watched(raw, pattern, "error").error == ERRORS["NotAllowedError"]


def test_clients_of_a_topic_that_is_deleted_are_told_at_once(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        opened(raw, "gone")
        subscribed(raw, "gone")
        reader = {"subscription": "r", "durable": False, "subType": 0, "consumer_id": 2}
        subscribed(raw, "gone", **reader)
        raw.read("active_consumer_change")
        client.admin.delete_topic("gone", force=True)
        said = sorted(raw.frame().kind for _ in range(3))
        assert said == [COMMANDS["CLOSE_PRODUCER"], *[COMMANDS["CLOSE_CONSUMER"]] * 2]
        raw.send("ping")
        raw.read("pong")
        opened(raw, "gone")
        subscribed(raw, "gone")
        raw.message("send", b"new", {"sequence_id": 0}, producer_id=1, sequence_id=0)
        raw.read("send_receipt")
        assert len(messages(raw, 1)) == 1


def test_consumers_of_a_subscription_that_is_deleted_are_told(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        subscribed(raw, "unsubscribed")
        client.subscription("unsubscribed", "s").delete(force=True)
        assert raw.read("close_consumer").consumer_id == 1


def test_a_producer_that_waits_for_its_turn_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """Kills: a stop that takes all the time there is for draining."""
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


def test_a_server_that_stops_closes_what_its_clients_have_open(tmp_path: Path) -> None:
    """What was sent before has its receipt; then clients are told, and then it hangs up."""
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
