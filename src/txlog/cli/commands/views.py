"""Owns the command `views`: a script that shows the messages of a store to a stock duckdb."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from txlog.base.ids import TopicName
from txlog.cli.call.call import Call
from txlog.cli.help import fields
from txlog.cli.line.command import Option, command
from txlog.cli.terminal.tables import counted
from txlog.engine.door.disk import replacing
from txlog.errors import AlreadyExists, MissingFile, SnapshotExpired, TopicNotFound, Usage

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.door.relation import RelationContent
    from txlog.engine.door.store import View

_TRIES = 5


@command(
    "views",
    "SQL views of the messages for a stock duckdb",
    examples=(
        "duckdb -init <(txlog views)",
        "txlog views --complete rest > shop.sql",
        "txlog views --topic orders --relative --out orders.duckdb",
        "txlog views --spark --complete rest > shop.py",
    ),
    more=lambda: fields.views(),
)
def views(
    call: Call,
    topic: Annotated[
        list[str] | None, Option("--topic", metavar="T", help="only this topic; may be repeated")
    ] = None,
    isolation: Annotated[
        str, Option("--isolation", metavar="I", help="or uncommitted: with txn_state")
    ] = "committed",
    spark: Annotated[bool, Option("--spark", help="a PySpark program instead")] = False,
    complete: Annotated[
        str | None, Option("--complete", metavar="DIR", help="write messages not in Parquet")
    ] = None,
    relative: Annotated[
        bool, Option("--relative", help="paths relative to the store; start duckdb there")
    ] = False,
    out: Annotated[
        str | None, Option("--out", metavar="FILE.duckdb", help="write a database with the views")
    ] = None,
    force: Annotated[bool, Option("--force", help="replace existing files")] = False,
) -> None:
    """Print SQL that shows committed messages to DuckDB, without txlog.

    Views: messages, each topic by its name, compacted, segments. They read the Parquet files that
    exist now; the first lines count the committed messages outside these files. --complete writes
    those messages to one Parquet file per topic, and the views read it too; with uncommitted it
    also writes open and aborted ones. The PySpark program has messages and topics.
    """
    importlib.import_module("txlog.engine.door.reading").check_isolation(isolation)
    if force and complete is None and out is None:
        raise Usage("--force goes with --out or --complete")
    if spark and (relative or out is not None):
        raise Usage("--spark has whole paths, and goes to stdout")
    if out is not None:
        _check_new(out, force)
    client = call.client()
    written: set[str] = set()
    for _ in range(_TRIES):
        contents, segments = _contents(client, topic or [], isolation, counted=complete is None)
        files: list[str] = []
        try:
            contents = [client.without_far(content) for content in contents]
            if complete is not None:
                files = _complete(
                    call, client, contents, complete, isolation == "uncommitted", force, written
                )
            if spark:
                text = _program(call, client, contents, isolation, complete, files)
            else:
                text = _script(
                    call,
                    client,
                    contents,
                    segments,
                    isolation,
                    complete,
                    files,
                    relative,
                    out,
                    force,
                )
        except MissingFile:
            continue  # R21: a checkpoint has removed files since
        if out is None:
            call.output.text(text)
        return
    raise SnapshotExpired("the store moved on faster than it could be read")


def _contents(
    client: Client, topics: list[str], isolation: str, *, counted: bool
) -> tuple[list[RelationContent], list[dict[str, object]]]:
    """Return contents of the topics, and all segments, as of one moment. Raises TopicNotFound.

    counted: only count the messages that are in the journal alone
    """
    makes = importlib.import_module("txlog.engine.door.relation")
    names = [TopicName.parse(topic) for topic in topics]
    topic_names = [name.full for name in names] if topics else None

    def look(view: View) -> tuple[list[RelationContent], list[dict[str, object]]]:
        contents = makes.contents(view, topic_names, isolation, compacted=True, counted=counted)
        return contents, makes.segments(view)

    contents, segments = client.store.ask(look)
    if not topics:
        return contents, segments
    full_names = {name.full for name in names}
    contents = [content for content in contents if content.name in full_names]
    for name in names:
        if name.full not in {content.name for content in contents}:
            raise TopicNotFound(f"there is no topic {name.short}", topic=name.short)
    return contents, segments


def _script(
    call: Call,
    client: Client,
    contents: Sequence[RelationContent],
    segments: list[dict[str, object]],
    isolation: str,
    complete: str | None,
    files: list[str],
    relative: bool,
    out: str | None,
    force: bool,
) -> str:
    """Return the script as text; with `out`, write the database."""
    scripts = importlib.import_module("txlog.lake.sql.views_script")
    path_of = _from_store(client.path) if relative else os.path.abspath
    below = scripts.path_below(client.path)
    lacking = 0
    if complete is None:
        lacking = sum(scripts.count_not_covered(client, content) for content in contents)
    statements: list[str] = scripts.statements(
        contents,
        segments,
        lambda source: path_of(below(source)),
        [path_of(file) for file in files],
        uncommitted=isolation == "uncommitted",
        temporary=out is None,
    )
    remarks = scripts.comments(client, contents, lacking, call.now_ms())
    if out is not None:
        _database(client, out, statements, relative, force)
        call.summary(f"wrote {out}; {remarks[1]}")
    return "".join([*(f"-- {line}\n" for line in remarks), *(f"{line};\n" for line in statements)])


def _program(
    call: Call,
    client: Client,
    contents: Sequence[RelationContent],
    isolation: str,
    complete: str | None,
    files: list[str],
) -> str:
    """Return a PySpark program that shows the same contents as the script."""
    scripts = importlib.import_module("txlog.lake.sql.views_script")
    programs = importlib.import_module("txlog.lake.sql.spark_script")
    lacking = 0
    if complete is None:
        lacking = sum(scripts.count_not_covered(client, content) for content in contents)
    topic_of = {scripts.file_of(content): content.name for content in contents}
    remarks = scripts.comments(client, contents, lacking, call.now_ms())
    program: str = programs.program(
        contents,
        scripts.path_below(client.path),
        [(topic_of[os.path.basename(file)], os.path.abspath(file)) for file in files],
        uncommitted=isolation == "uncommitted",
    )
    return "".join(f"# {line}\n" for line in remarks) + program


def _from_store(root: str) -> Callable[[str], str]:
    return lambda path: os.path.relpath(os.path.abspath(path), root)


def _complete(
    call: Call,
    client: Client,
    contents: Sequence[RelationContent],
    folder: str,
    uncommitted: bool,
    force: bool,
    written: set[str],
) -> list[str]:
    """Write a file per topic with its messages that are in no Parquet file; return the paths.

    written: paths that earlier attempts wrote; this attempt adds its own
    """
    scripts = importlib.import_module("txlog.lake.sql.views_script")
    storage = importlib.import_module("txlog.engine.door.segments")
    parquet = importlib.import_module("pyarrow.parquet")
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths: list[str] = []
    count = 0
    for content in contents:
        path = os.path.join(folder, scripts.file_of(content))
        may_replace = force or path in written
        _check_new(path, may_replace)
        tables = scripts.resolved(client, content, uncommitted=uncommitted)
        first: Any = next((table for table in tables if table.num_rows), None)
        if first is None:
            continue
        with (
            replacing(path, only_new=not may_replace) as file,
            parquet.ParquetWriter(file, first.schema, version="2.6", compression="zstd") as writer,
        ):
            for rows in storage.gathered(chain((first,), tables)):
                writer.write_table(rows, rows.num_rows)
                count += rows.num_rows
        paths.append(path)
        written.add(path)
    call.summary(f"wrote {counted(count, 'message')} to {folder}")
    return paths


def _database(
    client: Client, path: str, statements: list[str], relative: bool, force: bool
) -> None:
    """Make the database under a temporary name, then rename it."""
    temporary = os.path.abspath(f"{path}.{os.getpid()}.tmp")
    here = os.getcwd()
    try:
        if relative:
            os.chdir(client.path)  # DuckDB opens the files when a view is created
        try:
            importlib.import_module("txlog.lake.sql.views_script").write_database(
                temporary, statements
            )
        finally:
            os.chdir(here)
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} exists", path=path) from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _check_new(path: str, force: bool) -> None:
    if os.path.lexists(path) and not force:
        raise AlreadyExists(f"{path} exists", hint="--force replaces it", path=path)
