"""Owns the files of `txlog views --complete`: messages that the Parquet files lack, resolved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from txlog.client.client import Client
from txlog.engine.door.relation import RelationContent
from txlog.lake.sql.duck import Session
from txlog.lake.sql.messages import Messages, files_of, path_below, unglobbed
from txlog.lake.sql.parts import parts_for
from txlog.lake.sql.views_script import not_covered


def resolved(client: Client, content: RelationContent, *, uncommitted: bool) -> Iterator[pa.Table]:
    """Yield a topic's messages that are not covered, with the columns of Messages.plain.

    raises: Corruption; MissingFile when a checkpoint has removed files meanwhile
    """
    for part in not_covered(content):
        sources = list(files_of([part]))
        client.check_files(sources)
        path = path_below(client.path)
        paths = [path(source) for source in sources]
        with Session(paths=sorted({*paths, *map(unglobbed, paths)})) as session:
            is_typed = part.relation.record > 0
            parts = parts_for(session, [part], client.open, is_typed=is_typed)
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
        with Session.in_file(plain_path) as session:
            for statement in statements:
                session.execute(statement)
        if plain_path != path:
            shutil.copyfile(plain_path, path)
