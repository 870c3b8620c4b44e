"""Owns the commands over Typer: help, and every command line that the plain parser gives up on.

Each run makes an app of one command, so the other commands are not loaded. Typer is used only
here, and only by its public names. This module converts Typer's exceptions to our errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from txlog.cli.line.command import (
    COUNTED,
    GLOBAL_FLAGS,
    REHEARSAL,
    Argument,
    Command,
    Option,
    as_told,
    declared,
)
from txlog.cli.line.parameters import flag_meaning, parameters_of
from txlog.cli.line.synonyms import flag_hint
from txlog.errors import Usage

Take = Callable[[dict[str, Any]], int]
_MESSAGE_CHARS: Final = 200


def invoke(command: Command, args: list[str], take: Take) -> int:
    """Parse args and call `take` with the values; return its exit code, or 0 for help.

    raises: Usage (201)
    """
    outcome: list[int] = []

    def shim(**values: Any) -> None:
        outcome.append(take(values))

    full = "--help" in args
    shim.__signature__ = _signature(  # type: ignore[attr-defined]
        command, full, full or "-h" in args
    )
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    app.command(help=_help(command), context_settings=settings)(shim)
    try:
        answer = app(args, standalone_mode=False, prog_name=f"txlog {command.path}")
    except typer.TyperException as error:
        raise usage(error, command) from error
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    if outcome:
        return outcome[0]
    return answer if isinstance(answer, int) else 0


def usage(error: typer.TyperException, command: Command) -> Usage:
    """Convert Typer's error to ours."""
    flag = getattr(error, "option_name", None)  # only an unknown flag has it
    if flag is not None:
        flags = {
            name: each.help
            for each in parameters_of(command)
            if each.is_flag and not each.hidden
            for name in each.names
        }
        hint = flag_hint(flag, flags) or f"txlog {command.path} -h lists the flags"
        return Usage(f"no such option: {flag[:_MESSAGE_CHARS]}", hint=hint)
    message = as_told(error.format_message()).strip().rstrip(".")
    if len(message) > _MESSAGE_CHARS:  # a word of the line can be very long
        message = f"{message[: _MESSAGE_CHARS - 60]}…{message[-59:]}"
    return Usage(message[:1].lower() + message[1:])


def _help(command: Command) -> str:
    text = inspect.getdoc(command.function) or ""
    if not command.examples:
        return text
    lines = "\n".join(f"  {example}" for example in command.examples)
    return f"\b\n{lines}\n\n{text}"


def _signature(command: Command, with_globals: bool, with_words: bool) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    defaults = command.defaults
    parameters = [
        inspect.Parameter(
            name,
            keyword,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=_typers(command.path, hint, with_words),
        )
        for name, hint in command.hints.items()
    ]
    if command.dry_run:
        rehearsed = Annotated[bool, typer.Option(REHEARSAL[0], help=REHEARSAL[1])]
        parameters.append(
            inspect.Parameter("dry_run", keyword, default=False, annotation=rehearsed)
        )
    for name, (spellings, metavar, text) in GLOBAL_FLAGS.items():
        if name == "format" and command.input_format:
            continue
        kind, default = _kind(name)
        option = typer.Option(
            *spellings,
            metavar=metavar,
            help=text,
            hidden=not (with_globals or name in ("store", "format", "json")),
            show_default=False,
            count=name in COUNTED,
        )
        hint = Annotated[kind, option]  # type: ignore[valid-type]
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=hint))
    return inspect.Signature(parameters)


def _typers(path: str, hint: Any, with_words: bool) -> Any:
    """The hint with Typer's own Option or Argument; a flag without help gets its common meaning."""
    kind, declaration = hint.__origin__, hint.__metadata__[0]
    if not isinstance(declaration, Option):
        assert isinstance(declaration, Argument)
        return Annotated[
            kind,
            typer.Argument(
                metavar=declaration.metavar,
                help=declaration.help,
                show_default=declaration.show_default,
            ),
        ]
    text = declaration.help
    if with_words and not text:
        text = flag_meaning(path, declared(declaration)[0])
    option = typer.Option(
        *declaration.words,
        metavar=declaration.metavar,
        help=text,
        min=declaration.min,
        max=declaration.max,
        hidden=declaration.hidden,
        show_default=declaration.show_default,
    )
    return Annotated[kind, option]


def _kind(name: str) -> tuple[object, object]:
    if name in COUNTED:
        return int, 0
    if GLOBAL_FLAGS[name][1] is None:
        return bool, False
    return str | None, None
