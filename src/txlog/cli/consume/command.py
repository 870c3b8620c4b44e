"""Owns the commands `consume` and `peek`: which options go together; see `work` and `peek`."""

from __future__ import annotations

from typing import Annotated

from txlog.base.ids import MessageId, check_name
from txlog.base.ranges import Bound, Range
from txlog.base.suggest import command_line
from txlog.cli.call.call import Call
from txlog.cli.consume import peek as peeking
from txlog.cli.consume import work
from txlog.cli.consume.request import Condition, Request, targets
from txlog.cli.help import fields
from txlog.cli.line.command import Argument, Option, command, exclusive
from txlog.cli.output import percent
from txlog.errors import Usage


@command(
    "consume",
    "read messages, or take and acknowledge them with -s",
    examples=(
        "txlog consume orders -o -10 --json",
        "txlog consume orders -s billing -n 100",
        "txlog consume orders -F -f '%o %k %v\\n'",
        "txlog consume orders --where \"value->>'city' = 'Oslo'\"",
    ),
    rows="consuming.Record",
    records=True,
    more=lambda: fields.verbs(),
    options=Request,
)
def consume(call: Call, request: Request) -> None:
    """Read messages; with -s receive a subscription's next messages and acknowledge them.

    Without -s all topics are read as of one moment: a transaction that commits later appears in
    none of them. With -F a sequence of moments is read; each transaction is complete in one.

    --last N prints the N messages that became visible last over all partitions, in that order, as
    `peek` does; with --where and other filters the last N that match. -o -N is the last N of each
    partition.

    With --read-compacted the newest message of each key replaces all messages that `txlog admin
    compact-topic` has read; message ids stay the same. All other messages come unchanged.

    With --watermarks JSON has a record of kind "watermark" for each new one, at its place between
    the messages: {kind, topic, subscription, partition, watermark, status}; topic is null for the
    lowest of several topics, partition for the lowest of the partitions read. `late` tells whether
    a message is older; %w is the last watermark. Without acknowledgements it does not advance.
    """
    _check_format(call, watermarks=request.watermarks)
    _check_subscription(request)
    _choose(request)
    request.targets = targets(request.topics, request.partition)
    if request.subscription is None:
        request.join = None
    elif request.join is None:
        request.join = call.txn_of(None, no_join=request.no_join)
    request.unbuffered |= request.follow
    work.run(call, request)


def _check_subscription(request: Request) -> None:
    """Refuse options that need -s, or that do not go with it."""
    if request.subscription is None:
        _refuse("needs -s", create=request.create, position=request.position, type=request.type)
        _refuse("needs -s", consumer=request.consumer, txn_id=request.join)
        _refuse("needs -s", ack=request.ack != "auto", watermarks=request.watermarks)
    else:
        _refuse("does not go with -s", offset=request.offset, key=request.keys)
        _refuse("does not go with -s", last=request.last is not None)
        _refuse("does not go with -s", since=request.since_ms is not None)
        _refuse("does not go with -s", prop=request.properties, grep=request.grep)
        _refuse("does not go with -s", where=request.where, until=request.until)
        _refuse("does not go with -s", include_delayed=request.include_delayed)
        _refuse("does not go with -s", read_compacted=request.read_compacted)
    if request.position is not None and not request.create:
        raise Usage(
            "--position needs --create",
            hint="to move a subscription: txlog sub seek SUB --to BOUND",
        )


def _choose(request: Request) -> None:
    """Set the range of messages to read, unless the options contradict each other."""
    exclusive(follow=request.follow, until=request.until)
    exclusive(offset=request.offset, since=request.since_ms is not None)
    has_last = request.last is not None
    exclusive(last=has_last, offset=request.offset)
    exclusive(last=has_last, n=request.n is not None)
    exclusive(last=has_last, max_wait=request.max_wait_ms)
    if has_last and request.follow:
        first, *more = request.topics
        line = command_line("consume", first, *more, "-F", "-o", f"-{request.last}")
        raise Usage(
            "--last and --follow exclude each other",
            hint=f"from {request.last} before the end of each partition on: {line}",
        )
    chosen = request.offset or Range()
    if request.since_ms is not None:
        chosen = Range(Bound("time", request.since_ms))
    if request.until is not None:
        if chosen.kind != "range" or chosen.stop is not None:
            raise Usage("-o and --until both name an end")
        chosen = Range(chosen.start, request.until)
    if request.follow and (chosen.kind != "range" or chosen.stop is not None):
        raise Usage("-F never ends, and -o names an end")
    if request.read_compacted:
        if chosen.kind != "range":
            raise Usage(f"--read-compacted does not go with -o {chosen}")
        chosen = Range(chosen.start, chosen.stop, kind="compacted")
    request.range = chosen


@command(
    "peek",
    "look at a few messages and change nothing",
    examples=(
        "txlog peek orders",
        "txlog peek orders --at 17:4",
        "txlog peek orders -s billing",
        "txlog peek orders --last 3 --where \"text(key) = 'ana'\"",
    ),
    rows="consuming.Record",
    records=True,
    more=lambda: fields.verbs(),
)
def peek(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    last: Annotated[int | None, Option("--last", min=0, metavar="N")] = None,
    first: Annotated[int | None, Option("--first", min=0, metavar="N")] = None,
    at: Annotated[str | None, Option("--at", metavar="ID")] = None,
    around: Annotated[str | None, Option("--around", metavar="ID")] = None,
    random: Annotated[int | None, Option("--random", min=0, metavar="N")] = None,
    context: Annotated[int, Option("--context", "-C", min=0, metavar="N")] = 3,
    subscription: Annotated[str | None, Option("--subscription", "-s", metavar="SUB")] = None,
    partition: Annotated[list[int] | None, Option("--partition", "-p", min=0, metavar="N…")] = None,
    where: Condition = None,
    read_compacted: Annotated[
        bool, Option("--read-compacted", help="of compacted messages only the newest of each key")
    ] = False,
    raw_strings: Annotated[bool, Option("--raw-strings", help="never embed JSON")] = False,
) -> None:
    """Show messages: the last 10, or others; with -s messages that the subscription has not acked.

    The last ones are those that became visible last over all partitions, in that order. --random
    picks messages at random, each equally likely, and shows them in order. It changes nothing, and
    also shows messages that are not due yet.
    """
    _check_format(call)
    counts = {"last": last, "first": first, "random": random}
    exclusive(**{name: n is not None for name, n in counts.items()}, at=at, around=around)
    if subscription is not None:
        check_name("subscription", subscription)
    exclusive(read_compacted=read_compacted, subscription=subscription)
    exclusive(read_compacted=read_compacted, around=around)
    exclusive(where=where, at=at, around=around)
    [target] = targets([topic], partition)
    if around is not None:
        peeking.around(call, target, MessageId.parse(around), context, raw_strings)
    elif at is not None:
        peeking.at(call, target, MessageId.parse(at), raw_strings, is_compacted=read_compacted)
    else:
        which, count = next(((k, n) for k, n in counts.items() if n is not None), ("last", 10))
        peeking.some(
            call,
            target,
            which,
            count,
            subscription,
            raw_strings,
            is_compacted=read_compacted,
            where=where,
        )


def _check_format(call: Call, *, watermarks: bool = False) -> None:
    """Refuse %w without watermarks, before the store is opened."""
    if "%" in call.output.form:
        percent.Format(call.output.form, watermarks=watermarks, stored=True)


def _refuse(why: str, **flag_values: object) -> None:
    for name, value in flag_values.items():
        if value:
            raise Usage(f"--{name.replace('_', '-')} {why}")
