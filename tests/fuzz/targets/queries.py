"""SQL of users: conditions and queries. Neither may crash the program, or open a file.

The path of a file replaces `@FILE@` in an input. The kernel reports whether anything opened it.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import cache
from pathlib import Path

from tests.engine_kit import START_MS, client_on
from tests.fuzz.engine import Target
from tests.fuzz.targets import world
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.storage.disk.posix import PosixDisk

_MARK = "@FILE@"
_IN_OPEN = 0x20
_EVENTS_BYTES = 1 << 12
_CONDITIONS = (
    *("size_bytes > 3", "text(value) LIKE '%a%' AND key IS NOT NULL", "value->>'id' = '1'"),
    *("properties['a'] = 'b'", "publish_time > now() - INTERVAL 1 DAY", "partition IN (0, 1)"),
    *(
        "id = 1 AND note IS NULL",
        "record.id > 0",
        "json(value)->>'a' = 'x' OR deliver_at < event_time",
    ),
    *("EXISTS (FROM read_csv('@FILE@'))", "(SELECT count(*) FROM '@FILE@') > 0", "true"),
    *("(SELECT max(content) FROM read_text('@FILE@')) = 'x'", "glob('@FILE@') IS NULL"),
)
_QUERIES = (
    *(
        "SELECT * FROM t",
        "SELECT count(*) FROM messages GROUP BY topic",
        "SELECT * FROM orders WHERE id = 1",
    ),
    *(
        "SELECT text(value), key FROM messages_all",
        "FROM topics",
        "SELECT * FROM subscriptions JOIN transactions ON true",
    ),
    *(
        "WITH a AS (SELECT * FROM t) SELECT * FROM a LIMIT 1",
        "SELECT json(value)->'a' FROM t",
        "SELECT * FROM frames",
    ),
    *(
        "COPY (SELECT 1) TO '@FILE@'",
        "SELECT * FROM read_csv('@FILE@')",
        "ATTACH '@FILE@'",
        "PRAGMA version",
    ),
    *(
        "SELECT * FROM '@FILE@'",
        "INSTALL httpfs",
        "SET memory_limit = '1GB'",
        "SELECT getenv('HOME')",
    ),
)
_WORDS = tuple(
    word.encode()
    for word in (
        *(
            "'",
            '"',
            "(",
            ")",
            ";",
            "--",
            "/*",
            "*/",
            "$1",
            "?",
            "::",
            "->>",
            "NULL",
            "1e400",
            "CAST(",
            "[1]",
        ),
        *(
            "read_csv('@FILE@')",
            "'@FILE@'",
            "read_blob",
            "sniff_csv",
            "LATERAL",
            "UNION ALL",
            "{'a': 1}",
        ),
        *(
            "value",
            "key",
            "record",
            "row_at",
            "received",
            "this",
            "messages",
            "text(",
            "try_json(",
            "\u00e9",
        ),
    )
)


class _Watched:
    """A file whose opening the kernel reports."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="fuzz-watched-", dir="/tmp")
        self.path = str(Path(self._folder) / "file.csv")
        Path(self.path).write_text("content\nx\n")
        libc = ctypes.CDLL(None, use_errno=True)
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self._events, self.path.encode(), _IN_OPEN) >= 0

    def check(self) -> None:
        try:
            os.read(self._events, _EVENTS_BYTES)
        except BlockingIOError:
            return
        raise AssertionError("the query has opened a file")


@cache
def _watched() -> _Watched:
    return _Watched()


@cache
def _client() -> Client:
    """A client of a store in a directory, because DuckDB reads segments by their paths."""
    folder = tempfile.mkdtemp(prefix="fuzz-store-", dir="/tmp")
    world.fill(PosixDisk(folder))
    return client_on(PosixDisk(folder), ManualClock(START_MS + 300_000))


def _condition(data: bytes) -> None:
    watched = _watched()
    text = data.decode("utf-8", "surrogateescape").replace(_MARK, watched.path)
    try:
        for topic in ("t", "orders"):
            for _ in _client().read(topic, where=text):
                pass
    finally:
        watched.check()


def _query(data: bytes) -> None:
    watched = _watched()
    text = data.decode("utf-8", "surrogateescape").replace(_MARK, watched.path)
    try:
        for number, _ in enumerate(_client().sql(text).batches()):
            if number > 3:
                break
    finally:
        watched.check()


_Q = "txlog.lake.sql."
TARGETS = (
    Target(
        "condition",
        _condition,
        lambda: [text.encode() for text in _CONDITIONS],
        (f"{_Q}where", f"{_Q}duck", f"{_Q}macros"),
        words=_WORDS,
        size_max=600,
        memory=256 << 20,
        steps=2_000_000,
    ),
    Target(
        "query",
        _query,
        lambda: [text.encode() for text in (*_QUERIES, *_CONDITIONS)],
        (f"{_Q}query", f"{_Q}duck", f"{_Q}macros", f"{_Q}messages", f"{_Q}lists"),
        words=_WORDS,
        size_max=600,
        memory=512 << 20,
        steps=2_000_000,
    ),
)
