"""Commands print the fields that the types of the answers declare: none misspelt or forgotten."""

from __future__ import annotations

import importlib

import pytest

from txlog.base.rows import (
    consuming,
    delayed,
    files,
    jobs,
    space,
    store,
    topics,
    transactions,
    watermarks,
)
from txlog.cli.line import catalogue

PRINTED: dict[str, type] = {
    "init": store.StoreMade,
    "copy": store.StoreCopied,
    "status": store.Status,
    "topic list": topics.TopicRow,
    "topic describe": topics.TopicDescription,
    "topic stats": topics.Throughput,
    "topic update": topics.TopicUpdated,
    "topic delete": topics.TopicDeleted,
    "import": jobs.Imported,
    "export": jobs.Exported,
    "sub list": consuming.SubscriptionRow,
    "sub describe": consuming.SubscriptionDescription,
    "sub seek": consuming.Sought,
    "sub skip": consuming.Skipped,
    "sub clear-backlog": consuming.Skipped,
    "sub expire": consuming.Skipped,
    "sub backlog": consuming.BacklogGroup,
    "sub ack": consuming.AcknowledgedIn,
    "sub nack": consuming.NegativelyAcknowledged,
    "sub redeliver": consuming.Redelivered,
    "sub delete": consuming.SubscriptionDeleted,
    "delay promote": delayed.Promoted,
    "delay cancel": delayed.Cancelled,
    "delay buckets": delayed.BucketRow,
    "delay merge": delayed.BucketsMerged,
    "delay rebuild": delayed.IndexRebuilt,
    "watermark set": watermarks.WatermarkSet,
    "watermark idle": watermarks.ProducerIdle,
    "watermark show": watermarks.WatermarkShown,
    "watermark history": watermarks.WatermarkRow,
    "watermark producers": watermarks.WatermarkProducer,
    "watermark snapshot": watermarks.SnapshotsTaken,
    "txn connect": transactions.KeyConnected,
    "txn begin": transactions.TransactionBegun,
    "txn commit": transactions.TransactionEnded,
    "txn abort": transactions.TransactionEnded,
    "txn list": transactions.TransactionRow,
    "txn show": transactions.TransactionDescription,
    "txn log": transactions.TransactionLogRow,
    "txn find-hanging": transactions.HangingTransaction,
    "txn expire": transactions.Expired,
    "admin checkpoint": space.CheckpointWritten,
    "admin list-transaction-keys": transactions.KeyRow,
    "admin get-transaction-key": transactions.KeyDescription,
    "admin delete-transaction-key": transactions.KeyDeleted,
    "admin scale-transaction-coordinators": transactions.CoordinatorsScaled,
    "admin coordinators": transactions.CoordinatorRow,
    "admin coordinator-stats": transactions.CoordinatorStats,
    "admin transaction-metadata": transactions.TransactionMetadata,
    "admin slow-transactions": transactions.TransactionRow,
    "admin transaction-buffer-stats": transactions.BufferStats,
    "admin pending-ack-stats": transactions.PendingAckStats,
    "admin position-in-pending-ack": transactions.PendingPosition,
    "admin locks": store.LockRow,
    "admin offline": topics.PartitionSwitched,
    "admin online": topics.PartitionSwitched,
    "admin compact": space.Compacted,
    "admin compact-topic": space.TopicCompacted,
    "admin compact-changes": space.ChangesCompacted,
    "admin offload": space.Offloaded,
    "admin confirm": space.Confirmed,
    "admin trim": space.Trimmed,
    "admin repair": store.Repaired,
    "admin gc": space.GarbageCollected,
    "admin accept-clock": store.ClockAccepted,
    "verify": store.Verified,
    "schema get": topics.SchemaRow,
    "schema versions": topics.SchemaRow,
    "doctor": store.DoctorRow,
    "segment list": files.SegmentRow,
    "segment show": files.SegmentDescription,
    "wait": store.Waited,
    "check": store.Check,
    "metrics": store.MetricRow,
    **{
        f"policy {family} {verb}": topics.Policies if verb == "get" else topics.PoliciesChanged
        for family in ("delayed", "retention", "schema", "watermark")
        for verb in ("get", "set", "remove")
    },
    "job audit": jobs.Audit,
    "job bulk-load": jobs.BulkLoaded,
    "job replay": jobs.Replay,
    "job compact": space.Compacted,
    "job rebuild-delayed": delayed.IndexRebuilt,
    "job lateness": jobs.Lateness,
    "bench": jobs.Measured,
    "config show": store.SettingRow,
    "config get": store.SettingRow,
}
EVERYWHERE = {"dry_run", "elapsed_ms", "job", "engine"}  # what commands add to any answer
ADDED = {
    "sub ack": {"topic", "subscription"},
    "txn show": {"key_list"},
    "schema get": {"field_list"},
    "schema versions": {"field_list"},
    "bench": {"before_per_second", "ratio"},
}
LEFT_OUT = {
    "sub seek": {"aborted_list"},
    "schema get": {"fields"},
    "schema versions": {"fields"},
    "delay promote": {"first_at", "last_at"},
    "delay cancel": {"first_at", "last_at"},
    "txn commit": {"open_ms"},
    "txn abort": {"open_ms", "marker_list"},
}
COMPOSED = {  # answers that the command itself composes, or messages
    *("report", "run", "transform", "produce", "consume", "peek", "segment cat"),
    *("topic create", "sub create", "delay list", "delay next", "txn wait", "demo"),
    *("schema upload", "schema test", "schema delete"),
    *("token create-key", "token create", "token show"),
    *("config set", "spark submit-args", "completion install", "man install"),
}


def _fields(path: str) -> list[str]:
    entry = catalogue.COMMANDS[path]
    return [*getattr(importlib.import_module(f"txlog.cli.{entry.module}"), entry.name).fields]


def test_every_command_with_fields_is_named() -> None:
    """Kills: a new command whose fields no test compares."""
    listed = PRINTED.keys() | COMPOSED
    assert not PRINTED.keys() & COMPOSED
    assert listed == {path for path in catalogue.COMMANDS if _has_fields(path)}


def _has_fields(path: str) -> bool:
    entry = catalogue.COMMANDS[path]
    command = getattr(importlib.import_module(f"txlog.cli.{entry.module}"), entry.name, None)
    return bool(getattr(command, "fields", None))


@pytest.mark.parametrize("path", PRINTED)
def test_the_columns_of_a_command_are_the_fields_of_its_answer(path: str) -> None:
    keys = set(PRINTED[path].__annotations__)
    printed = set(_fields(path))
    assert (
        printed - EVERYWHERE
        == (keys | ADDED.get(path, set())) - LEFT_OUT.get(path, set()) - EVERYWHERE
    )
