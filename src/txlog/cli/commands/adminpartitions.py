"""Owns the commands that take a partition away and bring it back: admin offline, admin online."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from txlog.cli.call.call import Call
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument
from txlog.cli.terminal.tables import counted

_FIELDS = "topic partition online changed finished_list"


@command(
    "admin offline",
    examples=("txlog admin offline orders/2", "txlog admin offline orders/2 --dry-run --json"),
    fields=_FIELDS,
    changes=True,
    dry_run=True,
)
def offline(
    call: Call,
    target: Annotated[str, Argument(metavar="TOPIC/P", show_default=False)],
) -> None:
    """Take a partition away: calls that need it end with 5, ends of transactions wait for it."""
    client = call.client(write=True)
    answer = client.admin.set_offline(target)
    _say(call, answer)
    if answer["changed"] and not call.dry_run:
        call.summary(f"undo: txlog admin online {answer['topic']}/{answer['partition']}")
    call.output.result(answer)


@command(
    "admin online",
    examples=("txlog admin online orders/2", "txlog admin online orders/2 --json"),
    fields=_FIELDS,
    changes=True,
    dry_run=True,
)
def online(
    call: Call,
    target: Annotated[str, Argument(metavar="TOPIC/P", show_default=False)],
) -> None:
    """Check the files of a partition and bring it back, with all that waited for it."""
    answer = call.client(write=True).admin.set_online(target)
    _say(call, answer)
    call.output.result(answer)


def _say(call: Call, answer: Mapping[str, Any]) -> None:
    state = "online" if answer["online"] else "offline"
    how = "" if answer["changed"] else " already"
    text = f"{answer['topic']}/{answer['partition']} is {state}{how}"
    if answer["finished_list"]:
        text += f"; {counted(len(answer['finished_list']), 'transaction')} finished"
    call.summary(text)
