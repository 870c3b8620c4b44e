"""Returned rows are plain dicts with the keys of their types, in the order of the type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from txlog.base.rows import consuming, delayed, store, topics, transactions, watermarks
from txlog.cli.demo import small
from txlog.clock import ManualClock

START_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[txlog.Client]:
    path, clock = str(tmp_path_factory.mktemp("rows") / "store"), ManualClock(START_MS)
    small.make(path, clock)
    with txlog.open(path, clock=clock) as opened:
        yield opened


def same(row: object, kind: type) -> None:
    """Check that the row is a plain dict with the keys of its type."""
    assert type(row) is dict
    required: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
    assert list(row) == [name for name in kind.__annotations__ if name in required]


def test_rows_of_topics(client: txlog.Client) -> None:
    for row in client.topics():
        same(row, topics.TopicRow)
    topic_row = client.describe_topic("orders")
    same(topic_row, topics.TopicDescription)
    same(topic_row["partition_list"][0], topics.TopicPartition)
    same(topic_row["subscription_list"][0], topics.TopicSubscription)
    same(client.topic("orders").stats()[-1], topics.Throughput)
    same(client.admin.get_delayed_policies("orders"), topics.Policies)
    same(client.admin.delete_topic("audit", force=True, dry_run=True), topics.TopicDeleted)


def test_rows_of_subscriptions(client: txlog.Client) -> None:
    same(client.subscriptions()[0], consuming.SubscriptionRow)
    billing = client.subscription("orders", "billing")
    with client.consumer("orders", "billing"):
        description = billing.describe()
    same(description, consuming.SubscriptionDescription)
    same(description["consumer_list"][0], consuming.ConsumerRow)
    same(description["partition_list"][0], consuming.SubscriptionPartition)
    same(billing.backlog()[0], consuming.BacklogGroup)
    sought = billing.seek(txlog.Bound("start"), dry_run=True)
    same(sought, consuming.Sought)
    same(sought["partition_list"][0], consuming.SeekPartition)
    same(billing.skip(all=True, dry_run=True), consuming.Skipped)
    same(billing.redeliver(dry_run=True), consuming.Redelivered)
    same(billing.delete(dry_run=True), consuming.SubscriptionDeleted)


def test_rows_of_transactions(client: txlog.Client) -> None:
    txn_rows = client.transactions(all=True)
    for row in txn_rows:
        same(row, transactions.TransactionRow)
        txn_row = client.show_transaction(row["txn"])
        same(txn_row, transactions.TransactionDescription)
        for part in txn_row["partition_list"]:
            same(part, transactions.TransactionPartition)
        same(client.admin.transaction_metadata(row["txn"]), transactions.TransactionMetadata)
        for op in client.admin.transaction_log(row["txn"]):
            same(op, transactions.TransactionLogRow)
    same(client.admin.transaction_keys()[0], transactions.KeyRow)
    key = client.admin.transaction_key("nightly")
    same(key, transactions.KeyDescription)
    same(key["txn_list"][0], transactions.KeyTransaction)
    same(client.admin.coordinators()[0], transactions.CoordinatorRow)
    stats = client.admin.coordinator_stats(internal=True)[0]
    same(stats, transactions.CoordinatorStats)
    assert stats["log_stats"] is not None
    same(stats["log_stats"]["managed_ledger_internal_stats"], transactions.ManagedLedger)
    same(client.admin.transaction_buffer_stats("orders")[0], transactions.BufferStats)
    same(client.admin.pending_ack_stats("orders", "billing")[0], transactions.PendingAckStats)
    open_one = next(row["txn"] for row in txn_rows if row["state"] == "open")
    (stat,) = client.admin.transaction_buffer_stats("orders", 0, txn=open_one)
    assert list(stat) == list(transactions.BufferStats.__annotations__)


def test_rows_of_delayed_messages_and_watermarks(client: txlog.Client) -> None:
    orders = client.topic("orders")
    same(orders.next_delayed(), delayed.NextDelayed)
    same(orders.histogram()[0], delayed.DueWithin)
    for row in orders.buckets():
        assert row.keys() == set(delayed.BucketRow.__annotations__)
    same(orders.promote(all=True, dry_run=True), delayed.Promoted)
    same(orders.merge(dry_run=True), delayed.BucketsMerged)
    same(orders.rebuild(dry_run=True), delayed.IndexRebuilt)
    watermark = orders.watermarks.show()
    same(watermark, watermarks.WatermarkShown)
    same(watermark["partition_list"][0], watermarks.WatermarkPartition)
    same(orders.watermarks.history()[0], watermarks.WatermarkRow)
    same(orders.watermarks.producers()[0], watermarks.WatermarkProducer)


def test_rows_of_a_store(client: txlog.Client, tmp_path: Path) -> None:
    same(txlog.init(str(tmp_path / "other")), store.StoreMade)
    same(client.reading(), store.RowsRead)
    status = client.status()
    same(status, store.Status)
    same(status["store"], store.StoreStatus)
    same(status["journal"], store.JournalStatus)
    same(status["checkpoint"], store.CheckpointStatus)
    same(status["change_logs"], store.ChangeLogsStatus)
    same(status["txns"], store.TransactionCounts)
    same(status["topic_list"][0], store.TopicStatus)
    overview = client.overview()
    same(overview, store.Overview)
    same(overview["transactions"], store.TransactionsOverview)
    same(overview["topic_list"][0], store.TopicOverview)
    same(overview["watermark_list"][0], store.WatermarkOverview)
    same(client.admin.settings()[0], store.SettingRow)
    same(client.admin.locks()[0], store.LockRow)
    check = client.admin.check()
    same(check, store.Check)
    same(check["check_list"][0], store.CheckRow)
    copied = client.copy(str(tmp_path / "copy"))
    same(copied, store.StoreCopied)
    same(txlog.verify(copied["path"]), store.Verified)
    same(txlog.repair(copied["path"]), store.Repaired)
