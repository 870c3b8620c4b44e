"""Owns the commands about messages in consumers' hands: nack, redeliver."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.targets import words_or_stdin
from txlog.cli.commands.submove import Sub, Topic, handle_of
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted
from txlog.errors import InvalidArgument, Usage
from txlog.ids import MessageId


@command(
    "sub nack",
    examples=("txlog sub nack billing 17:4", "txlog sub nack billing 17:4 17:9 --delay 30s"),
    fields="topic subscription nacked ignored",
    changes=True,
    dry_run=True,
)
def nack(
    call: Call,
    subscription: Sub,
    ids: Annotated[list[str], Argument(metavar="ID", show_default=False)],
    topic: Topic = None,
    delay: Annotated[str, Option("--delay", metavar="DUR", help="not before")] = "0ms",
) -> None:
    """Let messages that a consumer has in hand come again; others are ignored."""
    wanted = _parsed(ids)
    delay_ms = call.duration(delay)
    answer = handle_of(call, subscription, topic).negative_acknowledge(wanted, delay_ms)
    ignored = f", {answer['ignored']} in nobody's hand" if answer["ignored"] else ""
    call.summary(f"returned {counted(answer['nacked'], 'message')} of {subscription}{ignored}")
    call.output.result(answer)


@command(
    "sub redeliver",
    examples=("txlog sub redeliver billing 17:4", "txlog sub redeliver billing --all"),
    fields="topic subscription redelivered",
    changes=True,
    dry_run=True,
)
def redeliver(
    call: Call,
    subscription: Sub,
    ids: Annotated[list[str] | None, Argument(metavar="ID")] = None,
    topic: Topic = None,
    every: Annotated[bool, Option("--all", help="whatever consumers have in hand")] = False,
) -> None:
    """Let messages in hand come again at once, whoever has them."""
    if bool(ids) == every:
        raise Usage("say what comes again: ID… or --all")
    wanted = None if every else _parsed(ids or [])
    answer = handle_of(call, subscription, topic).redeliver(wanted)
    call.summary(f"{counted(answer['redelivered'], 'message')} of {subscription} come again")
    call.output.result(answer)


def _parsed(ids: list[str]) -> list[MessageId]:
    parsed = [MessageId.parse(word) for word in words_or_stdin(ids)]
    if not parsed:
        raise InvalidArgument("no message id was given", code=203)
    return parsed
