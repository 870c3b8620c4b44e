"""Owns the command `help`: topics, errors by their code, and the help of commands."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.page import show_text
from txlog.cli.help import topics
from txlog.cli.line import catalogue, dispatch
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument
from txlog.errors import NotFound, Usage


@command(
    "help",
    examples=("txlog help", "txlog help offsets", "txlog help TXL-403", "txlog help txn begin"),
)
def help_(
    call: Call,
    topic: Annotated[list[str] | None, Argument(metavar="TOPIC", show_default=False)] = None,
) -> None:
    """Explain a topic, an error or a command; without TOPIC list the topics.

    An error is named by its code, TXL-403 or 403: what causes it, what to do, an example.
    """
    words = topic or []
    if not words:
        show_text(call, topics.overview())
        return
    path = _command(words)
    if path is None or path in topics.TOPICS:
        show_text(call, topics.shown(topics.topic(" ".join(words)), call.output.look))
    elif path in catalogue.NOUNS:
        show_text(call, catalogue.noun_help(path))
    else:
        dispatch.load(path).invoke(["--help"], call.report)


def _command(words: list[str]) -> str | None:
    """The command or noun that all of the words name; None if they do not, or name a topic."""
    if " ".join(words) in topics.TOPICS:
        return None
    try:
        path, used = catalogue.resolve(words)
    except Usage as error:
        if len(words) > 1:
            raise NotFound(error.message, hint=error.hint) from error
        return None
    return path if used == len(words) else None
