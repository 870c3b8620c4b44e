"""Owns the properties of result fields: their type by name, their meaning, their JSON form.

The name decides the type (spec/cli 1): `…_ms` and `…_bytes` are integers, `…_time` and `…_at`
instants, `…_list` arrays, the words below strings or ids, anything else an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from txlog.base import message_columns
from txlog.base.ranges import format_time

RECORD_FIELDS: Final = (
    "kind topic partition message_id key key_encoding value value_encoding properties publish_time "
    "event_time deliver_at visible_time txn txn_index txn_state producer sequence_id "
    "redelivery_count late size_bytes"
).split()

_STRINGS: Final = frozenset(
    "topic namespace subscription producer owner transaction_key key path file state type kind "
    "class name command code message hint detail value uuid durability isolation reason "
    "format_name key_encoding value_encoding txn_state status op cause repair group input "
    "output holder by marker_type mode job engine dest origin was crc32c fix log place definition "
    "fingerprint role token algorithm public".split()
)
_IDS: Final = frozenset(
    "message_id position first last mark_delete marker from to start_position max_read_position "
    "cumulative_ack_position compacted_through first_before first_after first_unacked "
    "snapshot_position".split()
)
_BOOLEANS: Final = frozenset(
    "sidecar created overdue already done duplicate skipped_checkpoint exact dry_run late "
    "online if_not_exists deleted held aborted changed applied regressed "
    "was_active was_believed holds idle met durable verified".split()
)
_OBJECTS: Final = frozenset(
    "policies origins properties store journal checkpoint change_logs writer txns log_stats "
    "low_water_marks labels produced_partitions acked_partitions".split()
)
# Fields whose meaning differs next to another field.
_BESIDE: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "transactions": {"aborted": ("integer", "transactions aborted")},
    "acked": {"already": ("integer", "acknowledged before")},
    "generation": {"skipped": ("boolean", "nothing has changed since the last one")},
    "marker_ledger": {"kind": ("integer", "0 data, 1 commit, 2 abort, 3 to 5 watermarks, 6 chunk")},
    "labels": {"value": ("number", "the figure")},
    "role": {"verified": ("boolean", "a server with these rules accepts it")},
}
_INSTANTS: Final = frozenset({"watermark", "emitted", "time"})

MEANINGS: Final[dict[str, str]] = {
    **message_columns.MEANINGS,
    "partitions": "number of partitions",
    "key_encoding": "utf8, base64, or null: no key",
    "value_encoding": "json, utf8, base64, or null: no payload",
    "txn_index": "number in the transaction and partition, from 1",
    "late": "event time below the watermark; null without --watermarks",
    "messages": "visible messages; for a transaction, its own",
    "open_txns": "unfinished transactions",
    "hidden_messages": "messages of open transactions",
    "delayed": "messages not yet due",
    "subscriptions": "number of subscriptions",
    "subscription": "name of the subscription",
    "backlog": "messages not yet acknowledged",
    "backlog_no_delayed": "messages of the backlog that are due",
    "buckets_before": "sealed buckets before",
    "buckets_after": "sealed buckets after",
    "messages_read": "messages whose time was read",
    "indexed": "messages in the log that are not due",
    "missing": "messages not due that the index lacked",
    "surplus": "messages that only the index had",
    "buckets": "buckets made",
    "due_in_ms": "time until it is due",
    "promoted": "messages delivered before their time",
    "cancelled": "messages acknowledged before their time",
    "not_delayed": "given messages that are due, or have no time",
    "not_due": "messages that are not due yet",
    "segments": "slices of the bucket, loaded when they are due",
    "loaded_segments": "segments that this process has loaded",
    "min_deliver_at": "the earliest time in it",
    "max_deliver_at": "the latest time in it",
    "created": "false when it existed already",
    "type": "exclusive, shared, failover or key-shared; for a metric counter, gauge, …",
    "isolation": "committed or uncommitted",
    "pending_acks": "acknowledgements of open transactions",
    "consumers": "live consumers",
    "mark_delete": "all messages up to this one are acknowledged",
    "first": "first message",
    "last": "last message",
    "position": "its position",
    "state": "open, committing, committed, …; for a bucket sealed, mutable, pending or unindexed",
    "transaction_key": "the caller's name for a series of transactions",
    "age_ms": "time since it began; for a key, since its last use",
    "expires_at": "end of its validity; null: never",
    "expires_in_ms": "time until its time-out; null when it has ended",
    "topic_list": "the topics",
    "acks": "acknowledgements in the transaction",
    "owner": "name of the user",
    "owner_uid": "number of the user",
    "epoch": "epoch of the transaction key",
    "last_used_time": "when it last connected or began a transaction",
    "connected_time": "when its holder connected",
    "deleted": "a tombstone, which keeps the epoch",
    "txn_list": "the remembered transactions, newest first",
    "aborted_list": "transactions that this call aborted",
    "before": "old value",
    "after": "new value",
    "coordinator": "number of the coordinator",
    "overdue": "open beyond its time-out",
    "reason": "why it was aborted",
    "waiting_list": "participants that are not available",
    "finished_list": "transactions that its return completed",
    "changed": "false when nothing had to change",
    "online": "false while it is offline or quarantined",
    "cause": "unavailable, overdue or corrupt",
    "repair": "what helps",
    "expired": "aborted by their time-out",
    "rolled_forward": "commits that were completed",
    "rolled_back": "aborts that were completed",
    "forgotten": "ended transactions that the store forgot",
    "dry_run": "true for a rehearsal, which changes nothing",
    "skipped_list": "partitions deleted meanwhile",
    "marker_list": "the commit marker of each partition",
    "partition_list": "a row for each partition",
    "ack_list": "a row for each subscription",
    "subscription_list": "the subscriptions",
    "already": "it was done before",
    "timeout_ms": "time-out from the beginning",
    "timeout_at": "time of its time-out",
    "fenced_txn": "the transaction that this call fenced",
    "decision_lsn": "frame of the decision",
    "acked": "acknowledged now",
    "dropped": "not acknowledged, as a transaction holds them",
    "duplicates": "stored before, so not written again",
    "skipped": "left out",
    "dead_lettered": "written to the dead-letter topic",
    "transactions": "transactions committed",
    "mode": "kind of the operation",
    "operations": "calls measured",
    "per_second": "operations a second",
    "p50_us": "microseconds that half of the operations did not exceed",
    "p99_us": "microseconds that 99 of 100 operations did not exceed",
    "max_us": "microseconds of the slowest operation",
    "before_per_second": "operations a second in the file of --compare",
    "ratio": "current figure divided by the earlier one",
    "from_time": "start of the time span",
    "elapsed_ms": "time taken",
    "job": "name of the job",
    "engine": "engine of the job: duckdb or spark",
    "failed": "checks that failed",
    "dest": "the topic that the job writes",
    "read": "messages read; null when it was done before",
    "version": "version of the schema",
    "check_list": "each check: name, topic, partition, expected, found, ok",
    "row_list": "a row for each span of time",
    "delay_list": "late messages by the lag of a watermark in milliseconds",
    "path": "its path",
    "role": "role of the token's holder",
    "token": "the token itself: keep it secret",
    "algorithm": "algorithm that signs the tokens",
    "public": "the file of the public key, null for a secret",
    "uuid": "identity of the store",
    "format": "version of the format",
    "generation": "number of the checkpoint, or of the bucket",
    "lsn": "last frame",
    "kind": "its kind",
    "kills": "number of times that the worker was killed",
    "aborted_dropped": "messages of aborted or trimmed transactions left out",
    "ledgers": "ledgers deleted",
    "offloaded": "files outside the store, named but not copied",
    "verified": "the whole copy was read and compared",
    "applied": "the files were unlinked",
    "ahead_ms": "how far the clock is ahead of the expected time",
    "was_believed": "the clock was trusted already",
    "files": "number of files",
    "compacted_through": "last entry that admin compact-topic has read",
    "keys_kept": "keys whose newest message has a value",
    "keys_deleted": "keys whose newest message has none",
    "without_key": "messages without a key, which are left out",
    "topics": "number of topics",
    "problems": "number of problems, see txlog status",
    "file_list": "the files, each with the reason",
    "exact": "the result equals the computed one",
    "input": "the topics it read",
    "output": "the topic it wrote; null when each output names one",
    "last_txn": "the transaction committed last",
    "consumed": "messages acknowledged in committed transactions",
    "produced": "messages produced in committed transactions",
    "time": "when the frame was written",
    "op": "the recorded operation",
    "detail": "details",
    "count": "number of messages or rows that it affects",
    "key_list": "keys of its messages, with --keys",
    "status": "check: ok, warn, fail or ok, warning, critical; watermark: unknown, active, "
    "idle; transaction: OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED",
    "store": "its path, size, durability and time of creation",
    "journal": "its newest frame, the newest durable one, number and size of its files",
    "checkpoint": "the newest: its number, its LSN and when it was written",
    "change_logs": "files of the logs of changes: their number, rows and size",
    "writer": "process that holds the write lock: pid and command; null: none",
    "txns": "numbers of open, overdue, committing and aborting transactions",
    "created_time": "time of its creation",
    "last_publish_time": "when the newest message was written; null: it has none",
    "last_ack_time": "time of the last acknowledgement",
    "file": "the file; inside a store, its path below the store",
    "begin_time": "when it began",
    "end_time": "when it was decided; null: it is open",
    "parts": "files of open ledgers written",
    "sealed_ledgers": "ledgers written as Parquet",
    "journals_deleted": "journal files no longer needed",
    "freed_bytes": "bytes of unlinked files",
    "command": "command line of the process",
    "since_time": "start of the holding; null: unknown",
    "size_before_bytes": "bytes of the files before",
    "size_after_bytes": "bytes of the files after",
    "ledgers_before": "ledgers before",
    "ledgers_after": "ledgers after",
    "args": "the line for spark-submit",
    "place": "directory or address of the offloaded files",
    "ledgers_left": "ledgers that stay in the store",
    "lines": "lines of invoices that were read",
    "invoices": "invoices written",
    "refunds": "refunds written",
    "quantity": "sum of the quantities",
    "open_time": "when it began",
    "ongoing_txn_size": "unfinished transactions",
    "keys": "living transaction keys",
    "least_sig_bits": "highest sequence issued, 0 if none",
    "low_water_mark": "lowest unfinished sequence less one, 0 if none",
    "low_water_marks": "lowest unfinished sequence less one, by coordinator",
    "next_sequence": "sequence of the next transaction",
    "committing_size": "decided, waiting to be committed",
    "aborting_size": "decided, waiting to be aborted",
    "ended_size": "ended and remembered",
    "oldest_open_time": "when the oldest open transaction began",
    "recover_start_time": "when this process began to read the store",
    "recover_end_time": "when it had finished reading",
    "log_stats": "the ledger of its log, with --internal",
    "produced_partitions": "its messages, by topic/partition",
    "acked_partitions": "its acknowledgements, by topic/partition and subscription",
    "total_aborted_transactions": "aborted transactions that had messages here",
    "sidecar_live_bytes": "bytes that are or may become visible",
    "sidecar_garbage_bytes": "bytes of aborted messages",
    "max_read_position": "last visible message",
    "last_snapshot_time": "last checkpoint",
    "start_position": "its first row in the sidecar; null after an abort",
    "aborted": "whether it was aborted",
    "marker": "its commit marker",
    "pending_messages": "messages that open transactions acknowledged",
    "cumulative_ack_position": "last position that it acknowledged cumulatively",
    "individual_acks": "messages it acknowledged beyond that position",
    "held": "whether a process holds it",
    "group": "the key, age or ledger",
    "oldest_time": "when the oldest became visible",
    "consumer_list": "its consumers: name, pid, command, alive, leased, since_time",
    "policies": "its details, by name",
    "namespace": "TENANT/NAMESPACE",
    "origin": "where it is set: a flag, a variable, config.toml, the store",
    "was": "its value before, null if it had none",
    "origins": "topic, namespace or store, by name of the policy",
    "nacked": "messages to be delivered again",
    "ignored": "messages that no consumer has in hand",
    "redelivered": "messages to be delivered again",
    "redeliver": "messages to be delivered again",
    "skip": "messages that will never be delivered",
    "pid": "the process",
    "labels": "labels and their values",
    "watermark": "the lowest time of an active producer",
    "emitted": "the highest watermark that a consumer has received",
    "lag_ms": "how far the watermark is behind the clock",
    "holder": "the producer with the lowest time",
    "first_unacked": "the message that the watermark waits for",
    "max_event_time": "the greatest event time of the messages",
    "late_messages": "messages older than the watermark just before them",
    "marker_type": "set, idle or snapshot",
    "by": "cause of its idleness: producer, admin or timeout",
    "pending_txns": "open transactions that assert watermarks",
    "regressed": "below the producer's last time, so it has no effect",
    "was_active": "the watermark waited for it until now",
    "holds": "it has the lowest time",
    "idle": "the watermark does not wait for it",
    "written": "messages, or snapshots, written",
    "met": "the condition is met, or all are",
    "condition_list": "for each its name, whether it is met, and its value",
    "problem_list": "problems: code, message, hint; from verify also severity and place",
    "messages_lost": "messages lost for good, or planned to be without --apply; null: unknown",
    "action_list": "each step: action, path, ledger, first, last, messages_lost, detail, done",
    "ledger": "number of the ledger",
    "part": "number of the part, for a ledger in several files",
    "sidecar": "whether it has rows of transactions",
    "rows": "rows stored, markers too",
    "log": "kind of the changes: of keys, cursors or the catalog",
    "rows_before": "rows before",
    "rows_after": "rows after",
    "files_before": "files before",
    "files_after": "files after",
    "markers": "commit markers",
    "first_time": "when its first row was written",
    "last_time": "when its last row was written",
    "crc32c": "checksum of the whole file",
    "column_list": "its columns: name, type, codec, size_bytes",
    "row_group_list": "its row groups: rows, size_bytes, first, last",
    "entry": "number in the ledger, from 0",
    "name": "its name",
    "fix": "what helps",
    "errors": "losses and contradictions",
    "warnings": "faults that upkeep or the next writer corrects",
    "frames": "frames of the journal",
    "schema_version": "version of the newest schema; null: the topic has none",
    "versions": "number of schemas it had",
    "definition": "an Avro record as JSON",
    "fingerprint": "equal for schemas with the same records",
    "field_list": "names of its fields",
    "mismatched": "values that were stored although they do not fit it",
}


def type_of(name: str) -> str:
    """Return the type that a field's name implies."""
    if name.endswith("_list") or name == "args":
        return "array"
    if name.endswith(("_time", "_at")) or name in _INSTANTS:
        return "instant"
    if name in ("per_second", "before_per_second", "ratio"):
        return "number"
    if name in ("txn", "fenced_txn", "last_txn"):
        return "TxnID"
    for kind, names in (
        ("message id", _IDS),
        ("boolean", _BOOLEANS),
        ("object", _OBJECTS),
        ("string", _STRINGS),
    ):
        if name in names:
            return kind
    return "integer"


def help_lines(names: Iterable[str]) -> str:
    """Return `field<TAB>type<TAB>meaning` for each name."""
    listed = list(names)
    overrides: dict[str, tuple[str, str]] = {}
    for name in listed:
        overrides |= _BESIDE.get(name, {})  # spec/cli 12.7
    meanings = {
        n: overrides.get(n, (type_of(n), MEANINGS.get(n, n.replace("_", " ")))) for n in listed
    }
    rows = (f"{n}\t{kind}\t{meaning}" for n, (kind, meaning) in meanings.items())
    return "".join(f"{row}\n" for row in rows)


def plain(name: str, value: object) -> object:
    """Return value in its JSON form: instants as RFC 3339, ids as text, others unchanged."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return format_time(value) if type_of(name) == "instant" else value
    if isinstance(value, Mapping):
        return {str(key): plain(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain("", item) for item in value]
    return str(value)


def select(row: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return the named fields of row in JSON form, null for missing ones."""
    return {name: plain(name, row.get(name)) for name in names}
