"""Owns the declarations of a command's parameters: Option and Argument, as Annotated hints.

They are named after Typer's, and `typer` converts them for help and error messages. Declaring them
imports nothing of Typer, whose import took a third of the time of `produce`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, cast

GLOBAL_FLAGS: Final[dict[str, tuple[tuple[str, ...], str | None, str]]] = {
    "store": (("--store", "-S"), "PATH", "the store [env: TXLOG_STORE]"),
    "profile": (("--profile",), "NAME", "a section of the config file [env: TXLOG_PROFILE]"),
    "format": (("--format", "-f"), "FMT", "shape of stdout [env: TXLOG_FORMAT]"),
    "json": (("--json",), None, "JSON on stdout, errors as JSON on stderr"),
    "columns": (("--columns",), "A,B", "these fields, in this order"),
    "quiet": (("--quiet", "-q"), None, "no summaries and notes; -qq: no warnings"),
    "verbose": (("--verbose", "-v"), None, "notes, also off a terminal"),
    "log_format": (("--log-format",), "text|json", "shape of diagnostics"),
    "log_file": (("--log-file",), "PATH", "diagnostics go here, appended"),
    "color": (("--color",), "auto|always|never", "colours"),
    "utc": (("--utc",), None, "times on a terminal in UTC"),
    "no_progress": (("--no-progress",), None, "no bars"),
    "no_pager": (("--no-pager",), None, "no pager"),
    "yes": (("--yes", "-y"), None, "answer yes"),
    "no_input": (("--no-input",), None, "never ask"),
    "read_only": (("--read-only",), None, "take no lock, write nothing [env: TXLOG_READ_ONLY]"),
    "lock_timeout": (("--lock-timeout",), "DUR", "how long to wait for a lock (the store's, 30s)"),
    "now": (("--now",), "TIME", "the clocks of this process stand still [env: TXLOG_NOW]"),
    "version": (("--version", "-V"), None, "the version"),
}
COUNTED: Final = frozenset(("quiet", "verbose"))
REHEARSAL: Final = ("--dry-run", "print the planned changes, change nothing")


class Option:
    """A flag: its spellings (`--active/--no-active` has two) and its help.

    min, max: bounds of a number
    """

    __slots__ = ("help", "hidden", "max", "metavar", "min", "show_default", "words")

    def __init__(
        self,
        *words: str,
        metavar: str | None = None,
        help: str | None = None,
        min: int | None = None,
        max: int | None = None,
        hidden: bool = False,
        show_default: bool = True,
    ) -> None:
        self.words = words
        self.metavar, self.help, self.hidden = metavar, help, hidden
        self.min, self.max = min, max
        self.show_default = show_default


class Argument:
    """A word that is not a flag; a list takes all remaining words."""

    __slots__ = ("help", "metavar", "show_default")

    def __init__(
        self, *, metavar: str | None = None, help: str | None = None, show_default: bool = True
    ) -> None:
        self.metavar, self.help, self.show_default = metavar, help, show_default


def declared(option: Option) -> tuple[str, ...]:
    """The spellings of a flag, long ones first: --partition -p."""
    names = [word for each in option.words for word in each.split("/")]
    return tuple(sorted(names, key=lambda word: not word.startswith("--")))


def hints_of(function: Callable[..., None]) -> dict[str, Any]:
    """The hints of the parameters after the call, in order.

    They are stored as text; the function's module defines every name in them.
    """
    plain = cast(FunctionType, function)
    code, annotations = plain.__code__, plain.__annotations__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return {name: eval(annotations[name], plain.__globals__) for name in names}  # noqa: S307


def defaults_of(function: Callable[..., None]) -> dict[str, Any]:
    """The defaults of parameters; required parameters have no entry."""
    plain = cast(FunctionType, function)
    code, values = plain.__code__, plain.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return {**dict(zip(names, values, strict=True)), **(plain.__kwdefaults__ or {})}
