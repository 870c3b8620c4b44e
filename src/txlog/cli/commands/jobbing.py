"""Owns what the commands of jobs share: the engine that flags ask for, listed answers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from txlog.cli.call.call import Call
from txlog.cli.line.declared import Option
from txlog.cli.terminal.tables import duration
from txlog.errors import Usage

Master = Annotated[
    str | None, Option("--master", metavar="URL", help="of Spark; left out local[*]")
]
Conf = Annotated[
    list[str] | None, Option("--conf", metavar="K=V", help="a property of Spark; may be repeated")
]


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


_HOMES: Final = {"compact": "upkeep"}


def job_of(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a job, loaded only when it runs."""
    found: Callable[..., dict[str, Any]] = getattr(
        importlib.import_module(f"txlog.jobs.{_HOMES.get(name, name)}"), name
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


def _pairs(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Usage(f'--conf is K=V, not "{word[:40]}"')
        found[name] = value
    return found
