"""Owns the commands that change and delete topics: topic update, topic delete."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.ask import confirm
from txlog.cli.call.call import Call
from txlog.cli.call.targets import each_target
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted, size
from txlog.errors import Usage
from txlog.ranges import parse_duration, parse_size

OFF = "off"


@command(
    "topic update",
    examples=(
        "txlog topic update orders --partitions 8",
        "txlog topic update orders --ttl 7d --retention off",
    ),
    fields="topic partitions policies changed",
    changes=True,
    dry_run=True,
)
def update(
    call: Call,
    name: Annotated[str, Argument(metavar="NAME", show_default=False)],
    partitions: Annotated[int | None, Option("--partitions", metavar="N", help="only more")] = None,
    retention: Annotated[
        str | None, Option("--retention", metavar="DUR|off", help="how long messages are kept")
    ] = None,
    retention_bytes: Annotated[
        str | None, Option("--retention-bytes", metavar="SIZE|off", help="how much is kept")
    ] = None,
    ttl: Annotated[
        str | None, Option("--ttl", metavar="DUR|off", help="older ones are acknowledged")
    ] = None,
) -> None:
    """Give a topic more partitions, or other policies; open producers and consumers follow.

    A key goes to crc32(key) mod partitions: with more partitions most keys move.
    """
    policies: dict[str, int | None] = {}
    for policy, text in (("retention_ms", retention), ("ttl_ms", ttl)):
        if text is not None:
            policies[policy] = None if text == OFF else parse_duration(text)
    if retention_bytes is not None:
        kept = None if retention_bytes == OFF else parse_size(retention_bytes)
        policies["retention_bytes"] = kept
    if partitions is None and not policies:
        raise Usage("say what to change: --partitions, --retention, --retention-bytes or --ttl")
    answer = call.client(write=True).admin.update_topic(name, partitions, **policies)
    have = counted(answer["partitions"], "partition")
    how = "updated topic" if answer["changed"] else "nothing to change in topic"
    call.summary(f"{how} {answer['topic']}, {have}")
    call.output.result(answer)


@command(
    "topic delete",
    examples=("txlog topic delete orders", "txlog topic delete orders audit --force --yes"),
    fields="topic partitions messages size_bytes subscriptions deleted",
    changes=True,
    dry_run=True,
)
def delete(
    call: Call,
    names: Annotated[list[str], Argument(metavar="NAME", show_default=False)],
    force: Annotated[
        bool, Option("--force", help="with subscriptions and unfinished transactions")
    ] = False,
) -> None:
    """Delete topics with their messages; it cannot be taken back."""
    client = call.client(write=True)

    def one(name: str) -> None:
        answer = plan = client.admin.delete_topic(name, force=force, dry_run=not call.dry_run)
        topic = str(plan["topic"])
        what = (
            f"{counted(plan['messages'], 'message')} ({size(plan['size_bytes'])}) in "
            f"{counted(plan['partitions'], 'partition')}, "
            f"{counted(plan['subscriptions'], 'subscription')}"
        )
        if not call.dry_run:
            confirm(call, f"delete topic {topic}: {what}", word=topic)
            answer = client.admin.delete_topic(name, force=force)
        call.summary(f"deleted topic {topic}: {what}")
        call.output.result(answer)

    each_target(names, one)
