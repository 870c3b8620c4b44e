"""Owns the commands of upkeep of the index of delayed messages: merge, rebuild."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted
from txlog.ids import MessageId

Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]


@command(
    "delay merge",
    examples=("txlog delay merge orders", "txlog delay merge orders --to 4 --dry-run"),
    fields="topic buckets_before buckets_after messages",
    changes=True,
    dry_run=True,
)
def merge(
    call: Call,
    topic: Topic,
    to: Annotated[
        int | None,
        Option("--to", min=1, metavar="N", help="so many stay; else max_num_buckets"),
    ] = None,
) -> None:
    """Merge the buckets of the index; nothing waits for it, it saves memory and files."""
    handle = call.client(write=True).topic(topic)
    with Words(call, f"merging buckets of {topic}"):
        answer = handle.merge(to, dry_run=call.dry_run)
    call.summary(
        f"{answer['topic']}: {counted(answer['buckets_before'], 'bucket')} before, "
        f"{answer['buckets_after']:,} after, with {counted(answer['messages'], 'message')}"
    )
    call.output.result(answer)


@command(
    "delay rebuild",
    examples=(
        "txlog delay rebuild orders",
        "txlog delay rebuild orders --from 17:0 --to 17:900 --dry-run",
    ),
    fields="topic partitions messages_read indexed missing surplus buckets",
    changes=True,
    dry_run=True,
)
def rebuild(
    call: Call,
    topic: Topic,
    first: Annotated[str | None, Option("--from", metavar="L:E", help="else the first")] = None,
    last: Annotated[str | None, Option("--to", metavar="L:E", help="else the last")] = None,
) -> None:
    """Make the sealed buckets anew from the log, and say what differed.

    The mutable bucket needs none of it: it comes from the frames that the log consists of.
    """
    low = None if first is None else MessageId.parse(first)
    high = None if last is None else MessageId.parse(last)
    handle = call.client(write=True).topic(topic)
    with Words(call, f"rebuilding the index of {topic}"):
        answer = handle.rebuild(low, high, dry_run=call.dry_run)
    differed = answer["missing"] + answer["surplus"]
    found = f"{answer['missing']:,} missing, {answer['surplus']:,} surplus" if differed else (
        "nothing differed"
    )  # fmt: skip
    call.summary(
        f"{answer['topic']}: {counted(answer['messages_read'], 'message')} read, "
        f"{answer['indexed']:,} in {counted(answer['buckets'], 'bucket')}, {found}"
    )
    call.output.result(answer)
