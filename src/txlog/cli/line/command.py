"""Owns a command: its function, its part of help and `-f help`, how a line is parsed and run.

A command is a function `(call, …) -> None`. It prints through the call, and raises on errors. Its
parameters come from `declared`. The parser here takes a line that is certainly correct; Typer takes
all others. Both read the same declarations. This parser has no error texts: at an unknown flag, a
missing or bad value, or -h, it gives up, and Typer explains the error. So its only possible fault
is to read a line differently from Typer; a test compares the two over random lines of all commands.
One difference is intended: with `-f help`, which runs no command, nothing is required.

The rules are Typer's: flags and arguments mix; `--` ends the flags; `--flag V` takes the next word
in any case; `-n5` and `-qq` work; the last of a repeated flag wins, or a list takes all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from txlog.cli.call.call import Call, Globals
from txlog.cli.line.declared import (
    COUNTED,
    GLOBAL_FLAGS,
    REHEARSAL,
    Argument,
    Option,
    defaults_of,
    hints_of,
)
from txlog.cli.line.flags import as_given, hidden_times
from txlog.cli.terminal.errors import Report
from txlog.errors import Usage

if TYPE_CHECKING:
    from txlog.base.rows.fields import Field


class Command:
    """One command of the table: a function, and its part of help and `-f help`.

    short:   its line in the help of its noun, and in did-you-mean
    rows:    the type of its rows below base/rows, as topics.TopicRow: the fields of its JSON
    until:   the last column of the default table; empty: all fields are columns
    without: fields of the row that it does not print
    records: it prints messages instead of rows
    more:    the text of `-f help` after the fields
    input_format: the command itself declares -f and --format
    dry_run: it can be rehearsed: --dry-run, and `dry_run` in its result
    times:   an argument is a TIME, so that a word like -3m is not a flag
    """

    def __init__(
        self,
        path: str,
        short: str,
        function: Callable[..., None],
        *,
        examples: tuple[str, ...] = (),
        rows: str = "",
        until: str = "",
        without: str = "",
        records: bool = False,
        more: Callable[[], str] | None = None,
        changes: bool = False,
        input_format: bool = False,
        dry_run: bool = False,
        times: bool = False,
    ) -> None:
        self.path = path
        self.short = short
        self.function = function
        self.examples = examples
        self.row = rows
        self._until = until
        self._without = without.split()
        self.records = records
        self.more = more
        self.changes = changes
        self.input_format = input_format
        self.dry_run = dry_run
        self.times = times

    @cached_property
    def row_fields(self) -> list[Field]:
        """The fields that its row declares and it prints, `dry_run` last; empty: it depends."""
        if not self.row:
            return []
        rows = importlib.import_module("txlog.base.rows.fields")
        declared: list[Field] = rows.fields_of(rows.row_of(self.row))
        printed = [field for field in declared if field.name not in (*self._without, "dry_run")]
        of_row = [field for field in declared if field.name == "dry_run"]
        return printed + (of_row or [rows.DRY_RUN] * self.dry_run)

    @property
    def fields(self) -> list[str]:
        """The names of its fields."""
        return [field.name for field in self.row_fields]

    @property
    def table_fields(self) -> list[str]:
        """The columns of its default table."""
        names = [name for name in self.fields if name != "dry_run"]
        return names[: names.index(self._until) + 1] if self._until else names

    def invoke(self, args: list[str], report: Report) -> int:
        """Parse args, run the command, close its store; return the exit code.

        raises: Usage (201), and the errors of the command
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
        values = parse(self.function, args, dry_run=self.dry_run, input_format=self.input_format)
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
    short: str,
    *,
    examples: tuple[str, ...] = (),
    rows: str = "",
    until: str = "",
    without: str = "",
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
            short,
            function,
            examples=examples,
            rows=rows,
            until=until,
            without=without,
            records=records,
            more=more,
            changes=changes,
            input_format=input_format,
            dry_run=dry_run,
            times=times,
        )

    return wrap


def check_numbers(values: Mapping[str, object]) -> None:
    """Refuse numbers beyond signed 64 bits: files and tables cannot hold them.

    raises: Usage (201)
    """
    for name, value in values.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
                digits = str(number) if abs(number) < 10**30 else "a number of many digits"
                raise Usage(f"{name.replace('_', '-')} is {digits}, it must be below 2^63")


def exclusive(**given: object) -> None:
    """Refuse more than one of the given flags.

    given: flag name with `_` for `-`, and its value; None, False, 0 and empty count as not given
    raises: Usage (201)
    """
    conflicting = [
        name if name.isupper() else f"--{name.replace('_', '-')}"
        for name, value in given.items()
        if value
    ]
    if len(conflicting) > 1:
        raise Usage(f"{' and '.join(conflicting)} exclude each other")


# --- lines that are plainly right ------------------------------------------------------------


SWITCH, COUNT, TEXT, NUMBER, TEXTS, NUMBERS = range(6)
_KINDS: Final[dict[Any, int]] = {
    bool: SWITCH, bool | None: SWITCH, str: TEXT, str | None: TEXT, int: NUMBER,
    int | None: NUMBER, list[str]: TEXTS, list[str] | None: TEXTS, list[int]: NUMBERS,
    list[int] | None: NUMBERS,
}  # fmt: skip


class _Given(Exception):
    """The line is not a plain one."""


class _Flag:
    """A flag of one command: the parameter it sets, its kind and its bounds."""

    __slots__ = ("kind", "max", "min", "name", "value")

    def __init__(
        self,
        name: str,
        kind: int,
        value: bool = True,
        min: int | None = None,
        max: int | None = None,
    ) -> None:
        self.name, self.kind, self.value, self.min, self.max = name, kind, value, min, max

    def take(self, values: dict[str, Any], text: str) -> None:
        if self.kind == TEXT:
            values[self.name] = text
        elif self.kind == TEXTS:
            _add(values, self.name, text)
        elif self.kind == NUMBER:
            values[self.name] = _number(text, self.min, self.max)
        else:
            _add(values, self.name, _number(text, self.min, self.max))

    def switch(self, values: dict[str, Any]) -> None:
        values[self.name] = values.get(self.name, 0) + 1 if self.kind == COUNT else self.value

    @property
    def is_switch(self) -> bool:
        return self.kind in (SWITCH, COUNT)


def parse(
    function: Callable[..., None], args: list[str], *, dry_run: bool, input_format: bool
) -> dict[str, Any] | None:
    """Values for the command's parameters and the global flags; None: Typer must parse the line."""
    try:
        return _parse(function, args, dry_run, input_format)
    except _Given:
        return None


def _parse(
    function: Callable[..., None], args: list[str], dry_run: bool, input_format: bool
) -> dict[str, Any]:
    flags: dict[str, _Flag] = {}
    arguments: list[tuple[str, int]] = []
    values: dict[str, Any] = {}
    for name, (names, metavar, _) in GLOBAL_FLAGS.items():
        if name == "format" and input_format:
            continue
        kind = COUNT if name in COUNTED else SWITCH if metavar is None else TEXT
        values[name] = {COUNT: 0, SWITCH: False, TEXT: None}[kind]
        _declare(flags, names, name, kind, None)
    if dry_run:
        values["dry_run"] = False
        _declare(flags, REHEARSAL[:1], "dry_run", SWITCH, None)
    hints = hints_of(function)
    for name, hint in hints.items():
        kind = _KINDS.get(hint.__origin__, -1)
        declared = hint.__metadata__[0]
        if kind < 0:
            raise _Given
        if isinstance(declared, Option):
            _declare(flags, declared.words, name, kind, declared)
        else:
            assert isinstance(declared, Argument)
            arguments.append((name, kind))
    values_found: dict[str, Any] = {}
    _arguments(arguments, _flags(flags, args, values_found), values_found)
    defaults = defaults_of(function)
    missing = [name for name in hints if name not in values_found and name not in defaults]
    if missing and values_found.get("form" if input_format else "format") != "help":
        raise _Given
    # `-f help` prints the fields and requires nothing: the command does not run.
    return {**values, **defaults, **dict.fromkeys(missing), **values_found}


def _declare(
    flags: dict[str, _Flag], names: tuple[str, ...], name: str, kind: int, option: Option | None
) -> None:
    low, high = (None, None) if option is None else (option.min, option.max)
    for word in names:
        if not word.startswith("-"):
            raise _Given
        first, _, second = word.partition("/")
        flags[first] = _Flag(name, kind, True, low, high)
        if second:
            flags[second] = _Flag(name, kind, False)


def _flags(flags: dict[str, _Flag], args: list[str], values: dict[str, Any]) -> list[str]:
    """Move the flags of args into values; return the other words."""
    arguments: list[str] = []
    at, stop = 0, len(args)
    while at < stop:
        word = args[at]
        at += 1
        if word == "--":
            return arguments + args[at:]
        if word[:1] != "-" or word == "-" or word[1].isdigit():  # no flag is a digit: -1 is a value
            arguments.append(word)
        elif word[:2] == "--":
            name, equals, text = word.partition("=")
            flag = flags.get(name)
            if flag is None or (flag.is_switch and equals):
                raise _Given
            if flag.is_switch:
                flag.switch(values)
                continue
            if not equals:
                if at == stop:
                    raise _Given
                text = args[at]
                at += 1
            flag.take(values, text)
        else:
            at = _letters(flags, args, at, values)
    return arguments


def _letters(flags: dict[str, _Flag], args: list[str], at: int, values: dict[str, Any]) -> int:
    """Parse the word of one-letter flags before `at`; return the index of the next word."""
    word = args[at - 1]
    for index in range(1, len(word)):
        flag = flags.get(f"-{word[index]}")
        if flag is None:
            raise _Given
        if flag.is_switch:
            flag.switch(values)
            continue
        if index + 1 < len(word):
            flag.take(values, word[index + 1 :])
        elif at == len(args):
            raise _Given
        else:
            flag.take(values, args[at])
            at += 1
        break
    return at


def _arguments(parameters: list[tuple[str, int]], args: list[str], values: dict[str, Any]) -> None:
    """Assign args to the parameters, in order; a list comes last and takes all remaining words."""
    for at, (name, kind) in enumerate(parameters):
        many = kind in (TEXTS, NUMBERS)
        if many and at + 1 < len(parameters):
            raise _Given
        chosen, args = (args, []) if many else (args[:1], args[1:])
        if chosen:
            converted = (
                chosen if kind in (TEXT, TEXTS) else [_number(word, None, None) for word in chosen]
            )
            values[name] = converted if many else converted[0]
    if args:
        raise _Given


def _number(text: str, low: int | None, high: int | None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise _Given from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise _Given
    return number


def _add(values: dict[str, Any], name: str, value: object) -> None:
    values.setdefault(name, []).append(value)
