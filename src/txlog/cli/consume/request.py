"""Owns the options of `consume`: for each its flag, its help, and the value that the work gets."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from txlog.base.choices import Isolation, SubscriptionType
from txlog.base.ids import TopicName, TxnId, check_name
from txlog.base.ranges import Bound, Range, parse_bound, parse_range
from txlog.cli.call.call import encoded, properties, utf8
from txlog.cli.line.command import Argument, Duration, Option, Time
from txlog.errors import InvalidArgument, Usage

TYPES = ("exclusive", "shared", "failover", "key-shared")

Condition = Annotated[
    str | None,
    Option(
        "--where",
        metavar="SQL",
        help="a condition on columns and fields of records; no such field: no match, counted",
        reads=lambda condition: utf8(condition, "--where"),
    ),
]


class Target(msgspec.Struct):
    """A topic to read and its partitions; None means all partitions."""

    topic: str
    partitions: list[int] | None = None


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


class Request(msgspec.Struct, kw_only=True):
    """The options of one `consume`.

    targets: the topics with their partitions, once they are checked
    range:   the messages that --offset, --until and --read-compacted choose, once they are checked
    """

    topics: Annotated[list[str], Argument(metavar="TOPIC", show_default=False)]
    subscription: Annotated[
        str | None,
        Option(
            *("--subscription", "-s"),
            metavar="SUB",
            reads=lambda name: check_name("subscription", name),
        ),
    ] = None
    create: Annotated[bool, Option("--create", help="create the subscription if it is missing")] = (
        False
    )
    position: Annotated[
        Bound | None, Option("--position", metavar="BOUND", reads_now=parse_bound)
    ] = None
    type: Annotated[SubscriptionType | None, Option("--type", choices=TYPES, reads=str)] = None
    ack: Annotated[str, Option("--ack", choices=("auto", "none", "on-exit"))] = "auto"
    join: Annotated[
        TxnId | None,
        Option("--txn-id", metavar="ID", help="acknowledge in this transaction", reads=TxnId.parse),
    ] = None
    no_join: Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")] = False
    consumer: Annotated[
        str | None,
        Option("--consumer", metavar="NAME", reads=lambda name: check_name("consumer", name)),
    ] = None
    watermarks: Annotated[
        bool, Option("--watermarks", help="also print watermarks, as separate JSON records")
    ] = False
    offset: Annotated[
        Range | None, Option("--offset", "-o", metavar="RANGE", reads_now=parse_range)
    ] = None
    last: Annotated[
        int | None, Option("--last", min=0, metavar="N", help="the last N over all partitions")
    ] = None
    n: Annotated[int | None, Option("-n", min=0, metavar="N", help="at most N")] = None
    follow: Annotated[
        bool, Option("--follow", "-F", help="wait for more; -o end: only new ones")
    ] = False
    since_ms: Annotated[int | None, Time("--since", help="from the first visible then")] = None
    until: Annotated[Bound | None, Option("--until", metavar="BOUND", reads_now=parse_bound)] = None
    max_wait_ms: Annotated[
        int, Duration("--max-wait", help="wait for the next, at the end", default="0s")
    ]
    fail_empty: Annotated[
        bool, Option("--fail-empty", help="exit with 8 if there is no message")
    ] = False
    stats: Annotated[bool, Option("--stats", help="report on stderr how much was read")] = False
    partition: Annotated[list[int] | None, Option("--partition", "-p", min=0, metavar="N…")] = None
    unbuffered: Annotated[bool, Option("--unbuffered", "-u")] = False
    raw_strings: Annotated[bool, Option("--raw-strings", help="never embed JSON")] = False
    isolation: Annotated[
        Isolation | None,
        Option("--isolation", choices=("committed", "uncommitted"), reads=str),
    ] = None
    include_delayed: Annotated[
        bool, Option("--include-delayed", help="also messages that are not due yet")
    ] = False
    read_compacted: Annotated[
        bool, Option("--read-compacted", help="of compacted messages only the newest of each key")
    ] = False
    keys: Annotated[list[bytes], Option("--key", "-k", metavar="K…", many=True, reads=encoded)] = []
    properties: Annotated[
        dict[str, str], Option("--prop", "-H", metavar="K=V…", many=True, reads=properties)
    ] = {}
    grep: Annotated[bytes | None, Option("--grep", metavar="RE", reads=os.fsencode)] = None
    where: Condition = None
    targets: list[Target] = []
    range: Range = Range()

    @property
    def is_open(self) -> bool:
        """Whether the range ends only where the log ends, so that more messages can come."""
        return self.range.is_endless
