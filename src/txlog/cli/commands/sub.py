"""Owns the commands of subscriptions: create, list, ack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.targets import each_target, words_or_stdin
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.errors import InvalidArgument, SubscriptionNotFound
from txlog.ids import MessageId, TopicName, check_name
from txlog.ranges import parse_bound
from txlog.suggest import meant

if TYPE_CHECKING:
    from txlog.api.client import Client

TYPES = ("exclusive", "shared", "failover", "key-shared")
LIST_FIELDS = (
    "topic subscription type backlog delayed pending_acks consumers "
    "| isolation mark_delete last_ack_time created_time backlog_no_delayed"
)


@command(
    "sub create",
    examples=(
        "txlog sub create billing -t orders",
        "txlog sub create audit -t orders --position end",
    ),
    fields="topic subscription type position created",
    changes=True,
    dry_run=True,
)
def create(
    call: Call,
    names: Annotated[list[str], Argument(metavar="SUB", show_default=False)],
    topic: Annotated[str, Option("--topic", "-t", metavar="T", show_default=False)],
    type: Annotated[str, Option("--type", metavar="|".join(TYPES))] = "exclusive",
    isolation: Annotated[str, Option("--isolation", metavar="I")] = "committed",
    position: Annotated[str, Option("--position", metavar="BOUND")] = "start",
    ack_timeout: Annotated[
        str | None, Option("--ack-timeout", metavar="DUR", help="then a message comes again")
    ] = None,
    max_redeliver: Annotated[
        int | None, Option("--max-redeliver", metavar="N", help="then it is a dead letter")
    ] = None,
    dead_letter: Annotated[
        str | None, Option("--dead-letter", metavar="T", help="where dead letters go")
    ] = None,
    if_not_exists: Annotated[bool, Option("--if-not-exists")] = False,
) -> None:
    """Create subscriptions."""
    given = {
        "ack_timeout_ms": call.duration(ack_timeout),
        "max_redeliver_count": max_redeliver,
        "dead_letter_topic": dead_letter,
    }
    policies = {policy: value for policy, value in given.items() if value is not None}
    call.check_choice("--type", type, TYPES)
    call.check_choice("--isolation", isolation, ("committed", "uncommitted"))
    bound = parse_bound(position, call.now_ms())
    client = call.client(write=True)
    short = TopicName.parse(topic).short

    def one(name: str) -> None:
        made = client.create_subscription(
            topic,
            name,
            type=type,
            isolation=isolation,
            position=bound,
            if_not_exists=if_not_exists,
            **policies,
        )
        kind, mark = type, None
        for row in client.subscriptions(topic):
            if row["subscription"] == name:
                kind, mark = str(row["type"]), row.get("mark_delete")
        call.summary(
            f"created subscription {name} on {short}" if made else f"{name} on {short} was there"
        )
        call.output.result(
            {
                "topic": short,
                "subscription": name,
                "type": kind,
                "position": mark,
                "created": made,
            }
        )

    each_target(names, one)


@command(
    "sub list",
    examples=("txlog sub list", "txlog sub list -t orders --json"),
    fields=LIST_FIELDS,
)
def list_subscriptions(
    call: Call,
    topic: Annotated[str | None, Option("--topic", "-t", metavar="T")] = None,
) -> None:
    """List subscriptions."""
    call.output.rows(call.client().subscriptions(topic))


@command(
    "sub ack",
    examples=("txlog sub ack billing 17:4 17:5", "txlog sub ack billing 17:90 --cumulative"),
    fields="topic subscription acked already dropped txn",
    changes=True,
    dry_run=True,
)
def ack(
    call: Call,
    subscription: Annotated[str, Argument(metavar="SUB", show_default=False)],
    ids: Annotated[list[str], Argument(metavar="ID", show_default=False)],
    topic: Annotated[str | None, Option("--topic", "-t", metavar="T")] = None,
    cumulative: Annotated[bool, Option("--cumulative", help="and all before")] = False,
    txn_id: Annotated[str | None, Option("--txn-id", metavar="ID", help="join it")] = None,
    no_join: Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")] = False,
) -> None:
    """Acknowledge messages; several ids are checked as a whole before anything is written."""
    check_name("subscription", subscription)
    parsed = [MessageId.parse(word) for word in words_or_stdin(ids)]
    if not parsed:
        raise InvalidArgument("no message id was given", code=203)
    txn = call.txn_of(txn_id, no_join=no_join)
    client = call.client(write=True)
    name = topic if topic is not None else topic_of(client, subscription)
    answer = client.acknowledge(name, subscription, parsed, cumulative=cumulative, txn=txn)
    if txn is None:
        client.producer(name).flush()  # so that the next listing, a reader, sees it
    joined = "" if txn is None else f" in transaction {txn}"
    already = f", {answer['already']} already" if answer.get("already") else ""
    call.summary(f"acknowledged {answer['acked']} on {subscription}{already}{joined}")
    short = TopicName.parse(name, allow_partition=True).short
    call.output.result({**answer, "topic": short, "subscription": subscription})


def topic_of(client: Client, subscription: str) -> str:
    """Return the topic that has the subscription.

    raises: SubscriptionNotFound (303); InvalidArgument (205) when several have it
    """
    rows = client.subscriptions()
    topics = sorted({str(r["topic"]) for r in rows if r["subscription"] == subscription})
    if not topics:
        raise SubscriptionNotFound(
            f"no subscription {subscription}",
            subscription=subscription,
            hint=meant(subscription, sorted({r["subscription"] for r in rows}), "txlog sub list"),
        )
    if len(topics) > 1:
        shown = ", ".join(topics[:5])
        raise InvalidArgument(
            f"several topics have a subscription {subscription}: {shown}",
            code=205,
            hint=f"-t {topics[0]}",
            subscription=subscription,
        )
    return topics[0]
