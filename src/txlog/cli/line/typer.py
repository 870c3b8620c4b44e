"""Owns the commands over Typer: -h, and every command line that the plain parser gives up on.

Each run makes an app of one command, so the other commands are not loaded. Typer is used only
here, and only by its public names. This module converts Typer's exceptions to our errors.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from txlog.base.suggest import command_line
from txlog.cli.line import usage as usage_page
from txlog.cli.line.command import (
    COUNTED,
    GLOBAL_FLAGS,
    REHEARSAL,
    Argument,
    Command,
    Option,
    as_told,
)
from txlog.cli.line.parameters import line_of, parameters_of
from txlog.cli.output.output import Stdout, stdout_is_terminal
from txlog.cli.terminal.say import is_colored
from txlog.cli.terminal.tables import columns_of
from txlog.errors import TxlogError, Usage

Take = Callable[[dict[str, Any]], int]
_MESSAGE_CHARS: Final = 200
_COLUMNS: Final = 80  # of help that no terminal shows
_MISSING: Final = re.compile(r"[Mm]issing option '([^' ]+)'")
_HINT_WORDS: Final = 12  # a longer line is no help
_HELP: Final = "shows_help"  # the name of the parameter of -h


def invoke(command: Command, args: list[str], take: Take) -> int:
    """Parse args and call `take` with the values; return its exit code, or 0 for help.

    raises: Usage (201)
    """
    outcome: list[int] = []

    def shim(**values: Any) -> None:
        values.pop(_HELP)
        outcome.append(take(values))

    def show_help(value: bool) -> None:
        if value:
            _print_help(command, args)
            raise typer.Exit

    shim.__signature__ = _signature(command, show_help)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(add_help_option=False)(shim)
    try:
        answer = app(args, standalone_mode=False, prog_name=f"txlog {command.path}")
    except typer.TyperException as error:
        raise usage(error, command, args) from error
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    if outcome:
        return outcome[0]
    return answer if isinstance(answer, int) else 0


def usage(error: typer.TyperException, command: Command, args: Sequence[str] = ()) -> Usage:
    """Convert Typer's error to ours; args: the user's words after the command."""
    flag = getattr(error, "option_name", None)
    if flag is not None and hasattr(error, "possibilities"):  # an unknown flag, not a missing value
        flags = {
            name: each.help
            for each in parameters_of(command)
            if each.is_flag and not each.hidden
            for name in each.names
        }
        synonyms = importlib.import_module("txlog.cli.line.synonyms")
        hint = (
            synonyms.flag_hint(flag, flags, command.path)
            or f"txlog {command.path} -h lists the flags"
        )
        return Usage(f"no such option: {flag[:_MESSAGE_CHARS]}", hint=hint)
    message = as_told(error.format_message()).strip().rstrip(".")
    if len(message) > _MESSAGE_CHARS:  # a word of the line can be very long
        message = f"{message[: _MESSAGE_CHARS - 60]}…{message[-59:]}"
    return Usage(message[:1].lower() + message[1:], hint=_hint(message, command, args))


def _hint(message: str, command: Command, args: Sequence[str]) -> str | None:
    """The line that would work, for a missing or a surplus word."""
    words = [as_told(word) for word in args]
    if "unexpected extra argument" in message:
        parameters = parameters_of(command)
        names = {name for each in parameters for name in each.names}
        word = message.rpartition("(")[2].rstrip(")").split(" ")[0]
        if "--topic" not in names or " " not in command.path:
            return f"it is: {line_of(command)}"
        metavar = next((each.metavar for each in parameters if not each.is_flag), None)
        line = f"-t {word}" if metavar in (None, "[-]") else f"{line_of(command)} -t TOPIC"
        return f"the topic is a flag: {line}"
    missing = _MISSING.match(message)
    if missing is None and "missing argument" not in message.lower():
        return None
    return _completed(command, words, missing[1] if missing else "")


def _completed(command: Command, words: Sequence[str], flag: str) -> str | None:
    """The typed line, with placeholders for the words that it lacks.

    If only the flag before the last word is missing, the flag is inserted there.
    """
    parameters = parameters_of(command)
    arguments = sum(not each.is_flag for each in parameters)
    needed = sum(each.is_flag and each.required for each in parameters)
    has_flags = any(word.startswith("-") for word in words)
    is_one_short = len(words) == arguments + 1 and needed == 1 and not has_flags
    if flag and is_one_short and _takes(command, flag, words[-1]):
        return command_line(command.path, *words[:-1], flag, words[-1])
    forms = importlib.import_module("txlog.cli.line.forms")
    typed = forms.words_of(command.path, parameters, words)
    if typed is None or len(words) > _HINT_WORDS:
        return None
    return line_of(command, typed.arguments, typed.flags)


def _takes(command: Command, flag: str, word: str) -> bool:
    """Whether a word can be the value of a flag."""
    options = (hint.__metadata__[0] for hint in command.hints.values())
    option = next(each for each in options if isinstance(each, Option) and flag in each.words)
    try:
        if option.reads is not None:
            option.reads(word)
        if option.reads_now is not None:
            option.reads_now(word, 0)
    except TxlogError:
        return False
    return True


def _print_help(command: Command, args: list[str]) -> None:
    """Print the help; a flag before or after -h may choose the colours."""
    out = Stdout()
    terminal = stdout_is_terminal()
    choice = next(
        (word for word in ("always", "never") if f"--color={word}" in args or word in args), "auto"
    )
    color = is_colored("never" if "--no-color" in args else choice, terminal, os.environ)
    columns = columns_of(1, os.environ) if terminal else _COLUMNS
    page = usage_page.text(command, full="--help" in args, columns=columns, color=color)
    out.write(page.encode(), is_drawn=True)
    out.flush()


def _signature(command: Command, show_help: Callable[[bool], None]) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    defaults = command.defaults
    parameters = [
        inspect.Parameter(
            name,
            keyword,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=_typers(hint),
        )
        for name, hint in command.hints.items()
    ]
    if command.dry_run:
        rehearsed = Annotated[bool, typer.Option(REHEARSAL[0])]
        parameters.append(
            inspect.Parameter("dry_run", keyword, default=False, annotation=rehearsed)
        )
    for name, (spellings, _, _) in GLOBAL_FLAGS.items():
        if name == "format" and command.input_format:
            continue
        kind, default = _kind(name)
        option = typer.Option(*spellings, count=name in COUNTED)
        hint = Annotated[kind, option]  # type: ignore[valid-type]
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=hint))
    helping = typer.Option("-h", "--help", is_eager=True, callback=show_help)
    parameters.append(
        inspect.Parameter(_HELP, keyword, default=False, annotation=Annotated[bool, helping])
    )
    return inspect.Signature(parameters)


def _typers(hint: Any) -> Any:
    """The hint with Typer's own Option or Argument; `usage` has what people read."""
    kind, declaration = hint.__origin__, hint.__metadata__[0]
    if not isinstance(declaration, Option):
        assert isinstance(declaration, Argument)
        return Annotated[kind, typer.Argument(metavar=declaration.metavar)]
    option = typer.Option(
        *declaration.words,
        metavar=declaration.metavar,
        min=declaration.min,
        max=declaration.max,
    )
    return Annotated[kind, option]


def _kind(name: str) -> tuple[object, object]:
    if name in COUNTED:
        return int, 0
    if GLOBAL_FLAGS[name][1] is None:
        return bool, False
    return str | None, None
