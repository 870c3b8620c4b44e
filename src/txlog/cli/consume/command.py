"""Owns the options of `consume` and `peek`; the work is in `work` and `peek`."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.base.ids import MessageId, TopicName, check_name
from txlog.base.ranges import Range, parse_bound, parse_duration, parse_range
from txlog.cli.call.call import Call, utf8
from txlog.cli.consume.request import Request, Target
from txlog.cli.help import fields
from txlog.cli.line.command import command, exclusive
from txlog.cli.line.declared import Argument, Option
from txlog.cli.output import percent
from txlog.cli.produce.command import encode, properties
from txlog.errors import InvalidArgument, Usage

TYPES = ("exclusive", "shared", "failover", "key-shared")


@command(
    "consume",
    "read messages, or take and acknowledge them with -s",
    examples=(
        "txlog consume orders",
        "txlog consume orders -o -10 --json",
        "txlog consume orders -s billing -n 100",
        "txlog consume orders -F -f '%o %k %v\\n'",
    ),
    rows="consuming.Record",
    records=True,
    more=lambda: fields.verbs(),
)
def consume(
    call: Call,
    topics: Annotated[list[str], Argument(metavar="TOPIC", show_default=False)],
    subscription: Annotated[str | None, Option("--subscription", "-s", metavar="SUB")] = None,
    create: Annotated[
        bool, Option("--create", help="create the subscription if it is missing")
    ] = False,
    position: Annotated[str | None, Option("--position", metavar="BOUND")] = None,
    type: Annotated[str | None, Option("--type", metavar="|".join(TYPES))] = None,
    ack: Annotated[str, Option("--ack", metavar="auto|none|on-exit")] = "auto",
    txn_id: Annotated[
        str | None, Option("--txn-id", metavar="ID", help="acknowledge in this transaction")
    ] = None,
    no_join: Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")] = False,
    consumer: Annotated[str | None, Option("--consumer", metavar="NAME")] = None,
    watermarks: Annotated[
        bool, Option("--watermarks", help="also print watermarks, as separate JSON records")
    ] = False,
    range_: Annotated[str | None, Option("--offset", "-o", metavar="RANGE")] = None,
    n: Annotated[int | None, Option("-n", min=0, metavar="N", help="at most N")] = None,
    follow: Annotated[bool, Option("--follow", "-F", help="wait for more at the end")] = False,
    until: Annotated[str | None, Option("--until", metavar="BOUND")] = None,
    max_wait: Annotated[
        str, Option("--max-wait", metavar="DUR", help="wait for the next, at the end")
    ] = "0s",
    fail_empty: Annotated[
        bool, Option("--fail-empty", help="exit with 8 if there is no message")
    ] = False,
    stats: Annotated[bool, Option("--stats", help="report on stderr how much was read")] = False,
    partition: Annotated[list[int] | None, Option("--partition", "-p", min=0, metavar="N…")] = None,
    unbuffered: Annotated[bool, Option("--unbuffered", "-u")] = False,
    raw_strings: Annotated[bool, Option("--raw-strings", help="never embed JSON")] = False,
    isolation: Annotated[str | None, Option("--isolation", metavar="committed|uncommitted")] = None,
    include_delayed: Annotated[
        bool, Option("--include-delayed", help="also messages that are not due yet")
    ] = False,
    read_compacted: Annotated[
        bool, Option("--read-compacted", help="of compacted messages only the newest of each key")
    ] = False,
    key: Annotated[list[str] | None, Option("--key", "-k", metavar="K…")] = None,
    prop: Annotated[list[str] | None, Option("--prop", "-H", metavar="K=V…")] = None,
    grep: Annotated[str | None, Option("--grep", metavar="RE")] = None,
    where: Annotated[
        str | None, Option("--where", metavar="SQL", help="a condition on the fields of a record")
    ] = None,
) -> None:
    """Read messages; with -s receive a subscription's next messages and acknowledge them.

    Without -s all topics are read as of one moment: a transaction that commits later appears in
    none of them. With -F a sequence of moments is read; each transaction is complete in one.

    With --read-compacted the newest message of each key replaces all messages that `txlog admin
    compact-topic` has read; message ids stay the same. All other messages come unchanged.

    With --watermarks JSON has a record of kind "watermark" for each new one, at its place between
    the messages: {kind, topic, subscription, partition, watermark, status}; topic is null for the
    lowest of several topics, partition for the lowest of the partitions read. `late` tells whether
    a message is older; %w is the last watermark. Without acknowledgements it does not advance.
    """
    call.check_choice("--ack", ack, ("auto", "none", "on-exit"))
    call.check_choice("--type", type, TYPES)
    call.check_choice("--isolation", isolation, ("committed", "uncommitted"))
    exclusive(follow=follow, until=until)
    _check_format(call, watermarks=watermarks)
    if subscription is None:
        _refuse("needs -s", create=create, position=position, type=type, consumer=consumer)
        _refuse("needs -s", txn_id=txn_id, ack=ack != "auto", watermarks=watermarks)
    else:
        check_name("subscription", subscription)
        _refuse("does not go with -s", offset=range_, key=key, prop=prop, grep=grep, where=where)
        _refuse("does not go with -s", until=until, include_delayed=include_delayed)
        _refuse("does not go with -s", read_compacted=read_compacted)
    if position is not None and not create:
        raise Usage("--position needs --create", hint="txlog sub seek moves a subscription")
    now = call.now_ms()
    chosen = Range() if range_ is None else parse_range(range_, now)
    if until is not None:
        if chosen.kind != "range" or chosen.stop is not None:
            raise Usage("-o and --until both name an end")
        chosen = Range(chosen.start, parse_bound(until, now))
    if follow and (chosen.kind != "range" or chosen.stop is not None):
        raise Usage("-F never ends, and -o names an end")
    if read_compacted:
        if chosen.kind != "range":
            raise Usage(f"--read-compacted does not go with -o {chosen}")
        chosen = Range(chosen.start, chosen.stop, kind="compacted")
    request = Request(
        targets=targets(topics, partition),
        subscription=subscription,
        create=create,
        position=None if position is None else parse_bound(position, now),
        type=type,
        ack=ack,
        join=None if subscription is None else call.txn_of(txn_id, no_join=no_join),
        consumer=None if consumer is None else check_name("consumer", consumer),
        watermarks=watermarks,
        range=chosen,
        limit=n,
        follow=follow,
        max_wait_ms=parse_duration(max_wait),
        fail_empty=fail_empty,
        stats=stats,
        unbuffered=unbuffered or follow,
        raw_strings=raw_strings,
        isolation=isolation,
        include_delayed=include_delayed,
        keys=[encode(text) for text in key or []],
        properties=properties(prop),
        grep=None if grep is None else encode(grep),
        where=None if where is None else utf8(where, "--where"),
    )
    importlib.import_module("txlog.cli.consume.work").run(call, request)


@command(
    "peek",
    "look at a few messages and change nothing",
    examples=("txlog peek orders", "txlog peek orders --at 17:4", "txlog peek orders -s billing"),
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
    read_compacted: Annotated[
        bool, Option("--read-compacted", help="of compacted messages only the newest of each key")
    ] = False,
    raw_strings: Annotated[bool, Option("--raw-strings", help="never embed JSON")] = False,
) -> None:
    """Show messages: the last 10, or others; with -s messages that the subscription has not acked.

    --random picks messages at random, each equally likely, and shows them in order.
    It changes nothing, and also shows messages that are not due yet.
    """
    _check_format(call)
    counts = {"last": last, "first": first, "random": random}
    exclusive(**{name: n is not None for name, n in counts.items()}, at=at, around=around)
    if subscription is not None:
        check_name("subscription", subscription)
    exclusive(read_compacted=read_compacted, subscription=subscription)
    exclusive(read_compacted=read_compacted, around=around)
    [target] = targets([topic], partition)
    work = importlib.import_module("txlog.cli.consume.peek")
    if around is not None:
        work.around(call, target, MessageId.parse(around), context, raw_strings)
    elif at is not None:
        work.at(call, target, MessageId.parse(at), raw_strings, is_compacted=read_compacted)
    else:
        which, count = next(((k, n) for k, n in counts.items() if n is not None), ("last", 10))
        work.some(
            call, target, which, count, subscription, raw_strings, is_compacted=read_compacted
        )


def targets(topics: list[str], partitions: list[int] | None) -> list[Target]:
    """Return the topics and partitions to read; `orders/2` names a partition.

    raises: Usage (201), InvalidArgument (202)
    """
    out = []
    for text in dict.fromkeys(topics):
        name = TopicName.parse(text, allow_partition=True)
        if name.partition is not None and partitions:
            raise Usage(f"{text} and --partition both name a partition")
        numbers = [name.partition] if name.partition is not None else partitions
        out.append(Target(name.short, sorted(set(numbers)) if numbers else None))
    if not out:
        raise InvalidArgument("no topic was given")
    return out


def _check_format(call: Call, *, watermarks: bool = False) -> None:
    """Refuse %w without watermarks, before the store is opened."""
    if "%" in call.output.form:
        percent.Format(call.output.form, watermarks=watermarks, stored=True)


def _refuse(why: str, **flag_values: object) -> None:
    for name, value in flag_values.items():
        if value:
            raise Usage(f"--{name.replace('_', '-')} {why}")
