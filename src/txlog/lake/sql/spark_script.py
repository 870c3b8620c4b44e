"""Owns the script of `txlog views --spark`: committed messages as views of PySpark, without txlog.

It has the views of `views_script` except `compacted` and `segments`, over the same files. For each
topic, one scan per group of similar files reads rows that need no marker. One more scan reads the
other files, and a join with the markers decides. The script takes the ledger from a file's name
only if no column has it, because Spark would compute all the metadata of each row. A typed topic
has `record` if all its files can be read by field names, and Spark can read their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from txlog.base import message_columns
from txlog.base.message_columns import PLACED, STORED, spark_schema
from txlog.engine.door.relation import FileSource, Relation, RelationContent, adopted_lsns
from txlog.engine.door.segments import RECORD
from txlog.lake.sql.messages import direct_rows, marked_rows, messages_of, nothing
from txlog.lake.sql.records import is_by_name
from txlog.lake.sql.views_script import RELATIONS, check_near

USER: Final = ", ".join(message_columns.USER)
# The columns that a scan may need: from a file, and from its path.
SCANNED: Final = spark_schema(
    [*(name for name in STORED if name not in ("count", "schema_version")), "ledger", "partition"]
)
# For any settings of the session: a damaged page or a missing file is an error, never fewer rows.
STRICT: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
# The ledger of a row, from the name of its file, `ledger-<ledger>.<generation>.parquet`.
LEDGER_OF_FILE: Final = (
    "CAST(substring_index(substring_index(_metadata.file_name, '.', 1), '-', -1) AS BIGINT)"
)
_HEAD: Final = f"""from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
STORED = {SCANNED!r}
STRICT = {STRICT!r}
LEDGER = {LEDGER_OF_FILE!r}


def scan(view, base, paths, named=False, more=""):
    rows = spark.read.schema(STORED + more).options(basePath=base, **STRICT).parquet(*paths)
    if named:
        rows = rows.drop("ledger").selectExpr("*", f"{{LEDGER}} AS ledger")
    rows.createOrReplaceTempView(view)


"""
_PLAIN: Final = f"topic, {', '.join(PLACED)}"
_NAMES: Final = ", ".join(message_columns.MESSAGES)
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
    contents: Sequence[RelationContent],
    path: Callable[[FileSource], str],
    complete: Sequence[tuple[str, str]] = (),
    *,
    uncommitted: bool = False,
) -> str:
    """The text of the script.

    path:     returns the absolute path of a file
    complete: topics, each with the file of its messages that are not covered
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
    content: RelationContent,
    path: Callable[[FileSource], str],
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
            rows = f"{view}{' WHERE kind = 0' * sifted}"
            branches.append(direct_rows(topic, "partition", "ledger", columns, lsn, rows))
        if sifted and any(source.role == "p" for source in sources):
            markers.append(
                "SELECT partition, txn_most, txn_least, ledger AS marker_ledger,"
                " entry AS marker_entry, publish_time AS visible_time, lsn"
                f" FROM {view} WHERE kind = 1"
            )
    if relation.unclean:
        unclean = f"txlog_{number}_unclean"
        paths = [path(source) for source in relation.unclean]
        scans.append(_scan(unclean, paths, named=False, more=stored))
    if relation.unclean and markers:
        user = ", ".join(f"r.{column}" for column in columns.split(", "))
        joined = f"({' UNION ALL '.join(markers)})"
        hint = "/*+ BROADCAST(m) */ "
        branches.append(marked_rows(topic, user, unclean, joined, hint=hint))
    select = " UNION ALL ".join(branches or [nothing("spark", record)])
    if uncommitted:
        state = "CASE WHEN txn_index IS NOT NULL THEN 'committed' END AS txn_state"
        select = f"SELECT *, {state} FROM ({select})"
    state = ", txn_state" if uncommitted else ""
    if complete is not None:
        view = f"txlog_{number}_complete"
        file = file_url(complete)
        scans.append(f"spark.read.parquet({file!r}).createOrReplaceTempView({view!r})\n")
        select += f" UNION ALL SELECT {_PLAIN.replace(USER, columns)}{state} FROM {view}"
    return scans, messages_of(f"({select})", columns, state)


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


def _lsn(sources: Sequence[FileSource]) -> str:
    """The LSN of a row; in an adopted file it is the LSN of the ledger."""
    lsns = adopted_lsns(sources)
    if not lsns:
        return "lsn"
    pairs = ", ".join(f"{ledger}L, {lsn}L" for ledger, lsn in lsns.items())
    return f"coalesce(lsn, try_element_at(map({pairs}), ledger))"


def _alike(
    sources: Sequence[FileSource], path: Callable[[FileSource], str]
) -> dict[tuple[bool, bool, str], list[FileSource]]:
    """Group files by three properties: whether only their name has the ledger, whether they contain
    more than data, and the directory of their topic, because a scan needs partitions below one.
    """
    out: dict[tuple[bool, bool, str], list[FileSource]] = {}
    for source in sources:
        is_named = source.role == "p" and source.ref.messages < 0
        root = path(source).rpartition("/partition=")[0]
        out.setdefault((is_named, not source.ref.is_messages_only, root), []).append(source)
    return out


def _scan(view: str, paths: Sequence[str], *, named: bool, more: str) -> str:
    base = paths[0][: paths[0].rindex("/partition=")]
    listed = [file_url(path) for path in paths]
    typed = f", more={more!r}" if more else ""
    return f"scan({view!r}, {f'file:{base}'!r}, {listed!r}{', named=True' * named}{typed})\n"


def _nothing(uncommitted: bool) -> str:
    state = ", CAST(NULL AS STRING) AS txn_state" if uncommitted else ""
    return messages_of(f"({nothing('spark')})", USER, state)


def _view(name: str, select: str) -> str:
    return f"CREATE OR REPLACE TEMP VIEW `{name.replace('`', '``')}` AS {select}"


def _text(text: str) -> str:
    """Text, quoted for Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def file_url(path: str) -> str:
    """The URL of a path for Spark, escaped so that it does not act as a pattern."""
    return "file:" + re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
