"""Owns Query, SQL over the store of a client, and the relations other than messages.

These are the rows of the lists, as Arrow tables. A column has the name and meaning of the matching
list's field; ids are text, instants are instants. They are functions of a view: all relations of
one statement read the same view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from txlog.client.answers import delayed, keys, topics_and_txns, watermarks
from txlog.client.answers.changes import catalog_log, cursor_log, transaction_key_log
from txlog.client.answers.delayed import buckets
from txlog.client.answers.lists import ACKS, FRAMES, PENDING_ACKS, acks, frames, pending_acks
from txlog.engine.door import relation as build
from txlog.engine.door.catalog import Subscription, Topic
from txlog.engine.door.facts import INSTANT
from txlog.engine.door.history import CATALOG_CHANGES, CURSOR_CHANGES, KEY_CHANGES
from txlog.engine.door.store import Store, View
from txlog.lake.sql.query import LISTS, SqlQuery

if TYPE_CHECKING:
    from txlog.client.client import Client

Row = Mapping[str, Any]
_TYPES: Final = {
    "s": pa.string(), "i": pa.int64(), "b": pa.bool_(), "t": INSTANT, "x": pa.binary(),
    "l": pa.list_(pa.string()),
}  # fmt: skip

_SQL: Final = {
    pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.bool_(): "BOOLEAN",
    INSTANT: "TIMESTAMP WITH TIME ZONE", pa.binary(): "BLOB",
}  # fmt: skip


def _columns(text: str) -> pa.Schema:
    """A schema of names, each followed by a colon and the letter of its type."""
    pairs = [word.split(":") for word in text.split()]
    return pa.schema([(name, _TYPES[letter]) for name, letter in pairs])


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


_TABLES: Final[dict[str, Callable[[View], pa.Table]]] = {
    "acks": acks, "pending_acks": pending_acks, "frames": frames,
    "transaction_key_log": transaction_key_log, "cursor_log": cursor_log,
    "catalog_log": catalog_log,
}  # fmt: skip
_TABLE_SCHEMAS: Final = {
    "acks": ACKS, "pending_acks": PENDING_ACKS, "frames": FRAMES,
    "transaction_key_log": KEY_CHANGES, "cursor_log": CURSOR_CHANGES,
    "catalog_log": CATALOG_CHANGES,
}  # fmt: skip
_LISTS: Final[dict[str, tuple[pa.Schema, Callable[[View, Store], Iterable[Row]]]]] = {
    "topics": (
        _columns(
            "topic:s partitions:i messages:i size_bytes:i open_txns:i delayed:i subscriptions:i "
            "backlog:i created_time:t last_publish_time:t"
        ),
        topics_and_txns.topics,
    ),
    "subscriptions": (
        _columns(
            "topic:s subscription:s type:s backlog:i delayed:i pending_acks:i consumers:i "
            "isolation:s mark_delete:s last_ack_time:t created_time:t backlog_no_delayed:i"
        ),
        lambda view, store: topics_and_txns.subscriptions(view, None, store),
    ),
    "transactions": (
        _columns(
            "txn:s state:s transaction_key:s age_ms:i expires_in_ms:i topic_list:l messages:i "
            "acks:i owner:s owner_uid:i epoch:i coordinator:i overdue:b reason:s "
            "subscription_list:l size_bytes:i begin_time:t timeout_at:t end_time:t waiting_list:l"
        ),
        lambda view, store: topics_and_txns.transactions(view, store, True, None),
    ),
    "transaction_keys": (
        _columns(
            "transaction_key:s owner:s epoch:i txn:s txn_state:s coordinator:i last_used_time:t "
            "owner_uid:i age_ms:i connected_time:t deleted:b topic_list:l"
        ),
        lambda view, store: keys.transaction_keys(view, store, True, None),
    ),
    "delayed": (
        _columns("topic:s partition:i message_id:s deliver_at:t key:x size_bytes:i"),
        _delayed,
    ),
    "delayed_buckets": (
        _columns(
            "topic:s partition:i generation:i first:s last:s messages:i not_due:i "
            "min_deliver_at:t max_deliver_at:t file:s segments:i loaded_segments:i size_bytes:i "
            "state:s"
        ),
        _delayed_buckets,
    ),
    "segments": (
        _columns(
            "topic:s partition:i ledger:i role:s state:s form:s clean:b file:s rows:i markers:i "
            "bytes:i crc:i first_entry:i last_entry:i first_lsn:i last_lsn:i"
        ),
        lambda view, store: build.segments(view),
    ),
    "watermarks": (
        _columns(
            "topic:s subscription:s partition:i status:s watermark:t emitted:t producer:s "
            "event_time:t holds:b idle:b position:s pending_txns:i"
        ),
        _watermarks,
    ),
}
assert {*_LISTS, *_TABLES} == LISTS


def columns(name: str) -> dict[str, str]:
    """The columns of a relation of LISTS, with their SQL types."""
    schema = _TABLE_SCHEMAS[name] if name in _TABLES else _LISTS[name][0]
    return {field.name: _sql_type(field.type) for field in schema}


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
    """The rows of a relation of LISTS in a view. It costs as much as the list."""
    if name in _TABLES:
        return _TABLES[name](view)
    schema, rows = _LISTS[name]
    columns: dict[str, list[object]] = {field.name: [] for field in schema}
    for row in rows(view, store):
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


class Query(SqlQuery):
    """One SELECT over a store; a context manager. See SqlQuery."""

    def __init__(
        self,
        client: Client,
        sql: str,
        parameters: Mapping[str, str] | None = None,
        isolation: str = "committed",
        *,
        skip_unavailable: bool = False,
        this: str | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(
            client,
            listed,
            sql,
            parameters,
            isolation,
            skip_unavailable=skip_unavailable,
            this=this,
            memory_bytes=memory_bytes,
        )
