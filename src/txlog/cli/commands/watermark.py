"""Owns the commands of event-time watermarks: watermark set, idle, show, history, …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from txlog.base.ids import MessageId, check_name
from txlog.base.times import format_time, parse_time_or_end
from txlog.cli.call.call import Call
from txlog.cli.line.command import Argument, Option, Time, command
from txlog.cli.terminal.tables import counted
from txlog.errors import InvalidArgument, Usage

Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]
Producer = Annotated[
    str,
    Option("--producer", metavar="NAME", help="the producer", show_default=False),
]
TxnOption = Annotated[str | None, Option("--txn-id", metavar="ID", help="join it")]
NoJoin = Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")]
Subscription = Annotated[
    str | None,
    Option("--subscription", "-s", metavar="SUB", help="at its position instead of the end"),
]
Partition = Annotated[int | None, Option("--partition", "-p", min=0, metavar="N")]


@command(
    "watermark set",
    "assert that no older message will come",
    examples=(
        "txlog watermark set orders 2026-11-20T09:00:00Z --producer till-7",
        "txlog watermark set orders -5m --producer till-7 --txn-id 0:42",
    ),
    rows="watermarks.WatermarkSet",
    changes=True,
    times=True,
)
def set_watermark(
    call: Call,
    topic: Topic,
    event_time: Annotated[
        int, Argument(metavar="TIME", show_default=False, reads_now=parse_time_or_end)
    ],
    producer: Producer,
    txn_id: TxnOption = None,
    no_join: NoJoin = False,
) -> None:
    """Assert that, from here on, no message of a producer is older than TIME, in any partition.

    In a transaction it takes effect with the commit. The producer itself is not fenced. TIME "end"
    is the end of its stream.
    """
    if event_time <= 0:
        raise Usage(f"TIME is {format_time(event_time)}, it must be after 1970")
    txn = call.txn_of(txn_id, no_join=no_join)
    answer = call.client(write=True).topic(topic).watermarks.set(event_time, producer, txn=txn)
    if answer["regressed"]:
        call.warn(
            f"{producer} has already asserted a later time: this time is stored without effect"
        )
        call.output.result(answer)
        return
    _said(call, answer, f"{producer} is at {format_time(event_time)}")


@command(
    "watermark idle",
    "stop waiting for a producer",
    examples=(
        "txlog watermark idle orders --producer till-7",
        "txlog watermark idle orders --producer '(unnamed)'",
    ),
    rows="watermarks.ProducerIdle",
    changes=True,
)
def idle(
    call: Call,
    topic: Topic,
    producer: Producer,
    txn_id: TxnOption = None,
    no_join: NoJoin = False,
) -> None:
    """Stop waiting for a producer until it asserts a time again.

    Messages that it sends meanwhile may be late. "(unnamed)" is all producers without a name.
    """
    txn = call.txn_of(txn_id, no_join=no_join)
    answer = call.client(write=True).topic(topic).watermarks.idle(producer, txn=txn)
    if not answer["was_active"]:
        call.note(f"{producer} was not active")
    _said(call, answer, f"{producer} is idle")


@command(
    "watermark show",
    "watermarks, and the producers that hold them back",
    examples=(
        "txlog watermark show orders",
        "txlog watermark show orders -s billing --json --columns watermark,emitted,holder",
        "txlog watermark show orders --at 17:4",
    ),
    rows="watermarks.WatermarkShown",
)
def show(
    call: Call,
    topic: Topic,
    subscription: Subscription = None,
    partition: Partition = None,
    at: Annotated[str | None, Option("--at", metavar="L:E", help="at this row instead")] = None,
) -> None:
    """Show the watermark at the end of the log, or at a subscription's position.

    watermark is the lowest time of an active producer there; emitted is the highest watermark that
    a consumer has received. To advance it, acknowledge: it waits for first_unacked, then for
    holder. late_messages counts messages up to there that were older than their partition's
    watermark just before them. For it and max_event_time the command reads all event times:
    --columns can leave both out.
    """
    if subscription is not None:
        check_name("subscription", subscription)
    row_id = None if at is None else MessageId.parse(at)
    if row_id is not None and row_id.index:
        raise InvalidArgument(f"--at is {at}, a row is L:E", code=203)
    lateness = not {"max_event_time", "late_messages"}.isdisjoint(call.output.fields)
    watermarks = call.client().topic(topic).watermarks
    call.output.single(
        watermarks.show(subscription, partition=partition, at=row_id, lateness=lateness)
    )


@command(
    "watermark history",
    "the rows that moved a watermark",
    examples=(
        "txlog watermark history orders --limit 20",
        "txlog watermark history orders -p 0 --producer till-7 --since -1h",
    ),
    rows="watermarks.WatermarkRow",
    until="event_time",
)
def history(
    call: Call,
    topic: Topic,
    partition: Partition = None,
    producer: Annotated[
        str | None, Option("--producer", metavar="NAME", help="only rows of this producer")
    ] = None,
    since_ms: Annotated[int | None, Time("--since", help="newer rows")] = None,
    limit: Annotated[int | None, Option("--limit", min=0, metavar="N", help="the last N")] = None,
) -> None:
    """List the rows that moved the watermark, in journal order, as far back as the log reaches.

    Rows of a transaction are placed at its commit marker. regressed: the time was below the
    producer's last time, so it had no effect.
    """
    call.output.rows(
        call.client()
        .topic(topic)
        .watermarks.history(partition=partition, producer=producer, since=since_ms, limit=limit)
    )


@command(
    "watermark producers",
    "producers that hold the watermark back",
    examples=("txlog watermark producers orders", "txlog watermark producers orders -s billing"),
    rows="watermarks.WatermarkProducer",
    until="idle",
)
def producers(call: Call, topic: Topic, subscription: Subscription = None) -> None:
    """List the producers that can hold the watermark back, and the one that does.

    idle: it does not hold the watermark back, but it takes part in an open transaction.
    """
    if subscription is not None:
        check_name("subscription", subscription)
    call.output.rows(call.client().topic(topic).watermarks.producers(subscription))


@command(
    "watermark snapshot",
    "write the state of watermarks into the log",
    examples=("txlog watermark snapshot orders", "txlog watermark snapshot orders --json"),
    rows="watermarks.SnapshotsTaken",
    changes=True,
)
def snapshot(call: Call, topic: Topic) -> None:
    """Write the whole state into each partition, so that finding an old watermark reads less.

    Snapshots are also written automatically, by the policies watermark_snapshot_….
    """
    answer = call.client(write=True).topic(topic).watermarks.snapshot()
    call.summary(f"{counted(answer['written'], 'snapshot')} in {answer['topic']}")
    call.output.result(answer)


def _said(call: Call, answer: Mapping[str, Any], done: str) -> None:
    where = f"in {counted(len(answer['partition_list']), 'partition')} of {answer['topic']}"
    when = "" if answer["txn"] is None else f", when {answer['txn']} commits"
    call.summary(f"{done} {where}{when}")
    call.output.result(answer)
