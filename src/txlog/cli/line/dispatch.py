"""Owns one run: leading global flags, the command after them, and its exit code.

Every way to end is handled here: our errors, Typer's usage errors, signals, a closed pipe, a bug.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from functools import partial
from typing import Any, Final, cast

from txlog import errors
from txlog.cli.call import version
from txlog.cli.call.call import Call, Globals, find_store, user_settings, with_flags
from txlog.cli.line import catalogue
from txlog.cli.line.command import (
    Command,
    as_given,
    check_numbers,
    hidden_times,
    parse,
    spelled_out,
)
from txlog.cli.output.output import PipeGone, Stdout, silence_stdout, stdout_is_terminal
from txlog.cli.terminal import say, signals

_OFFER: Final = "no store here yet: txlog demo --tour walks you through; txlog COMMAND -h: flags"


def run(args: list[str]) -> int:
    """Run one command line; return its exit code and raise nothing."""
    report = say.Report(json=False, store=None)
    _print_utf8()
    try:
        with signals.watched():
            code = _dispatch(args, report)
            _flush_printed(code)
            return code
    except signals.Interrupted as interrupted:
        return interrupted.exit
    except KeyboardInterrupt:
        return 130
    except (PipeGone, BrokenPipeError):
        silence_stdout()
        return 141
    except Exception as error:  # a bug is reported as an error, without a traceback
        if not isinstance(error, errors.TxlogError | OSError):
            # Python and libraries convert an interrupt into errors of their own.
            cause = error.__cause__
            exit_code = cause.exit if isinstance(cause, signals.Interrupted) else signals.asked()
            if exit_code is not None:
                return exit_code
        if isinstance(error, OSError):
            silence_stdout()
        return report.show(as_ours(error), error)


def _print_utf8() -> None:
    """Make `print` of libraries and user code write UTF-8 in any locale, as our own output does."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    change = getattr(sys.stdout, "reconfigure", None)
    if change is not None and encoding.lower() not in ("utf-8", "utf8"):
        change(encoding="utf-8", errors="surrogateescape")


def _flush_printed(code: int) -> None:
    """Write what `print` of a user's function buffered; if that fails, report no success.

    raises: BrokenPipeError; OutcomeUnknown (1001)
    """
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence_stdout()
        if code == 0:
            raise errors.OutcomeUnknown(
                f"done, but the printed text could not be written: {error.strerror}"
            ) from error


def as_ours(error: Exception) -> errors.TxlogError:
    """Convert any exception to a TxlogError; an unexpected one is a bug (101)."""
    if isinstance(error, errors.TxlogError):
        return error
    if errors.is_noted(error):
        return errors.OutcomeUnknown(f"{type(error).__name__}: {error}; {errors.IN_DOUBT}")
    # wording of the dynamic loader
    no_room = ("failed to map segment", "annot allocate memory")
    if isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and any(phrase in str(error) for phrase in no_room)
    ):
        return errors.NoResources("out of memory")
    if isinstance(error, OSError):
        text = error.strerror or str(error) or type(error).__name__
        if error.filename is None:
            return errors.DiskFailed(text)
        path = os.fsdecode(error.filename)
        return errors.DiskFailed(f"{path}: {text}", path=path)
    text = errors.printable(f"{type(error).__name__}: {error}")
    excerpt = text if len(text) <= 300 else f"{text[:297]}..."
    return errors.InternalError(
        f"a bug of txlog: {excerpt}", hint="TXLOG_DEBUG=1 shows where; please report it"
    )


def _dispatch(args: list[str], report: say.Report) -> int:
    report.json = catalogue.says_json(args)
    report.edit = partial(with_flags, flags=_of_store(args), commands=catalogue.FIRST_WORDS)
    line = catalogue.split(args)
    if line.rest == []:
        if line.version:
            _print_version(line.json)
        else:
            _print_text(_in_color(_root_help(newcomer=not args), args))
        return 0
    report.json = catalogue.wants_json("", line.leading) or line.json
    line.rest = catalogue.expanded(line.rest)
    if line.rest == ["--version"]:
        _print_version(line.json)
        return 0
    path, used = catalogue.resolve(line.rest)
    while path in catalogue.NOUNS and len(line.rest) > used:  # flags between noun and verb
        line = catalogue.split_on(line, used)
        report.json = report.json or line.json
        line.rest = catalogue.expanded(line.rest)
        path, used = catalogue.resolve(line.rest)
    if path in catalogue.NOUNS:
        text = _in_color(catalogue.noun_help(path), args)
        if line.help or "-h" in line.rest or "--help" in line.rest:
            _print_text(text)
            return 0
        say.say(text)
        return 2
    report.json = line.json or catalogue.wants_json(path, [*line.leading, *line.rest[used:]])
    if path == "check":
        report.always = 3
    return invoke(load(path), [*line.leading, *line.rest[used:]], report)


def _of_store(args: list[str]) -> list[tuple[str, str]]:
    """The flags of a line that choose the store, for hints about a line that is wrong."""
    given = []
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name in ("-S", "--store", "--profile"):
            value = value if equals else "".join(args[at + 1 : at + 2])
            given.append(("--profile" if name == "--profile" else "-S", value))
    return given


def _root_help(*, newcomer: bool) -> str:
    """The root help; where there is no store, its last line offers a newcomer the tour."""
    page = catalogue.root_help()
    if newcomer:
        try:
            find_store(Globals(), user_settings(None))
        except errors.TxlogError:
            *lines, _ = page.splitlines()
            return "\n".join([*lines, f"{_OFFER}\n"])
    return page


def load(path: str) -> Command:
    """Return the command, importing its module only now."""
    entry = catalogue.COMMANDS[path]
    module = importlib.import_module(f"txlog.cli.{entry.module}")
    return cast(Command, getattr(module, entry.name))


def invoke(command: Command, args: list[str], report: say.Report) -> int:
    """Parse args, run the command and close its store; return the exit code.

    raises: Usage (201), and the errors of the command
    """

    def take(values: dict[str, Any]) -> int:
        flags = Globals(**{name: values.pop(name, None) for name in Globals.__annotations__})
        dry_run = values.pop("dry_run") if command.dry_run else False
        check_numbers(values)
        if command.times:
            values = {name: as_given(value) for name, value in values.items()}
        try:
            call = Call(command, flags, report, dry_run=dry_run, commands=catalogue.FIRST_WORDS)
            return call.run(values)
        except (errors.TopicNotFound, errors.SubscriptionNotFound) as error:
            _spare(command, error)
            raise

    args = spelled_out(command, args)
    values = parse(command, hidden_times(args) if command.times else args)
    if values is None:
        forms = importlib.import_module("txlog.cli.line.forms")
        args = spelled_out(command, forms.converted(command, args) or args)
    if command.times:
        args = hidden_times(args)
    values = values or parse(command, args)
    if values is not None:
        return take(values)
    answer: int = importlib.import_module("txlog.cli.line.typer").invoke(command, args, take)
    return answer


def _spare(command: Command, error: errors.TxlogError) -> None:
    """Do not offer to create what a command would delete or move, or a topic for dead letters."""
    spares = command.level > 1 or command.path.startswith(("dlq ", "topic rename"))
    if spares and (error.hint or "").startswith("create it: "):
        noun = "topic" if isinstance(error, errors.TopicNotFound) else "sub"
        list_command = command.path if command.path == "dlq list" else f"{noun} list"
        error.hint = f"txlog {list_command} shows those that exist"


def _print_text(text: str) -> None:
    out = Stdout()
    out.write(text.encode(), is_drawn=True)
    out.flush()


def _in_color(page: str, args: list[str]) -> str:
    """The page with the words that begin its lines in colour, if the terminal has colours."""
    if "never" in args or "--no-color" in args or "--color=never" in args:
        return page
    if not say.is_colored("auto", stdout_is_terminal(), os.environ):
        return page
    return re.sub(r"(?m)^  ((?:txlog )?[a-z][\w -]*?)(?=  |$)", "  \x1b[36m\\1\x1b[0m", page)


def _print_version(as_json: bool) -> None:
    _print_text(version.as_json() if as_json else version.as_text())
