"""Owns the script of `txlog views`: committed messages as plain SQL over files, without txlog.

A stock duckdb reads neither journal frames nor Arrow parts, and sees only the bytes of a large
message. Messages that only these contain are *not covered*: they are counted, or written to Parquet
files that the views then read too. Markers are rows of `kind` 1 in the sealed files of partitions.
A row of an unclean file whose marker is in no such file is not covered either. The view of a typed
topic has the column `record`, but `messages` does not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName, encode_component
from txlog.base.startup import compute as pc
from txlog.base.times import format_time
from txlog.client.client import Client
from txlog.engine.door.disk import is_remote, without_options
from txlog.engine.door.facts import KIND_DATA
from txlog.engine.door.relation import FileSource, RelationContent
from txlog.engine.door.segments import piece_rows
from txlog.engine.door.store import View
from txlog.errors import NotAllowed
from txlog.lake.sql import duck
from txlog.lake.sql import parts as journal_parts
from txlog.lake.sql.messages import Messages, files_of, name, text, unglobbed
from txlog.lake.sql.messages import path_below as path_below

RELATIONS: Final = (
    "messages",
    "compacted",
    "segments",
)  # a topic with such a name has a view by its full name
_MARKER: Final = ["partition", "txn_most", "txn_least"]
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())
SEGMENTS: Final = {
    "topic": "VARCHAR", "partition": "INTEGER", "ledger": "BIGINT", "role": "VARCHAR",
    "state": "VARCHAR", "form": "VARCHAR", "clean": "BOOLEAN", "file": "VARCHAR",
    "rows": "BIGINT", "markers": "BIGINT", "bytes": "BIGINT", "crc": "BIGINT",
    "first_entry": "BIGINT", "last_entry": "BIGINT", "first_lsn": "BIGINT", "last_lsn": "BIGINT",
}  # fmt: skip


def not_covered(content: RelationContent) -> list[RelationContent]:
    """The contents whose messages are in no Parquet file that DuckDB can read by itself.

    First rows in frames, parts and chunks; then, if any, rows of unclean files with a late marker.
    """
    relation = content.relation
    relation = replace(relation, compacted=[])
    aside = replace(content, relation=replace(relation, direct=[], unclean=[]))
    nothing = {
        "tail": relation.tail.slice(0, 0),
        "large": relation.large.slice(0, 0),
        "hidden": relation.hidden.slice(0, 0),
    }
    late = replace(
        content,
        relation=replace(
            relation, direct=[], open=[], large_files=[], markers=_late_markers(content), **nothing
        ),
        partition_parts=content.partition_parts.slice(0, 0),
        sidecar_parts=content.sidecar_parts.slice(0, 0),
    )
    return [aside, late] if late.relation.markers.num_rows and relation.unclean else [aside]


def _late_markers(content: RelationContent) -> pa.Table:
    """The late markers: those in no sealed file of a partition."""
    sealed = [source.ref.ledger for source in content.relation.direct if source.role == "p"]
    markers = content.relation.markers
    is_sealed = pc.is_in(markers.column("marker_ledger"), value_set=pa.array(sealed, pa.int64()))
    return markers.filter(pc.invert(is_sealed))


def count_not_covered(client: Client, content: RelationContent) -> int:
    """The number of committed messages of a topic that the views would miss.

    cost: reads the transactions of rows in parts and, if markers are late, in unclean files
    raises: MissingFile when a checkpoint has removed files meanwhile; Corruption
    """
    relation, late = content.relation, _late_markers(content)

    def look(view: View) -> int:
        count = 0
        for source in relation.open:
            for rows in _keys(view, source):
                is_joined = source.role == "s"
                count += _joined(rows, relation.markers) if is_joined else rows.num_rows
        for source in relation.unclean if late.num_rows else ():
            count += sum(_joined(rows, late) for rows in _keys(view, source))
        return count

    return int(relation.tail.num_rows + relation.large.num_rows) + client.store.ask(look)


def _keys(view: View, source: FileSource) -> Iterator[pa.Table]:
    """The transaction of each data row of a file, some rows at a time."""
    ref = source.ref
    step = piece_rows(ref.rows, ref.bytes)
    for start in range(0, ref.rows, step):
        span = (start, min(start + step, ref.rows))
        rows = view.files.pick(ref, [span], ["kind", *_MARKER[1:]])
        rows = rows.filter(pc.equal(rows.column("kind"), _DATA))
        partition = pa.repeat(pa.scalar(source.partition, pa.int32()), rows.num_rows)
        yield rows.append_column("partition", partition).select(_MARKER)


def _joined(data: pa.Table, markers: pa.Table) -> int:
    """The number of rows that have one of the markers."""
    return int(data.join(markers.select(_MARKER), _MARKER, join_type="left semi").num_rows)


def file_of(content: RelationContent) -> str:
    """The name of the file for a topic's messages that are not covered."""
    topic = TopicName.parse(content.name)
    parts = (topic.tenant, topic.namespace, topic.name)
    return "~".join(encode_component(part) for part in parts) + ".parquet"


def comments(
    client: Client, contents: Sequence[RelationContent], lacking: int, now_ms: int
) -> list[str]:
    """The lines of the comment above the script; lacking: from count_not_covered."""
    relation = contents[0].relation if contents else None
    where = f"generation {relation.generation}, LSN {relation.lsn}" if relation else "no topic"
    return [
        f"txlog views of {client.path}: {where}, {format_time(now_ms)}",
        f"not covered: {lacking} committed messages"
        + (", in the journal, open parts or chunks; --complete DIR writes them" if lacking else ""),
        "checksums are not checked; compaction and trims remove files: then make it again",
    ]


def check_near(contents: Sequence[RelationContent]) -> None:
    """Raises NotAllowed when files are behind a network."""
    for source in files_of(contents):
        if is_remote(source.ref.path):
            raise NotAllowed(
                f"{without_options(source.ref.path)} is in an object store,"
                " which plain views cannot read",
                hint="txlog query and txlog.spark.read read it",
            )


def statements(
    contents: Sequence[RelationContent],
    segments: Sequence[Mapping[str, object]],
    path: Callable[[FileSource], str],
    complete: Sequence[str] = (),
    *,
    uncommitted: bool = False,
    temporary: bool = True,
) -> list[str]:
    """The views, one statement each.

    segments:  the rows of the relation `segments`, of the same view
    path:      returns the path of a file as the SQL should have it
    complete:  files with the messages that are not covered
    temporary: the views belong to the session, not to a database
    raises:    NotAllowed when files are behind a network
    """
    check_near(contents)
    create = "CREATE OR REPLACE TEMP" if temporary else "CREATE OR REPLACE"
    messages = Messages(contents, path)
    out = [
        "SET TimeZone = 'UTC'",
        f"{create} MACRO text(b) AS decode(b)",
        f"{create} MACRO json(b) AS CAST(decode(b) AS JSON)",
    ]
    markers = messages.markers_of_files()
    if markers is not None:
        out.append(f"{create} VIEW txlog_markers AS {markers}")
    out.append(f"{create} VIEW messages AS {messages.of_files(complete, uncommitted=uncommitted)}")
    # otherwise it would lack rows that only a table has
    if "txlog_compacted" not in messages.tables:
        out.append(f"{create} VIEW compacted AS {messages.newest()}")
    names_taken = set(RELATIONS)
    for number, content in enumerate(contents):
        topic = content.relation.topic
        rows = f"FROM messages WHERE topic = {text(topic)}"
        if content.relation.record:
            prefix = f"txlog_{number}"
            own_files = [
                path_complete
                for path_complete in complete
                if PurePath(path_complete).name == file_of(content)
            ]
            typed = Messages([content], path, prefix=prefix, is_typed=True)
            markers = typed.markers_of_files()
            if markers is not None:
                out.append(f"{create} VIEW {prefix}_markers AS {markers}")
            rows = typed.of_files(own_files, uncommitted=uncommitted)
        for word in dict.fromkeys((content.name, topic)):
            if word.casefold() not in names_taken:
                names_taken.add(word.casefold())
                out.append(f"{create} VIEW {name(word)} AS {rows}")
    out.append(f"{create} VIEW segments AS {_segments(contents, segments)}")
    return out


def _segments(contents: Sequence[RelationContent], segments: Sequence[Mapping[str, object]]) -> str:
    """The segments of the topics as a SELECT of values."""
    topics = {content.relation.topic for content in contents}
    rows = [row for row in segments if row["topic"] in topics]
    columns = ", ".join(
        f"c{at}::{kind} AS {word}" for at, (word, kind) in enumerate(SEGMENTS.items())
    )
    values = (
        ", ".join(f"({', '.join(_value(row.get(word)) for word in SEGMENTS)})" for row in rows)
        or f"({', '.join('NULL' for _ in SEGMENTS)})"
    )
    names = ", ".join(f"c{at}" for at in range(len(SEGMENTS)))
    only = "" if rows else " WHERE false"
    return f"SELECT {columns} FROM (VALUES {values}) AS t({names}){only}"


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    return text(value) if isinstance(value, str) else str(value).lower()


# --- the files of `views --complete` --------------------------------------------------------------


def resolved(client: Client, content: RelationContent, *, uncommitted: bool) -> Iterator[pa.Table]:
    """Yield a topic's messages that are not covered, with the columns of Messages.plain.

    raises: Corruption; MissingFile when a checkpoint has removed files meanwhile
    """
    for part in not_covered(content):
        sources = list(files_of([part]))
        client.check_files(sources)
        path = path_below(client.path)
        paths = [path(source) for source in sources]
        with duck.Session(paths=sorted({*paths, *map(unglobbed, paths)})) as session:
            is_typed = part.relation.record > 0
            parts = journal_parts.parts_for(session, [part], client.open, is_typed=is_typed)
            messages = Messages([part], path, parts, is_typed=is_typed)
            messages.register(session)
            for batch in session.stream(messages.plain(uncommitted=uncommitted)):
                yield pa.Table.from_batches([batch])


def write_database(path: str, statements: Sequence[str]) -> None:
    """Write a DuckDB file of views; a path with a backslash, which DuckDB misreads, gets a copy.

    raises: SqlError, OSError
    """
    with TemporaryDirectory(prefix="txlog-") as folder:
        plain_path = str(Path(folder, "views.duckdb")) if "\\" in path else path
        with duck.Session.in_file(plain_path) as session:
            for statement in statements:
                session.execute(statement)
        if plain_path != path:
            shutil.copyfile(plain_path, path)
