"""Owns the commands of subscriptions, of their lag, and of their dead letters.

Commands that move or delete a subscription show their plan and ask first; the plan is the same
decision without effects.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from txlog.base.choices import Isolation, SubscriptionType
from txlog.base.ids import MessageId, TopicName, check_name
from txlog.base.ranges import Bound, parse_bound
from txlog.base.suggest import command_line, suggestion
from txlog.cli.call.call import Call, confirm, each_target
from txlog.cli.call.repetition import repeat
from txlog.cli.input.names import names, rows_named
from txlog.cli.line.command import Argument, Duration, Option, Watch, command, pause_of
from txlog.cli.terminal.tables import counted
from txlog.client.topics import subscription as handles
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    SubscriptionNotFound,
    TopicNotFound,
    Usage,
)

if TYPE_CHECKING:
    from txlog.base.rows.consuming import LagRow, Skipped
    from txlog.client.client import Client
    from txlog.client.topics.subscription import SubscriptionHandle

TYPES = ("exclusive", "shared", "failover", "key-shared")
Type = Annotated[SubscriptionType, Option("--type", metavar="|".join(TYPES), reads=str)]
Sub = Annotated[str, Argument(metavar="SUB", show_default=False)]
Topic = Annotated[str | None, Option("--topic", "-t", metavar="T")]
OfTopic = Annotated[
    str | None, Argument(metavar="TOPIC", help="only this topic", show_default=False)
]
Position = Annotated[
    Bound, Option("--position", metavar="BOUND", reads_now=parse_bound, default="start")
]


# --- create, list, acknowledge -----------------------------------------------------------------


@command(
    "sub create",
    "create subscriptions",
    examples=(
        "txlog sub create billing -t orders",
        "txlog sub create audit -t orders --position end",
    ),
    rows="consuming.SubscriptionCreated",
    changes=True,
    dry_run=True,
)
def create(
    call: Call,
    names: Annotated[list[str], Argument(metavar="SUB", show_default=False)],
    topic: Annotated[str, Option("--topic", "-t", metavar="T", show_default=False)],
    type: Type = "exclusive",
    isolation: Annotated[Isolation, Option("--isolation", metavar="I", reads=str)] = "committed",
    *,
    bound: Position,
    ack_timeout: Annotated[
        int | None, Duration("--ack-timeout", help="redeliver after this time")
    ] = None,
    max_redeliver: Annotated[
        int | None, Option("--max-redeliver", metavar="N", help="then it becomes a dead letter")
    ] = None,
    dead_letter: Annotated[
        str | None, Option("--dead-letter", metavar="T", help="topic for dead letters")
    ] = None,
    if_not_exists: Annotated[bool, Option("--if-not-exists")] = False,
) -> None:
    """Create subscriptions."""
    policies = {
        "ack_timeout_ms": ack_timeout,
        "max_redeliver_count": max_redeliver,
        "dead_letter_topic": dead_letter,
    }
    options = {
        **{policy: value for policy, value in policies.items() if value is not None},
        **{"type": type, "isolation": isolation, "position": bound},
        "if_not_exists": if_not_exists,
    }
    call.check_choice("--type", type, TYPES)
    call.check_choice("--isolation", isolation, ("committed", "uncommitted"))
    client = call.client(write=True)
    short = TopicName.parse(topic).short

    def one(name: str) -> None:
        created = _created(client, topic, name, **options)
        kind, mark = str(type), None
        for row in client.subscriptions(topic):
            if row["subscription"] == name:
                kind, mark = str(row["type"]), row.get("mark_delete")
        call.summary(
            f"created subscription {name} on {short}" if created else f"{name} on {short} exists"
        )
        call.output.result(
            {
                "topic": short,
                "subscription": name,
                "type": kind,
                "position": mark,
                "created": created,
            }
        )

    each_target(names, one)


def _created(client: Client, topic: str, name: str, **options: Any) -> bool:
    """Create a subscription; the error of a missing topic adds a hint if `name` is the topic."""
    try:
        return client.create_subscription(topic, name, **options)
    except TopicNotFound as error:
        if name in {row["topic"] for row in client.topics()}:
            error.hint = f"{name} is a topic: {command_line('sub create', topic, '-t', name)}"
        raise


@command(
    "sub list",
    "list subscriptions with their backlog",
    examples=("txlog sub list", "txlog sub list orders --json", "txlog sub list --watch 5s"),
    rows="consuming.LagRow",
    until="catch_up_ms",
)
def list_subscriptions(
    call: Call, topic: OfTopic = None, same_topic: Topic = None, pause_ms: Watch = None
) -> None:
    """List subscriptions and how far they are behind: backlog, age, rates, time to catch up.

    Rates are messages a second over the last minute. They come from the journal and are empty for
    time that it no longer has; --watch remembers what it saw. `txlog top` has the whole screen.
    """
    client, short = call.client(), _one_topic(topic, same_topic)
    repeat(call, pause_ms, lambda: call.output.rows(_lag(client, short)))


def _one_topic(topic: str | None, same_topic: str | None) -> str | None:
    """The topic that a line names as its argument or with -t."""
    if topic is not None and same_topic not in (None, topic):
        raise Usage(f"two topics, {topic} and {same_topic}: give one, as TOPIC or with -t")
    return topic or same_topic


def _lag(client: Client, topic: str | None) -> list[LagRow]:
    """The rows of `Client.lag`; its error has a hint if the topic names a subscription."""
    try:
        return client.lag(topic)
    except TopicNotFound as error:
        topics = [row["topic"] for row in client.subscriptions() if row["subscription"] == topic]
        if topics:
            error.hint = (
                f"{topic} is a subscription of {', '.join(topics[:3])}: "
                f"{command_line('sub describe', topic, '-t', topics[0])}"
            )
        raise


@command(
    "top",
    "watch who is behind, on the whole screen",
    examples=("txlog top", "txlog top orders --every 5s"),
    rows="consuming.LagRow",
    until="catch_up_ms",
)
def top(
    call: Call,
    topic: OfTopic = None,
    same_topic: Topic = None,
    every_ms: Annotated[
        int | None,
        Duration("--every", reads=pause_of, help="between two looks, 2s if it is missing"),
    ] = None,
) -> None:
    """Show the lag of each subscription on the whole screen, and look again every 2 seconds.

    Keys: b backlog, a age, i rate in, o rate out, c catch-up time and n name sort; r reverses; the
    arrows scroll; q ends. Without a terminal, watch `sub list` instead.
    """
    if not call.output.look.human:
        raise Usage("top needs a terminal", hint="txlog sub list --watch prints the same rows")
    client, short = call.client(), _one_topic(topic, same_topic)
    _lag(client, short)  # a wrong topic must fail before the screen is taken
    screen = importlib.import_module("txlog.cli.terminal.top")
    pause_ms = every_ms or 2_000
    screen.Top(lambda: client.lag(short), call.store_path(), pause_ms, call.output.look).run()


@command(
    "sub ack",
    "acknowledge messages",
    examples=("txlog sub ack billing 17:4 17:5", "txlog sub ack billing 17:90 --cumulative"),
    rows="consuming.AcknowledgedHere",
    changes=True,
    dry_run=True,
    loses="work",
)
def ack(
    call: Call,
    subscription: Annotated[str, Argument(metavar="SUB", show_default=False)],
    ids: Annotated[list[str], Argument(metavar="ID|-", show_default=False)],
    topic: Annotated[str | None, Option("--topic", "-t", metavar="T")] = None,
    cumulative: Annotated[bool, Option("--cumulative", help="also all messages before")] = False,
    txn_id: Annotated[str | None, Option("--txn-id", metavar="ID", help="join it")] = None,
    no_join: Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")] = False,
) -> None:
    """Acknowledge messages; several ids are checked as a whole before anything is written."""
    check_name("subscription", subscription)
    parsed = _parsed(call, ids)
    if not parsed:
        return
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
    """Return the one topic that has the subscription.

    raises: SubscriptionNotFound (303); InvalidArgument (205) when several have it
    """
    rows = client.subscriptions()
    topics = sorted({str(r["topic"]) for r in rows if r["subscription"] == subscription})
    if not topics:
        raise SubscriptionNotFound(
            f"no subscription {subscription}",
            subscription=subscription,
            hint=suggestion(
                subscription, sorted({r["subscription"] for r in rows}), "txlog sub list"
            ),
        )
    if len(topics) > 1:
        listed = ", ".join(topics[:5])
        raise InvalidArgument(
            f"several topics have a subscription {subscription}: {listed}",
            code=205,
            hint=f"-t {topics[0]}",
            subscription=subscription,
        )
    return topics[0]


# --- show one --------------------------------------------------------------------------------


@command(
    "sub describe",
    "one subscription, its consumers and partitions",
    examples=("txlog sub describe billing", "txlog sub describe billing -t orders --json"),
    rows="consuming.SubscriptionDescription",
    until="catch_up_ms",
)
def describe(call: Call, subscription: Sub, topic: Topic = None) -> None:
    """Describe one subscription: its policies, consumers and partitions."""
    check_name("subscription", subscription)
    client = call.client()
    name = topic or topic_of(client, subscription)
    call.output.single(client.subscription(name, subscription).describe())


@command(
    "sub backlog",
    "unacknowledged messages by key, age or ledger",
    examples=("txlog sub backlog billing", "txlog sub backlog billing --by key --top 5"),
    rows="consuming.BacklogGroup",
)
def backlog(
    call: Call,
    subscription: Sub,
    topic: Topic = None,
    by: Annotated[str, Option("--by", metavar="key|age|ledger")] = "age",
    top: Annotated[int, Option("--top", metavar="N", help="how many groups")] = 20,
) -> None:
    """Show unacknowledged messages, in groups. It reads the whole backlog."""
    check_name("subscription", subscription)
    call.check_choice("--by", by, ("key", "age", "ledger"))
    client = call.client()
    name = topic or topic_of(client, subscription)
    call.output.rows(client.subscription(name, subscription).backlog(by, top))


# --- move, or delete -------------------------------------------------------------------------


@command(
    "sub seek",
    "move a subscription forward or back",
    examples=(
        "txlog sub seek billing --to 'yesterday 14:00'",
        "txlog sub seek billing --to start --yes",
        "txlog sub seek billing --to 17:25 --dry-run",
        "txlog sub list -t orders --json | txlog sub seek - --to start --dry-run",
    ),
    rows="consuming.Sought",
    without="aborted_list",
    changes=True,
    dry_run=True,
    loses="work",
    asks=True,
)
def seek(
    call: Call,
    subscription: Annotated[str, Argument(metavar="SUB|-", show_default=False)],
    to: Annotated[
        Bound,
        Option("--to", metavar="BOUND", help="position or time to go to", reads_now=parse_bound),
    ],
    topic: Topic = None,
    force: Annotated[
        bool, Option("--force", help="abort transactions that hold acknowledgements")
    ] = False,
    acked: Annotated[
        str | None, Option("--acked", metavar="ID-LAST,…", help="acknowledged after it, too")
    ] = None,
) -> None:
    """Move a subscription: acknowledge everything before the position, nothing from it on.

    The undo lines restore the acknowledgements, also single ones: --acked 17:5-9,17:12:2 names
    them. Redelivery counts, leases and delays are lost; a line says how many.
    """
    targets = _targets(call, [subscription], topic)
    runs = [] if acked is None else acked.split(",")

    def one(name: str) -> None:
        _seek(call, handle_of(call, *targets[name]), to, force, runs)

    each_target([*targets], one)


def _warn_of_consumers(call: Call, handle: SubscriptionHandle) -> None:
    """Warn of live consumers: a seek moves them, too."""
    alive = [row for row in handle.describe()["consumer_list"] if row["alive"]]
    if not alive:
        return
    first = alive[0]
    more = f" and {counted(len(alive) - 1, 'other consumer')}" if len(alive) > 1 else ""
    verb = "consume" if more else "consumes"
    call.warn(
        f"process {first['pid']} on {first['host']}{more} {verb} {handle.name}: it continues at "
        "the new position, and gets again what it has in hand there"
    )


def _seek(call: Call, handle: SubscriptionHandle, to: Bound, force: bool, acked: list[str]) -> None:
    try:
        answer = plan = handle.seek(to, acked=acked, force=force, dry_run=not call.dry_run)
    except MessageNotFound as error:
        if isinstance(to.value, MessageId) and to.value.ledger < 24 and to.value.entry < 60:
            time_of_day = f"{to.value.ledger}:{to.value.entry:02}"
            error.hint = f"this is read as a message id; a time is --to 'today {time_of_day}'"
        raise
    where = f"{handle.name} on {handle.short}"
    lines = [
        f"{where}/{row['partition']}: {row['from']} → {row['to']}, {handles.seek_effect(row)}"
        for row in plan["partition_list"]
    ]
    if plan["aborted_list"]:
        lines.append(f"aborts {', '.join(map(str, plan['aborted_list']))}")
    if handles.moved_partitions(plan):
        _warn_of_consumers(call, handle)
    if call.dry_run:
        for line in lines:
            call.summary(line)
    else:
        if handles.moved_partitions(plan) or plan["aborted_list"]:
            confirm(call, f"move {where}", lines)
        answer = handle.seek(to, acked=acked, force=force)
        moved = handles.moved_partitions(answer)
        call.summary(f"{handle.name} moved" if moved else f"{handle.name} is already there")
        for line in handles.undo_of(answer):
            call.summary(f"undo: {line}")
        for loss in handles.lost_by(answer):
            call.summary(f"undo does not bring back {loss}")
    call.output.result(answer)


@command(
    "sub skip",
    "acknowledge the next messages",
    examples=(
        "txlog sub skip billing -n 1",
        "txlog sub skip billing --older-than 7d --yes",
        "txlog sub skip billing --all --dry-run",
    ),
    rows="consuming.Skipped",
    changes=True,
    dry_run=True,
    loses="work",
    asks=True,
)
def skip(
    call: Call,
    subscription: Sub,
    topic: Topic = None,
    count: Annotated[
        int | None, Option("-n", metavar="N", help="the next N of each partition")
    ] = None,
    all_: Annotated[bool, Option("--all", help="the whole backlog")] = False,
    older_ms: Annotated[int | None, Duration("--older-than")] = None,
) -> None:
    """Acknowledge the next messages; messages that a transaction holds stay with it."""
    if (count is not None) + all_ + (older_ms is not None) != 1:
        raise Usage("give one of the following: -n N, --all or --older-than DUR")
    handle = handle_of(call, subscription, topic)
    _skip(
        call,
        handle,
        lambda dry_run: handle.skip(count, all=all_, older_than_ms=older_ms, dry_run=dry_run),
    )


@command(
    "sub clear-backlog",
    "acknowledge everything",
    examples=("txlog sub clear-backlog billing", "txlog sub clear-backlog billing --yes --json"),
    rows="consuming.Skipped",
    changes=True,
    dry_run=True,
    loses="work",
    asks=True,
)
def clear_backlog(call: Call, subscription: Sub, topic: Topic = None) -> None:
    """Acknowledge everything that no transaction holds: sub skip --all."""
    handle = handle_of(call, subscription, topic)
    _skip(call, handle, lambda dry_run: handle.clear_backlog(dry_run=dry_run))


@command(
    "sub expire",
    "acknowledge messages older than a time",
    examples=("txlog sub expire billing --older-than 7d", "txlog sub expire billing --dry-run"),
    rows="consuming.Skipped",
    changes=True,
    dry_run=True,
    loses="work",
    asks=True,
)
def expire(
    call: Call,
    subscription: Sub,
    topic: Topic = None,
    older_ms: Annotated[
        int | None, Duration("--older-than", help="default: the topic's time to live")
    ] = None,
) -> None:
    """Acknowledge messages older than a time: sub skip --older-than."""
    handle = handle_of(call, subscription, topic)
    _skip(call, handle, lambda dry_run: handle.expire(older_ms, dry_run=dry_run))


def _skip(call: Call, handle: SubscriptionHandle, act: Callable[[bool], Skipped]) -> None:
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
    "delete subscriptions",
    examples=(
        "txlog sub delete billing",
        "txlog sub delete billing audit -t orders --yes",
        "txlog sub list --json | txlog sub delete - --yes",
    ),
    rows="consuming.SubscriptionDeleted",
    changes=True,
    dry_run=True,
    loses="data",
    asks=True,
)
def delete(
    call: Call,
    subscriptions: Annotated[list[str], Argument(metavar="SUB|-", show_default=False)],
    topic: Topic = None,
    force: Annotated[bool, Option("--force", help="even if a consumer is open")] = False,
) -> None:
    """Delete subscriptions, with their acknowledgements and those that are pending."""

    def one(name: str) -> None:
        handle = handle_of(call, *targets[name])
        answer = plan = handle.delete(force=force, dry_run=not call.dry_run)
        backlog = _messages(plan["backlog"])
        where = f"{handle.name} on {handle.short}, {backlog} not acknowledged"
        if not call.dry_run:
            confirm(call, f"delete subscription {where}")
            answer = handle.delete(force=force)
        call.summary(f"deleted subscription {where}")
        call.output.result(answer)

    targets = _targets(call, subscriptions, topic)
    each_target([*targets], one)


def _targets(call: Call, words: list[str], topic: str | None) -> dict[str, tuple[str, str | None]]:
    """(name, topic) of each subscription that is named, also by rows of `sub list --json`."""
    rows = rows_named(call, words, "subscription", "subscription")
    pairs = [(str(row["subscription"]), topic or row.get("topic")) for row in rows]
    return {name if at is None else f"{name} on {at}": (name, at) for name, at in pairs}


# --- messages leased to consumers ------------------------------------------------------------


def handle_of(call: Call, subscription: str, topic: str | None) -> SubscriptionHandle:
    """The handle of a subscription; without a topic, the only topic that has it.

    raises: SubscriptionNotFound, InvalidArgument (205)
    """
    check_name("subscription", subscription)
    client = call.client(write=True)
    return client.subscription(topic or topic_of(client, subscription), subscription)


def _messages(count: int) -> str:
    return counted(count, "message")


@command(
    "sub nack",
    "return messages in hand, to be redelivered later",
    examples=("txlog sub nack billing 17:4", "txlog sub nack billing 17:4 17:9 --delay 30s"),
    rows="consuming.NegativelyAcknowledged",
    changes=True,
    dry_run=True,
)
def nack(
    call: Call,
    subscription: Sub,
    ids: Annotated[list[str], Argument(metavar="ID|-", show_default=False)],
    topic: Topic = None,
    *,
    delay_ms: Annotated[int, Duration("--delay", help="wait this long", default="0ms")],
) -> None:
    """Return messages that a consumer has in hand, for redelivery; others are ignored."""
    message_ids = _parsed(call, ids)
    if not message_ids:
        return
    answer = handle_of(call, subscription, topic).negative_acknowledge(message_ids, delay_ms)
    ignored = f", {answer['ignored']} in no consumer's hand" if answer["ignored"] else ""
    call.summary(f"returned {counted(answer['nacked'], 'message')} of {subscription}{ignored}")
    call.output.result(answer)


@command(
    "sub redeliver",
    "redeliver messages in hand at once",
    examples=("txlog sub redeliver billing 17:4", "txlog sub redeliver billing --all"),
    rows="consuming.Redelivered",
    changes=True,
    dry_run=True,
)
def redeliver(
    call: Call,
    subscription: Sub,
    ids: Annotated[list[str] | None, Argument(metavar="ID|-")] = None,
    topic: Topic = None,
    all_: Annotated[bool, Option("--all", help="all messages that consumers have in hand")] = False,
) -> None:
    """Redeliver messages in hand at once, from whichever consumer."""
    if bool(ids) == all_:
        raise Usage("the messages to redeliver are missing: ID… or --all")
    message_ids = None if all_ else _parsed(call, ids or [])
    if message_ids == []:
        return
    answer = handle_of(call, subscription, topic).redeliver(message_ids)
    call.summary(
        f"{counted(answer['redelivered'], 'message')} of {subscription} to be delivered again"
    )
    call.output.result(answer)


def _parsed(call: Call, ids: list[str]) -> list[MessageId]:
    return [MessageId.parse(word) for word in names(call, ids, "message_id", "message")]


# --- dead letters ------------------------------------------------------------------------------


@command(
    "dlq list",
    "dead-letter topics, or the dead letters of one",
    examples=("txlog dlq list", "txlog dlq list orders-billing-DLQ --limit 20"),
    rows="consuming.DeadLetterTopic",
    or_rows="consuming.DeadLetter",
)
def list_letters(
    call: Call,
    topic: Annotated[str | None, Argument(metavar="TOPIC", show_default=False)] = None,
    limit: Annotated[int | None, Option("--limit", min=0, metavar="N", help="at most N")] = None,
) -> None:
    """List dead-letter topics; with TOPIC, its messages that nobody has retried, oldest first.

    An ordinary topic has none; with one, the dead-letter topics of its messages are listed.
    """
    if topic is None:
        if limit is not None:
            raise Usage("--limit needs TOPIC")
        call.output.print_instead("consuming.DeadLetterTopic")
        call.output.rows(call.client().dead_letters())
        return
    call.output.print_instead("consuming.DeadLetter")
    client = call.client()
    rows = client.topic(topic).dead_letters(limit)
    short = TopicName.parse(topic, allow_partition=True).topic.short
    if short not in {row["topic"] for row in client.dead_letters()} and not any(
        row["origin_topic"] or row["origin_id"] or row["reason"] for row in rows
    ):
        topics = [row for row in client.dead_letters() if short in _origins(row["origin_list"])]
        if topics:
            call.output.print_instead("consuming.DeadLetterTopic")
            call.output.rows(topics)
            return
        rows = []
        call.say(f"no subscription has {short} as its dead-letter topic; `txlog dlq list` has all")
    call.output.rows(rows)


def _origins(givers: list[str]) -> set[str]:
    """The topics of TOPIC/SUBSCRIPTION or TOPIC/PARTITION/SUBSCRIPTION."""
    names = (giver.rpartition("/")[0] for giver in givers)
    return {TopicName.parse(name, allow_partition=True).topic.short for name in names if name}


@command(
    "dlq retry",
    "move dead letters back to their topics",
    examples=(
        "txlog dlq retry orders-billing-DLQ --all",
        "txlog dlq retry orders-billing-DLQ -n 10 --dry-run",
        "txlog dlq list orders-billing-DLQ --json | txlog dlq retry orders-billing-DLQ -",
    ),
    rows="consuming.DeadLettersRetried",
    changes=True,
    dry_run=True,
)
def retry_letters(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    ids: Annotated[list[str] | None, Argument(metavar="ID|-")] = None,
    all_: Annotated[bool, Option("--all", help="all dead letters of TOPIC")] = False,
    count: Annotated[int | None, Option("-n", min=1, metavar="N", help="the oldest N")] = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="K", help="only this key")] = None,
    all_subscriptions: Annotated[
        bool, Option("--all-subscriptions", help="not only the one that gave it up gets it")
    ] = False,
) -> None:
    """Move dead letters back, each in the frame that acknowledges it here: never doubled or lost.

    The subscription that gave a message up gets it again, with a redelivery count of 0; others do
    not. If it fails again, it comes back here with a higher DLQ_RETRIES. `-` reads the ids, or what
    `dlq list TOPIC --json` prints, from stdin.
    """
    if bool(ids) == (all_ or count is not None or key is not None):
        raise Usage("which dead letters? ID…, or --all, -n N, --key K")
    message_ids = _parsed(call, ids) if ids else None
    if message_ids == []:
        return
    encoded = None if key is None else key.encode("utf-8", "surrogateescape")
    handle = call.client(write=True).topic(topic)
    try:
        answer = handle.retry_dead_letters(
            message_ids, all=all_, count=count, key=encoded, all_subscriptions=all_subscriptions
        )
    except MessageNotFound as error:
        listing = command_line("dlq list", topic)
        error.hint = f"give the message_id of the dead letter, not of its origin: {listing}"
        raise
    call.summary(f"moved {counted(answer['retried'], 'message')} of {answer['topic']} back")
    for row in answer["left_list"]:
        stay = "stays" if row["messages"] == 1 else "stay"
        which = f"{counted(row['messages'], 'message')} {stay}, the first is {row['first']}"
        call.warn(f"{which}: {row['reason']}")
    call.output.result(answer)
