"""Owns the addresses of databases on the command line.

    sqlite:PATH, duckdb:PATH, postgresql://HOST/DATABASE

The connection is closed when its block ends. Errors of the drivers become errors of the program.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from txlog.errors import CommandFailed, InvalidArgument, MissingExtra, Usage

FORMS: Final = "sqlite:PATH, duckdb:PATH or postgresql://HOST/DATABASE"
_DRIVERS: Final = {
    "sqlite": "sqlite3", "duckdb": "duckdb", "postgresql": "psycopg", "postgres": "psycopg",
}  # fmt: skip


@contextmanager
def connection_to(address: str) -> Iterator[Any]:
    """A connection to an existing database.

    raises: Usage (no address), InvalidArgument (no such file), MissingExtra, CommandFailed (with
            the driver's message)
    """
    kind, _, path = address.partition(":")
    if kind not in _DRIVERS or not path:
        form = _form_of(address)
        hint = None if form is None else f"--database {form}:{address}"
        raise Usage(f"--database {address}: it must be {FORMS}", hint=hint)
    driver = _driver(kind)
    try:
        connection = _connected(driver, kind, address, path)
        try:
            yield connection
        finally:
            connection.close()
    except driver.Error as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        name = "the server" if driver.__name__ == "psycopg" else address
        raise CommandFailed(f"{name} cannot be asked: {first}") from error


def _form_of(path: str) -> str | None:
    """The kind of a database file, by its first bytes; None: no file, or another one."""
    with suppress(OSError), open(path, "rb") as file:
        head = file.read(16)
        return {b"SQLite f": "sqlite"}.get(head[:8]) or {b"DUCK": "duckdb"}.get(head[8:12])
    return None


def _driver(kind: str) -> Any:
    name = _DRIVERS[kind]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"{name} is not installed", hint="pip install 'txlog-store[postgresql]'"
        ) from error


def _connected(driver: Any, kind: str, address: str, rest: str) -> Any:
    if _DRIVERS[kind] == "psycopg":
        return driver.connect(address)
    path = os.path.abspath(rest)
    if not os.path.isfile(path):
        raise InvalidArgument(f"there is no database {path}", hint=f"{kind}:PATH names a file")
    form = _form_of(path)
    if form not in (None, kind):  # DuckDB would load an extension for it
        raise InvalidArgument(f"{path} is no database of {kind}", hint=f"--database {form}:{rest}")
    if kind == "duckdb":
        return driver.connect(path)
    return driver.connect(f"{Path(path).as_uri()}?mode=rw", uri=True)
