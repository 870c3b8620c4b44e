"""Owns the commands of delayed messages: list them, deliver or cancel them, maintain their index.

Commands that deliver or cancel show their plan and ask first; the plan is the same decision
without effects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from txlog.base.ids import MessageId, TxnId, check_name
from txlog.base.suggest import command_line
from txlog.base.times import format_time
from txlog.cli.call.call import Call, confirm, each_target
from txlog.cli.call.progress import Words
from txlog.cli.input.names import names
from txlog.cli.line.command import Argument, Option, Time, command, exclusive
from txlog.cli.terminal.tables import counted
from txlog.errors import Usage

if TYPE_CHECKING:
    from txlog.base.settings import Settings
    from txlog.client.topics.topic import TopicHandle

Row = dict[str, Any]
BAR_COLUMNS: Final = 40
ROWS_AT_ONCE: Final = 10_000  # rows of a listing; as Python objects they take a kilobyte each
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]
Subscription = Annotated[
    str | None, Option("--subscription", "-s", metavar="SUB", help="only unacknowledged ones")
]
Before = Annotated[int | None, Time("--before", help="due before then")]


# --- look ------------------------------------------------------------------------------------


@command(
    "delay list",
    "messages that are not due yet, by their time",
    examples=(
        "txlog delay list orders --limit 20",
        "txlog delay list orders -s billing --before +1h",
        "txlog delay list orders --histogram",
    ),
    rows="delayed.DelayedRow",
    until="size_bytes",
)
def list_delayed(
    call: Call,
    topic: Topic,
    subscription: Subscription = None,
    before_ms: Before = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="K", help="of this key")] = None,
    limit: Annotated[int | None, Option("--limit", min=0, metavar="N", help="at most N")] = None,
    histogram: Annotated[
        bool, Option("--histogram", help="count the messages due in each span of time")
    ] = False,
) -> None:
    """List messages that are not due yet, by due time."""
    exclusive(histogram=histogram, key=key is not None)
    exclusive(histogram=histogram, limit=limit is not None)
    if subscription is not None:
        check_name("subscription", subscription)
    handle = call.client().topic(topic)
    if histogram:
        _print_histogram(call, handle.histogram(subscription, before_ms))
        return
    encoded = None if key is None else key.encode("utf-8", "surrogateescape")
    call.output.listing(_batches(call, handle, subscription, before_ms, limit, encoded))


@command(
    "delay next",
    "the messages that are due next",
    examples=("txlog delay next orders", "txlog delay next -n 3 -s billing"),
    rows="delayed.DelayedRow",
    until="size_bytes",
)
def next_delayed(
    call: Call,
    topic: Annotated[str | None, Argument(metavar="TOPIC", show_default=False)] = None,
    count: Annotated[int, Option("-n", min=1, metavar="N", help="number of messages")] = 1,
    subscription: Subscription = None,
) -> None:
    """Show the messages that are due next, in TOPIC or in the whole store."""
    if subscription is not None:
        check_name("subscription", subscription)
    client = call.client()
    names = [topic] if topic is not None else [str(row["topic"]) for row in client.topics()]
    if topic is None and subscription is not None:
        having = {
            str(row["topic"])
            for row in client.subscriptions()
            if row["subscription"] == subscription
        }
        names = [name for name in names if name in having]
    rows = [
        row
        for name in names
        for batch in _batches(call, client.topic(name), subscription, None, count, None)
        for row in batch
    ]
    call.output.rows(sorted(rows, key=lambda row: int(row["deliver_at"]))[:count])


@command(
    "delay buckets",
    "the buckets of the index of delayed messages",
    examples=("txlog delay buckets orders", "txlog delay buckets orders --json"),
    rows="delayed.BucketRow",
    until="size_bytes",
)
def buckets(call: Call, topic: Topic) -> None:
    """List the buckets of the index: sealed ones, the mutable one, those waiting for a commit.

    An unindexed range has messages that the index does not know; it is rebuilt when needed.
    """
    if call.output.form == "names":
        raise Usage("-f names: there is no name or id here")
    call.output.rows(call.client().topic(topic).buckets())


def _batches(
    call: Call,
    handle: TopicHandle,
    subscription: str | None,
    before_ms: int | None,
    limit: int | None,
    key: bytes | None,
) -> Iterator[list[Row]]:
    now_ms = call.now_ms()
    rows = handle.delayed(subscription, before_ms, limit, key=key)
    for at in range(0, rows.num_rows, ROWS_AT_ONCE):
        yield [
            {
                "topic": handle.short,
                "partition": row["partition"],
                "message_id": _message_id(row),
                "deliver_at": row["at"],
                "due_in_ms": row["at"] - now_ms,
                "key": _text(row["key"]),
                "size_bytes": row["size_bytes"],
                "txn": _transaction(row),
            }
            for row in _plain(rows.slice(at, ROWS_AT_ONCE))
        ]


def _plain(table: Any) -> list[Row]:
    """The rows with their time in ms: an instant can be out of range for a datetime."""
    at = table["deliver_at"].cast("int64")
    return table.drop_columns(["deliver_at"]).append_column("at", at).to_pylist()  # type: ignore[no-any-return]


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")


def _print_histogram(call: Call, rows: Sequence[Mapping[str, object]]) -> None:
    output = call.output
    if call.flags.columns is not None:
        raise Usage("--columns does not go with --histogram")
    output.print_instead("delayed.DueWithin")
    if output.form in ("table", "wide") and output.look.human:
        output.shown = output.fields = [*output.fields, "bar"]
        most = max(int(str(row["messages"])) for row in rows) or 1
        rows = [{**row, "bar": "█" * _length(int(str(row["messages"])), most)} for row in rows]
    output.rows(rows)


def _length(count: int, most: int) -> int:
    """The length of a bar; it is at least 1 for any count above zero."""
    return -(-count * BAR_COLUMNS // most)


# --- promote and cancel ----------------------------------------------------------------------

Ids = Annotated[list[str] | None, Argument(metavar="ID|-")]
DueBefore = Annotated[int | None, Time("--before", help="messages due before it")]
Every = Annotated[bool, Option("--all", help="everything delayed")]


@command(
    "delay promote",
    "deliver delayed messages now",
    examples=(
        "txlog delay promote orders 17:4",
        "txlog delay promote orders --before +1h -s billing --yes",
        "txlog delay promote orders --all --dry-run",
    ),
    rows="delayed.Promoted",
    without="first_at last_at",
    changes=True,
    dry_run=True,
    asks=True,
)
def promote(
    call: Call,
    topic: Topic,
    ids: Ids = None,
    due_before: DueBefore = None,
    all_: Every = False,
    subscription: Annotated[
        str | None,
        Option("--subscription", "-s", metavar="SUB", help="else shared and key-shared ones"),
    ] = None,
) -> None:
    """Deliver delayed messages now, before they are due."""
    _change(call, topic, ids, due_before, all_, subscription, "promote")


@command(
    "delay cancel",
    "acknowledge them before they are due",
    examples=(
        "txlog delay cancel orders 17:4 17:9:2",
        "txlog delay list orders --json | txlog delay cancel orders - --yes",
        "txlog delay cancel orders --all -s billing --yes",
        "txlog delay cancel orders --before 2027-01-01 --dry-run",
    ),
    rows="delayed.Cancelled",
    without="first_at last_at",
    changes=True,
    dry_run=True,
    loses="work",
    asks=True,
)
def cancel(
    call: Call,
    topic: Topic,
    ids: Ids = None,
    due_before: DueBefore = None,
    all_: Every = False,
    subscription: Annotated[
        str | None, Option("--subscription", "-s", metavar="SUB", help="default: all subscriptions")
    ] = None,
) -> None:
    """Acknowledge delayed messages before they are due, so that they are never delivered."""
    _change(call, topic, ids, due_before, all_, subscription, "cancel")


_DONE = {"promote": "promoted", "cancel": "cancelled"}


def _change(
    call: Call,
    topic: str,
    ids: list[str] | None,
    before_ms: int | None,
    all_: bool,
    subscription: str | None,
    verb: str,
) -> None:
    if bool(ids) + (before_ms is not None) + all_ != 1:
        raise Usage(f"give one of the following to {verb} messages: ID…, --before TIME or --all")
    if subscription is not None:
        check_name("subscription", subscription)
    message_ids = _parsed(call, ids) if ids else None
    if message_ids == []:
        return
    handle = call.client(write=True).topic(topic)
    act = _action(handle, verb)

    def ask(dry_run: bool) -> Mapping[str, Any]:
        return act(
            message_ids, before=before_ms, all=all_, subscription=subscription, dry_run=dry_run
        )

    done = _DONE[verb]
    answer = ask(not call.dry_run)
    where = handle.short if subscription is None else f"{handle.short} for {subscription}"
    if answer[done] and not call.dry_run:
        confirm(call, f"{verb} {_amount(answer, done)} of {where}")
        answer = ask(False)
    ignored = answer["not_delayed"]
    not_delayed = f", {counted(ignored, 'message')} not delayed" if ignored else ""
    did = f"{done} {_amount(answer, done)}" if answer[done] else f"nothing to {verb}"
    call.summary(f"{did} of {where}{not_delayed}")
    call.output.result(answer)


def _action(handle: TopicHandle, verb: str) -> Callable[..., Mapping[str, Any]]:
    return handle.promote if verb == "promote" else handle.cancel


def _parsed(call: Call, ids: list[str]) -> list[MessageId]:
    return [MessageId.parse(word) for word in names(call, ids, "message_id", "message")]


def _amount(answer: Mapping[str, Any], done: str) -> str:
    """The number of messages, with the earliest and latest of their due times."""
    first, last = answer["first_at"], answer["last_at"]
    if first == last:
        return f"{counted(answer[done], 'message')} due {format_time(first)}"
    return f"{counted(answer[done], 'message')} due {format_time(first)} to {format_time(last)}"


# --- maintain the index ----------------------------------------------------------------------


@command(
    "delay merge",
    "merge its buckets",
    examples=(
        "txlog delay merge",
        "txlog delay merge orders --to 4 --dry-run",
    ),
    rows="delayed.BucketsMerged",
    changes=True,
    dry_run=True,
)
def merge(
    call: Call,
    topic: Annotated[
        str | None,
        Argument(metavar="TOPIC", help="else every topic with buckets", show_default=False),
    ] = None,
    to: Annotated[
        int | None, Option("--to", min=1, metavar="N", help="buckets to keep; else max_num_buckets")
    ] = None,
) -> None:
    """Merge sealed buckets of the index, which saves memory and files.

    Consumers get the same messages at the same times, and no other call waits. Upkeep merges by
    itself above max_num_buckets, so this is for fewer. The newest messages are in a mutable bucket,
    which is sealed when it is full: `txlog delay buckets` shows them all.
    """
    client = call.client(write=True)
    if topic is not None:
        _merge(call, client.topic(topic), to, client.settings)
        return
    handles = {str(row["topic"]): client.topic(str(row["topic"])) for row in client.topics()}
    having = [name for name, handle in handles.items() if _sealed(handle)]
    if not having:
        call.summary("no topic has a sealed bucket: nothing to merge")
    each_target(having, lambda name: _merge(call, handles[name], to, client.settings))


def _merge(call: Call, handle: TopicHandle, to: int | None, settings: Settings) -> None:
    with Words(call, f"merging buckets of {handle.short}"):
        answer = handle.merge(to, dry_run=call.dry_run)
    before, after = answer["buckets_before"], answer["buckets_after"]
    text = (
        f"{answer['topic']}: {counted(before, 'sealed bucket')} before, "
        f"{after:,} after, with {counted(answer['messages'], 'message')}"
    )
    if not before:
        mutable = sum(row["messages"] or 0 for row in handle.buckets() if row["state"] == "mutable")
        text = f"{answer['topic']}: nothing to merge; {_unsealed(mutable, settings)}"
    elif before == after:
        text += f"; {_unmerged(handle, to, settings)}"
    call.summary(text)
    call.output.result(answer)


def _sealed(handle: TopicHandle) -> Counter[int]:
    """How many sealed buckets each partition has."""
    rows = handle.buckets()
    return Counter(int(row["partition"]) for row in rows if row["state"] == "sealed")


def _unmerged(handle: TopicHandle, to: int | None, settings: Settings) -> str:
    """Why a merge changed nothing, and the command that would."""
    most = max(_sealed(handle).values(), default=0)
    if most <= 1:
        return "no partition has two of them"
    limit = settings.max_num_buckets if to is None else to
    if 0 < limit < most:
        line = command_line("delay rebuild", handle.short)
        return f"ranges without an index lie between them: {line}"
    kept = f"{limit:,} in each partition" if limit > 0 else "all of them"
    which = "max_num_buckets" if to is None else "--to"
    fewer = command_line("delay merge", handle.short, "--to", max(1, most // 2))
    return f"{which} keeps {kept}, and none has more than {most:,}; for fewer: {fewer}"


def _unsealed(messages: int, settings: Settings) -> str:
    """What happens with messages that are in no sealed bucket yet."""
    if not messages:
        return "no message is delayed"
    step = settings.ledger_step_per_bucket
    by_ledgers = (
        f", or when they come from more than {counted(step, 'ledger')} (ledger_step_per_bucket)"
        if step
        else ""
    )
    return (
        f"no bucket is full yet: {counted(messages, 'delayed message')}; a bucket is sealed at "
        f"{settings.mutable_ids_max:,} messages (mutable_ids_max){by_ledgers}; earlier: "
        + command_line("config set", "mutable_ids_max", "N")
    )


@command(
    "delay rebuild",
    "rebuild its buckets from the log",
    examples=(
        "txlog delay rebuild orders",
        "txlog delay rebuild orders --from 17:0 --to 17:900 --dry-run",
    ),
    rows="delayed.IndexRebuilt",
    changes=True,
    dry_run=True,
)
def rebuild(
    call: Call,
    topic: Topic,
    first: Annotated[str | None, Option("--from", metavar="L:E", help="default: the first")] = None,
    last: Annotated[str | None, Option("--to", metavar="L:E", help="default: the last")] = None,
) -> None:
    """Rebuild the sealed buckets from the log, and report the differences.

    The mutable bucket needs no rebuild: each process builds it from the frames of the log.
    """
    low = None if first is None else MessageId.parse(first)
    high = None if last is None else MessageId.parse(last)
    handle = call.client(write=True).topic(topic)
    with Words(call, f"rebuilding the index of {topic}"):
        answer = handle.rebuild(low, high, dry_run=call.dry_run)
    differed = answer["missing"] + answer["surplus"]
    differences = (
        f"{answer['missing']:,} missing, {answer['surplus']:,} surplus"
        if differed
        else ("nothing differed")
    )
    call.summary(
        f"{answer['topic']}: {counted(answer['messages_read'], 'message')} read, "
        f"{answer['indexed']:,} in {counted(answer['buckets'], 'bucket')}, {differences}"
    )
    call.output.result(answer)


def _message_id(row: Row) -> str | None:
    """Return the id of a row as text; None while it has none."""
    ledger = row.get("ledger")
    if ledger is None:
        return None
    index = row.get("index")
    return f"{ledger}:{row['entry']}:{index}" if index else f"{ledger}:{row['entry']}"


def _transaction(row: Row) -> str | None:
    """Return the transaction of a row as text."""
    most = row.get("txn_most")
    return None if most is None else str(TxnId.from_halves(most, row["txn_least"]))
