"""The plain parser against Typer: it parses a line as Typer does, or leaves the line to Typer."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from txlog.cli.line import catalogue, dispatch, typer
from txlog.cli.line.command import (
    GLOBAL_FLAGS,
    Command,
    Option,
    declared,
    hidden_times,
    parse,
    spelled_out,
)
from txlog.errors import Usage

SEED = 20261122
PATHS = sorted(catalogue.COMMANDS)
VALUES = ("a", "", "-", "-3", "7", "0", "-x", "--", "--json", "a=b", "=", "5_0", " 8", "x y", "-1h")


def by_typer(command: Command, args: list[str]) -> dict[str, Any] | None:
    """The values that Typer parses from a line; None if it refuses the line or shows help."""
    parsed: list[dict[str, Any]] = []

    def take(values: dict[str, Any]) -> int:
        parsed.append(dict(values))
        return 0

    try:
        typer.invoke(command, list(args), take)
    except Usage:
        return None
    return parsed[0] if parsed else None


def by_plain(command: Command, args: list[str]) -> dict[str, Any] | None:
    return parse(command, list(args))


def flags_of(command: Command) -> list[tuple[str, bool, bool, str]]:
    """Word, whether a value follows, whether it is a number, the name of the parameter."""
    flags = [
        (word, metavar is not None, False, name)
        for name, (words, metavar, _) in GLOBAL_FLAGS.items()
        for word in words
        if not (name == "format" and command.input_format)
    ]
    for name, hint in command.hints.items():
        metadata = hint.__metadata__[0]
        if isinstance(metadata, Option):
            has_value = "bool" not in str(hint.__origin__)
            flags += [
                (word, has_value, "int" in str(hint.__origin__), name)
                for word in declared(metadata)
            ]
    return flags


def right_line(command: Command, chance: random.Random) -> list[str]:
    """A valid line: every argument, some flags with their values, in any order."""
    hints, defaults = command.hints, command.defaults
    parts: list[list[str]] = []
    for name, hint in hints.items():
        if not isinstance(hint.__metadata__[0], Option):
            needed = name not in defaults
            many = "list" in str(hint.__origin__)
            word = "7" if "int" in str(hint.__origin__) else chance.choice(("x", "orders/2", "-"))
            for _ in range(chance.randint(int(needed), 3) if many else 1 if needed else 0):
                parts.append([word])
    for name, hint in hints.items():
        metadata = hint.__metadata__[0]
        if isinstance(metadata, Option) and name not in defaults:
            parts.append([declared(metadata)[0], "7"])
    # Of each parameter one: where a later value replaces a wrong one, only Typer takes the line.
    chosen = {flag[3]: flag for flag in chance.sample(flags_of(command), 3)}
    for word, has_value, is_number, _ in chosen.values():
        number = chance.choice(("7", "0", "-3", "5000", "99999999"))
        text = number if is_number else chance.choice(("a", "-3", "k=v", "--x"))
        if not has_value:
            parts.append([word])
        elif word.startswith("--") and chance.random() < 0.5:
            parts.append([f"{word}={text}"])
        elif not word.startswith("--") and chance.random() < 0.5:
            parts.append([f"{word}{text}"])
        else:
            parts.append([word, text])
    chance.shuffle(parts)
    return [word for part in parts for word in part]


def any_line(command: Command, chance: random.Random) -> list[str]:
    """Random words in random order."""
    words = [word for word, *_ in flags_of(command)] + list(VALUES) + ["-qq", "-vq", "-yS", "-n5"]
    words += ["--json=", "--yes=1", "-hq", "--no-such", "-n=5"]
    return [chance.choice(words) for _ in range(chance.randint(0, 6))]


def test_a_right_line_needs_no_typer_and_means_the_same() -> None:
    """Every command: its arguments and flags, however they are mixed."""
    chance = random.Random(SEED)
    for path in PATHS:
        command = dispatch.load(path)
        for args in (right_line(command, chance), right_line(command, chance)):
            words = hidden_times(args) if command.times else args
            assert by_plain(command, words) == by_typer(command, words), (
                f"seed {SEED}: txlog {path} {args}"
            )


def test_plain_parser_agrees_with_typer_or_leaves_the_line() -> None:
    """For random lines of all commands, the plain parser agrees with Typer, or leaves the line."""
    chance = random.Random(SEED)
    parsed_count = 0
    for number in range(300):
        command = dispatch.load(chance.choice(PATHS))
        args = any_line(command, chance) if number % 2 else right_line(command, chance)
        if number % 3 == 0 and args:
            del args[chance.randrange(len(args))]
        if any(re.match(r"-\d", word) for word in args):
            continue  # the plain parser takes -1 for a value, as in `config set`; Typer for a flag
        here = by_plain(command, args)
        if here is not None:
            parsed_count += 1
            assert here == by_typer(command, args), f"seed {SEED}: txlog {command.path} {args}"
    assert parsed_count > 60, f"seed {SEED}: only {parsed_count} lines were plain"


def test_field_help_needs_no_arguments() -> None:
    """spec/cli 4, 12.5: `-f help` works on every command with data or a result, needing nothing."""
    for path in PATHS:
        command = dispatch.load(path)
        if command.fields:
            assert by_plain(command, ["-f", "help"]) is not None, path
            assert by_plain(command, ["-fhelp"]) is not None, path
            fields = command.row_fields
            assert [field.name for field in fields if field.meaning == field.name] == [], path


@pytest.mark.parametrize(
    ("line", "topic", "pause"),
    [
        ("--watch", None, "2s"),
        ("--watch orders", "orders", "2s"),
        ("orders --watch", "orders", "2s"),
        ("--watch 5s", None, "5s"),
        ("--watch 5s orders", "orders", "5s"),
        ("--watch=1m30s orders", "orders", "1m30s"),
        ("--watch --json", None, "2s"),
        ("--watch -- 5s", "5s", "2s"),
        ("-- --watch", "--watch", None),
    ],
)
def test_a_value_of_watch_may_be_left_out(line: str, topic: str | None, pause: str | None) -> None:
    """The next word is the pause only if it is a duration, for both parsers."""
    command = dispatch.load("sub list")
    args = spelled_out(command, line.split())
    values = by_plain(command, args)
    assert values is not None
    assert (values["topic"], values["pause_ms"]) == (topic, pause)
    assert values == by_typer(command, args)
