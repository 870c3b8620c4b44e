"""Deleting subscriptions and topics: consumers that prevent it, removed files, and the reports of
transactions.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import (
    Bench,
    begin,
    ids,
    kill,
    pending,
    read,
    send,
    send_txn,
    values,
)
from tests.tiers import graded
from txlog import Client, TxnId
from txlog.base.ids import TopicName
from txlog.engine.upkeep.checkpoint import checkpoint
from txlog.engine.upkeep.space import compact
from txlog.errors import (
    ConsumerBusy,
    MessageNotFound,
    NotAllowed,
    StillInUse,
    SubscriptionNotFound,
    TopicNotFound,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, partitions: int = 1, **settings: int) -> Bench:
    options = {"ledger_entries_max": 4, "coordinators": 1, "reader_grace_ms": 0, **settings}
    bench = Bench(folder / "store", **options)
    bench.client.create_topic("t", partitions)
    bench.client.create_subscription("t", "s")
    return bench


def files(bench: Bench) -> list[Path]:
    """Every file with messages. The note on how to read them stays in place and is not counted."""
    paths = Path(bench.path, "topics").rglob("*")
    return [path for path in paths if path.is_file() and path.name != "_README"]


# --- subscriptions ----------------------------------------------------------------------------


def test_transaction_on_other_topics_reports_the_deleted_partition(tmp_path: Path) -> None:
    """A sidecar that a transaction only requested must not be taken for an existing partition."""
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_topic("u")
    with client.transaction() as txn:
        client.producer("t").send(b"gone", txn=txn)
        txn.flush()
        client.admin.delete_topic("t", force=True)
        client.producer("u").send(b"kept", txn=txn)
    assert txn.outcome is not None
    assert txn.outcome.skipped == [(1, 0)]
    assert values(client, "u") == [b"kept"]


def test_deleted_subscription_may_be_created_again(tmp_path: Path) -> None:
    """The new subscription starts anew and has its own cursor (Law 6)."""
    bench = bench_of(tmp_path)
    client = bench.client
    message_ids = send(client, b"0", b"1", b"2")
    client.acknowledge("t", "s", message_ids[:2])
    handle = client.subscription("t", "s")
    assert handle.delete() == {"topic": "t", "subscription": "s", "backlog": 1, "deleted": True}
    for call in (handle.delete, handle.describe, lambda: client.subscription("t", "s")):
        with pytest.raises(SubscriptionNotFound):
            call()
    assert client.subscriptions() == []
    client.create_subscription("t", "s")
    assert [m.value for m in pending(client)] == [b"0", b"1", b"2"]
    client.checkpoint()
    assert [m.value for m in pending(bench.reopen())] == [b"0", b"1", b"2"]


def test_a_live_consumer_keeps_it_unless_forced(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    handle = client.subscription("t", "s")
    consumer = bench.another().consumer("t", "s")
    with pytest.raises(ConsumerBusy) as caught:
        handle.delete()
    assert caught.value.code == 505
    handle.delete(force=True)
    with pytest.raises(SubscriptionNotFound):
        consumer.receive_batch()
    consumer.close()
    assert client.admin.locks()[3:] == []


def test_a_dead_consumer_is_not_in_the_way(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    consumer = bench.another().consumer("t", "s")
    kill(consumer)
    assert bench.client.subscription("t", "s").delete()["deleted"]


def test_pending_acknowledgements_on_a_deleted_subscription_are_skipped(tmp_path: Path) -> None:
    """Spec 9.3: pending acknowledgements do not prevent the deletion; the transaction commits
    without them.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    message_ids = send(client, b"0", b"1")
    txn, other = begin(client), begin(client)
    client.acknowledge("t", "s", message_ids, txn=txn)
    client.producer("t").send(b"out", txn=txn)
    client.subscription("t", "s").delete()
    assert client.show_transaction(txn)["skipped_list"] == ["t/0:subscription 1"]
    client.create_subscription("t", "s")
    client.acknowledge("t", "s", message_ids[:1], txn=other)
    answer = client.commit(txn)
    assert (answer["state"], answer["messages"], answer["acks"]) == ("committed", 1, 0)
    assert answer["skipped_list"] == ["t/0:subscription 1"]
    answer_again = bench.another().commit(txn)
    assert answer_again["already"] and answer_again["skipped_list"] == answer["skipped_list"]
    assert client.commit(other)["skipped_list"] == []
    assert [m.value for m in pending(client)] == [b"1", b"out"]
    client.checkpoint()
    reopened = bench.reopen()
    assert reopened.show_transaction(txn)["skipped_list"] == answer["skipped_list"]
    assert reopened.admin.transaction_metadata(txn)["skipped_list"] == answer["skipped_list"]
    assert reopened.show_transaction(other)["skipped_list"] == []
    assert len(reopened.admin.transaction_log(txn)) > 3


def test_a_later_deletion_does_not_change_how_a_transaction_ended(tmp_path: Path) -> None:
    """Spec 5: the answer to a commit or an abort depends on the transaction's record only."""
    bench = bench_of(tmp_path)
    client = bench.client
    message_ids = send(client, b"0")
    txn = begin(client)
    client.acknowledge("t", "s", message_ids, txn=txn)
    first = client.commit(txn)
    client.subscription("t", "s").delete()
    client.admin.delete_topic("t")
    answer_again = client.commit(txn)
    assert answer_again["already"]
    assert (answer_again["acks"], answer_again["skipped_list"]) == (first["acks"], []) == (1, [])


def test_dump_of_a_deleted_subscription_is_removed(tmp_path: Path) -> None:
    """The state files keep nothing of a deleted subscription, whether it was deleted before or
    after a checkpoint.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    client.acknowledge("t", "s", send(client, b"0"))
    client.checkpoint()
    for name in ("a", "b"):
        client.create_subscription("t", name)
    client.subscription("t", "s").delete()
    client.subscription("t", "a").delete()
    client.checkpoint()
    for each_client in (client, bench.another()):
        kinds = each_client.store.read(
            lambda view: [key for key in view.known() if key[0] == "cursor"]
        )
        assert kinds == [("cursor", 3, 1)]


# --- topics -----------------------------------------------------------------------------------


def test_a_topic_in_use_is_refused(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    send(client, b"0")
    with pytest.raises(
        StillInUse, match=r"subscriptions \(1\) or unfinished transactions \(0\)"
    ) as caught:
        client.admin.delete_topic("t")
    assert caught.value.code == 408
    client.subscription("t", "s").delete()
    txn = begin(client)
    client.producer("t").send(b"open", partition=1, txn=txn)
    with pytest.raises(StillInUse, match=r"\(0\) or unfinished transactions \(1\)"):
        client.admin.delete_topic("t")
    client.abort(txn)
    assert client.admin.delete_topic("t") == {
        "topic": "t",
        "partitions": 2,
        "messages": 1,
        "size_bytes": 1,
        "subscriptions": 0,
        "deleted": True,
    }
    with pytest.raises(TopicNotFound):
        client.admin.delete_topic("t")


def test_every_handle_of_a_deleted_topic_gets_an_error(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    (message_id,) = send(client, b"0")
    producer, named_producer, reader = (
        client.producer("t"),
        client.producer("t", "p"),
        client.reader("t"),
    )
    consumer = client.consumer("t", "s")
    txn = begin(client)
    client.admin.delete_topic("t", force=True)
    for call in (
        lambda: producer.send(b"x"),
        lambda: producer.send(b"x", txn=txn),
        named_producer.last_sequence_id,
        reader.read_next,
        reader.has_message_available,
        consumer.receive_batch,
        lambda: consumer.acknowledge(message_id),
        lambda: client.describe_topic("t"),
        lambda: read(client),
        lambda: client.acknowledge("t", "s", [message_id]),
        lambda: client.admin.trim("t"),
        lambda: client.admin.compact("t"),
    ):
        with pytest.raises((TopicNotFound, SubscriptionNotFound, TxlogError)) as caught:
            call()
        assert caught.value.exit in (2, 3), caught.value
    with pytest.raises(MessageNotFound):
        client.inspect(f"msg:{message_id}")
    consumer.close()
    assert client.topics() == []
    assert client.status()["topic_list"] == []
    assert client.commit(txn)["state"] == "committed"


def test_a_handle_does_not_go_on_with_the_next_topic_of_the_name(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    producer, reader, consumer = client.producer("t"), client.reader("t"), client.consumer("t", "s")
    client.admin.delete_topic("t", force=True)
    client.create_topic("t")
    client.create_subscription("t", "s")
    send(client, b"new")
    for call in (lambda: producer.send(b"x"), reader.read_next, consumer.receive_batch):
        with pytest.raises((TopicNotFound, SubscriptionNotFound), match="was deleted"):
            call()
    consumer.close()
    assert [m.value for m in pending(client)] == [b"new"]


def test_deleted_topic_loses_its_files_and_its_numbers_are_never_reused(tmp_path: Path) -> None:
    """Law 6: a new topic with the same name has other partitions, ledgers and ids.

    R18: the old files are removed.
    """
    bench = bench_of(tmp_path, 2)
    client = bench.client
    send(client, *(b"%d" % n for n in range(9)))
    send_txn(client, b"a", b"b", partition=1)
    client.checkpoint(roll_all=True)
    message_ids = ids(client)
    assert files(bench)
    client.create_topic("other")
    send(client, b"stays", topic="other")
    client.admin.delete_topic("t", force=True)
    client.checkpoint()
    client.checkpoint()
    assert {path.parts[-3] for path in files(bench)} == {"other"}
    client.create_topic("t")
    send(client, b"new")
    assert not set(ids(client)) & set(message_ids)
    assert min(message_id.ledger for message_id in ids(client)) > max(
        message_id.ledger for message_id in message_ids
    )
    client.checkpoint(roll_all=True)
    reopened = bench.reopen()
    assert values(reopened) == [b"new"]
    assert values(reopened, "other") == [b"stays"]
    kinds = reopened.store.read(lambda view: {key for key in view.known() if key[0] == "topic"})
    assert kinds == {("topic", 3, 0), ("topic", 4, 0)}


def test_files_of_an_interrupted_pass_are_removed_with_the_topic(tmp_path: Path) -> None:
    """R19: a file that no manifest names is removed, although no manifest names its directory
    either.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    send_txn(client, b"0")
    client.checkpoint()
    (first_file, other) = files(bench)
    for path in (first_file, other):
        path.with_name("_ledger-000000000099.0000000099.arrow").write_bytes(b"left")
    client.admin.delete_topic("t", force=True)
    client.checkpoint()
    client.checkpoint()
    assert files(bench) == []


def test_large_messages_are_deleted_with_their_topic(tmp_path: Path) -> None:
    """The files of large messages are ledgers of the sidecar.

    A producer of large messages also gets an error.
    """
    bench = bench_of(tmp_path, max_message_bytes=100)
    client = bench.client
    producer = client.producer("t", chunking=True)
    producer.send(b"x" * 500, key=b"k")
    client.admin.update_topic("t", 3)
    assert producer.send(b"y" * 300, key=b"key").partition == zlib.crc32(b"key") % 3
    (row,) = client.subscription("t", "s").backlog("key", 1)
    assert (row["group"], row["messages"], row["size_bytes"]) == ("k", 1, 501)
    assert len(files(bench)) == 2  # the files exist before any checkpoint
    client.admin.delete_topic("t", force=True)
    with pytest.raises(TopicNotFound, match="was deleted"):
        producer.send(b"z" * 500)
    client.checkpoint()
    client.checkpoint()
    assert files(bench) == []


def test_rows_without_a_file_are_deleted_with_the_topic(tmp_path: Path) -> None:
    """Two cases: a deletion between two checkpoints, and a deletion that another process has not
    read yet.
    """
    bench = bench_of(tmp_path)
    other = bench.another()
    client = bench.client
    send(client, b"0")
    client.checkpoint()
    send(client, b"1")
    assert values(other) == [b"0", b"1"]
    client.admin.delete_topic("t", force=True)
    client.create_topic("t")
    send(client, b"2")
    other.checkpoint()
    assert values(other) == values(client) == values(bench.another()) == [b"2"]


def test_open_transactions_continue_without_a_deleted_topic(tmp_path: Path) -> None:
    """Spec 5.1: for an open transaction, a deleted topic counts as done and is reported as skipped;
    the rest commits.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_topic("u")
    client.create_subscription("u", "s")
    message_ids, more = send(client, b"0"), send(client, b"0", topic="u")
    txn, deleted_txn = begin(client), begin(client)
    for each_txn in (txn, deleted_txn):
        client.producer("t").send(b"lost", txn=each_txn)
        client.producer("u").send(b"kept", txn=each_txn)
    client.acknowledge("t", "s", message_ids, txn=txn)
    client.acknowledge("u", "s", more, txn=txn)
    client.admin.delete_topic("t", force=True)
    assert client.transactions()[0]["messages"] == 1
    answer = client.commit(txn)
    assert (answer["state"], answer["messages"], answer["acks"]) == ("committed", 1, 1)
    assert answer["skipped_list"] == ["partition 1", "partition 1:subscription 1"]
    assert [row["topic"] for row in answer["marker_list"]] == ["u"]
    assert client.abort(deleted_txn)["skipped_list"] == ["partition 1"]
    assert values(client, "u") == [b"0", b"kept"]
    assert [m.value for m in pending(client, "u")] == [b"kept"]
    txn_row = bench.another().show_transaction(txn)
    assert txn_row["topic_list"] == ["u"]
    assert [row["topic"] for row in txn_row["partition_list"]] == ["u"]
    metadata = client.admin.transaction_metadata(txn)
    assert list(metadata["produced_partitions"]) == ["u/0"]
    assert client.admin.message_keys(txn) == []
    assert client.admin.find_hanging(0) == []


@pytest.mark.parametrize("what", ["topic", "subscription"])
def test_deletion_completes_transactions_that_waited_for_the_topic(
    tmp_path: Path, what: str
) -> None:
    """I-17: after each frame, a decided transaction has ended or still has something to
    wait for.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_topic("u")
    message_ids = send(client, b"0")
    txn, wide = begin(client), begin(client)
    client.acknowledge("t", "s", message_ids, txn=txn)
    client.producer("u").send(b"out", txn=txn)
    client.producer("t").send(b"wide", txn=wide)
    client.producer("u").send(b"wide", txn=wide)
    client.admin.set_offline("t")
    assert client.commit(txn)["waiting_list"] == ["t/0:s"]
    client.admin.set_offline("u")
    assert client.commit(wide)["waiting_list"] == ["t/0", "u/0"]
    lsn = client.wait_for_change(0)
    if what == "topic":
        client.admin.delete_topic("t", force=True)
    else:
        client.subscription("t", "s").delete()
    assert client.wait_for_change(0) == lsn + 1  # Law 4: one frame
    row = client.show_transaction(txn)
    assert (row["state"], row["waiting_list"]) == ("committed", [])
    assert len(row["skipped_list"]) == 1
    wide_row = client.show_transaction(wide)
    assert wide_row["state"] == "committing"
    assert wide_row["waiting_list"] == (["u/0"] if what == "topic" else ["t/0", "u/0"])
    client.admin.set_online("u")
    state = client.show_transaction(wide)["state"]
    assert state == ("committed" if what == "topic" else "committing")
    assert values(client, "u") == [b"out", b"wide"]
    client.checkpoint()
    assert bench.reopen().commit(txn)["already"]


def test_offline_topic_may_be_deleted_and_created_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    client.admin.set_offline("t")
    client.set_policies("t", retention_ms=5)
    client.admin.delete_topic("t", force=True)
    assert client.status()["problem_list"] == []
    client.create_topic("t")
    assert client.describe_topic("t")["policies"] == {}
    send(client, b"0")
    assert values(client) == [b"0"]


def test_maintenance_ignores_a_topic_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction and a sealing change nothing if the topic is deleted while their files are
    written.
    """
    bench = bench_of(tmp_path, ledger_entries_max=20)
    client, other = bench.client, bench.another()
    send_txn(client, b"a", b"b")
    txn = begin(client)
    client.producer("t").send(b"gone", txn=txn)
    client.producer("t").send(b"open", txn=begin(client))
    client.abort(txn)
    client.checkpoint()
    built = compact._built

    def delete_then(*arguments: object) -> object:
        if other.topics():
            other.admin.delete_topic("t", force=True)
        return built(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compact, "_built", delete_then)
    client.admin.compact("t")
    assert client.topics() == []
    client.checkpoint()
    client.checkpoint()
    assert files(bench) == []
    assert bench.reopen().topics() == []


def test_a_deletion_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was built before the deletion and names the deleted dumps.

    A process that knows of the deletion must not load them.
    """
    bench = bench_of(tmp_path)
    client, other = bench.client, bench.another()
    client.acknowledge("t", "s", send(client, b"0", b"1")[:1])
    write_state = checkpoint.write_state

    def delete_then(*arguments: object) -> object:
        if [row["topic"] for row in other.topics()] == ["t"]:
            other.admin.delete_topic("t", force=True)
        return write_state(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_state", delete_then)
    client.checkpoint()
    for each_client in (client, other, bench.another()):
        each_client.create_topic("u", if_not_exists=True)
        kinds = each_client.store.read(
            lambda view: {key[:2] for key in view.known() if key[2] or key[1]}
        )
        assert kinds == {("topic", 2)}
    client.checkpoint()
    manifest = client.store.read(lambda view: view.manifest)
    assert {(ref.kind, ref.a) for ref in manifest.dumps} == {("catalog", 0), ("topic", 2)}
    assert values(bench.reopen(), "u") == []


@pytest.mark.parametrize("seed", graded(range(3), 1))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    """Topics and subscriptions are created and deleted while transactions use them.

    All views must agree (Law 1).
    """
    chance = random.Random(seed)
    bench = bench_of(tmp_path)
    client = bench.client
    open_ones: list[TxnId] = []
    for step in range(90):
        name, sub = chance.choice("tu"), chance.choice("sx")
        txn = chance.choice(open_ones) if open_ones and chance.random() < 0.7 else None
        act = chance.randrange(12)
        try:
            if act == 0:
                client.create_topic(name, chance.randint(1, 2))
            elif act == 1:
                client.create_subscription(name, sub)
            elif act == 2:
                open_ones.append(begin(client))
            elif act <= 5:
                client.producer(name).send(b"%d" % step, txn=txn)
            elif act == 6:
                client.acknowledge(name, sub, ids(client, name)[:2], txn=txn)
            elif act == 7 and txn is not None:
                (client.commit if chance.random() < 0.5 else client.abort)(txn)
            elif act == 8:
                client.subscription(name, sub).delete()
            elif act == 9 and chance.random() < 0.5:
                client.admin.delete_topic(name, force=chance.random() < 0.7)
            elif act == 10:
                client.admin.update_topic(name, chance.randint(1, 4))
            elif act == 11:
                client.checkpoint(roll_all=chance.random() < 0.5)
        except TxlogError:
            continue
        client.flush()
        if step % 9 == 0:
            shape = seen(client)
            assert seen(bench.another()) == shape, f"seed {seed}, step {step}"
    for txn in open_ones:
        txn_row = client.show_transaction(txn)
        if txn_row["state"] == "open":
            assert client.commit(txn)["state"] == "committed"
    client.checkpoint()
    shape = seen(client)
    assert seen(bench.reopen()) == shape, f"seed {seed}"


def seen(client: Client) -> object:
    return (
        client.topics(),
        client.subscriptions(),
        client.transactions(all=True),
        [values(client, row["topic"]) for row in client.topics()],
        [client.show_transaction(row["txn"]) for row in client.transactions(all=True)],
    )


# --- names that are refused by now ---------------------------------------------------------------


def test_no_call_makes_a_topic_of_a_sidecars_name(tmp_path: Path) -> None:
    """Every call that creates a topic uses one of two checks, and both use the parser that also
    reads sidecar names.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    send(client, b"0")
    for call in (
        lambda: client.create_topic("_txnlog"),
        lambda: client.create_topic("public/default/_txnlog", if_not_exists=True),
        lambda: client.create_subscription("t", "dead", dead_letter_topic="_txnlog"),
        lambda: client.subscription("t", "s").set_policies(retry_topic="_txnlog"),
    ):
        with pytest.raises(NotAllowed):
            call()
    assert [row["topic"] for row in client.topics()] == ["t"]


def test_a_topic_that_has_a_sidecars_name_works_and_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old store may have such a topic.

    It works as any other topic; `verify` reports it as `reserved`.
    """
    bench = bench_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TopicName, "check_new", lambda self: self)
        bench.client.create_topic("_txnlog", 2)
    bench.client.create_subscription("_txnlog", "s")
    assert bench.client.create_topic("_txnlog", 2, if_not_exists=True) is False
    send(bench.client, b"plain", topic="_txnlog")
    send_txn(bench.client, b"in a transaction", topic="_txnlog", partition=1)
    bench.client.checkpoint(roll=["_txnlog"])
    client = bench.reopen()
    assert [row["topic"] for row in client.topics()] == ["_txnlog", "t"]
    assert values(client, "_txnlog") == [b"plain", b"in a transaction"]
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert [(problem["code"], problem["topic"]) for problem in report["problem_list"]] == [
        ("reserved", "_txnlog")
    ]
    client.admin.delete_topic("public/default/_txnlog", force=True)
    client.checkpoint()
    assert [row["topic"] for row in bench.reopen().topics()] == ["t"]
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["problem_list"] == []
