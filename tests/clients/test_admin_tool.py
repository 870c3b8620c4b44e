"""pulsar-admin as Apache distributes it against `txlog serve`, command by command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import txlog
from tests.clients import bed
from tests.clients.admin_tool import Admin

pytestmark = [pytest.mark.clients, pytest.mark.needs("mvn")]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bed.Server]:
    with bed.serving(tmp_path_factory.mktemp("admin"), "--http", "127.0.0.1:0") as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: bed.Server) -> Iterator[Admin]:
    try:
        tool = Admin(server.http)
    except bed.Unavailable as error:
        pytest.skip(str(error))
    with tool:
        yield tool


@pytest.fixture
def store(server: bed.Server) -> Iterator[txlog.Client]:
    with txlog.open(str(server.store)) as client:
        yield client


def full(name: str) -> str:
    return f"persistent://public/default/{name}"


def test_topics_are_made_listed_and_deleted(admin: Admin, store: txlog.Client) -> None:
    single, wide = full("one"), full("wide")
    admin("topics", "create", single)
    assert admin.refused("topics", "create", single) == "topic one exists already"
    admin("topics", "create-partitioned-topic", "-p", "2", wide)
    admin("topics", "update-partitioned-topic", "-p", "3", wide)
    metadata = admin.figures("topics", "get-partitioned-topic-metadata", wide)
    assert metadata["partitions"] == 3
    assert {single, f"{wide}-partition-2"} <= {*admin("topics", "list", "public/default").split()}
    assert wide in admin("topics", "list-partitioned-topics", "public/default").split()
    assert store.describe_topic("wide")["partitions"] == 3
    admin("topics", "delete-partitioned-topic", wide)
    admin("topics", "delete", single)
    assert {"one", "wide"}.isdisjoint(row["topic"] for row in store.topics())
    reason = admin.refused("topics", "stats", single)
    assert reason == "topic one does not exist"


def test_subscriptions_skip_seek_and_peek(admin: Admin, store: txlog.Client) -> None:
    orders = full("orders")
    store.create_topic("orders")
    producer = store.producer("orders")
    for number in range(10):
        producer.send(b"order %d" % number)
    store.create_subscription("orders", "known", type="shared")

    def backlog() -> int:
        stats = admin.figures("topics", "stats", orders)
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    admin("topics", "create-subscription", "-s", "s", "-m", "earliest", orders)
    assert sorted(admin("topics", "subscriptions", orders).split()) == ["known", "s"]
    assert backlog() == 10
    output = admin("topics", "peek-messages", "-s", "s", "-n", "2", orders)
    assert ("order 0" in output, "order 1" in output, "order 2" in output) == (True, True, False)
    admin("topics", "skip", "-s", "s", "-n", "3", orders)
    assert backlog() == 7
    admin("topics", "reset-cursor", "-s", "s", "-t", "1h", orders)
    assert backlog() == 10
    admin("topics", "clear-backlog", "-s", "s", orders)
    assert backlog() == 0
    admin("topics", "reset-cursor", "-s", "s", "-m", "earliest", orders)
    last = admin.figures("topics", "last-message-id", orders)
    place = f"{last['ledgerId']}:{last['entryId']}"
    admin("topics", "reset-cursor", "-s", "s", "-m", place, orders)
    assert backlog() == 1
    output = admin(
        "topics", "get-message-by-id", "-l", place.split(":")[0], "-e", place.split(":")[1], orders
    )
    assert "order 9" in output
    assert "order 0" in admin("topics", "examine-messages", "-i", "earliest", "-m", "1", orders)
    admin("topics", "unsubscribe", "-s", "s", orders)
    assert [row["subscription"] for row in store.subscriptions("orders")] == ["known"]
    missing = admin.refused("topics", "skip", "-s", "s", "-n", "1", orders)
    assert missing == "topic orders has no subscription s"


def test_figures_of_topics(server: bed.Server, admin: Admin, store: txlog.Client) -> None:
    sales = full("sales")
    store.create_topic("sales", 2)
    producer = store.producer("sales")
    for number in range(6):
        producer.send(b"12345678", key=str(number))
    store.create_subscription("sales", "s", position="earliest")
    stats = admin.figures("topics", "partitioned-stats", "--per-partition", sales)
    assert (stats["msgInCounter"], stats["bytesInCounter"]) == (6, 54)  # keys count
    assert stats["averageMsgSize"] == 9.0
    parts = stats["partitions"].values()
    assert sum(part["msgInCounter"] for part in parts) == 6
    assert stats["subscriptions"]["s"]["msgBacklog"] == 6
    inside = admin.figures("topics", "stats-internal", f"{sales}-partition-0")
    assert sum(ledger["entries"] for ledger in inside["ledgers"]) == inside["numberOfEntries"] > 0
    assert [*inside["cursors"]] == ["s"]
    assert admin("topics", "lookup", f"{sales}-partition-0") == server.url
    admin("topics", "compact", sales)
    assert "success" in admin("topics", "compaction-status", sales)


def test_policies_of_topics_and_namespaces(admin: Admin, store: txlog.Client) -> None:
    kept = full("kept")
    admin("topics", "create", kept)
    admin("topicPolicies", "set-retention", "-t", "1h", "-s", "10M", kept)
    retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
    assert admin.figures("topicPolicies", "get-retention", kept) == retention
    policies = store.admin.get_retention_policies(topic="kept")["policies"]
    assert (policies["retention_ms"], policies["retention_bytes"]) == (HOUR_MS, 10 << 20)
    admin("topicPolicies", "remove-retention", kept)
    assert admin("topicPolicies", "get-retention", kept) == "null"
    for command, flag, value, expected in (
        ("message-ttl", "-t", "10", "10"),
        ("compaction-threshold", "-t", "10M", str(10 << 20)),
        ("schema-compatibility-strategy", "-s", "BACKWARD", "BACKWARD"),
    ):
        admin("topicPolicies", f"set-{command}", flag, value, kept)
        assert admin("topicPolicies", f"get-{command}", kept) == expected
    admin("topicPolicies", "set-delayed-delivery", "-e", "-t", "2s", kept)
    assert admin.figures("topicPolicies", "get-delayed-delivery", kept)["tickTime"] == 2000
    here = "public/settings"
    admin("namespaces", "create", here)
    admin("topics", "create", f"persistent://{here}/t")
    admin("namespaces", "set-retention", "-t", "60m", "-s", "100M", here)
    assert admin.figures("namespaces", "get-retention", here)["retentionTimeInMinutes"] == 60
    admin("namespaces", "set-message-ttl", "-ttl", "100", here)
    admin("namespaces", "set-schema-compatibility-strategy", "-c", "FULL", here)
    found = admin.figures("namespaces", "policies", here)
    assert found["message_ttl_in_seconds"] == 100
    assert found["schema_compatibility_strategy"] == "FULL"
    assert found["retention_policies"]["retentionSizeInMB"] == 100
    assert admin("namespaces", "topics", here) == f"persistent://{here}/t"
    assert here in admin("namespaces", "list", "public").split()


def test_schemas_are_uploaded_refused_and_deleted(
    admin: Admin, store: txlog.Client, tmp_path: Path
) -> None:
    typed = full("typed")
    store.create_topic("typed")

    def written(*fields: str) -> str:
        record = {
            "type": "record",
            "name": "Flight",
            "fields": [{"name": name, "type": "int"} for name in fields],
        }
        file = tmp_path / "schema.json"
        schema_file = {"type": "AVRO", "schema": json.dumps(record), "properties": {}}
        file.write_text(json.dumps(schema_file))
        return str(file)

    assert admin.refused("schemas", "get", typed) == "topic typed has no schema"
    admin("schemas", "upload", "-f", written("a"), typed)
    schema = admin.figures("schemas", "get", typed)
    assert (schema["version"], schema["schemaInfo"]["type"]) == (1, "AVRO")
    assert [field["name"] for field in schema["schemaInfo"]["schema"]["fields"]] == ["a"]
    reason = admin.refused("schemas", "upload", "-f", written("a", "b"), typed)
    assert "b" in reason
    admin("schemas", "delete", typed)
    assert store.topic("typed").schemas.list() == []


def test_transactions_are_found_and_aborted(admin: Admin, store: txlog.Client) -> None:
    store.create_topic("bank")
    store.create_subscription("bank", "s", type="shared")
    producer = store.producer("bank")
    producer.send(b"1")
    consumer = store.consumer("bank", "s")
    message = consumer.receive(timeout_ms=10_000)
    assert message is not None
    txn = store.transaction(timeout_ms=HOUR_MS)
    producer.send(b"2", txn=txn)
    consumer.acknowledge(message, txn=txn)
    halves = ("-m", str(txn.id.most), "-l", str(txn.id.least))
    of = ("-t", full("bank"))
    assert admin("transactions", "coordinators-list").split()[0] == "0"
    number = str(txn.id.most)
    stats = admin.figures("transactions", "coordinator-stats", "-c", number)
    assert (stats["state"], stats["ongoingTxnSize"]) == ("Ready", 1)
    inside = admin.figures("transactions", "coordinator-internal-stats", "-c", number)
    assert inside["transactionLogStats"]["managedLedgerInternalStats"]["numberOfEntries"] > 0
    metadata = admin.figures("transactions", "transaction-metadata", *halves)
    assert (metadata["status"], metadata["timeoutAt"]) == ("OPEN", HOUR_MS)
    assert [*metadata["producedPartitions"]] == [full("bank")]
    assert str(txn.id.least) in admin("transactions", "slow-transactions", "-t", "0s")
    buffer = admin.figures("transactions", "transaction-buffer-stats", *of)
    assert buffer["ongoingTxnSize"] == 1
    admin("transactions", "transaction-in-buffer-stats", *halves, *of)
    admin("transactions", "transaction-in-pending-ack-stats", *halves, *of, "-s", "s")
    assert admin.figures("transactions", "pending-ack-stats", *of, "-s", "s")["state"] == "Ready"
    admin("transactions", "abort-transaction", *halves)
    assert store.admin.transaction_metadata(txn.id)["status"] == "ABORTED"
    reason = admin.refused("transactions", "abort-transaction", "-m", "0", "-l", "999")
    assert reason == "transaction 0:999 was never issued"


def test_rates_and_backlog_follow_the_traffic(admin: Admin, store: txlog.Client) -> None:
    paced = full("paced")
    store.create_topic("paced")
    store.create_subscription("paced", "s", type="shared")
    producer, consumer = store.producer("paced"), store.consumer("paced", "s")

    def looked() -> dict[str, Any]:
        stats: dict[str, Any] = admin.figures("topics", "stats", paced)
        return stats

    looked()
    for number in range(40):
        producer.send(b"%d" % number)
    for _ in range(10):
        message = consumer.receive(timeout_ms=10_000)
        assert message is not None
        consumer.acknowledge(message)
    while not (stats := looked())["msgRateIn"]:  # rates are of a second or more
        assert stats["msgInCounter"] == 40
    assert stats["msgRateIn"] > stats["msgRateOut"] > 0
    assert stats["msgThroughputIn"] > stats["msgThroughputOut"] > 0
    subscription = stats["subscriptions"]["s"]
    assert subscription["msgBacklog"] == 30
    assert 0 < subscription["backlogSize"] == stats["backlogSize"] < stats["storageSize"]
    assert [row["unackedMessages"] for row in subscription["consumers"]] == [
        row["leased"] for row in store.subscription("paced", "s").describe()["consumer_list"]
    ]
    analyzed = admin.figures("topics", "analyze-backlog", "-s", "s", paced)
    assert analyzed["messages"] == 30


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("topics permissions {topic}", ""),
        ("topics get-properties {topic}", ""),
        ("topics remove-properties -k a {topic}", ""),
        ("topics get-subscription-properties -s s {topic}", "{}"),
        ("topics get-maxProducers {topic}", "null"),
        ("topics get-backlog-quotas {topic}", ""),
        ("topics get-replication-clusters {topic}", '["standalone"]'),
        ("topics get-shadow-topics {topic}", ""),
        ("topics get-replicator-dispatch-rate {topic}", "null"),
        ("topicPolicies get-entry-filters-per-topic {topic}", "null"),
        ("topicPolicies get-auto-subscription-creation {topic}", "null"),
        ("topicPolicies get-deduplication-snapshot-interval {topic}", "null"),
        ("namespaces get-subscription-auth-mode public/default", '"None"'),
        ("namespaces get-allowed-clusters public/default", "standalone"),
        ("namespaces get-max-topics-per-namespace public/default", "0"),
        ("namespaces get-entry-filters public/default", "null"),
        ("namespaces subscription-permission public/default", ""),
        ("topicPolicies get-publish-rate {topic}", "null"),
        ("topicPolicies get-persistence {topic}", "null"),
        ("namespaces permissions public/default", ""),
        ("namespaces get-backlog-quotas public/default", ""),
        ("namespaces get-dispatch-rate public/default", "null"),
        ("namespaces get-properties public/default", "{}"),
        ("namespaces get-inactive-topic-policies public/default", "null"),
        ("namespaces unload public/default", ""),
        ("clusters list-failure-domains standalone", ""),
        ("brokers get-all-dynamic-config", ""),
        ("brokers list-dynamic-config", ""),
        ("resourcegroups list", ""),
        ("topics get-schema-validation-enforce {topic}", "true"),
        ("topics get-replicated-subscription-status -s s {topic}", "{topic}false"),
        ("topics set-replication-clusters -c standalone {topic}", ""),
        ("topicPolicies remove-backlog-quota {topic}", ""),
        ("topicPolicies remove-deduplication {topic}", ""),
        ("namespaces set-clusters -c standalone public/default", ""),
        ("namespaces get-property -k a public/default", "null"),
        ("namespaces remove-backlog-quota public/default", ""),
        ("namespaces remove-deduplication public/default", ""),
        ("namespaces remove-offload-policies public/default", ""),
        ("namespaces remove-deduplication-snapshot-interval public/default", ""),
        ("namespaces get-anti-affinity-namespaces -c standalone -g g", ""),
        (
            "ns-isolation-policy broker --broker b standalone",
            '{"brokerName":"b","namespaceRegex":[],"primary":false}',
        ),
        ("bookies list-bookies", '{"bookies":[]}'),
        ("bookies racks-placement", "{}"),
    ],
)
def test_missing_features_are_answered_with_defaults(
    admin: Admin, store: txlog.Client, command: str, expected: str
) -> None:
    store.create_topic("bare", if_not_exists=True)
    store.create_subscription("bare", "s", type="shared", if_not_exists=True)
    topic = full("bare")
    answer = admin(*command.format(topic=topic).split())
    assert "".join(answer.split()) == expected.replace("{topic}", topic)


@pytest.mark.parametrize(
    "command",
    [
        "topics update-properties -p a=b {topic}",
        "topics update-subscription-properties -s s -p a=b {topic}",
        "topicPolicies set-max-producers -p 3 {topic}",
        "namespaces set-publish-rate -m 10 -b 10 public/default",
        "namespaces set-property -k a -v b public/default",
        "namespaces grant-permission --role r --actions produce public/default",
        "topics grant-permission --role r --actions produce {topic}",
        "topics get-backlog-size -m 1:0 {topic}",
        "topics create -m a=b {topic}-with-properties",
        "topics create-shadow-topic -s {topic} {topic}-shadow",
        "topics set-replication-clusters -c elsewhere {topic}",
        "topics set-replicated-subscription-status -s s -e {topic}",
        "topicPolicies set-backlog-quota -p producer_exception -l 10M {topic}",
        "namespaces set-backlog-quota -p producer_exception -l 10M public/default",
        "namespaces set-anti-affinity-group -g g public/default",
        "namespaces set-resource-group -rgn g public/default",
        "namespaces split-bundle -b 0x00000000_0xffffffff public/default",
        "namespaces grant-subscription-permission -s s -rs r public/default",
        "brokers update-dynamic-config -c a -v 1",
        "brokers shutdown",
        "clusters create other --url http://localhost:1",
        "clusters delete standalone",
        "clusters get-failure-domain --domain-name d standalone",
        "ns-isolation-policy get standalone p",
        "bookies set-bookie-rack -b 127.0.0.1:3181 -r /r",
        "resource-quotas get",
        "resourcegroups get g",
        "transactions buffer-snapshot-internal-stats -t {topic}",
        "functions list",
        "sources list",
        "sinks list",
        "packages list --type function public/default",
        "functions-worker get-cluster",
        "proxy-stats connections",
    ],
)
def test_settings_without_effect_are_refused_with_a_reason(
    admin: Admin, store: txlog.Client, command: str
) -> None:
    """Kills: a success for a setting that the store does not have, so that it has no effect."""
    store.create_topic("bare", if_not_exists=True)
    store.create_subscription("bare", "s", type="shared", if_not_exists=True)
    said = admin.refused(*command.format(topic=full("bare")).split())
    reasons = (
        *("a store has no ", "in the file of rules", "does not count", "the one cluster"),
        *("a broker has no settings", "by SIGTERM", "there is one broker", "one bundle"),
        "there are no snapshots",
    )
    assert any(reason in said for reason in reasons), said
    assert "shadow" not in "".join(row["topic"] for row in store.topics())


def test_figures_of_the_broker_and_its_publishers(
    server: bed.Server, admin: Admin, store: txlog.Client
) -> None:
    store.create_topic("watched", 2)
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(server.url, logger=silent)
    try:
        producer = client.create_producer("watched-partition-1", producer_name="till")
        for _ in range(3):
            producer.send(b"12345678")
        stats = admin.figures("topics", "partitioned-stats", "--per-partition", full("watched"))
        [item] = stats["publishers"]
        assert (item["producerName"], item["accessMode"]) == ("till", "Shared")
        assert item["averageMsgSize"] == 8.0
        assert "Pulsar-CPP" in item["clientVersion"]
        counts = {name: len(part["publishers"]) for name, part in stats["partitions"].items()}
        assert counts == {full("watched-partition-0"): 0, full("watched-partition-1"): 1}
        bundles = admin.figures("broker-stats", "topics")["public/default"]
        [topics] = [item["persistent"] for item in bundles.values()]
        assert topics[full("watched")]["msgInCounter"] == 3
        rows = admin("broker-stats", "monitoring-metrics")  # one object behind the other
        [row] = [item for item in rows.split('{"metrics":') if "public/default" in item]
        assert '"brk_no_of_producers":1,' in row
        report = admin.figures("broker-stats", "load-report")
        assert (report["numProducers"], report["pulsarServiceUrl"]) == (1, server.url)
    finally:
        client.close()
    assert admin.figures("topics", "stats", full("watched"))["publishers"] == []
    assert admin("broker-stats", "mbeans") == "[]"
    assert "no JVM" in admin.refused("broker-stats", "allocator-stats", "default")


def test_a_namespace_is_cleared_and_its_schemas_go_by_the_older_names(
    admin: Admin, store: txlog.Client
) -> None:
    here = "public/cleared"
    for topic in ("a", "b"):
        store.create_topic(f"{here}/{topic}")
        for name in ("x", "y"):
            store.create_subscription(f"{here}/{topic}", name, type="shared")
        store.producer(f"{here}/{topic}").send(b"1")

    def backlogs(name: str) -> list[int]:
        descriptions = (
            store.subscription(f"{here}/{topic}", name).describe() for topic in ("a", "b")
        )
        return [description["backlog"] for description in descriptions]

    admin("namespaces", "clear-backlog", "-s", "x", "--force", here)
    assert (backlogs("x"), backlogs("y")) == ([0, 0], [1, 1])
    admin("namespaces", "clear-backlog", "--force", here)
    assert backlogs("y") == [0, 0]
    admin("namespaces", "set-schema-autoupdate-strategy", "-c", "Full", here)
    policies = store.admin.get_schema_policies(namespace=here)["policies"]
    assert policies["compatibility"] == "full"
    assert admin("namespaces", "get-schema-autoupdate-strategy", here) == "FULL"
    assert "strategy" in admin.refused("namespaces", "set-schema-autoupdate-strategy", "-d", here)
    count = len(admin("transactions", "coordinators-list").splitlines())
    admin("transactions", "scale-transactionCoordinators", "-r", str(count + 1))
    assert len(admin("transactions", "coordinators-list").splitlines()) == count + 1
    reason = admin.refused("transactions", "scale-transactionCoordinators", "-r", "1")
    assert "may only grow" in reason


def test_commands_without_work_succeed(admin: Admin, store: txlog.Client) -> None:
    store.create_topic("idle")
    for kind in ("a", "b"):
        store.create_subscription("idle", kind, type="shared")
    admin("topics", "create-missed-partitions", full("idle"))
    admin("topics", "trim-topic", full("idle"))
    admin("namespaces", "unload", "-b", "0x00000000_0xffffffff", "public/default")
    assert "{" in admin("brokers", "get-internal-config")
    admin("namespaces", "unsubscribe", "-s", "a", "public/default")
    assert [row["subscription"] for row in store.subscriptions("idle")] == ["b"]
    assert "cannot be terminated" in admin.refused("topics", "terminate", full("idle"))


def test_the_cluster_is_one_broker(admin: Admin) -> None:
    assert admin("clusters", "list") == admin("brokers", "list", "standalone") == "standalone"
    assert admin("tenants", "list").split() == ["public"]
    assert admin("brokers", "healthcheck") == "ok"
    assert "txlog" in admin("brokers", "version")
    assert "serviceUrl" in admin("brokers", "leader-broker")
