"""Owns the command `help`: topics, errors by their code, and the help of commands."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call, show_text
from txlog.cli.help import topics
from txlog.cli.line import catalogue, dispatch
from txlog.cli.line.command import Argument, command
from txlog.errors import NotFound, Usage


@command(
    "help",
    "topics, errors by their code, commands",
    examples=("txlog help", "txlog help offsets", "txlog help TXL-403", "txlog help txn begin"),
)
def help_(
    call: Call,
    topic: Annotated[list[str] | None, Argument(metavar="TOPIC", show_default=False)] = None,
) -> None:
    """Explain a topic, an error or a command; without TOPIC list the topics.

    An error is named by its code, TXL-403 or 403. Its page has the cause, the remedy and an
    example.
    """
    topic_words = topic or []
    if not topic_words:
        show_text(call, topics.overview())
        return
    path = _command(topic_words)
    if path is None or path in topics.TOPICS:
        show_text(call, topics.shown(topics.topic(" ".join(topic_words)), call.output.look))
    elif path in catalogue.NOUNS:
        show_text(call, catalogue.noun_help(path))
    else:
        dispatch.invoke(dispatch.load(path), ["--help"], call.report)


def _command(topic_words: list[str]) -> str | None:
    """The command or noun that all words together name; None: they name none, or a topic."""
    if " ".join(topic_words) in topics.TOPICS:
        return None
    try:
        topic_words = [word for word in catalogue.expanded(topic_words) if word[:1] != "-"]
        if not topic_words:
            return None
        path, used = catalogue.resolve(topic_words)
    except Usage as error:
        if len(topic_words) > 1:
            raise NotFound(error.message, hint=error.hint) from error
        return None
    return path if used == len(topic_words) else None
