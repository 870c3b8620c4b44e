"""Renaming a topic: it keeps its data, derived topics follow, and some renames are refused."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, send, values
from tests.source_tree import PACKAGE, modules
from txlog import Client, Message, functions
from txlog.base.ids import NAME_ENCODED_BYTES_MAX
from txlog.client.answers.changes import recent_of_subscription
from txlog.engine.plan.derived import DERIVED, DerivedName
from txlog.errors import (
    AlreadyExists,
    InvalidArgument,
    NotAllowed,
    ProducerBusy,
    SubscriptionNotFound,
    TopicNotFound,
    TxlogError,
)
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.replay import replay

DEFAULT = "topics/public/default"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store", ledger_entries_max=50)


def other_process(bench: Bench) -> Client:
    """A client with a view of its own, as in another process."""
    return txlog.open(bench.path, clock=bench.clock)


def lsn_of(client: Client) -> int:
    return client.store.read(lambda view: view.lsn)


def is_intact(bench: Bench) -> bool:
    checked = txlog.verify(bench.path, deep=True)
    assert not checked["problem_list"], checked["problem_list"]
    return True


def directory(client: Client, topic: str) -> str:
    return str(client.describe_topic(topic)["directory"])


# --- what stays --------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["before", "after", "between", "never"])
def test_everything_of_a_topic_stays_with_it(bench: Bench, checkpoint: str) -> None:
    """Messages, ids, cursors, pending acknowledgements, delays, watermarks, policies, schemas."""
    client = bench.client
    client.create_topic("orders", 2, schema=_record(), retention_ms=10**12)
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=3)
    producer = client.producer("orders", name="p")
    for number in range(4):
        producer.send({"n": number}, key=b"k", partition=number % 2, sequence_id=number)
    producer.send({"n": 9}, deliver_after=60_000, partition=0)
    client.topic("orders").watermarks.set(bench.clock.now().wall_ms, producer="p")
    messages = [*client.reader("orders")]
    client.acknowledge("orders", "s", [messages[0].message_id])
    txn = client.begin(60_000)["txn"]
    client.acknowledge("orders", "s", [messages[1].message_id], txn=txn)
    producer.send({"n": 5}, txn=txn, partition=1)
    if checkpoint == "before":
        client.checkpoint(roll_all=True)

    before = _shown(client, "orders")
    answer = client.admin.rename_topic("orders", "sales")
    assert answer == {
        "topic": "sales",
        "before": "orders",
        "directory": f"{DEFAULT}/orders",
        "renamed_list": [],
        "subscription_list": [],
        "still_named": [],
        "changed": True,
    }
    assert _shown(client, "sales") == before
    if checkpoint == "between":
        client.checkpoint(roll_all=True)
    with other_process(bench) as other:
        kept = ("messages", "subscriptions", "delayed", "schemas")  # the rest counts ledgers
        assert [_shown(other, "sales")[part] for part in kept] == [before[part] for part in kept]
        again = other.producer("sales", name="p")
        again.send({"n": 2}, partition=0, sequence_id=2)  # stored already
    client.commit(txn)
    if checkpoint == "after":
        client.checkpoint(roll_all=True)
        client.checkpoint()
    with other_process(bench) as other:
        assert sorted(json.loads(m.value or b"")["n"] for m in other.reader("sales")) == [
            0, 1, 2, 3, 5, 9,
        ]  # fmt: skip
        (row,) = other.subscriptions("sales")
        assert (row["backlog"], row["pending_acks"]) == (4, 0)
    assert is_intact(bench)


def _record() -> pa.Schema:
    return pa.schema([pa.field("n", pa.int64())])


def _shown(client: Client, topic: str) -> Any:
    """All answers of a client about a topic, without its name."""
    shown = {
        "described": client.describe_topic(topic),
        "messages": [(str(m.message_id), m.value, m.key) for m in client.reader(topic)],
        "subscriptions": client.subscriptions(topic),
        "delayed": client.topic(topic).delayed().to_pylist(),
        "watermarks": client.topic(topic).watermarks.show(),
        "schemas": client.topic(topic).schemas.list(),
    }
    plain = json.loads(json.dumps(shown, default=str))
    return json.loads(json.dumps(plain).replace(f'"topic": "{topic}"', '"topic": null'))


def test_handles_of_other_processes_go_on(bench: Bench) -> None:
    """By the topic's number: producers, consumers, readers, transactions, an exclusive seat."""
    client = bench.client
    client.create_topic("orders")
    client.create_subscription("orders", "s")
    with other_process(bench) as other:
        producer = other.producer("orders", access_mode="exclusive")
        reader, consumer = other.reader("orders"), other.consumer("orders", "s")
        producer.send(b"before")
        txn = other.transaction()
        producer.send(b"in txn", txn=txn)
        txn.flush()
        client.admin.rename_topic("orders", "sales")
        client.create_topic("orders")
        send(client, b"of another topic", topic="orders")
        producer.send(b"after")
        received = [consumer.receive(timeout_ms=0) for _ in range(2)]
        consumer.acknowledge(received[0], txn=txn)
        consumer.acknowledge(received[1])
        txn.commit()
        assert [message.value for message in reader] == [b"before", b"after", b"in txn"]
        assert reader.get_last_message_id() is not None
        with pytest.raises(ProducerBusy):
            client.producer("sales")
        client.producer("orders", access_mode="exclusive").close()
        consumer.seek(txlog.MessageId.parse("1:0"))
        assert consumer.receive(timeout_ms=0).value == b"before"  # type: ignore[union-attr]
        consumer.close()
        producer.close()
    assert values(client, "sales") == [b"before", b"after", b"in txn"]
    assert values(client, "orders") == [b"of another topic"]
    assert is_intact(bench)


def test_handles_of_topics_and_subscriptions_go_on(bench: Bench) -> None:
    """They go by number, as producers do, and never to another topic with the name."""
    client = bench.client
    client.create_topic("orders", 2, schema=_record())
    client.create_subscription("orders", "s", type="shared")
    with other_process(bench) as other:
        topic, part = other.topic("orders"), other.topic("orders/1")
        subscription, table = other.subscription("orders", "s"), other.table_view("orders")
        watermarks, schemas = topic.watermarks, topic.schemas
        client.producer("orders").send({"n": 1}, key=b"k", deliver_after=60_000, partition=1)
        client.admin.rename_topic("orders", "sales")
        client.create_topic("orders")
        client.create_subscription("orders", "s")
        send(client, b"of another topic", topic="orders")
        assert topic.numbers[1:] == part.numbers != client.topic("orders").numbers
        assert [row["messages"] for row in part.stats()][-1] == 1
        assert topic.delayed().num_rows == len(topic.dead_letters()) == 1
        assert part.promote(all=True)["promoted"] == 1
        assert topic.retry_dead_letters(all=True)["retried"] == 0
        assert len(schemas.list()) == 1
        assert len(watermarks.show()["partition_list"]) == 2
        assert subscription.describe()["backlog"] == subscription.skip(all=True)["skipped"] == 1
        assert (table.refresh(), [*table]) == (1, [b"k"])
        assert client.subscription("orders", "s").describe()["backlog"] == 1
        client.admin.delete_topic("sales", force=True)
        for call in (topic.buckets, subscription.describe, watermarks.snapshot, schemas.list):
            with pytest.raises(TopicNotFound, match="orders was deleted"):
                call()
    assert is_intact(bench)


def test_a_handle_of_a_deleted_subscription_is_not_that_of_the_next(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    client.create_subscription("orders", "s")
    handle = client.subscription("orders", "s")
    handle.delete()
    client.create_subscription("orders", "s")
    with pytest.raises(SubscriptionNotFound, match="s of orders was deleted"):
        handle.skip(all=True)


def test_consumers_of_several_topics_go_on(bench: Bench) -> None:
    """A list goes on with the topic; a pattern leaves a name that does not match any more.

    Kills: a consumer that does not find the session of a message by the topic's name.
    """
    client = bench.client
    for name in ("orders", "audit"):
        client.create_topic(name)
        for subscription in ("list", "pattern"):
            client.create_subscription(name, subscription)
    with other_process(bench) as other:
        listed = other.consumer(["orders", "audit"], "list")
        matched = other.consumer(re.compile("orders|audit|sales"), "pattern")
        assert matched.receive(timeout_ms=0) is None
        client.admin.rename_topic("orders", "sales")
        client.admin.rename_topic("audit", "other")
        assert matched.receive(timeout_ms=0) is None
        assert matched.topics == ["sales"]
        sent = [*send(client, b"1", topic="sales"), *send(client, b"2", topic="other")]
        received = [listed.receive(timeout_ms=0) for _ in sent]
        assert {message.topic for message in received if message} == {"orders", "audit"}
        listed.acknowledge(received[0])
        listed.acknowledge(sent)
        message = matched.receive(timeout_ms=0)
        assert message is not None
        assert (message.topic, message.value) == ("sales", b"1")
        matched.acknowledge(message)
        assert matched.receive(timeout_ms=0) is None
        listed.close()
        matched.close()
    backlogs = {
        (row["topic"], row["subscription"]): row["backlog"] for row in client.subscriptions()
    }
    assert backlogs == {
        ("other", "list"): 0,
        ("other", "pattern"): 1,
        ("sales", "list"): 0,
        ("sales", "pattern"): 0,
    }


def test_writers_that_are_under_way_end_in_the_renamed_topic(bench: Bench) -> None:
    """A staged batch, a large message in the middle, and a compaction that was planned."""
    client = bench.client
    client.admin.set_setting("max_message_bytes", 1000)
    client.create_topic("orders")
    bulk = client.bulk("orders", key="loader", batch=1)
    staged = bulk.stage([pa.table({"value": [b"staged %d" % n for n in range(3)]})])

    def pieces() -> Iterator[bytes]:
        yield b"-" * 1500
        client.admin.rename_topic("orders", "sales")
        client.create_topic("orders")
        yield b"-" * 1500

    client.producer("orders", chunking=True).send(pieces())
    bulk.commit(staged)
    assert client.bulk("sales", key="loader", batch=1).stored is not None
    for name, value in (("sales", b"one"), ("orders", b"two")):
        client.producer(name).send(value, key=b"k")
        client.admin.compact_topic(name)
    assert sorted(values(client, "sales"), key=len) == [
        b"one", b"staged 0", b"staged 1", b"staged 2", b"-" * 3000,
    ]  # fmt: skip
    assert values(client, "orders") == [b"two"]
    client.checkpoint(roll_all=True)
    client.admin.gc(apply=True, keep_ms=0)
    assert is_intact(bench)


# --- files --------------------------------------------------------------------------------------


def test_files_stay_and_a_new_topic_of_the_old_name_has_its_own(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    send(client, b"1", topic="orders")
    client.checkpoint(roll_all=True)
    client.admin.rename_topic("orders", "sales")
    client.create_topic("orders")
    send(client, b"2", topic="sales")
    send(client, b"3", topic="orders")
    client.checkpoint(roll_all=True)
    assert directory(client, "sales") == f"{DEFAULT}/orders"
    assert directory(client, "orders") == f"{DEFAULT}/orders@2"
    root = Path(bench.path)
    for topic, count in (("orders", 2), ("orders@2", 1)):
        assert len([*(root / DEFAULT / topic).rglob("ledger-*.parquet")]) == count
        assert (root / DEFAULT / topic / "_README").is_file()
    used = {row["name"]: row["messages_bytes"] for row in client.disk_usage()["usage_list"]}
    assert used["sales"] > used["orders"] > 0
    assert "deleted" not in used
    rows = client.sql("SELECT topic, value FROM messages ORDER BY ALL").arrow().to_pylist()
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("orders", b"3"), ("sales", b"1"), ("sales", b"2"),
    ]  # fmt: skip
    client.admin.gc(apply=True, keep_ms=0)
    client.admin.trim("sales", txlog.Bound("end"))
    client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert values(client, "orders") == [b"3"]
    assert is_intact(bench)


def test_sql_knows_the_topic_of_every_kind_of_row(bench: Bench) -> None:
    """Files of messages only, files with markers, sidecars, compacted rows, large messages."""
    client = bench.client
    client.admin.set_setting("max_message_bytes", 1000)
    for name in ("orders", "audit"):
        client.create_topic(name)
    for step in range(3):
        if step == 1:
            client.admin.rename_topic("orders", "sales")
            client.create_topic("orders")
        for name in ("audit", "sales" if step else "orders"):
            producer = client.producer(name, chunking=True)
            producer.send(b"%s plain %d" % (name.encode(), step), key=b"k")
            producer.send(name.encode() + b"-" * 2000, key=b"large")
            with client.transaction() as txn:
                producer.send(b"%s txn %d" % (name.encode(), step), txn=txn)
        client.checkpoint(roll_all=step == 0)
        client.admin.compact_topic("audit")
        client.admin.compact_topic("sales" if step else "orders")
    count = "SELECT topic, count(*) AS n, count(DISTINCT message_id) AS ids"
    for isolation in ("committed", "uncommitted"):
        by_topic = f"{count} FROM messages GROUP BY topic ORDER BY topic"
        rows = client.sql(by_topic, isolation=isolation).arrow()
        assert rows.to_pylist() == [
            {"topic": "audit", "n": 9, "ids": 9},
            {"topic": "sales", "n": 9, "ids": 9},
        ]
    rows = client.sql(
        "SELECT topic, count(*) AS n FROM compacted GROUP BY topic ORDER BY 1"
    ).arrow()
    assert rows.to_pylist() == [{"topic": "audit", "n": 2}, {"topic": "sales", "n": 2}]


def test_offloaded_files_are_those_of_the_renamed_topic(bench: Bench, tmp_path: Path) -> None:
    client = bench.client
    (tmp_path / "far").mkdir()
    client.create_topic("orders")
    send(client, b"1", topic="orders")
    client.checkpoint(roll_all=True)
    assert client.admin.offload("orders", str(tmp_path / "far"))["files"] == 1
    client.admin.rename_topic("orders", "sales")
    client.create_topic("orders")
    send(client, b"2", topic="orders")
    send(client, b"3", topic="sales")
    client.checkpoint(roll_all=True)
    for name in ("orders", "sales"):
        assert client.admin.offload(name, str(tmp_path / "far"))["files"] == 1
    rows = client.sql("SELECT topic, value FROM messages ORDER BY ALL").arrow().to_pylist()
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("orders", b"2"), ("sales", b"1"), ("sales", b"3"),
    ]  # fmt: skip
    client.admin.gc(apply=True, keep_ms=0)
    assert is_intact(bench)


def test_a_topic_that_gets_its_first_name_back(bench: Bench) -> None:
    """Its directory has the topic's name again; the names in between are free."""
    client = bench.client
    client.create_topic("orders")
    send(client, b"1", topic="orders")
    for before, after in (("orders", "b"), ("b", "c"), ("c", "Orders"), ("Orders", "orders")):
        client.admin.rename_topic(before, after)
        client.checkpoint(roll_all=True)
    assert directory(client, "orders") == f"{DEFAULT}/orders"
    for name in ("b", "c"):
        client.create_topic(name)
        assert directory(client, name) == f"{DEFAULT}/{name}"
    assert values(client, "orders") == [b"1"]
    assert is_intact(bench)


def test_a_deletion_frees_the_directory(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    client.admin.rename_topic("orders", "sales")
    client.create_topic("ORDERS")  # on some file systems this would be the same directory
    assert directory(client, "ORDERS") == f"{DEFAULT}/ORDERS@2"
    client.admin.delete_topic("ORDERS")
    client.admin.delete_topic("sales")
    client.create_topic("orders")
    assert directory(client, "orders") == f"{DEFAULT}/orders"
    assert client.store.read(lambda view: view.catalog.directories) == {}
    assert is_intact(bench)


def test_own_files_of_a_cursor_are_in_the_directory_of_its_topic(bench: Bench) -> None:
    """Also after a rename, though the log's rows have the name at each checkpoint."""
    client = bench.client
    client.create_topic("orders")
    client.create_subscription("orders", "s")
    for name in ("orders", "sales"):
        if name == "sales":
            client.admin.rename_topic("orders", "sales")
            client.create_topic("orders")
        sent = send(client, b"1", topic=name)
        client.acknowledge(name, "s", sent)
        client.checkpoint()
    client.admin.compact_changes()
    paths = {path.parent for path in Path(bench.path).rglob("_cursors/*/*.parquet")}
    assert paths == {Path(bench.path) / DEFAULT / "orders/partition=0/_cursors/s"}
    changes = client.store.read(lambda view: recent_of_subscription(view, "sales", "s"))
    assert len(changes) == 1  # the newest state; the other topic's subscription is another one
    rows = client.sql("SELECT * FROM catalog_log WHERE change = 'topic_renamed'").arrow()
    assert rows.column("entity").to_pylist() == ["topic/1", "subscription/1"]
    assert is_intact(bench)


# --- dead letters and retries -----------------------------------------------------------------


def _give_up(client: Client, topic: str, subscription: str = "s") -> None:
    """Redeliver what the subscription has until it is given up."""
    with client.consumer(topic, subscription) as consumer:
        for _ in range(4):
            while (message := consumer.receive(timeout_ms=0)) is not None:
                consumer.negative_acknowledge(message, delay_ms=0)


def test_dead_letters_go_back_to_the_topic_that_gave_them_up(bench: Bench) -> None:
    """Also if another topic has its name by then; later ones join the earlier ones."""
    client = bench.client
    client.create_topic("orders")
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=1)
    send(client, b"early", topic="orders")
    _give_up(client, "orders")
    assert values(client, "orders-s-DLQ") == [b"early"]
    answer = client.admin.rename_topic("orders", "sales")
    assert answer["renamed_list"] == [{"topic": "sales-s-DLQ", "before": "orders-s-DLQ"}]
    client.create_topic("orders")
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=1)
    send(client, b"late", topic="sales")
    _give_up(client, "sales")
    send(client, b"other", topic="orders")
    _give_up(client, "orders")
    client.checkpoint(roll_all=True)
    assert values(client, "sales-s-DLQ") == [b"early", b"late"]
    assert values(client, "orders-s-DLQ") == [b"other"]
    assert {row["topic"]: row["origin_list"] for row in client.dead_letters()} == {
        "orders-s-DLQ": ["orders/s"], "sales-s-DLQ": ["sales/s"],
    }  # fmt: skip
    letters = client.topic("sales-s-DLQ").dead_letters()
    assert [row["origin_topic"] for row in letters] == ["sales", "sales"]
    with client.consumer("orders", "s") as in_the_way:
        for topic, moved in (("sales-s-DLQ", 2), ("orders-s-DLQ", 1)):
            result = client.topic(topic).retry_dead_letters(all=True)
            assert result["retried"] == moved, result
        assert in_the_way.receive(timeout_ms=0).value == b"other"  # type: ignore[union-attr]
    assert values(client, "sales")[-2:] == [b"early", b"late"]
    assert values(client, "orders")[-1:] == [b"other"]
    assert is_intact(bench)


def test_postponed_messages_come_again_to_the_renamed_topic(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=1)
    send(client, b"1", topic="orders")
    _postpone(client, "orders")
    answer = client.admin.rename_topic("orders", "sales")
    assert answer["renamed_list"] == [{"topic": "sales-s-RETRY", "before": "orders-s-RETRY"}]
    _postpone(client, "sales-s-RETRY")
    assert values(client, "sales-s-DLQ") == [b"1"]
    assert sorted(row["topic"] for row in client.topics()) == [
        "sales", "sales-s-DLQ", "sales-s-RETRY",
    ]  # fmt: skip


def _postpone(client: Client, topic: str) -> None:
    with client.consumer(topic, "s") as consumer:
        message = consumer.receive(timeout_ms=0)
        assert message is not None
        consumer.reconsume_later(message, delay_ms=0)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_dead_letter_topic_that_is_renamed_itself_stays_in_use(
    bench: Bench, is_made: bool
) -> None:
    """The subscription gets a policy that names it; a policy that named it is changed."""
    client = bench.client
    client.create_topic("orders")
    policies: dict[str, Any] = {} if is_made else {"dead_letter_topic": "letters"}
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=1, **policies)
    send(client, b"early", topic="orders")
    _give_up(client, "orders")
    name = "orders-s-DLQ" if is_made else "letters"
    answer = client.admin.rename_topic(name, "archive")
    assert answer["subscription_list"] == ["orders/s"]
    send(client, b"late", topic="orders")
    _give_up(client, "orders")
    assert values(client, "archive") == [b"early", b"late"]
    assert [row["origin_list"] for row in client.dead_letters()] == [["orders/s"]]
    assert client.topic("archive").retry_dead_letters(all=True)["retried"] == 2
    client.admin.rename_topic("orders", "sales")  # a policy does not follow from this name
    send(client, b"third", topic="sales")
    _give_up(client, "sales")
    assert values(client, "archive")[-1] == b"third"
    assert sorted(row["topic"] for row in client.topics()) == ["archive", "sales"]


def test_a_retry_topic_that_is_renamed_itself_keeps_the_policies_of_its_home(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=1)
    send(client, b"1", topic="orders")
    _postpone(client, "orders")
    assert client.admin.rename_topic("orders-s-RETRY", "later")["subscription_list"] == [
        "later/s", "orders/s",
    ]  # fmt: skip
    _postpone(client, "later")  # the second time is one too many
    assert values(client, "orders-s-DLQ") == [b"1"]
    send(client, b"2", topic="orders")
    _postpone(client, "orders")
    assert values(client, "later") == [b"1", b"2"]


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "kind", "code"),
    [
        ("nothing", "x", TopicNotFound, 302),
        ("orders", "audit", AlreadyExists, 401),
        ("orders", "AUDIT", AlreadyExists, 401),
        ("orders", "acme/eu/orders", NotAllowed, None),
        ("orders", "__system", InvalidArgument, 202),
        ("orders", "_txnlog", NotAllowed, None),
        ("orders", "a/b", InvalidArgument, 202),
        ("orders", "", InvalidArgument, 202),
        ("orders/0", "x", TxlogError, None),
        ("orders", "x/0", TxlogError, None),
        ("orders", "letters", NotAllowed, None),
        ("orders", "x" * (NAME_ENCODED_BYTES_MAX - 3), InvalidArgument, 202),
        ("orders", "taken", AlreadyExists, None),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_refused(
    bench: Bench, before: str, after: str, kind: type[TxlogError], code: int | None, dry_run: bool
) -> None:
    """Nothing changes, and no frame is written."""
    client = bench.client
    for name in ("orders", "audit", "orders-s-DLQ", "taken-s-DLQ"):
        client.create_topic(name)
    client.create_subscription("orders", "s", max_redeliver_count=1)
    client.create_subscription("orders", "other", dead_letter_topic="letters")
    shown = client.topics(), client.subscriptions(), lsn_of(client)
    with pytest.raises(kind) as refused:
        client.admin.rename_topic(before, after, dry_run=dry_run)
    assert code is None or refused.value.code == code
    assert "\n" not in str(refused.value)
    assert (
        client.topics(),
        client.subscriptions(),
        lsn_of(client),
    ) == shown


def test_no_change_and_a_rehearsal_write_no_frame(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    lsn = lsn_of(client)
    assert client.admin.rename_topic("orders", "orders")["changed"] is False
    assert client.admin.rename_topic("orders", "sales", dry_run=True)["changed"] is True
    assert lsn_of(client) == lsn
    assert [row["topic"] for row in client.topics()] == ["orders"]


def test_the_old_name_leads_to_the_new_one_in_a_hint(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    client.admin.rename_topic("orders", "sales")
    client.admin.rename_topic("sales", "turnover")
    for use in (client.producer, client.reader, client.describe_topic):
        for name in ("orders", "sales"):
            with pytest.raises(TopicNotFound) as missing:
                use(name)
            assert (missing.value.code, missing.value.hint) == (302, "its name is turnover")


def test_a_store_that_creates_topics_makes_one_of_the_old_name(bench: Bench) -> None:
    """As a topic that was deleted; the renamed topic gets none of its messages."""
    client = bench.client
    client.admin.set_setting("allow_auto_topic_creation", True)
    client.producer("orders").send(b"1")
    client.admin.rename_topic("orders", "sales")
    client.producer("orders").send(b"2")
    assert (values(client, "sales"), values(client, "orders")) == ([b"1"], [b"2"])


def test_keys_of_functions_with_the_old_name_are_listed(bench: Bench) -> None:
    client = bench.client
    client.create_topic("orders")
    for key in ("function:pay@orders/s:0", "function:pay@orders2/s:0", "function:own:0", "orders"):
        client.connect(key)
    answer = client.admin.rename_topic("orders", "sales")
    assert answer["still_named"] == ["function:pay@orders/s:0"]


def test_names_before_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlog.engine.folds.catalog.FORMER_MAX", 3)
    client = bench.client
    client.create_topic("t0")
    for number in (1, 2, 3, 1, 4, 5):
        names = [str(row["topic"]) for row in client.topics()]
        client.admin.rename_topic(names[0], f"t{number}")
    former = client.store.read(lambda view: view.catalog.topics[1].former)
    assert former == [f"public/default/{name}" for name in ("t3", "t1", "t4")]


# --- handles that are open ---------------------------------------------------------------------


@dataclasses.dataclass
class Seats:
    first: int
    second: int


@dataclasses.dataclass
class Others:
    other: int
    further: int


@pytest.mark.parametrize("is_reused", [False, True], ids=["renamed", "another has the name"])
def test_a_running_function_decodes_by_the_schema_of_its_topic(
    bench: Bench, is_reused: bool
) -> None:
    """Kills: a record that is read by the schema of the topic which has the name by now."""
    client = bench.client
    client.create_topic("a", schema=Seats, schema_type="avro")
    client.create_topic("out")
    client.create_subscription("a", "s")
    producer = client.producer("a")
    producer.send(Seats(1, 3))

    def shown(message: Message) -> bytes:
        if message.decode() == {"first": 1, "second": 3}:
            client.admin.rename_topic("a", "z")
            if is_reused:
                client.create_topic("a", schema=Others, schema_type="avro")
            producer.send(Seats(5, 6))
        return str(message.decode()).encode()

    functions.run(client, shown, "a", "out", "s", functions.FunctionOptions(txn_size=1))
    assert values(client, "out") == [b"{'first': 1, 'second': 3}", b"{'first': 5, 'second': 6}"]


@pytest.mark.parametrize("new", ["a9", "z9", "a2"])
def test_a_consumer_of_a_pattern_follows_numbers(bench: Bench, new: str) -> None:
    """Kills: a new topic of a known name that is never joined; a renamed one that is not left."""
    client = bench.client
    for name in ("a1", "a3"):
        client.create_topic(name)
        client.create_subscription(name, "s")
    consumer = client.consumer(re.compile("a.*"), "s")
    client.admin.rename_topic("a1", new)
    client.create_topic("a1")
    client.create_subscription("a1", "s")
    client.producer("a1").send(b"new")
    client.producer(new).send(b"renamed")
    received = [consumer.receive(timeout_ms=0) for _ in range(4)]
    by_topic = {message.topic: message.value for message in received if message is not None}
    assert by_topic == {"a1": b"new"} | ({} if new == "z9" else {new: b"renamed"})
    assert consumer.topics == sorted({"a1", "a3", new} - {"z9"})


def test_a_consumer_in_memory_goes_on(bench: Bench) -> None:
    client = bench.client
    client.create_topic("a")
    with client.consumer("a", "s", durable=False) as consumer:
        send(client, b"1", b"2", topic="a")
        first, second = consumer.receive(timeout_ms=0), consumer.receive(timeout_ms=0)
        assert first is not None and second is not None
        client.admin.rename_topic("a", "z")
        client.create_topic("a")
        assert consumer.acknowledge(first).acked == 1
        consumer.negative_acknowledge(second, delay_ms=0)
        again = consumer.receive(timeout_ms=0)
        assert again is not None and again.value == b"2"


# --- names derived from the topic's -----------------------------------------------------------


@pytest.mark.parametrize("kind", DERIVED, ids=lambda kind: kind.suffix)
def test_every_derived_topic_gets_the_name_derived_from_the_new_one(
    bench: Bench, kind: DerivedName
) -> None:
    """Walks the table, so that a new kind of derived name is renamed, too."""
    client = bench.client
    suffixes = [kind.suffix, f"{kind.suffix}-3"] if kind.is_state else [kind.suffix]
    for topic in ("orders", *(f"orders-s-{suffix}" for suffix in suffixes)):
        client.create_topic(topic)
        client.create_subscription(topic, "s")
        send(client, topic.encode(), topic=topic)
    client.create_topic("orders-s-other")
    answer = client.admin.rename_topic("orders", "sales")
    assert answer["renamed_list"] == [
        {"topic": f"sales-s-{suffix}", "before": f"orders-s-{suffix}"} for suffix in suffixes
    ]
    for suffix in suffixes:
        assert values(client, f"sales-s-{suffix}") == [f"orders-s-{suffix}".encode()]
    assert "orders-s-other" in {row["topic"] for row in client.topics()}


def test_names_are_derived_in_one_module() -> None:
    """A suffix elsewhere would be a derived name that a rename does not know."""
    home = f"{PACKAGE}.engine.plan.derived"
    of_two_names = re.compile(r"-\{[^}]*subscription[^}]*\}-|\}@\{[^}]*\}/\{")
    suffixes = {kind.suffix for kind in DERIVED}
    for module in modules():
        if module.name != home:
            for node in ast.walk(module.tree):
                text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else ""
                assert not of_two_names.search(text), f"{module.file}:{node.lineno}: {text}"  # type: ignore[attr-defined]
                if isinstance(node, ast.Constant):
                    assert node.value not in suffixes, f"{module.file}:{node.lineno}: {node.value}"


def test_open_windows_are_not_renamed_alone(bench: Bench) -> None:
    client = bench.client
    for topic in ("orders", "orders-s-WINDOWS", "orders-s-WINDOWS-2"):
        client.create_topic(topic)
        client.create_subscription(topic, "s")
    send(client, b"1", topic="orders-s-WINDOWS-2")
    with pytest.raises(NotAllowed) as refused:
        client.admin.rename_topic("orders-s-WINDOWS-2", "x")
    assert refused.value.hint == "rename orders: this topic is renamed with it"
    client.admin.rename_topic("orders-s-WINDOWS", "x")  # it is empty


def test_keys_of_functions_of_several_inputs_are_listed(bench: Bench) -> None:
    """The least input is in the key; a topic that becomes the least changes it."""
    client = bench.client
    for topic in ("b", "m", "z", "alone"):
        client.create_topic(topic)
        client.create_subscription(topic, "other" if topic == "alone" else "s")
    for key in ("function:f@b/s:0", "function:f@m/s:1", "function:f@b/other:0", "function:g:0"):
        client.connect(key)
    for after, named in (
        ("y", []),
        ("c", ["function:f@m/s:1"]),
        ("a", ["function:f@b/s:0", "function:f@m/s:1"]),
    ):
        assert client.admin.rename_topic("z", after, dry_run=True)["still_named"] == named


def test_a_replay_is_known_by_its_topic_and_not_by_the_name(bench: Bench) -> None:
    """A renamed topic is not replayed twice; a new topic of the old name is replayed."""
    client = bench.client
    for topic in ("a", "out"):
        client.create_topic(topic)
    send(client, b"1", topic="a")

    def replayed(topic: str) -> bool:
        whole = ("", txlog.Range())
        return bool(replay(client, topic, "out", whole, "key", Local())["already"])

    assert [replayed("a"), replayed("a")] == [False, True]
    for before, after in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")):
        client.admin.rename_topic(before, after)
        assert replayed(after)
    client.create_topic("a")
    send(client, b"2", topic="a")
    assert [replayed("a"), replayed("a")] == [False, True]
    client.admin.rename_topic("a", "d")
    assert replayed("d")
    assert values(client, "out") == [b"1", b"2"]
