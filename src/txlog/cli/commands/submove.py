"""Owns the commands that move a subscription, or end it: seek, skip, clear-backlog, expire, delete.

Each shows its plan and asks before it acts; the plan is the same decision, not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from txlog.cli.call.ask import confirm
from txlog.cli.call.call import Call
from txlog.cli.call.targets import each_target
from txlog.cli.commands.sub import topic_of
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted
from txlog.errors import Usage
from txlog.ids import check_name
from txlog.ranges import parse_bound

if TYPE_CHECKING:
    from txlog.api.topics.subscription import SubscriptionHandle

Answer = Mapping[str, Any]
Sub = Annotated[str, Argument(metavar="SUB", show_default=False)]
Topic = Annotated[str | None, Option("--topic", "-t", metavar="T")]


@command(
    "sub seek",
    examples=(
        "txlog sub seek billing --to @-1h",
        "txlog sub seek billing --to start --yes",
        "txlog sub seek billing --to 17:25 --dry-run",
    ),
    fields="topic subscription redeliver skip partition_list",
    changes=True,
    dry_run=True,
)
def seek(
    call: Call,
    subscription: Sub,
    to: Annotated[str, Option("--to", metavar="BOUND", help="what comes next", show_default=False)],
    topic: Topic = None,
    force: Annotated[
        bool, Option("--force", help="abort transactions that hold acknowledgements")
    ] = False,
) -> None:
    """Move a subscription: all before is acknowledged, nothing from there on."""
    bound = parse_bound(to, call.now_ms())
    handle = handle_of(call, subscription, topic)
    answer = plan = handle.seek(bound, force=force, dry_run=not call.dry_run)
    shown = [
        f"{handle.name} on {handle.short}/{row['partition']}: {row['from']} → {row['to']}, "
        f"{_effect(row)}"
        for row in plan["partition_list"]
    ]
    if plan["aborted_list"]:
        shown.append(f"aborts {', '.join(map(str, plan['aborted_list']))}")
    if call.dry_run:
        call.summary("; ".join(shown))
    else:
        confirm(call, "\n".join(shown))
        answer = handle.seek(bound, force=force)
        moved = [
            row for row in answer["partition_list"]
            if row["from"] != row["to"] or row["redeliver"] or row["skip"]
        ]  # fmt: skip
        call.summary(f"{handle.name} moved" if moved else f"{handle.name} stands there already")
        for row in moved:
            call.summary(f"undo: txlog sub seek {handle.name} -t {handle.short} --to {row['from']}")
    call.output.result(answer)


def _effect(row: Answer) -> str:
    parts = []
    if row["redeliver"]:
        parts.append(f"{_messages(row['redeliver'])} {_verb(row['redeliver'], 'come')} again")
    if row["skip"]:
        parts.append(f"{_messages(row['skip'])} {'is' if row['skip'] == 1 else 'are'} skipped")
    return " and ".join(parts) or "no message comes again or is skipped"


@command(
    "sub skip",
    examples=(
        "txlog sub skip billing -n 1",
        "txlog sub skip billing --older-than 7d --yes",
        "txlog sub skip billing --all --dry-run",
    ),
    fields="topic subscription skipped",
    changes=True,
    dry_run=True,
)
def skip(
    call: Call,
    subscription: Sub,
    topic: Topic = None,
    count: Annotated[
        int | None, Option("-n", metavar="N", help="the next N of each partition")
    ] = None,
    every: Annotated[bool, Option("--all", help="the whole backlog")] = False,
    older_than: Annotated[str | None, Option("--older-than", metavar="DUR")] = None,
) -> None:
    """Acknowledge what comes next; what a transaction holds stays with it."""
    older_ms = call.duration(older_than)
    if (count is not None) + every + (older_ms is not None) != 1:
        raise Usage("say what to skip: -n N, --all or --older-than DUR")
    handle = handle_of(call, subscription, topic)
    _skip(
        call, handle,
        lambda dry_run: handle.skip(count, all=every, older_than_ms=older_ms, dry_run=dry_run),
    )  # fmt: skip


@command(
    "sub clear-backlog",
    examples=("txlog sub clear-backlog billing", "txlog sub clear-backlog billing --yes --json"),
    fields="topic subscription skipped",
    changes=True,
    dry_run=True,
)
def clear_backlog(call: Call, subscription: Sub, topic: Topic = None) -> None:
    """Acknowledge everything that no transaction holds: sub skip --all."""
    handle = handle_of(call, subscription, topic)
    _skip(call, handle, lambda dry_run: handle.clear_backlog(dry_run=dry_run))


@command(
    "sub expire",
    examples=("txlog sub expire billing --older-than 7d", "txlog sub expire billing --dry-run"),
    fields="topic subscription skipped",
    changes=True,
    dry_run=True,
)
def expire(
    call: Call,
    subscription: Sub,
    topic: Topic = None,
    older_than: Annotated[
        str | None, Option("--older-than", metavar="DUR", help="else the topic's time to live")
    ] = None,
) -> None:
    """Acknowledge what is too old: sub skip --older-than."""
    older_ms = call.duration(older_than)
    handle = handle_of(call, subscription, topic)
    _skip(call, handle, lambda dry_run: handle.expire(older_ms, dry_run=dry_run))


def _skip(call: Call, handle: SubscriptionHandle, act: Callable[[bool], dict[str, Any]]) -> None:
    answer = act(not call.dry_run)
    where = f"{handle.name} on {handle.short}"
    if answer["skipped"] and not call.dry_run:
        confirm(call, f"skip {_messages(answer['skipped'])} of {where}")
        answer = act(False)
    skipped = answer["skipped"]
    did = f"skipped {_messages(skipped)}" if skipped else "nothing to skip"
    call.summary(f"{did} of {where}")
    call.output.result(answer)


@command(
    "sub delete",
    examples=("txlog sub delete billing", "txlog sub delete billing audit -t orders --yes"),
    fields="topic subscription backlog deleted",
    changes=True,
    dry_run=True,
)
def delete(
    call: Call,
    names: Annotated[list[str], Argument(metavar="SUB", show_default=False)],
    topic: Topic = None,
    force: Annotated[bool, Option("--force", help="also while a consumer lives")] = False,
) -> None:
    """Delete subscriptions, with what they acknowledged and what is pending on them."""

    def one(name: str) -> None:
        handle = handle_of(call, name, topic)
        answer = plan = handle.delete(force=force, dry_run=not call.dry_run)
        backlog = _messages(plan["backlog"])
        where = f"{handle.name} on {handle.short}, {backlog} not acknowledged"
        if not call.dry_run:
            confirm(call, f"delete subscription {where}")
            answer = handle.delete(force=force)
        call.summary(f"deleted subscription {where}")
        call.output.result(answer)

    each_target(names, one)


def handle_of(call: Call, subscription: str, topic: str | None) -> SubscriptionHandle:
    """The handle of a subscription; its topic is found when one topic has it.

    raises: SubscriptionNotFound, InvalidArgument (205)
    """
    check_name("subscription", subscription)
    client = call.client(write=True)
    return client.subscription(topic or topic_of(client, subscription), subscription)


def _messages(count: int) -> str:
    return counted(count, "message")


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb
