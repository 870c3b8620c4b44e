"""Owns the commands that take a partition away and bring it back: admin offline, admin online."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument, Option

from txlog.cli.command import command
from txlog.cli.options import Call
from txlog.cli.tables import counted

_FIELDS = "topic partition online changed finished_list dry_run"


@command(
    "admin offline",
    examples=("txlog admin offline orders/2", "txlog admin offline orders/2 --dry-run --json"),
    fields=_FIELDS,
    changes=True,
)
def offline(
    call: Call,
    target: Annotated[str, Argument(metavar="TOPIC/P", show_default=False)],
    dry_run: Annotated[bool, Option("--dry-run", help="only say what it would do")] = False,
) -> None:
    """Take a partition away: calls that need it end with 5, ends of transactions wait for it."""
    client = call.client(write=not dry_run)
    answer = client.admin.set_offline(target, dry_run=dry_run)
    _say(call, answer, dry_run)
    if answer["changed"] and not dry_run:
        call.summary(f"undo: txlog admin online {answer['topic']}/{answer['partition']}")
    call.output.result({**answer, "dry_run": dry_run})


@command(
    "admin online",
    examples=("txlog admin online orders/2",),
    fields=_FIELDS,
    changes=True,
)
def online(
    call: Call,
    target: Annotated[str, Argument(metavar="TOPIC/P", show_default=False)],
    dry_run: Annotated[bool, Option("--dry-run", help="only say what it would do")] = False,
) -> None:
    """Check the files of a partition and bring it back, with all that waited for it."""
    answer = call.client(write=not dry_run).admin.set_online(target, dry_run=dry_run)
    _say(call, answer, dry_run)
    call.output.result({**answer, "dry_run": dry_run})


def _say(call: Call, answer: Mapping[str, Any], dry_run: bool) -> None:
    state = "online" if answer["online"] else "offline"
    how = "" if answer["changed"] else " already"
    if dry_run and answer["changed"]:
        how = ", if this were not a dry run"
    text = f"{answer['topic']}/{answer['partition']} is {state}{how}"
    if answer["finished_list"]:
        text += f"; {counted(len(answer['finished_list']), 'transaction')} finished"
    call.summary(text)
