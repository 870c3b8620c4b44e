"""Declares each column of a message once: its type, its meaning, and the rows that have it.

Arrow schemas, SQL and Spark's types are made from this. It loads no library, so that help and the
short-lived planners of Spark can afford it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class ColumnType(NamedTuple):
    """A type by its names in Arrow, DuckDB and Spark."""

    arrow: str
    duckdb: str
    spark: str


_INT8: Final = ColumnType("int8", "TINYINT", "tinyint")
_INT32: Final = ColumnType("int32", "INTEGER", "int")
_INT64: Final = ColumnType("int64", "BIGINT", "bigint")
_TEXT: Final = ColumnType("string", "VARCHAR", "string")
_BYTES: Final = ColumnType("binary", "BLOB", "binary")
_INSTANT: Final = ColumnType("instant", "TIMESTAMP WITH TIME ZONE", "timestamp")
_PROPERTIES: Final = ColumnType("properties", "MAP(VARCHAR, VARCHAR)", "map<string,string>")

_DECLARED: Final = {
    "topic": (_TEXT, "the topic; without tenant and namespace in public/default"),
    "partition": (_INT32, "number of the partition, from 0"),
    "message_id": (_TEXT, "L:E, or L:E:I in a transaction; null before the commit"),
    "ledger": (_INT64, "of the message id"),
    "entry": (_INT64, "of the message id"),
    "txn_index": (_INT32, "its number in the transaction, from 1; null outside transactions"),
    "index": (_INT32, "the same, in rows that the API returns"),
    "key": (_BYTES, "message key, encoded as in key_encoding"),
    "value": (_BYTES, "payload, encoded as in value_encoding"),
    "properties": (_PROPERTIES, "strings by name"),
    "publish_time": (_INSTANT, "when it was written"),
    "event_time": (_INSTANT, "time of the event, set by the producer"),
    "deliver_at": (_INSTANT, "earliest delivery time"),
    "visible_time": (_INSTANT, "when it became visible: time of publish or commit"),
    "producer": (_TEXT, "name of the producer"),
    "sequence_id": (_INT64, "its sequence number"),
    "lsn": (_INT64, "LSN of the frame that made it visible"),
    "size_bytes": (_INT64, "bytes of payload"),
    "kind": (_INT8, "message, or another kind of row"),
    "count": (_INT32, "of a marker: the messages of its transaction"),
    "txn": (_TEXT, "the transaction, COORDINATOR:SEQUENCE"),
    "txn_most": (_INT64, "coordinator of the transaction, shifted by 48 bits"),
    "txn_least": (_INT64, "its sequence"),
    "txn_state": (_TEXT, "open, committing, committed, aborting or aborted"),
    "marker_ledger": (_INT64, "ledger of the marker that made it visible"),
    "marker_entry": (_INT64, "its entry"),
    "stored_ledger": (_INT64, "ledger of the stored row"),
    "stored_entry": (_INT64, "entry of the stored row"),
    "schema_version": (_INT32, "version of the schema that the value fits; null: any bytes"),
    "redelivery_count": (_INT32, "number of earlier deliveries"),
}  # fmt: skip
TYPES: Final = {name: column_type for name, (column_type, _) in _DECLARED.items()}
MEANINGS: Final = {name: meaning for name, (_, meaning) in _DECLARED.items()}

USER: Final = ("key", "value", "properties", "publish_time", "event_time", "deliver_at")
_ORIGIN: Final = ("visible_time", "producer", "sequence_id")
# The rows of files and frames. The order is part of the format.
STORED: Final = (
    "kind", "entry", "lsn", "publish_time", "key", "value", "properties", "event_time",
    "deliver_at", "producer", "sequence_id", "txn_most", "txn_least", "txn_index", "count",
    "marker_ledger", "marker_entry", "visible_time", "schema_version",
)  # fmt: skip
# A message at its place. The other columns of MESSAGES follow from these.
PLACED: Final = ("partition", "ledger", "entry", "txn_index", *USER, *_ORIGIN, "lsn")
# `messages` and the topics, in SQL and in Spark.
MESSAGES: Final = ("topic", "partition", "message_id", *PLACED[1:], "size_bytes")
# In messages_all, how a row is stored.
LOCATED: Final = ("kind", "txn_most", "txn_least", "stored_ledger", "stored_entry")
# The rows that consumers and readers get.
RECEIVED: Final = (
    "topic", "partition", "ledger", "entry", "index", *USER, *_ORIGIN, "txn_most", "txn_least",
    "txn_state", "redelivery_count", "schema_version",
)  # fmt: skip
# The rows of exported files.
EXPORTED: Final = (
    "topic", "partition", "message_id", *USER, "visible_time", "txn", "txn_index", *_ORIGIN[1:],
)  # fmt: skip


def spark_schema(names: Iterable[str]) -> str:
    """These columns in Spark's DDL, `NAME TYPE, …`."""
    return ", ".join(f"{name} {TYPES[name].spark}" for name in names)
