"""Topics as stock clients ask for them: whether one exists, and subscriptions of producers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import txlog
from tests.serve.served import Raw, served
from tests.serve.siege import Served, serving
from txlog.serve.pulsar.messages import ERRORS, message_class

ANSWER = "partitionMetadataResponse"


def asked(raw: Raw, topic: str) -> tuple[int, int]:
    """Ask whether a topic exists: (partitions, error)."""
    response = raw.ask(
        "partitionMetadata", ANSWER, topic=topic, metadata_auto_creation_enabled=False
    )
    assert response.response == (0 if not response.HasField("error") else 1)
    return response.partitions, response.error


def test_a_client_that_asks_for_a_missing_topic_gets_topic_not_found(
    place: tuple[Path, str],
) -> None:
    """PIP-344: with any other answer Java 4 takes the retry and dead letter topics of old clients,
    `SUBSCRIPTION-RETRY`, which all topics with this subscription share."""
    path, url = place
    missing = (0, ERRORS["TopicNotFound"])
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("plain")
        client.create_topic("wide", 3)
        assert asked(raw, "persistent://public/default/s-RETRY") == missing
        assert asked(raw, "plain") == (0, 0)
        assert asked(raw, "wide") == (3, 0)
        assert asked(raw, "wide-partition-2") == (0, 0)
        assert asked(raw, "wide-partition-3") == missing
        assert asked(raw, "none-partition-0") == missing
        assert sorted(row["topic"] for row in client.topics()) == ["plain", "wide"]


def test_a_name_of_pulsar_1_keeps_its_cluster_apart(place: tuple[Path, str]) -> None:
    """Kills: one topic for two clusters' names, or a client with old names that is refused."""
    path, url = place
    with Raw(url) as raw:
        for at, topic in enumerate(("p/use/ns/old", "p/usw/ns/old", "p/ns/old", "p/ns/old/0")):
            fields = {
                "topic": f"persistent://{topic}",
                "producer_id": at,
                "producer_name": f"m{at}",
            }
            raw.ask("producer", "producer_success", **fields)
    with txlog.open(str(path), read_only=True) as client:
        names = {row["topic"] for row in client.topics() if row["topic"].startswith("p/")}
    assert names == {"p/use~ns/old", "p/usw~ns/old", "p/ns/old"}


def test_server_announces_metadata_requests_without_creation(place: tuple[Path, str]) -> None:
    with Raw(place[1], connects=False) as raw:
        raw.send("connect", client_version="raw", protocol_version=21)
        flags = raw.read("connected").feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation


def test_metadata_request_creates_partitioned_topics_only(tmp_path: Path) -> None:
    with served(tmp_path / "s") as url, txlog.open(str(tmp_path / "s")) as client, Raw(url) as raw:
        assert raw.ask("partitionMetadata", ANSWER, topic="one").partitions == 0
        assert client.topics() == []
        client.admin.set_setting("default_num_partitions", 3)
        assert asked(raw, "t") == (0, ERRORS["TopicNotFound"])
        assert raw.ask("partitionMetadata", ANSWER, topic="t").partitions == 3
        assert asked(raw, "t") == (3, 0)


def test_the_initial_subscription_of_a_producer_gets_its_first_message(
    place: tuple[Path, str],
) -> None:
    """Kills: a first dead letter that is lost, as its topic has no subscription yet."""
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw, Raw(url) as other:
        fields = {"topic": "t-s-DLQ", "initial_subscription_name": "keeper"}
        raw.ask("producer", "producer_success", producer_id=1, **fields)
        raw.message(
            "send", b"dead", {"sequence_id": 0}, producer_id=1, sequence_id=0, num_messages=1
        )
        raw.read("send_receipt")
        other.ask("producer", "producer_success", producer_id=1, **fields)  # it exists
        [row] = client.subscriptions("t-s-DLQ")
        assert (row["subscription"], row["backlog"]) == ("keeper", 1)
        refused = raw.ask(
            "producer", "error", producer_id=2, topic="t", initial_subscription_name="a/../b"
        )
        assert refused.error == ERRORS["InvalidTopicName"]


def test_stats_of_a_topic_have_the_metadata_of_clients(tmp_path: Path) -> None:
    async def program(served: Served) -> None:
        client = await served.connected()
        about = [message_class("KeyValue")(key="team", value="tills")]
        fields: dict[str, Any] = {"topic": "orders", "metadata": about}
        await client.ask("producer", producer_id=1, request_id=1, **fields)
        fields |= {"consumer_name": "desk", "subscription": "s", "subType": 0, "consumer_id": 7}
        client.send("subscribe", request_id=2, **fields)
        assert (await client.answer()).HasField("success")
        path = "/admin/v2/persistent/public/default/orders/stats"
        head = f"GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        status, text = await served.request(head)
        assert status == 200
        stats = json.loads(text[text.index("{") :])
        [publisher] = stats["publishers"]
        subscription = stats["subscriptions"]["s"]
        [consumer] = subscription["consumers"]
        assert publisher["metadata"] == consumer["metadata"] == {"team": "tills"}
        assert consumer["consumerName"] == "desk"
        assert consumer["address"] == publisher["address"]
        assert int(consumer["connectedSince"]) >= int(publisher["connectedSince"]) > 0

    serving(tmp_path, program)
