"""Owns a command's parameters as data, for man pages, completion and tests; it parses no line.

It reads the annotations that the parsers read, so commands declare each parameter once.
"""

from __future__ import annotations

import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from txlog.cli.line.command import Command
from txlog.cli.line.declared import GLOBAL_FLAGS, Option, declared, defaults_of, hints_of
from txlog.cli.line.flags import argument_meaning, flag_meaning

_NEEDED = object()


@dataclass(frozen=True)
class Parameter:
    """A flag or an argument.

    names:    `--partition -p`; for an argument its metavar
    metavar:  placeholder of its value; empty for a switch
    default:  as a user would write it; empty when there is none
    of_all:   a global flag
    """

    names: tuple[str, ...]
    metavar: str
    help: str
    default: str
    required: bool
    repeated: bool
    is_flag: bool
    hidden: bool = False
    of_all: bool = False

    @property
    def name(self) -> str:
        """The long flag, or the metavar."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def choices(self) -> list[str]:
        """Its allowed values, if the metavar lists them."""
        choices = self.metavar.split("|")
        plain = all(re.fullmatch("[a-z][a-z_-]*", word) for word in choices)
        return choices if plain and len(choices) > 1 else []


def parameters_of(command: Command) -> list[Parameter]:
    """The arguments of a command, then its own flags, then the global ones; each in order."""
    defaults = defaults_of(command.function)
    parameters = [
        _own(command, name, hint, defaults.get(name, _NEEDED))
        for name, hint in hints_of(command.function).items()
    ]
    if command.dry_run:
        parameters.append(_switch("--dry-run", "print the planned changes, change nothing"))
    parameters.sort(key=lambda each: each.is_flag)
    own_names = {name for each in parameters for name in each.names}
    return parameters + [
        Parameter(
            names,
            metavar or "",
            text,
            "",
            required=False,
            repeated=key in ("quiet", "verbose"),
            is_flag=True,
            of_all=True,
        )
        for key, (names, metavar, text) in GLOBAL_FLAGS.items()
        if not own_names & set(names)
    ]


def _own(command: Command, name: str, hint: Any, default_value: Any) -> Parameter:
    kind, info = hint.__origin__, hint.__metadata__[0]
    no_default = default_value is _NEEDED
    default = "" if no_default or default_value in (None, False, "") else str(default_value)
    many = _is_list(kind)
    if not isinstance(info, Option):
        word = str(info.metavar or name.upper())
        text = info.help or argument_meaning(command.path, word)
        return Parameter((word,), word, text, default, no_default, many, is_flag=False)
    names = declared(info)
    return Parameter(
        names,
        "" if _is_switch(kind) else _value(str(info.metavar or "VALUE")),
        info.help or flag_meaning(command.path, names[0]),
        default,
        no_default,
        many,
        is_flag=True,
        hidden=bool(info.hidden),
    )


def _value(metavar: str) -> str:
    """A metavar without the mark of a repeatable flag; `%…` is a literal word."""
    return metavar if metavar.endswith("%…") else metavar.removesuffix("…")


def _switch(name: str, text: str) -> Parameter:
    return Parameter((name,), "", text, "", required=False, repeated=False, is_flag=True)


def _is_list(kind: Any) -> bool:
    return any(typing.get_origin(each) is list for each in _parts(kind))


def _is_switch(kind: Any) -> bool:
    return bool in _parts(kind)


def _parts(kind: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(kind)
    return typing.get_args(kind) if origin in (typing.Union, types.UnionType) else (kind,)
