"""Owns a command over Typer: its own parameters, the global flags, its help, its fields.

A command is a function `(call, …) -> None`. What it prints goes through the call; what goes wrong
is raised. Only Typer's public names are used: a one-command app is made for each run, so nothing
of the other commands is ever loaded.
"""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer import Option

from txlog.cli.failures import Report
from txlog.cli.flags import as_given, hidden_times
from txlog.cli.flagwords import flag_meaning
from txlog.cli.options import Call, Globals
from txlog.errors import Usage

GLOBAL_FLAGS: Final = {
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
    "lock_timeout": (("--lock-timeout",), "DUR", "wait so long for the lock (30s)"),
    "now": (("--now",), "TIME", "the clocks of this process stand still [env: TXLOG_NOW]"),
    "version": (("--version", "-V"), None, "the version"),
}
_OPTION: Final = type(Option())  # Typer gives the class no public name


class Command:
    """One command of the table: a function and what help and `-f help` say of it.

    fields:  names of its JSON, in order; those before `|` are the default table
    records: it prints messages, not rows
    input_format: -f and --format belong to the command itself
    dry_run: it can be rehearsed: --dry-run, and `dry_run` in its result
    times:   an argument is a TIME, so that a word as -3m is none of its flags
    """

    def __init__(
        self,
        path: str,
        function: Callable[..., None],
        *,
        examples: tuple[str, ...] = (),
        fields: str = "",
        records: bool = False,
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
        self.changes = changes
        self.input_format = input_format
        self.dry_run = dry_run
        self.times = times

    def invoke(self, args: list[str], report: Report) -> int:
        """Parse args, run the command, close what it opened; return the exit code."""
        outcome: list[int] = []

        def shim(**values: Any) -> None:
            flags = Globals(**{name: values.pop(name, None) for name in Globals.__annotations__})
            dry_run = values.pop("dry_run") if self.dry_run else False
            if self.times:
                values = {name: as_given(value) for name, value in values.items()}
            call = Call(self, flags, report, dry_run=dry_run)
            outcome.append(call.run(values))

        full = "--help" in args
        shim.__signature__ = self._signature(full, full or "-h" in args)  # type: ignore[attr-defined]
        app = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        app.command(help=self._help(), context_settings=settings)(shim)
        if self.times:
            args = hidden_times(args)
        answer = app(args, standalone_mode=False, prog_name=f"txlog {self.path}")
        if outcome:
            return outcome[0]
        return answer if isinstance(answer, int) else 0

    def _help(self) -> str:
        text = inspect.getdoc(self.function) or ""
        if not self.examples:
            return text
        lines = "\n".join(f"  {example}" for example in self.examples)
        return f"\b\n{lines}\n\n{text}"

    def _signature(self, with_globals: bool, with_words: bool) -> inspect.Signature:
        hints = typing.get_type_hints(self.function, include_extras=True)
        own = list(inspect.signature(self.function).parameters.values())[1:]
        if with_words:
            hints = {name: _told(self.path, hint) for name, hint in hints.items()}
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [p.replace(kind=keyword, annotation=hints[p.name]) for p in own]
        if self.dry_run:
            rehearsed = Annotated[
                bool, Option("--dry-run", help="say what would be done, change nothing")
            ]
            parameters.append(
                inspect.Parameter("dry_run", keyword, default=False, annotation=rehearsed)
            )
        for name, (decls, metavar, text) in GLOBAL_FLAGS.items():
            if name == "format" and self.input_format:
                continue
            kind, default = _kind(name)
            option = Option(
                *decls,
                metavar=metavar,
                help=text,
                hidden=not (with_globals or name in ("store", "format", "json")),
                show_default=False,
                count=name in ("quiet", "verbose"),
            )
            hint = Annotated[kind, option]  # type: ignore[valid-type]
            parameters.append(inspect.Parameter(name, keyword, default=default, annotation=hint))
        return inspect.Signature(parameters)


def declared(info: object) -> tuple[str, ...]:
    """The words of a flag, the first of them the longest form: --partition -p.

    info: as Option(…) made it; `--active/--no-active` is one declaration of two words
    """
    option: Any = info
    given = (option.default, *(option.param_decls or ()))
    words = [word for each in given if isinstance(each, str) for word in each.split("/")]
    return tuple(sorted(words, key=lambda word: not word.startswith("--")))


def is_option(info: object) -> bool:
    """Tell whether it is what Option(…) made."""
    return type(info) is _OPTION


def _told(path: str, hint: Any) -> Any:
    """The annotation of a parameter, with the common meaning where its command gives none."""
    given: Any = getattr(hint, "__metadata__", (None,))[0]
    if not is_option(given) or given.help:
        return hint
    info = copy.copy(given)
    info.help = flag_meaning(path, declared(info)[0])
    return Annotated[hint.__origin__, info]


def _kind(name: str) -> tuple[object, object]:
    if name in ("quiet", "verbose"):
        return int, 0
    if GLOBAL_FLAGS[name][1] is None:
        return bool, False
    return str | None, None


def command(
    path: str,
    *,
    examples: tuple[str, ...] = (),
    fields: str = "",
    records: bool = False,
    changes: bool = False,
    input_format: bool = False,
    dry_run: bool = False,
    times: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function."""

    def wrap(function: Callable[..., None]) -> Command:
        return Command(
            path,
            function,
            examples=examples,
            fields=fields,
            records=records,
            changes=changes,
            input_format=input_format,
            dry_run=dry_run,
            times=times,
        )

    return wrap


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
