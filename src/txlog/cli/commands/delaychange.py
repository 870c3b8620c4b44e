"""Owns the commands that decide over delayed messages: promote, cancel.

Each shows its plan and asks before it acts; the plan is the same decision, not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from txlog.cli.call.ask import confirm
from txlog.cli.call.call import Call
from txlog.cli.call.targets import words_or_stdin
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted
from txlog.errors import InvalidArgument, Usage
from txlog.ids import MessageId, check_name
from txlog.ranges import format_time, parse_time

if TYPE_CHECKING:
    from txlog.api.topics.topic import TopicHandle

Answer = Mapping[str, Any]
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]
Ids = Annotated[list[str] | None, Argument(metavar="ID")]
Before = Annotated[str | None, Option("--before", metavar="TIME", help="those due before it")]
Every = Annotated[bool, Option("--all", help="whatever is delayed")]


@command(
    "delay promote",
    examples=(
        "txlog delay promote orders 17:4",
        "txlog delay promote orders --before +1h -s billing --yes",
        "txlog delay promote orders --all --dry-run",
    ),
    fields="topic subscription promoted not_delayed",
    changes=True,
    dry_run=True,
)
def promote(
    call: Call,
    topic: Topic,
    ids: Ids = None,
    before: Before = None,
    every: Every = False,
    subscription: Annotated[
        str | None,
        Option("--subscription", "-s", metavar="SUB", help="else all shared and key-shared ones"),
    ] = None,
) -> None:
    """Deliver delayed messages now; later ones still wait."""
    _change(call, topic, ids, before, every, subscription, "promote")


@command(
    "delay cancel",
    examples=(
        "txlog delay cancel orders 17:4 17:9:2",
        "txlog delay cancel orders --all -s billing --yes",
        "txlog delay cancel orders --before 2027-01-01 --dry-run",
    ),
    fields="topic subscription cancelled not_delayed",
    changes=True,
    dry_run=True,
)
def cancel(
    call: Call,
    topic: Topic,
    ids: Ids = None,
    before: Before = None,
    every: Every = False,
    subscription: Annotated[
        str | None, Option("--subscription", "-s", metavar="SUB", help="else all there are")
    ] = None,
) -> None:
    """Acknowledge delayed messages before they are due, so that they never come."""
    _change(call, topic, ids, before, every, subscription, "cancel")


_DONE = {"promote": "promoted", "cancel": "cancelled"}


def _change(
    call: Call, topic: str, ids: list[str] | None, before: str | None, every: bool,
    subscription: str | None, verb: str,
) -> None:  # fmt: skip
    if bool(ids) + (before is not None) + every != 1:
        raise Usage(f"say what to {verb}: ID…, --before TIME or --all")
    if subscription is not None:
        check_name("subscription", subscription)
    before_ms = None if before is None else parse_time(before, call.now_ms())
    wanted = _parsed(ids) if ids else None
    handle = call.client(write=True).topic(topic)
    act = _action(handle, verb)

    def ask(dry_run: bool) -> Answer:
        return act(wanted, before=before_ms, all=every, subscription=subscription, dry_run=dry_run)

    done = _DONE[verb]
    answer = ask(not call.dry_run)
    where = handle.short if subscription is None else f"{handle.short} for {subscription}"
    if answer[done] and not call.dry_run:
        confirm(call, f"{verb} {_amount(answer, done)} of {where}")
        answer = ask(False)
    ignored = answer["not_delayed"]
    beside = f", {counted(ignored, 'message')} not delayed" if ignored else ""
    did = f"{done} {_amount(answer, done)}" if answer[done] else f"nothing to {verb}"
    call.summary(f"{did} of {where}{beside}")
    call.output.result(answer)


def _action(handle: TopicHandle, verb: str) -> Callable[..., Answer]:
    return handle.promote if verb == "promote" else handle.cancel


def _parsed(ids: list[str]) -> list[MessageId]:
    parsed = [MessageId.parse(word) for word in words_or_stdin(ids)]
    if not parsed:
        raise InvalidArgument("no message id was given", code=203)
    return parsed


def _amount(answer: Answer, done: str) -> str:
    """So many messages, with the first and the last of their times."""
    first, last = answer["first_at"], answer["last_at"]
    if first == last:
        return f"{counted(answer[done], 'message')} due {format_time(first)}"
    return f"{counted(answer[done], 'message')} due {format_time(first)} to {format_time(last)}"
