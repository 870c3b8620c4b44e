"""Owns how a command says what it takes: Option and Argument, as Annotated hints of its function.

They have the names of Typer's, into which `typer` turns them for help and for complaints. Declaring
them imports nothing of Typer, which took a third of the time of `produce`.
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
REHEARSAL: Final = ("--dry-run", "say what would be done, change nothing")


class Option:
    """A flag: its words, of which `--active/--no-active` are two, and its help.

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
    """A word that is not a flag; a list of them takes all that are left."""

    __slots__ = ("help", "metavar", "show_default")

    def __init__(
        self, *, metavar: str | None = None, help: str | None = None, show_default: bool = True
    ) -> None:
        self.metavar, self.help, self.show_default = metavar, help, show_default


def declared(option: Option) -> tuple[str, ...]:
    """The words of a flag, the first of them the longest form: --partition -p."""
    words = [word for each in option.words for word in each.split("/")]
    return tuple(sorted(words, key=lambda word: not word.startswith("--")))


def hints_of(function: Callable[..., None]) -> dict[str, Any]:
    """The hints of the parameters after the call, in order.

    They are written as text; the function's module has every name in them.
    """
    made = cast(FunctionType, function)
    code, given = made.__code__, made.__annotations__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return {name: eval(given[name], made.__globals__) for name in names}  # noqa: S307


def defaults_of(function: Callable[..., None]) -> dict[str, Any]:
    """The defaults of parameters; required ones have none."""
    made = cast(FunctionType, function)
    code, given = made.__code__, made.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return {**dict(zip(names, given, strict=True)), **(made.__kwdefaults__ or {})}
