"""Owns the commands that look at delayed messages: list, next, buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from txlog.cli.call.call import Call
from txlog.cli.line.command import command, exclusive
from txlog.cli.line.declared import Argument, Option
from txlog.cli.output.percent import message_id, transaction
from txlog.errors import Usage
from txlog.ids import check_name
from txlog.ranges import parse_time

if TYPE_CHECKING:
    from txlog.api.topics.topic import TopicHandle

Row = dict[str, Any]
LIST_FIELDS: Final = "topic partition message_id deliver_at due_in_ms key size_bytes | txn"
HISTOGRAM_FIELDS: Final = ["due_within_ms", "messages"]
BAR_COLUMNS: Final = 40
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]
Subscription = Annotated[
    str | None, Option("--subscription", "-s", metavar="SUB", help="not acknowledged there")
]
Before = Annotated[str | None, Option("--before", metavar="TIME", help="due before it")]


@command(
    "delay list",
    examples=(
        "txlog delay list orders --limit 20",
        "txlog delay list orders -s billing --before +1h",
        "txlog delay list orders --histogram",
    ),
    fields=LIST_FIELDS,
)
def list_delayed(
    call: Call,
    topic: Topic,
    subscription: Subscription = None,
    before: Before = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="K", help="of this key")] = None,
    limit: Annotated[int | None, Option("--limit", min=0, metavar="N", help="at most N")] = None,
    histogram: Annotated[
        bool, Option("--histogram", help="how many are due within which time")
    ] = False,
) -> None:
    """List messages that are not due yet, in the order of their time."""
    exclusive(histogram=histogram, key=key is not None)
    exclusive(histogram=histogram, limit=limit is not None)
    if subscription is not None:
        check_name("subscription", subscription)
    before_ms = None if before is None else parse_time(before, call.now_ms())
    handle = call.client().topic(topic)
    if histogram:
        _print_histogram(call, handle.histogram(subscription, before_ms))
        return
    encoded = None if key is None else key.encode("utf-8", "surrogateescape")
    call.output.rows(_rows(call, handle, subscription, before_ms, limit, encoded))


@command(
    "delay next",
    examples=("txlog delay next orders", "txlog delay next -n 3 -s billing"),
    fields=LIST_FIELDS,
)
def next_delayed(
    call: Call,
    topic: Annotated[str | None, Argument(metavar="TOPIC", show_default=False)] = None,
    count: Annotated[int, Option("-n", min=1, metavar="N", help="so many")] = 1,
    subscription: Subscription = None,
) -> None:
    """Show what is due next; without TOPIC in the whole store."""
    if subscription is not None:
        check_name("subscription", subscription)
    client = call.client()
    names = [topic] if topic is not None else [str(row["topic"]) for row in client.topics()]
    if topic is None and subscription is not None:
        having = {str(row["topic"]) for row in client.subscriptions()
                  if row["subscription"] == subscription}  # fmt: skip
        names = [name for name in names if name in having]
    rows = [
        row for name in names
        for row in _rows(call, client.topic(name), subscription, None, count, None)
    ]  # fmt: skip
    call.output.rows(sorted(rows, key=lambda row: int(row["deliver_at"]))[:count])


@command(
    "delay buckets",
    examples=("txlog delay buckets orders", "txlog delay buckets orders --json"),
    fields=(
        "topic partition state generation first last messages not_due segments loaded_segments "
        "size_bytes | min_deliver_at max_deliver_at file"
    ),
)
def buckets(call: Call, topic: Topic) -> None:
    """List the buckets of the index: sealed ones, the mutable one, what waits for a commit.

    Unindexed is a range whose messages the index does not know: it is rebuilt when it is needed.
    """
    if call.output.form == "names":
        raise Usage("-f names: there is no name or id here")
    call.output.rows(call.client().topic(topic).buckets())


def _rows(
    call: Call, handle: TopicHandle, subscription: str | None, before_ms: int | None,
    limit: int | None, key: bytes | None,
) -> list[Row]:  # fmt: skip
    now_ms = call.now_ms()
    return [
        {
            "topic": handle.short, "partition": row["partition"], "message_id": message_id(row),
            "deliver_at": row["at"], "due_in_ms": row["at"] - now_ms, "key": _text(row["key"]),
            "size_bytes": row["size_bytes"], "txn": transaction(row),
        }
        for row in _plain(handle.delayed(subscription, before_ms, limit, key=key))
    ]  # fmt: skip


def _plain(table: Any) -> list[Row]:
    """The rows with their time in ms: an instant may be beyond what a datetime can say."""
    at = table["deliver_at"].cast("int64")
    return table.drop_columns(["deliver_at"]).append_column("at", at).to_pylist()  # type: ignore[no-any-return]


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")


def _print_histogram(call: Call, rows: Sequence[Mapping[str, object]]) -> None:
    output = call.output
    if call.flags.columns is not None:
        raise Usage("--columns does not go with --histogram")
    output.fields = output.shown = HISTOGRAM_FIELDS
    if output.form in ("table", "wide") and output.look.human:
        output.shown = output.fields = [*HISTOGRAM_FIELDS, "bar"]
        most = max(int(str(row["messages"])) for row in rows) or 1
        rows = [{**row, "bar": "█" * _length(int(str(row["messages"])), most)} for row in rows]
    output.rows(rows)


def _length(count: int, most: int) -> int:
    """How long a bar is: what is there has one."""
    return -(-count * BAR_COLUMNS // most)
