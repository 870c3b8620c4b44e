"""Owns a command: its function, what help and `-f help` say about it, how a line of words is run.

A command is a function `(call, …) -> None`. What it prints goes through the call; what goes wrong
is raised. Its parameters are those of `declared`; a plain line is read by `plain`, all others by
Typer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from txlog.cli.call.call import Call, Globals
from txlog.cli.line import plain
from txlog.cli.line.flags import as_given, hidden_times
from txlog.cli.terminal.errors import Report
from txlog.errors import Usage


class Command:
    """One command of the table: a function and what help and `-f help` say about it.

    fields:  names of its JSON, in order; those before `|` are the default table
    records: it prints messages, not rows
    more:    what `-f help` says after the fields
    input_format: -f and --format belong to the command itself
    dry_run: it can be rehearsed: --dry-run, and `dry_run` in its result
    times:   an argument is a TIME, so that a word like -3m is not a flag
    """

    def __init__(
        self,
        path: str,
        function: Callable[..., None],
        *,
        examples: tuple[str, ...] = (),
        fields: str = "",
        records: bool = False,
        more: Callable[[], str] | None = None,
        changes: bool = False,
        input_format: bool = False,
        dry_run: bool = False,
        times: bool = False,
    ) -> None:
        shown, _, wide = fields.partition("|")
        self.path = path
        self.function = function
        self.examples = examples
        self.table_fields = shown.split()
        self.fields = self.table_fields + wide.split() + ["dry_run"] * dry_run
        self.records = records
        self.more = more
        self.changes = changes
        self.input_format = input_format
        self.dry_run = dry_run
        self.times = times

    def invoke(self, args: list[str], report: Report) -> int:
        """Parse args, run the command, close what it opened; return the exit code.

        raises: Usage (201), and what the command raises
        """

        def take(values: dict[str, Any]) -> int:
            flags = Globals(**{name: values.pop(name, None) for name in Globals.__annotations__})
            dry_run = values.pop("dry_run") if self.dry_run else False
            check_numbers(values)
            if self.times:
                values = {name: as_given(value) for name, value in values.items()}
            return Call(self, flags, report, dry_run=dry_run).run(values)

        if self.times:
            args = hidden_times(args)
        values = plain.parse(
            self.function, args, dry_run=self.dry_run, input_format=self.input_format
        )
        if values is not None:
            return take(values)
        typed = importlib.import_module("txlog.cli.line.typer")
        answer: int = typed.invoke(
            self.path,
            self.function,
            args,
            take,
            examples=self.examples,
            dry_run=self.dry_run,
            input_format=self.input_format,
        )
        return answer


def command(
    path: str,
    *,
    examples: tuple[str, ...] = (),
    fields: str = "",
    records: bool = False,
    more: Callable[[], str] | None = None,
    changes: bool = False,
    input_format: bool = False,
    dry_run: bool = False,
    times: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Make a command from a function."""

    def wrap(function: Callable[..., None]) -> Command:
        return Command(
            path,
            function,
            examples=examples,
            fields=fields,
            records=records,
            more=more,
            changes=changes,
            input_format=input_format,
            dry_run=dry_run,
            times=times,
        )

    return wrap


def check_numbers(values: Mapping[str, object]) -> None:
    """Refuse numbers beyond signed 64 bits, for which no file or table has room.

    raises: Usage (201)
    """
    for name, value in values.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
                shown = str(number) if abs(number) < 10**30 else "a number of many digits"
                raise Usage(f"{name.replace('_', '-')} is {shown}, it must be below 2^63")


def exclusive(**given: object) -> None:
    """Refuse more than one of the given flags.

    given: flag name with `_` for `-`, and its value; None, False, 0 and empty count as not given
    raises: Usage (201)
    """
    named = [
        name if name.isupper() else f"--{name.replace('_', '-')}"
        for name, value in given.items()
        if value
    ]
    if len(named) > 1:
        raise Usage(f"{' and '.join(named)} exclude each other")
