"""Owns what the commands of jobs share: the engine that flags ask for, progress, listed answers."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from txlog.cli.declared import Option
from txlog.cli.options import Call, is_terminal, truthy
from txlog.cli.tables import duration
from txlog.errors import Usage, printable

Master = Annotated[
    str | None, Option("--master", metavar="URL", help="of Spark; left out local[*]")
]
Conf = Annotated[
    list[str] | None, Option("--conf", metavar="K=V", help="a property of Spark; may be repeated")
]
_AFTER_S: Final = 0.5
_EVERY_S: Final = 0.1
_ERASE: Final = "\r\x1b[K"


@contextmanager
def engine_of(call: Call, word: str, master: str | None, conf: list[str] | None) -> Iterator[Any]:
    """The engine that flags name; it ends with the context.

    raises: Usage (201); MissingExtra (107) without pyspark or Java
    """
    call.check_choice("--engine", word, ("duckdb", "spark"))
    given = _pairs(conf or [])
    if word == "duckdb":
        if master is not None or given:
            raise Usage("--master and --conf go with --engine spark")
        yield importlib.import_module("txlog.jobs.local").Local()
        return
    engine = importlib.import_module("txlog.spark").Spark(master, given)
    try:
        yield engine
    finally:
        engine.close()


def job_of(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a job, loaded only when it runs."""
    found: Callable[..., dict[str, Any]] = getattr(
        importlib.import_module(f"txlog.jobs.{name}"), name
    )
    return found


def print_result(call: Call, answer: Mapping[str, Any], engine: str, done: str) -> None:
    """Say what a job did; with --json print the answer."""
    took = call.elapsed_ms()
    call.summary(f"{done} ({engine}, {duration(took)})")
    name = call.command.path.removeprefix("job ")
    call.output.result({**answer, "job": name, "engine": engine, "elapsed_ms": took})


def print_listed(
    call: Call, answer: Mapping[str, Any], name: str, columns: str, engine: str
) -> None:
    """Print an answer as one object; without --json only its list, as a table."""
    command = call.command.path.removeprefix("job ")
    if call.output.as_json or call.flags.columns is not None:
        more = {"job": command, "engine": engine, "elapsed_ms": call.elapsed_ms()}
        call.output.single({**answer, **more})
        return
    call.output.shown = call.output.fields = columns.split()
    call.output.rows(answer[name])


class Progress:
    """What a job is at, on a terminal's last line; gone when it ends."""

    def __init__(self, call: Call) -> None:
        flags = call.flags
        silent = flags.no_progress or truthy("TXLOG_NO_PROGRESS") or flags.quiet
        self._shows = not silent and not call.output.as_json and is_terminal(2)
        self._since = self._last = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()

    def __call__(self, text: str) -> None:
        """Say what it is at."""
        now = time.monotonic()
        if self._shows and now - self._since >= _AFTER_S and now - self._last >= _EVERY_S:
            self._last, self._drawn = now, True
            sys.stderr.write(f"{_ERASE}{printable(text)}")
            sys.stderr.flush()


def _pairs(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Usage(f'--conf is K=V, not "{word[:40]}"')
        found[name] = value
    return found
