"""Owns a command: its function, what help and `-f help` say about it, how a line of words is run.

A command is a function `(call, …) -> None`. What it prints goes through the call; what goes wrong
is raised. Its parameters are those of `declared`. A line that is plainly right is parsed here, all
others by Typer. This parser reads the same declarations and has no error texts: at an unknown flag,
a missing or bad value, or -h, it gives up, and Typer says what is wrong. So it can be wrong only by
reading a line in another way than Typer; a test compares the two over random lines of all commands.
One difference is intended: with `-f help`, which runs no command, nothing is required.

The rules are Typer's: flags and arguments mix; `--` ends the flags; `--flag V` takes the next word
whatever it is; `-n5` and `-qq`; the last of a repeated flag wins, or all of them for a list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

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
    """A flag of one command: where its value goes, and what it may be."""

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
    """The values of the command's parameters and of the global flags; None: ask Typer."""
    try:
        return _parse(function, args, dry_run, input_format)
    except _Given:
        return None


def _parse(
    function: Callable[..., None], args: list[str], dry_run: bool, input_format: bool
) -> dict[str, Any]:
    flags: dict[str, _Flag] = {}
    wanted: list[tuple[str, int]] = []
    values: dict[str, Any] = {}
    for name, (words, metavar, _) in GLOBAL_FLAGS.items():
        if name == "format" and input_format:
            continue
        kind = COUNT if name in COUNTED else SWITCH if metavar is None else TEXT
        values[name] = {COUNT: 0, SWITCH: False, TEXT: None}[kind]
        _declare(flags, words, name, kind, None)
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
            wanted.append((name, kind))
    found: dict[str, Any] = {}
    _arguments(wanted, _flags(flags, args, found), found)
    defaults = defaults_of(function)
    missing = [name for name in hints if name not in found and name not in defaults]
    if missing and found.get("form" if input_format else "format") != "help":
        raise _Given
    # `-f help` prints the fields and requires nothing: the command never sees its arguments then.
    return {**values, **defaults, **dict.fromkeys(missing), **found}


def _declare(
    flags: dict[str, _Flag], words: tuple[str, ...], name: str, kind: int, option: Option | None
) -> None:
    low, high = (None, None) if option is None else (option.min, option.max)
    for word in words:
        if not word.startswith("-"):
            raise _Given
        first, _, second = word.partition("/")
        flags[first] = _Flag(name, kind, True, low, high)
        if second:
            flags[second] = _Flag(name, kind, False)


def _flags(flags: dict[str, _Flag], args: list[str], found: dict[str, Any]) -> list[str]:
    """Move the flags of args into found; return the other words."""
    words: list[str] = []
    at, stop = 0, len(args)
    while at < stop:
        word = args[at]
        at += 1
        if word == "--":
            return words + args[at:]
        if word[:1] != "-" or word == "-" or word[1].isdigit():  # no flag is a digit: -1 is a value
            words.append(word)
        elif word[:2] == "--":
            name, equals, text = word.partition("=")
            flag = flags.get(name)
            if flag is None or (flag.is_switch and equals):
                raise _Given
            if flag.is_switch:
                flag.switch(found)
                continue
            if not equals:
                if at == stop:
                    raise _Given
                text = args[at]
                at += 1
            flag.take(found, text)
        else:
            at = _letters(flags, args, at, found)
    return words


def _letters(flags: dict[str, _Flag], args: list[str], at: int, found: dict[str, Any]) -> int:
    """Take the word of one-letter flags before `at`; return where the next word is."""
    word = args[at - 1]
    for index in range(1, len(word)):
        flag = flags.get(f"-{word[index]}")
        if flag is None:
            raise _Given
        if flag.is_switch:
            flag.switch(found)
            continue
        if index + 1 < len(word):
            flag.take(found, word[index + 1 :])
        elif at == len(args):
            raise _Given
        else:
            flag.take(found, args[at])
            at += 1
        break
    return at


def _arguments(wanted: list[tuple[str, int]], words: list[str], found: dict[str, Any]) -> None:
    """Give words to the arguments, in order; a list is the last and takes the rest."""
    for at, (name, kind) in enumerate(wanted):
        many = kind in (TEXTS, NUMBERS)
        if many and at + 1 < len(wanted):
            raise _Given
        taken, words = (words, []) if many else (words[:1], words[1:])
        if taken:
            made = taken if kind in (TEXT, TEXTS) else [_number(word, None, None) for word in taken]
            found[name] = made if many else made[0]
    if words:
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
