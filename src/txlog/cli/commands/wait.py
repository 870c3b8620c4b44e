"""Owns `wait`: it returns when conditions on a store hold."""

from __future__ import annotations

from typing import Annotated, Final

from txlog.base.ids import TxnId, check_name
from txlog.base.times import parse_time_or_end
from txlog.cli.call.call import Call
from txlog.cli.line.command import Duration, Option, Time, command
from txlog.errors import InvalidArgument, Usage

_UNMET: Final = 8


@command(
    "wait",
    "wait for messages, a watermark, no backlog",
    examples=(
        "txlog wait --topic orders --messages 1000 --timeout 5m",
        "txlog wait --topic orders --watermark 2026-11-20T09:00:00Z -s billing",
        "txlog wait --backlog billing=0 --txn 0:42=committed",
    ),
    rows="store.Waited",
)
def wait(
    call: Call,
    topic: Annotated[list[str] | None, Option("--topic", "-t", metavar="T…")] = None,
    messages: Annotated[
        int | None, Option("--messages", min=0, metavar="N", help="at least this many in each")
    ] = None,
    watermark: Annotated[
        int | None,
        Time("--watermark", help="event time that each has", reads_now=parse_time_or_end),
    ] = None,
    subscription: Annotated[
        str | None, Option("--subscription", "-s", metavar="SUB", help="watermark at its position")
    ] = None,
    backlog: Annotated[
        list[str] | None, Option("--backlog", metavar="SUB=N…", help="at most this many left")
    ] = None,
    txn: Annotated[
        list[str] | None,
        Option("--txn", metavar="ID=STATE…", help="committed, aborted, ended, open, …"),
    ] = None,
    timeout_ms: Annotated[int | None, Duration("--timeout", help="how long")] = None,
) -> None:
    """Wait until all conditions hold at once; 8 when time runs out, or one can never hold.

    For a subscription, a watermark that its consumers have received counts too. TIME "end" is the
    end of all streams.
    """
    topics = list(topic or [])
    asks_topics = messages is not None or watermark is not None
    if asks_topics and not topics:
        raise Usage("--messages and --watermark need --topic")
    if subscription is not None and watermark is None:
        raise Usage("-s needs --watermark: give the watermark to wait for")
    if topics and not asks_topics and not backlog:
        raise Usage("--topic needs --messages, --watermark or --backlog")
    if not (asks_topics or backlog or txn):
        raise Usage("there is nothing to wait for", hint="--messages --watermark --backlog --txn")
    if subscription is not None:
        check_name("subscription", subscription)
    backlogs = {name: _count(text) for name, text in _pairs("--backlog", "SUB=N", backlog)}
    txns = {TxnId.parse(name): text for name, text in _pairs("--txn", "ID=STATE", txn)}
    answer = call.client().wait(
        topics,
        messages=messages,
        watermark=watermark,
        subscription=subscription,
        backlogs=backlogs,
        txns=txns,
        timeout_ms=timeout_ms,
    )
    call.exit = 0 if answer["met"] else _UNMET
    call.output.single(answer)


def _pairs(flag: str, form: str, pairs: list[str] | None) -> list[tuple[str, str]]:
    """Parse NAME=VALUE words into pairs, in order."""
    out: list[tuple[str, str]] = []
    for word in pairs or []:
        name, equals, value = word.rpartition("=")
        if not (name and equals and value):
            raise InvalidArgument(f"{flag} is {form}")
        out.append((name, value))
    return out


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidArgument(f'--backlog is SUB=N, "{text[:40]}" is not a number', code=203)
    return int(text)
