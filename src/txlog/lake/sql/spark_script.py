"""Owns the script of `txlog views --spark`: committed messages as views of PySpark, without txlog.

It has the views of `views_script`, over the same files. Each topic has scans of the files whose
rows need no test, one scan per group of similar files, and a scan of those joined with the markers
in them. The ledger is taken from the name of a file only if no column has it, because Spark would
compute all the metadata of each row. A typed topic has its `record` if the files of all its
versions can be read by field names, and Spark can read their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from txlog.engine.door.relation import Content, Relation, Source, adopted_lsns
from txlog.engine.door.segments import RECORD
from txlog.lake.sql.messages import USER
from txlog.lake.sql.records import is_by_name
from txlog.lake.sql.views_script import RELATIONS, check_near

_HEAD: Final = """from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
STORED = (
    "kind tinyint, entry bigint, lsn bigint, publish_time timestamp, key binary, value binary,"
    " properties map<string, string>, event_time timestamp, deliver_at timestamp, producer string,"
    " sequence_id bigint, txn_most bigint, txn_least bigint, txn_index int, marker_ledger bigint,"
    " marker_entry bigint, visible_time timestamp, ledger bigint, partition int"
)
STRICT = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
LEDGER = "CAST(substring_index(substring_index(_metadata.file_name, '.', 1), '-', -1) AS BIGINT)"


def scan(view, base, paths, named=False, more=""):
    rows = spark.read.schema(STORED + more).options(basePath=base, **STRICT).parquet(*paths)
    if named:
        rows = rows.drop("ledger").selectExpr("*", f"{LEDGER} AS ledger")
    rows.createOrReplaceTempView(view)


"""
_PLAIN: Final = (
    f"topic, partition, ledger, entry, txn_index, {USER}, visible_time, producer, sequence_id, lsn"
)
_TYPES: Final = (
    "STRING INT BIGINT BIGINT INT BINARY BINARY MAP<STRING,STRING> TIMESTAMP TIMESTAMP TIMESTAMP"
    " TIMESTAMP STRING BIGINT BIGINT"
).split()
_COLUMNS: Final = (
    "topic, partition,"
    " concat(ledger, ':', entry, coalesce(concat(':', txn_index), '')) AS message_id,"
    f" ledger, entry, txn_index, {USER}, visible_time, producer, sequence_id, lsn,"
    " CAST(coalesce(octet_length(value), 0) AS BIGINT) AS size_bytes"
)
_NAMES: Final = (
    "topic, partition, message_id, ledger, entry, txn_index,"
    f" {USER}, visible_time, producer, sequence_id, lsn, size_bytes"
)
_DDL: Final = {  # without times of day, which Spark cannot read
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.binary(): "BINARY",
    pa.string(): "STRING",
    pa.date32(): "DATE",
    pa.timestamp("ms", "UTC"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("ms"): "TIMESTAMP_NTZ",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


def program(
    contents: Sequence[Content],
    path: Callable[[Source], str],
    complete: Sequence[tuple[str, str]] = (),
    *,
    uncommitted: bool = False,
) -> str:
    """The views as a program.

    path:     the absolute path of a file
    complete: topics, each with the file of the messages that are not covered
    raises:   NotAllowed when files are behind a network
    """
    check_near(contents)
    lines: list[str] = [_HEAD]
    names_taken = set(RELATIONS)
    all_of_them = [_nothing(uncommitted)]
    files = dict(complete)
    for number, content in enumerate(contents):
        scans, select = _topic(number, content, path, files.get(content.name), uncommitted)
        lines += scans
        view = f"txlog_{number}"
        lines.append(f"spark.sql({_view(view, select)!r})\n")
        all_of_them.append(f"SELECT {_NAMES}{', txn_state' * uncommitted} FROM {view}")
        for word in dict.fromkeys((content.name, content.relation.topic)):
            if word.casefold() not in names_taken:
                names_taken.add(word.casefold())
                lines.append(f"spark.sql({_view(word, f'SELECT * FROM {view}')!r})\n")
    lines.append(f"spark.sql({_view('messages', ' UNION ALL '.join(all_of_them))!r})\n")
    return "".join(lines)


def _topic(
    number: int,
    content: Content,
    path: Callable[[Source], str],
    complete: str | None,
    uncommitted: bool,
) -> tuple[list[str], str]:
    """(the scans of a topic, the SELECT of its messages)."""
    relation = content.relation
    topic = _text(relation.topic)
    record = _record(content.relation)
    columns = USER if record is None else f"{USER}, {RECORD}"
    stored = "" if record is None else f", {RECORD} {record}"
    scans: list[str] = []
    branches: list[str] = []
    markers: list[str] = []
    alike = _alike(relation.direct, path)
    for at, ((is_named, sifted, _), sources) in enumerate(alike.items()):
        view = f"txlog_{number}_direct_{at}"
        paths = [path(source) for source in sources]
        scans.append(_scan(view, paths, named=is_named, more=stored))
        if any(source.ref.messages for source in sources):
            lsn = _lsn(sources) if is_named else "lsn"
            branches.append(
                f"SELECT {topic} AS topic, partition, coalesce(marker_ledger, ledger) AS ledger,"
                f" coalesce(marker_entry, entry) AS entry, txn_index, {columns},"
                " coalesce(visible_time, publish_time) AS visible_time, producer, sequence_id,"
                f" {lsn} AS lsn FROM {view}{' WHERE kind = 0' * sifted}"
            )
        if sifted and any(source.role == "p" for source in sources):
            markers.append(
                "SELECT partition, txn_most, txn_least, ledger, entry, publish_time, lsn"
                f" FROM {view} WHERE kind = 1"
            )
    if relation.unclean:
        unclean = f"txlog_{number}_unclean"
        paths = [path(source) for source in relation.unclean]
        scans.append(_scan(unclean, paths, named=False, more=stored))
    if relation.unclean and markers:
        user = ", ".join(f"r.{column}" for column in columns.split(", "))
        branches.append(
            f"SELECT /*+ BROADCAST(m) */ {topic} AS topic, r.partition, m.ledger,"
            f" m.entry, r.txn_index, {user}, m.publish_time AS visible_time, r.producer,"
            f" r.sequence_id, m.lsn FROM {unclean} AS r JOIN ({' UNION ALL '.join(markers)}) AS m"
            " ON m.partition = r.partition AND m.txn_most = r.txn_most"
            " AND m.txn_least = r.txn_least WHERE r.kind = 0"
        )
    select = " UNION ALL ".join(branches or [_empty(record)])
    if uncommitted:
        state = "CASE WHEN txn_index IS NOT NULL THEN 'committed' END AS txn_state"
        select = f"SELECT *, {state} FROM ({select})"
    state = ", txn_state" if uncommitted else ""
    if complete is not None:
        view = f"txlog_{number}_complete"
        file = f"file:{_unglobbed(complete)}"
        scans.append(f"spark.read.parquet({file!r}).createOrReplaceTempView({view!r})\n")
        select += f" UNION ALL SELECT {_PLAIN.replace(USER, columns)}{state} FROM {view}"
    return scans, f"SELECT {_COLUMNS.replace(USER, columns)}{state} FROM ({select})"


def _record(relation: Relation) -> str | None:
    """The type of `record` in Spark's DDL; None: the view has no such column."""
    if not relation.record:
        return None
    versions = {source.ref.record for source in (*relation.direct, *relation.unclean)}
    schemas = tuple(relation.schemas)
    if not all(is_by_name(version, schemas, relation.record) for version in versions):
        return None
    return _ddl(relation.record_type)


def _ddl(kind: pa.DataType) -> str | None:
    """A type of records in Spark's DDL; None: Spark cannot read it."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _ddl(field.type)) for field in kind]
        if any(of is None for _, of in fields):
            return None
        return f"STRUCT<{', '.join(f'`{name}`: {of}' for name, of in fields)}>"
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        items = _ddl(kind.item_type if pa.types.is_map(kind) else kind.value_type)
        is_map = pa.types.is_map(kind)
        return items and (f"MAP<STRING, {items}>" if is_map else f"ARRAY<{items}>")
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return "BINARY" if pa.types.is_fixed_size_binary(kind) else _DDL.get(kind)


def _lsn(sources: Sequence[Source]) -> str:
    """The LSN of a row; in an adopted file it is the LSN of the ledger."""
    lsns = adopted_lsns(sources)
    if not lsns:
        return "lsn"
    pairs = ", ".join(f"{ledger}L, {lsn}L" for ledger, lsn in lsns.items())
    return f"coalesce(lsn, try_element_at(map({pairs}), ledger))"


def _alike(
    sources: Sequence[Source], path: Callable[[Source], str]
) -> dict[tuple[bool, bool, str], list[Source]]:
    """Group files by three properties: whether only their name has the ledger, whether they contain
    more than data, and the directory of their topic, because a scan needs partitions below one.
    """
    out: dict[tuple[bool, bool, str], list[Source]] = {}
    for source in sources:
        is_named = source.role == "p" and source.ref.messages < 0
        root = path(source).rpartition("/partition=")[0]
        out.setdefault((is_named, not source.ref.is_messages_only, root), []).append(source)
    return out


def _scan(view: str, paths: Sequence[str], *, named: bool, more: str) -> str:
    base = paths[0][: paths[0].rindex("/partition=")]
    listed = [f"file:{_unglobbed(path)}" for path in paths]
    typed = f", more={more!r}" if more else ""
    return f"scan({view!r}, {f'file:{base}'!r}, {listed!r}{', named=True' * named}{typed})\n"


def _empty(record: str | None = None) -> str:
    """No rows, but the name and type of every column."""
    columns_typed = zip(_PLAIN.split(", "), _TYPES, strict=True)
    nulls = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns_typed]
    if record is not None:
        nulls.insert(
            nulls.index("CAST(NULL AS TIMESTAMP) AS visible_time"),
            f"CAST(NULL AS {record}) AS {RECORD}",
        )
    return f"SELECT {', '.join(nulls)} WHERE false"


def _nothing(uncommitted: bool) -> str:
    state = ", CAST(NULL AS STRING) AS txn_state" if uncommitted else ""
    return f"SELECT {_COLUMNS}{state} FROM ({_empty()})"


def _view(name: str, select: str) -> str:
    return f"CREATE OR REPLACE TEMP VIEW `{name.replace('`', '``')}` AS {select}"


def _text(text: str) -> str:
    """Text, quoted for Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _unglobbed(path: str) -> str:
    """A path for Spark, escaped so that it does not act as a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
