"""Owns tables: the topics of a store as tables of Spark's catalog, for SQL without a path.

    txlog.orders     a name in the session's catalog; a query reads what the topic has at its start
    INSERT           stores one batch, all or nothing

A table is only a definition: its options, such as path and topic, in the metadata of its first
column (see datasource). DROP removes no message, and ALTER changes none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from txlog.base.arguments import StrPath
from txlog.base.ids import TopicName
from txlog.client.open import open_store
from txlog.engine.door.segments import RECORD
from txlog.errors import InvalidArgument
from txlog.lake.spark.datasource import KEPT
from txlog.lake.spark.options import OF_TABLES, check_known, kinds_in, some_columns
from txlog.lake.spark.reading import frames
from txlog.lake.spark.records import columns_of, record_type

_WORD: Final = re.compile(r"\w+", re.ASCII)
_OTHER: Final = re.compile(r"\W", re.ASCII)
_JSON_TYPES: Final[Mapping[str, object]] = {
    "string": "string", "int": "integer", "bigint": "long", "binary": "binary",
    "timestamp": "timestamp",
    "map<string,string>": {
        "type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True
    },
}  # fmt: skip


def register(
    spark: SparkSession,
    store: StrPath,
    *,
    topics: Sequence[str] | Mapping[str, str] | None = None,
    database: str = "txlog",
    columns: Sequence[str] | None = None,
    snapshot: bool = False,
) -> list[str]:
    """Make topics tables of Spark, `SELECT … FROM txlog.orders`; returns the names for queries.

    A table is in the session's catalog, and stays there like any other: with a metastore until it
    is dropped, otherwise until the session ends. Every query reads the messages that the topic has
    when it starts; `readStream.table` and INSERT INTO work. Tables registered before are replaced;
    for topics created later call it again.
    topics:   a mapping has the names of the tables; None: all topics. A table is named after its
              topic, with _ for characters that SQL would have to quote, and begins with tenant and
              namespace unless these are the default ones
    columns:  a table has only these. Spark reads all columns of a table, so fewer are faster
    snapshot: make temporary views of `read` instead, without the database in their names: all of
              one moment, scanned by Spark itself, and several times faster
    raises:   StoreNotFound, TopicNotFound, InvalidArgument (two topics with one name, a table that
              is not one of txlog)
    """
    with open_store(store, read_only=True) as client:
        path = client.path
        if topics is None:
            topics = [row["topic"] for row in client.topics()]
        for topic in topics.values() if isinstance(topics, Mapping) else topics:
            client.describe_topic(topic)
    topic_of = _named(topics)
    if snapshot:
        for name, frame in zip(topic_of, frames(spark, path, [*topic_of.values()]), strict=True):
            frame.select(*(columns or frame.columns)).createOrReplaceTempView(name)
        return [*topic_of]
    _check_name(database)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    for name, topic in topic_of.items():
        _create(spark, f"{database}.{name}", path, topic, columns)
    return [f"{database}.{name}" for name in topic_of]


def schema_of_table(options: Mapping[str, str]) -> StructType:
    """The schema of a table that is being created, which keeps its options.

    Spark passes the OPTIONS with `option.` before each name, and the path as a URI.
    raises: InvalidArgument, StoreNotFound, TopicNotFound
    """
    table_options = {
        name.removeprefix("option."): value
        for name, value in options.items()
        if name.startswith("option.")
    }
    check_known(table_options, OF_TABLES, "a table")
    path = options.get("path", "")
    if path.startswith("file:"):
        path = urlsplit(path).path if path.startswith("file://") else path[len("file:") :]
    for name, value in (("path", path), ("topic", table_options.get("topic"))):
        if not value:
            raise InvalidArgument(
                f"the option {name} is missing", hint="OPTIONS (path 'STORE', topic 'TOPIC')"
            )
    with open_store(path, read_only=True) as client:
        client.describe_topic(table_options["topic"])
        record = record_type(client, table_options["topic"])
    all_columns = columns_of({**table_options, "path": path})
    chosen = (
        all_columns
        if "columns" not in table_options
        else some_columns(table_options["columns"], all_columns)
    )
    kinds = kinds_in(chosen)
    metadata = {"options": {**table_options, "path": path}, "columns": [*kinds]}
    fields = [
        {
            "name": name,
            "type": record.jsonValue() if record and name == RECORD else _JSON_TYPES[kind],
            "nullable": True,
            "metadata": {} if at else {KEPT: metadata},
        }
        for at, (name, kind) in enumerate(kinds.items())
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def _named(topics: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The topics by the names of their tables; topics: as in register. Raises InvalidArgument."""
    if isinstance(topics, str):
        raise InvalidArgument("topics is a list, or a mapping of names to topics")
    if isinstance(topics, Mapping):
        for name in topics:
            _check_name(name)
        return dict(topics)
    topic_of: dict[str, str] = {}
    for topic in topics:
        short = TopicName.parse(topic, allow_partition=True).short
        name = _OTHER.sub("_", short).lower()  # a catalog ignores case
        other = topic_of.setdefault(name, topic)
        if other != topic:
            raise InvalidArgument(
                f"the topics {other} and {topic} would have one name, {name}",
                hint=f"topics={{'{name}': '{other}', '{name}_2': '{topic}'}}",
            )
    return topic_of


def _check_name(name: str) -> None:
    if not _WORD.fullmatch(name):
        raise InvalidArgument(f"{name!r} is not a name for Spark", hint="letters, digits and _")


def _create(
    spark: SparkSession, name: str, path: str, topic: str, columns: Sequence[str] | None
) -> None:
    """Create a table; replaces a table of txlog with this name. Raises InvalidArgument."""
    if spark.catalog.tableExists(name):
        if KEPT not in spark.table(name).schema.fields[0].metadata:
            raise InvalidArgument(
                f"there is a table {name} that is not one of txlog", hint="another database"
            )
        spark.sql(f"DROP TABLE {name}")
    options = {"path": path, "topic": topic}
    if columns is not None:
        options["columns"] = ",".join(columns)
    text = ", ".join(f"{option} {_quoted(value)}" for option, value in options.items())
    spark.sql(f"CREATE TABLE {name} USING txlog OPTIONS ({text})")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
