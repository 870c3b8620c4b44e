"""Owns the commands that look at one subscription: describe, backlog."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.commands.sub import LIST_FIELDS, topic_of
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.ids import check_name

Sub = Annotated[str, Argument(metavar="SUB", show_default=False)]
Topic = Annotated[str | None, Option("--topic", "-t", metavar="T")]


@command(
    "sub describe",
    examples=("txlog sub describe billing", "txlog sub describe billing -t orders --json"),
    fields=f"{LIST_FIELDS} policies consumer_list partition_list",
)
def describe(call: Call, subscription: Sub, topic: Topic = None) -> None:
    """Describe one subscription: its policies, consumers and partitions."""
    check_name("subscription", subscription)
    client = call.client()
    name = topic or topic_of(client, subscription)
    call.output.single(client.subscription(name, subscription).describe())


@command(
    "sub backlog",
    examples=("txlog sub backlog billing", "txlog sub backlog billing --by key --top 5"),
    fields="group messages size_bytes oldest_time",
)
def backlog(
    call: Call,
    subscription: Sub,
    topic: Topic = None,
    by: Annotated[str, Option("--by", metavar="key|age|ledger")] = "age",
    top: Annotated[int, Option("--top", metavar="N", help="so many groups")] = 20,
) -> None:
    """Show what is not acknowledged, in groups; it reads the whole backlog."""
    check_name("subscription", subscription)
    call.check_choice("--by", by, ("key", "age", "ledger"))
    client = call.client()
    name = topic or topic_of(client, subscription)
    call.output.rows(client.subscription(name, subscription).backlog(by, top))
