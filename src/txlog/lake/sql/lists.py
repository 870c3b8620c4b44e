"""Owns the relations of SQL other than messages: the rows of the lists, as Arrow tables.

A column has the name and meaning of the list's field of that name; ids are text. The rows come from
one view, so all relations of a statement agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from txlog.base.rows import fields
from txlog.client.answers import delayed, keys, topics_and_txns, watermarks
from txlog.client.answers.changes import catalog_log, cursor_log, transaction_key_log
from txlog.client.answers.delayed import buckets
from txlog.client.answers.lists import ACKS, FRAMES, PENDING_ACKS, acks, frames, pending_acks
from txlog.engine.door import relation as build
from txlog.engine.door.catalog import Subscription, Topic
from txlog.engine.door.facts import INSTANT
from txlog.engine.door.history import CATALOG_CHANGES, CURSOR_CHANGES, KEY_CHANGES
from txlog.engine.door.store import Store, View
from txlog.lake.sql.query import LISTS

Row = Mapping[str, Any]
_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(), "TxnID": pa.string(), "message id": pa.string(), "integer": pa.int64(),
    "boolean": pa.bool_(), "instant": INSTANT, "bytes": pa.binary(),
    "array": pa.list_(pa.string()),
}  # fmt: skip
_SQL: Final = {
    pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.bool_(): "BOOLEAN",
    INSTANT: "TIMESTAMP WITH TIME ZONE", pa.binary(): "BLOB",
}  # fmt: skip


def _topics(view: View) -> list[Topic]:
    return sorted(view.catalog.topics.values(), key=lambda topic: topic.name)


def _scope(topic: Topic, store: Store) -> delayed.Scope:
    now_ms = store.clock.now().wall_ms
    return delayed.Scope(topic, range(topic.partitions), now_ms, store.note)


def _delayed(view: View, store: Store) -> Iterable[Row]:
    for topic in _topics(view):
        table = delayed.listed(view, _scope(topic, store))
        for row in table.cast(_of_instants(table.schema)).to_pylist():
            index = row["index"]
            at = f"{row['ledger']}:{row['entry']}" + ("" if index is None else f":{index}")
            yield {**row, "topic": topics_and_txns.short(topic), "message_id": at}


def _of_instants(schema: pa.Schema) -> pa.Schema:
    """The schema with instants as numbers, the form that other lists use."""
    return pa.schema([(f.name, pa.int64() if f.type == INSTANT else f.type) for f in schema])


def _delayed_buckets(view: View, store: Store) -> Iterable[Row]:
    for topic in _topics(view):
        yield from buckets(view, _scope(topic, store))


def _watermarks(view: View, store: Store) -> Iterable[Row]:
    """For each topic, its watermarks at the end of the log and at its subscriptions."""
    now_ms = store.clock.now().wall_ms
    for topic in _topics(view):
        indexes = range(topic.partitions)
        subscriptions = (view.catalog.subscriptions[number] for number in topic.subscriptions)
        observers: list[Subscription | None] = [
            None,
            *sorted(subscriptions, key=lambda observer: observer.name),
        ]
        for observer in observers:
            standings = [*watermarks.standings(view, topic, indexes, observer)]
            rows_shown = watermarks.show(view, topic, standings, now_ms, observer)["partition_list"]
            places = {row["partition"]: row for row in rows_shown}
            producers = watermarks.producers(view, topic, indexes, observer)
            without = places.keys() - {row["partition"] for row in producers}
            of = {
                "topic": topics_and_txns.short(topic),
                "subscription": None if observer is None else observer.name,
            }
            rows: list[tuple[int, Mapping[str, object]]] = [
                *((row["partition"], row) for row in producers),
                *((index, {"partition": index}) for index in sorted(without)),
            ]
            for index, row in rows:
                at = places[index]
                emitted = {"watermark": at["watermark"], "emitted": at["emitted"]}
                yield {**row, **of, **emitted, "status": at["status"]}


class _Table(NamedTuple):
    """A relation that is already an Arrow table; row: the type of its rows in base/rows."""

    schema: pa.Schema
    row: str
    table: Callable[[View], pa.Table]


class _List(NamedTuple):
    """A relation made from the rows of a list; row: their type in base/rows.

    order: the names of its columns, if they differ from the fields of that type
    """

    row: str
    rows: Callable[[View, Store], Iterable[Row]]
    order: str = ""


_RELATIONS: Final[dict[str, _Table | _List]] = {
    "acks": _Table(ACKS, "relations.Acknowledgement", acks),
    "pending_acks": _Table(PENDING_ACKS, "relations.PendingAcknowledgement", pending_acks),
    "frames": _Table(FRAMES, "relations.FrameRow", frames),
    "transaction_key_log": _Table(KEY_CHANGES, "relations.KeyChange", transaction_key_log),
    "cursor_log": _Table(CURSOR_CHANGES, "relations.CursorChange", cursor_log),
    "catalog_log": _Table(CATALOG_CHANGES, "relations.CatalogChange", catalog_log),
    "topics": _List("topics.TopicRow", topics_and_txns.topics),
    "subscriptions": _List(
        "consuming.SubscriptionRow",
        lambda view, store: topics_and_txns.subscriptions(view, None, store),
    ),
    "transactions": _List(
        "transactions.TransactionRow",
        lambda view, store: topics_and_txns.transactions(view, store, True, None),
    ),
    "transaction_keys": _List(
        "transactions.KeyRow",
        lambda view, store: keys.transaction_keys(view, store, True, None),
    ),
    "delayed": _List("relations.DelayedMessage", _delayed),
    "delayed_buckets": _List(
        "delayed.BucketRow",
        _delayed_buckets,
        "topic partition generation first last messages not_due min_deliver_at max_deliver_at file "
        "segments loaded_segments size_bytes state",
    ),
    "segments": _List(
        "files.LedgerRows",
        lambda view, store: build.segments(view),
        "topic partition ledger role state form clean file rows markers bytes crc first_entry "
        "last_entry first_lsn last_lsn",
    ),
    "watermarks": _List("relations.WatermarkOfProducer", _watermarks),
}
assert _RELATIONS.keys() == LISTS


def row_of(name: str) -> str:
    """The type of a relation's rows in base/rows, as module and name."""
    return _RELATIONS[name].row


def _schema(name: str) -> pa.Schema:
    relation = _RELATIONS[name]
    if isinstance(relation, _Table):
        return relation.schema
    types = {field.name: field.type for field in fields.fields_of(fields.row_of(relation.row))}
    return pa.schema([(name, _TYPES[types[name]]) for name in relation.order.split() or types])


def columns(name: str) -> dict[str, str]:
    """The columns of a relation of LISTS, with their SQL types."""
    return {field.name: _sql_type(field.type) for field in _schema(name)}


def _quoted(name: str) -> str:
    """A name inside a type, in DuckDB's quoting."""
    return f'"{name}"' if name in ("first", "last", "index") else name


def _sql_type(kind: pa.DataType) -> str:
    """A type in SQL, including the item types of a list or struct."""
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        fields = ", ".join(f"{_quoted(field.name)} {_sql_type(field.type)}" for field in kind)
        return f"STRUCT({fields})"
    return _SQL[kind]


def listed(view: View, store: Store, name: str) -> pa.Table:
    """The rows of a relation of LISTS, from a view; costs as much as listing them."""
    relation = _RELATIONS[name]
    if isinstance(relation, _Table):
        return relation.table(view)
    schema = _schema(name)
    columns: dict[str, list[object]] = {field.name: [] for field in schema}
    for row in relation.rows(view, store):
        for field in schema:
            columns[field.name].append(_plain(row.get(field.name), field.type))
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _plain(value: object, kind: pa.DataType) -> object:
    """A value of a row in the form of its column: ids become text."""
    if value is None:
        return None
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value) if kind == pa.string() else value
