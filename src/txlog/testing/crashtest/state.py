"""Owns State: the results of a pipeline, in the store and in its files, and the comparison of two.

A file of SQLite counts as its rows, by table, any other file as its lines. Neither has an order.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from fnmatch import fnmatch
from typing import Final, NamedTuple

import txlog
from txlog.testing.outputs import Output, messages_of

SQLITE: Final = b"SQLite format 3\0"
# Files that SQLite and Python keep next to others.
BESIDE: Final = ("*-journal", "*-wal", "*-shm", "*.pyc")

Files = dict[str, Counter[str]]
Backlog = dict[tuple[str, str], int]  # by topic and subscription


class State(NamedTuple):
    """The results of a pipeline.

    output:  the messages in its output topics
    backlog: messages that no subscription of an input has acknowledged
    files:   the lines of each file in the working directory
    """

    output: Output
    backlog: Backlog
    files: Files


def state_of(
    store: str, inputs: Sequence[str], outputs: Iterable[str], work: str, ignored: Sequence[str]
) -> State:
    """The state of a store and a directory.

    ignored: patterns of files that do not count
    """
    with txlog.open(store) as client:
        backlog = {
            (row["topic"], row["subscription"]): row["backlog"]
            for topic in inputs
            for row in client.subscriptions(topic)
        }
        output = messages_of(client, outputs)
    return State(output, backlog, _files(work, store, ignored))


def end_open_transactions(store: str) -> int:
    """Abort the transactions that a killed program left open, as their time-out does.

    returns: how many there were
    """
    with txlog.open(store) as client:
        rows = [row for row in client.transactions() if row["state"] == "open"]
        for row in rows:
            client.abort(row["txn"])
    return len(rows)


def _files(work: str, store: str, ignored: Sequence[str]) -> Files:
    files: Files = {}
    for folder, folders, names in os.walk(work):
        folders[:] = [name for name in folders if not _is_store(os.path.join(folder, name), store)]
        for name in names:
            path = os.path.join(folder, name)
            short = os.path.relpath(path, work)
            if not any(fnmatch(short, pattern) for pattern in (*BESIDE, *ignored)):
                files[short] = _lines(path)
    return files


def _is_store(path: str, store: str) -> bool:
    return path == store or os.path.basename(path) == "__pycache__"


def _lines(path: str) -> Counter[str]:
    with open(path, "rb") as file:
        content = file.read()
    if content.startswith(SQLITE):
        return _rows(path)
    return Counter(repr(line)[1:] for line in content.splitlines())


def _rows(path: str) -> Counter[str]:
    rows: Counter[str] = Counter()
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            quoted = table.replace('"', '""')
            content = database.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608  # a name of its own
            rows.update(f"{table} {row!r}" for row in content)
    return rows
