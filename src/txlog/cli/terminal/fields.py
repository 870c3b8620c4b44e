"""Owns what the fields of results are: their type by name, their meaning, their JSON form.

The name decides the type (spec/cli 1): `…_ms` and `…_bytes` integers, `…_time` and `…_at` instants,
`…_list` arrays, the words below strings or ids, anything else an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

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
# Words that mean something else in the company of another one.
_BESIDE: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "transactions": {"aborted": ("integer", "transactions aborted")},
    "acked": {"already": ("integer", "acknowledged before")},
    "generation": {"skipped": ("boolean", "nothing had changed since the last one")},
    "marker_ledger": {"kind": ("integer", "0 data, 1 commit, 2 abort, 3 to 5 watermarks, 6 chunk")},
    "labels": {"value": ("number", "the figure")},
    "role": {"verified": ("boolean", "a server with these rules believes it")},
}
_INSTANTS: Final = frozenset({"watermark", "emitted", "time"})

MEANINGS: Final[dict[str, str]] = {
    "topic": "the topic, short in public/default",
    "partition": "number of the partition, from 0",
    "partitions": "number of partitions",
    "message_id": "L:E, or L:E:I in a transaction; null while it is not committed",
    "key": "message key, as key_encoding says",
    "key_encoding": "utf8, base64, or null: no key",
    "value": "payload, as value_encoding says; of a metric its number",
    "value_encoding": "json, utf8, base64, or null: no payload",
    "properties": "strings by name",
    "publish_time": "when it was written",
    "event_time": "when it happened, as the producer says",
    "deliver_at": "not delivered before",
    "visible_time": "when it became visible: publish, or commit",
    "txn": "the transaction, COORDINATOR:SEQUENCE",
    "txn_index": "number in the transaction and partition, from 1",
    "txn_state": "open, committing, committed, aborting or aborted",
    "producer": "name of the producer",
    "sequence_id": "its sequence number",
    "redelivery_count": "how often it came before",
    "late": "event time below the watermark; null without --watermarks",
    "size_bytes": "bytes of payload; of a topic or store, bytes stored",
    "messages": "visible messages; of a transaction, its own",
    "open_txns": "unfinished transactions",
    "hidden_messages": "messages of open transactions",
    "delayed": "messages not yet due",
    "subscriptions": "number of subscriptions",
    "subscription": "name of the subscription",
    "backlog": "messages not yet acknowledged",
    "backlog_no_delayed": "those of them that are due",
    "buckets_before": "sealed buckets before",
    "buckets_after": "sealed buckets after",
    "messages_read": "messages whose time was read",
    "indexed": "messages that are not due, in the log",
    "missing": "of these, messages that the index lacked",
    "surplus": "messages that only the index had",
    "buckets": "buckets made",
    "due_in_ms": "until its time",
    "promoted": "messages delivered whatever their time",
    "cancelled": "messages acknowledged before their time",
    "not_delayed": "given messages that are due, or have no time",
    "not_due": "messages that are not due yet",
    "segments": "slices of the bucket, loaded when they are due",
    "loaded_segments": "of these, how many this process has loaded",
    "min_deliver_at": "the least time in it",
    "max_deliver_at": "the greatest time in it",
    "created": "false when it existed already",
    "type": "exclusive, shared, failover or key-shared; of a metric counter, gauge, …",
    "isolation": "committed or uncommitted",
    "pending_acks": "acknowledgements of open transactions",
    "consumers": "live consumers",
    "mark_delete": "everything up to here is acknowledged",
    "first": "first message",
    "last": "last message",
    "position": "where it is",
    "state": "open, committing, committed, …; of a bucket sealed, mutable, pending or unindexed",
    "transaction_key": "the caller's name for a series of transactions",
    "age_ms": "since it began; of a key, since it was used",
    "expires_at": "when it ends; null: never",
    "expires_in_ms": "until it times out; null when it has ended",
    "topic_list": "the topics",
    "acks": "acknowledgements in the transaction",
    "owner": "name of the user",
    "owner_uid": "number of the user",
    "epoch": "of the transaction key",
    "last_used_time": "when it last connected or began a transaction",
    "connected_time": "when its holder connected",
    "deleted": "a tombstone, which keeps the epoch",
    "txn_list": "the remembered transactions, newest first",
    "aborted_list": "the transactions that this aborted",
    "before": "what it was",
    "after": "what it is",
    "coordinator": "number of the coordinator",
    "overdue": "open beyond its time-out",
    "reason": "why it was aborted",
    "waiting_list": "participants that are not available",
    "finished_list": "transactions that its return completed",
    "changed": "false when it was so already",
    "online": "false while it is offline or quarantined",
    "cause": "unavailable, overdue or corrupt",
    "repair": "what helps",
    "expired": "aborted by their time-out",
    "rolled_forward": "commits that were completed",
    "rolled_back": "aborts that were completed",
    "forgotten": "ended ones that were forgotten",
    "dry_run": "nothing was done",
    "skipped_list": "partitions deleted meanwhile",
    "marker_list": "the commit marker of each partition",
    "partition_list": "a row for each partition",
    "ack_list": "a row for each subscription",
    "subscription_list": "the subscriptions",
    "already": "it was done before",
    "timeout_ms": "time-out from the beginning",
    "timeout_at": "when it times out",
    "fenced_txn": "the transaction that this ended",
    "decision_lsn": "frame of the decision",
    "acked": "acknowledged now",
    "dropped": "left alone, as a transaction holds them",
    "duplicates": "stored before, so not written again",
    "skipped": "left out",
    "dead_lettered": "written to the dead-letter topic",
    "transactions": "transactions committed",
    "mode": "what one operation does",
    "operations": "calls measured",
    "per_second": "operations a second",
    "p50_us": "microseconds: half of them took no longer",
    "p99_us": "microseconds: 99 of 100 took no longer",
    "max_us": "microseconds of the slowest",
    "before_per_second": "operations a second in the file of --compare",
    "ratio": "present figure divided by the earlier one",
    "from_time": "when the span begins",
    "elapsed_ms": "time taken",
    "job": "its name",
    "engine": "what computed: duckdb or spark",
    "failed": "checks that failed",
    "dest": "the topic that is written",
    "read": "messages read; null when it was done before",
    "version": "of the schema",
    "check_list": "each check: name, topic, partition, expected, found, ok",
    "row_list": "a row for each span of time",
    "delay_list": "by lag of a watermark in milliseconds: how many messages it would find late",
    "path": "where it is",
    "role": "who has the token",
    "token": "the token itself: keep it secret",
    "algorithm": "by which tokens are signed",
    "public": "the file of the public key, null for a secret",
    "uuid": "identity of the store",
    "format": "version of the format",
    "generation": "number of the checkpoint, or of the bucket",
    "lsn": "last frame",
    "kind": "what it is",
    "kills": "how often the worker was killed",
    "aborted_dropped": "messages of aborted or trimmed transactions left out",
    "ledgers": "ledgers deleted",
    "offloaded": "files outside the store, named and not copied",
    "verified": "the whole copy was read and compared",
    "applied": "the files were unlinked",
    "ahead_ms": "how far the clock is ahead of what was expected",
    "was_believed": "the clock was trusted already",
    "files": "number of files",
    "compacted_through": "last entry that admin compact-topic has read",
    "keys_kept": "keys whose newest message has a value",
    "keys_deleted": "keys whose newest message has none",
    "without_key": "messages without a key, which are left out",
    "topics": "number of topics",
    "problems": "things that are wrong, see txlog status",
    "file_list": "the files, each with the reason",
    "exact": "the result equals the computed one",
    "input": "the topics it read",
    "output": "the topic it wrote; null when each output names one",
    "last_txn": "the transaction committed last",
    "consumed": "messages acknowledged in committed transactions",
    "produced": "messages produced in committed transactions",
    "time": "when the frame was written",
    "op": "what was recorded",
    "detail": "more of it",
    "count": "how many it affects",
    "key_list": "keys of its messages, with --keys",
    "status": "of a check ok, warn, fail or ok, warning, critical; of a watermark unknown, active, "
    "idle; of a transaction OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED",
    "store": "where it is, its size, durability and when it was made",
    "journal": "its newest frame, the newest durable one, how many and how large they are",
    "checkpoint": "the newest: its number, its LSN and when it was written",
    "change_logs": "files of the logs of changes: how many, their rows, how large they are",
    "writer": "who holds the write lock: pid and command; null: nobody",
    "txns": "how many transactions are open, overdue, committing and aborting",
    "created_time": "when it was made",
    "last_publish_time": "when the newest message was written; null: there is none",
    "last_ack_time": "when something was acknowledged last",
    "file": "the file; in a store its path below it",
    "begin_time": "when it began",
    "end_time": "when it was decided; null: it is open",
    "parts": "files of open ledgers written",
    "sealed_ledgers": "ledgers written as Parquet",
    "journals_deleted": "journal files no longer needed",
    "freed_bytes": "bytes of unlinked files",
    "command": "command line of the process",
    "since_time": "since when; null: unknown",
    "size_before_bytes": "bytes of the files before",
    "size_after_bytes": "bytes of the files after",
    "ledgers_before": "ledgers before",
    "ledgers_after": "ledgers after",
    "args": "the line for spark-submit",
    "place": "the directory or address where they went",
    "ledgers_left": "ledgers that stay in the store",
    "lines": "lines of invoices that were read",
    "invoices": "invoices written",
    "refunds": "refunds written",
    "quantity": "sum of the quantities",
    "open_time": "when it began",
    "ongoing_txn_size": "unfinished transactions",
    "keys": "living transaction keys",
    "least_sig_bits": "highest sequence given out, 0 if none",
    "low_water_mark": "lowest unfinished sequence less one, 0 if none",
    "low_water_marks": "the same by coordinator",
    "next_sequence": "sequence of the next transaction",
    "committing_size": "decided, waiting to be committed",
    "aborting_size": "decided, waiting to be aborted",
    "ended_size": "ended and remembered",
    "oldest_open_time": "when the oldest open transaction began",
    "recover_start_time": "when this process began to read the store",
    "recover_end_time": "when it had finished reading",
    "log_stats": "the ledger behind it, with --internal",
    "produced_partitions": "by topic/partition: where its messages lie",
    "acked_partitions": "by topic/partition and subscription: what it acknowledged",
    "total_aborted_transactions": "aborted transactions that had messages here",
    "sidecar_live_bytes": "bytes that are or may become visible",
    "sidecar_garbage_bytes": "bytes of aborted messages",
    "max_read_position": "last visible message",
    "last_snapshot_time": "last checkpoint",
    "start_position": "its first row in the sidecar; null once aborted",
    "aborted": "it was aborted",
    "marker": "its commit marker",
    "pending_messages": "messages that open transactions acknowledged",
    "cumulative_ack_position": "acknowledged by it up to here",
    "individual_acks": "messages it acknowledged beyond that",
    "held": "some process holds it",
    "group": "the key, age or ledger",
    "oldest_time": "when the oldest became visible",
    "consumer_list": "its consumers: name, pid, command, alive, leased, since_time",
    "policies": "its details, by name",
    "namespace": "TENANT/NAMESPACE",
    "origin": "where it is set: a flag, a variable, config.toml, the store",
    "was": "its value before, null if it had none",
    "origins": "topic, namespace or store, by name of the policy",
    "nacked": "messages to be delivered again",
    "ignored": "messages in nobody's hand",
    "redelivered": "messages to be delivered again",
    "redeliver": "messages to be delivered again",
    "skip": "messages that are never delivered",
    "pid": "the process",
    "labels": "labels and their values",
    "watermark": "the least time of an active producer",
    "emitted": "the highest watermark handed to a consumer",
    "lag_ms": "how far the watermark is behind the clock",
    "holder": "the producer with the least time",
    "first_unacked": "the message that the watermark waits for",
    "max_event_time": "the greatest event time of the messages",
    "late_messages": "messages older than the watermark just before them",
    "marker_type": "set, idle or snapshot",
    "by": "who declared it idle: producer, admin or timeout",
    "pending_txns": "open transactions that assert watermarks",
    "regressed": "below its last time, so it has no effect",
    "was_active": "it was waited for until now",
    "holds": "it has the least time",
    "idle": "it is not waited for",
    "written": "messages, or snapshots, written",
    "met": "it is met, or all are",
    "condition_list": "for each its name, whether it is met, and its value",
    "problem_list": "what is wrong: code, message, hint; of verify severity and place too",
    "messages_lost": "messages lost for good; without --apply, that would be; null: unknown",
    "action_list": "each step: action, path, ledger, first, last, messages_lost, detail, done",
    "ledger": "number of the ledger",
    "part": "number of the part, of a ledger that is in several files",
    "sidecar": "it has the rows of transactions",
    "rows": "rows stored, markers too",
    "log": "whose changes: of keys, cursors or the catalog",
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
    "txn_most": "coordinator of the transaction, shifted by 48 bits",
    "txn_least": "its sequence",
    "marker_ledger": "ledger of the marker that made it visible",
    "marker_entry": "its entry",
    "name": "what it is called",
    "fix": "what helps",
    "errors": "losses and contradictions",
    "warnings": "what upkeep or the next writer puts right",
    "frames": "frames of the journal",
    "schema_version": "of the newest schema; null: the topic has none",
    "versions": "how many schemas it had",
    "definition": "an Avro record as JSON",
    "fingerprint": "equal for schemas with the same records",
    "field_list": "names of its fields",
    "mismatched": "values that were stored though they do not fit it",
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
    beside: dict[str, tuple[str, str]] = {}
    for name in listed:
        beside |= _BESIDE.get(name, {})  # spec/cli 12.7
    told = {n: beside.get(n, (type_of(n), MEANINGS.get(n, n.replace("_", " ")))) for n in listed}
    rows = (f"{n}\t{kind}\t{meaning}" for n, (kind, meaning) in told.items())
    return "".join(f"{row}\n" for row in rows)


def plain(name: str, value: object) -> object:
    """Return value as JSON holds it: instants as RFC 3339, ids as text, the rest as it is."""
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
    """Return the named fields of row in JSON form, null where it has none."""
    return {name: plain(name, row.get(name)) for name in names}
