"""Owns the views of the live page except its overview: how each reads the store, and its HTML.

A view is about one thing: a topic, a subscription, a message, a transaction, the recent
transactions, the connected clients. Its figures change, so the page gets it again and again. Parts
that a user fills in, or that cost more to read, are fragments (`later`): the page gets each only
once, and keeps it while the view around it changes. Keys and values are a short preview, pretty
JSON, text, or bytes in hex.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.client.answers.changes import recent_of_subscription
from txlog.client.client import Client
from txlog.client.search import Found, SearchBudget
from txlog.engine.door.reading import Decoder, Message, messages
from txlog.errors import MessageNotFound, TxlogError
from txlog.page.charts import life
from txlog.page.sections import LAG, empty, lag, left_out, pairs, section, table, tiles
from txlog.page.words import (
    Link,
    address,
    ago,
    block,
    count,
    counted,
    duration,
    instant,
    linked,
    rate,
    safe,
    size,
)

if TYPE_CHECKING:
    from txlog.base.rows.transactions import TransactionDescription, TransactionLogRow


Where = Mapping[str, str]
ROWS_MAX: Final = 200
LETTERS_MAX: Final = 50
LISTS_MAX: Final = 50  # subscriptions whose consumers the view of clients shows
SEARCHED: Final = ("key", "text", "from", "to")  # the fields of a search
_TONES: Final = {"TxnOpened": 3, "to COMMITTED": 1, "to ABORTED": 5}


ClientsOf = Callable[[Any], Iterable[Mapping[str, Any]]]


def _itself(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row]


class View(NamedTuple):
    """A view: the text in the title of the window, and its HTML."""

    title: str
    html: str


def later(path: str, where: Mapping[str, object], seconds: int = 0) -> str:
    """The place of a fragment, which the page gets by itself; seconds: and again so often."""
    query = address(path, where).removeprefix("#/")
    attribute = f' data-every="{seconds}"' if seconds else ""
    return f'<div data-load="page/{safe(query)}"{attribute}></div>'


def head(title: str, *crumbs: Link, note: str = "") -> str:
    """The heading of a view, below the way that leads to it."""
    way = " › ".join(map(linked, (Link("Overview", "", {}), *crumbs)))
    remark = f'<p class="note">{safe(note)}</p>' if note else ""
    return f'<p class="crumbs">{way}</p><h2 class="title">{safe(title)}</h2>{remark}'


def _topic(name: str) -> Link:
    return Link(name, "topic", {"topic": name})


def _subscription(topic: str, name: str) -> Link:
    return Link(name, "subscription", {"topic": topic, "subscription": name})


def _message(topic: str, message_id: MessageId | None) -> str | Link:
    if message_id is None:
        return ""
    return Link(str(message_id), "message", {"topic": topic, "id": message_id})


def _txn(txn: TxnId | None) -> str | Link:
    return "" if txn is None else Link(str(txn), "transaction", {"id": txn})


def _now_ms(client: Client) -> int:
    return client.store.clock.now().wall_ms


# --- a topic -----------------------------------------------------------------------------------


def topic(client: Client, where: Where, *, acts: bool = False) -> View:
    """A topic: figures, subscriptions, messages, history, partitions, policies.

    acts: the page shows its actions
    """
    row, now_ms = client.describe_topic(where["topic"]), _now_ms(client)
    name = row["topic"]
    figures = [
        (count(row["messages"]), "messages"),
        (size(row["size_bytes"]), "payload"),
        (count(row["backlog"]), "backlog"),
        (count(row["delayed"]), "delayed"),
        (count(row["open_txns"]), "open transactions"),
        (ago(now_ms, row["last_publish_time"]) or "never", "last message"),
    ]
    about = {"topic": name}
    query = {key: where[key] for key in (*SEARCHED, "before") if where.get(key)}
    parts = counted(row["partitions"], "partition")
    body = (
        head(name, note=f"{parts}, created {instant(row['created_time'])} UTC")
        + tiles(figures)
        + _subscriptions(name, client.lag(name))
        + later("history", {**about, "span": where.get("span", "")}, 30)
        + later("letters", about)
        + later("search", {**about, **query})
        + _partitions(name, row["partition_list"])
        + _policies(row)
    )
    return View(name, body + (later("actions", about) if acts else ""))


def _subscriptions(topic: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return section(
            "Subscriptions",
            empty("no subscriptions: a consumer makes one, or txlog sub create NAME -t TOPIC"),
        )
    cells = [
        (
            _subscription(topic, row["subscription"]),
            row["type"],
            *lag(row),
            count(row["consumers"]),
        )
        for row in rows[:ROWS_MAX]
    ]
    headings = ("subscription", "type", *LAG, "consumers")
    rows_shown = table(headings, cells, range(2, len(headings)))
    return section("Subscriptions", rows_shown + left_out(len(rows) - ROWS_MAX, "subscription"))


def _partitions(topic: str, rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            str(row["partition"]),
            count(row["messages"]),
            size(row["size_bytes"]),
            count(row["open_txns"]),
            _message(topic, row["first"]),
            _message(topic, row["last"]),
            "online" if row["online"] else "unavailable",
        )
        for row in rows[:ROWS_MAX]
    ]
    headings = ("partition", "messages", "payload", "open txns", "first", "last", "state")
    rows_shown = table(headings, cells, (1, 2, 3))
    return section("Partitions", rows_shown + left_out(len(rows) - ROWS_MAX, "partition"))


def _policies(row: Mapping[str, Any]) -> str:
    settings = {name: value for name, value in row["policies"].items() if value is not None}
    if row.get("schema_version"):
        settings["schema version"] = row["schema_version"]
    if row.get("mismatched"):
        settings["values that do not fit the schema"] = row["mismatched"]
    if not settings:
        return ""
    return section("Policies", pairs([(name, str(value)) for name, value in settings.items()]))


# --- messages of a topic ---------------------------------------------------------------------


def search_form(topic: str, where: Where) -> str:
    """The form that searches a topic, and the button of its live tail."""
    labels = {
        "key": ("Key", ""),
        "text": ("Text in the value", ""),
        "from": ("From", "-1h, yesterday, 2026-11-20T09:00Z"),
        "to": ("Before", "-10m"),
    }
    fields = "".join(
        f'<label>{label} <input name="{name}" value="{safe(where.get(name, ""))}"'
        f' placeholder="{hint}" autocomplete="off" spellcheck="false"></label>'
        for name, (label, hint) in labels.items()
    )
    full = TopicName.parse(topic, allow_partition=True).full
    return (
        f'<form class="fields" data-go="topic"><input type="hidden" name="topic"'
        f' value="{safe(topic)}">{fields}<div class="row">'
        '<button type="submit" class="primary">Search</button>'
        f'<button type="button" data-tail="{safe(full)}" data-topic="{safe(topic)}"'
        ' aria-pressed="false">Live tail</button></div></form><div class="tail"></div>'
    )


def search_result(topic: str, where: Where, found: Found, before: str, budget: SearchBudget) -> str:
    """The section of messages: the form, the hits, and the link to older messages.

    before: the places where the search goes on; empty: it is complete
    """
    rows = [_found(topic, message) for message in messages(found.table)]
    query = {name: where[name] for name in SEARCHED if where.get(name)}
    looked = f"{counted(found.rows, 'message')}, {size(found.size_bytes)}"
    if found.stopped in ("", "hits"):
        note = f"Looked at {looked}." if query else ""
    else:
        note = (
            f"Stopped after {looked}: a search looks at {count(budget.rows)} messages,"
            f" {size(budget.size_bytes)} or for {budget.seconds:g} s."
        )
    headings = ("message", "key", "value", "visible since, UTC", "size", "transaction")
    nothing = "no such message" if query or where.get("before") else "no messages yet"
    body = table(headings, rows, (4,)) if rows else empty(nothing)
    more = ""
    if before:
        text = "Older messages" if found.stopped == "hits" else "Search older messages"
        link = Link(text, "topic", {"topic": topic, **query, "before": before})
        more = f'<p class="more">{linked(link)}</p>'
    remark = f'<p class="note">{safe(note)}</p>' if note else ""
    form = search_form(topic, where)
    return section("Messages", f'{form}<div class="found">{body}</div>{remark}{more}')


def search_failed(topic: str, where: Where, error: TxlogError) -> str:
    """The section of messages, after a search that was refused."""
    body = f'<p class="bad">{safe(error.message)}</p>'
    hint = f'<p class="note">{safe(error.hint)}</p>' if error.hint else ""
    return section("Messages", search_form(topic, where) + body + hint)


def _found(topic: str, message: Message) -> Sequence[str | Link]:
    return (
        _message(topic, message.message_id),
        preview(message.key, 60),
        preview(message.value, 120),
        instant(message.visible_time),
        size(len(message.value or b"")),
        _txn(message.txn),
    )


def letters(client: Client, where: Where) -> str:
    """The dead letters of a topic, the oldest first; empty if it is no dead-letter topic."""
    name = TopicName.parse(where["topic"]).short
    if not is_of_dead_letters(client, name):
        return ""
    rows = client.topic(name).dead_letters(LETTERS_MAX)
    if not rows:
        return section("Dead letters", empty("none that nobody has retried"))
    cells = [
        (
            _message(name, row["message_id"]),
            row["key"] or "",
            row["preview"] or "",
            row["reason"] or "",
            f"{row['origin_topic'] or '?'} / {row['subscription'] or '?'}",
            instant(row["dead_time"]),
        )
        for row in rows
    ]
    headings = ("message", "key", "value", "reason", "came from", "since, UTC")
    note = "Not yet retried, the oldest first."
    return section("Dead letters", f'<div class="found">{table(headings, cells)}</div>', note)


def is_of_dead_letters(client: Client, name: str) -> bool:
    """Whether a topic has dead letters."""
    return any(row["topic"] == name for row in client.dead_letters())


# --- a message -------------------------------------------------------------------------------


def message(client: Client, where: Where) -> View:
    """A message: its fields, properties and value, and the subscriptions that acknowledged it.

    raises: MessageNotFound, also for a message of another topic
    """
    name = TopicName.parse(where["topic"], allow_partition=True).topic.short
    message_id = MessageId.parse(where["id"])
    answer = client.inspect(f"msg:{message_id}")
    [row] = messages(answer["record"], Decoder(client.store))
    if row.topic != name:
        raise MessageNotFound(
            f"message {message_id} does not exist in {name}", message_id=message_id
        )
    acked = set(answer["acknowledged_list"])
    subscriptions = sorted(entry["subscription"] for entry in client.subscriptions(name))
    waiting = [entry for entry in subscriptions if entry not in acked]
    fields: list[tuple[str, str | Link]] = [
        ("topic", _topic(name)),
        ("partition", str(row.partition)),
        ("key", preview(row.key, 2000)),
        ("written", f"{instant(row.publish_time)} UTC"),
        ("visible since", f"{instant(row.visible_time)} UTC"),
        ("event time", instant(row.event_time)),
        ("deliver at", instant(row.deliver_at)),
        ("producer", row.producer or ""),
        ("sequence id", "" if row.sequence_id is None else str(row.sequence_id)),
        ("transaction", _txn(row.txn)),
        ("schema version", "" if row.schema_version is None else str(row.schema_version)),
        ("messages of its transaction", str(answer.get("messages") or "")),
        ("acknowledged by", ", ".join(sorted(acked))),
        ("not acknowledged by", ", ".join(waiting)),
        ("file", f"{answer['file']}, row {answer['row']}" if answer["file"] else "the journal"),
    ]
    properties = pairs([*row.properties.items()]) if row.properties else empty("no properties")
    older = Link("Older messages", "topic", {"topic": name, "before": _before(row)})
    body = (
        head(str(row.message_id), _topic(name))
        + section("Value", _value(row))
        + section("Message", pairs([pair for pair in fields if pair[1] != ""]))
        + section("Properties", properties)
        + f'<p class="more">{linked(older)}</p>'
    )
    return View(f"{row.message_id} in {name}", body)


def _before(row: Message) -> str:
    return f"{row.partition}={row.message_id}"


def _value(row: Message) -> str:
    """The value, as a record if its topic has a schema."""
    record = None
    if row.schema_version is not None:
        try:
            record = row.decode()
        except TxlogError as error:
            return f'<p class="note">{safe(error.message)}</p>' + value_block(row.value)
    return value_block(row.value, record)


# --- a subscription --------------------------------------------------------------------------


def subscription(
    client: Client, where: Where, *, acts: bool = False, clients_of: ClientsOf = _itself
) -> View:
    """A subscription: figures, consumers, partitions, changes; acts: and its actions.

    clients_of: returns a row for each client of this server that is connected as a consumer
    """
    handle = client.subscription(where["topic"], where["subscription"])
    row, now_ms = handle.describe(), _now_ms(client)
    topic, name, lag_cells = row["topic"], row["subscription"], lag(row)
    figures = [
        (lag_cells[0], "backlog"),
        (lag_cells[1], "of payload"),
        (lag_cells[2] or "–", "oldest message"),
        (lag_cells[-1] or "–", "until caught up"),
        (count(row["delayed"]), "not due yet"),
        (count(row["pending_acks"]), "held by transactions"),
        (count(row["consumers"]), "consumers"),
        (ago(now_ms, row["last_ack_time"]) or "never", "last acknowledgement"),
    ]
    about = {"topic": topic, "subscription": name}
    note = f"{row['type']}, created {instant(row['created_time'])} UTC"
    body = (
        head(name, _topic(topic), note=note)
        + tiles(figures)
        + _rates(row)
        + section("Consumers", _consumers([(None, row["consumer_list"])], clients_of, now_ms))
        + _cursors(topic, row["partition_list"])
        + _policies(row)
        + (later("actions", about) if acts else "")
        + later("changes", about)
    )
    return View(f"{name} of {topic}", body)


def _rates(row: Mapping[str, Any]) -> str:
    cells = [
        (
            f"last {span}",
            *(
                "unknown" if row[name] is None else rate(row[name])
                for name in (f"rate_in_{word}", f"rate_out_{word}")
            ),
        )
        for span, word in (("minute", "1m"), ("15 minutes", "15m"))
    ]
    return section("Messages per second", table(("", "in", "acknowledged"), cells, (1, 2)))


def _consumers(
    lists: Sequence[tuple[Link | None, Sequence[Mapping[str, Any]]]],
    clients_of: ClientsOf,
    now_ms: int,
) -> str:
    """The consumers of some subscriptions; None: of the one that the view is about."""
    rows = [(link, client) for link, rows in lists for row in rows for client in clients_of(row)]
    if not rows:
        return empty("no consumer is connected")
    cells = [
        (
            *([] if link is None else [link]),
            row["name"] or str(row["consumer"]),
            "" if row["pid"] is None else str(row["pid"]),
            row["command"] or "",
            row["address"] or row["host"] or "",
            count(row["leased"]),
            ago(now_ms, row["since_time"]),
            "alive" if row["alive"] else "ended; a peer takes over its messages",
        )
        for link, row in rows[:ROWS_MAX]
    ]
    more = 0 if rows[0][0] is None else 1
    headings = ("consumer", "process", "command", "machine", "in hand", "connected", "state")
    body = table(("subscription", *headings)[1 - more :], cells, (1 + more, 4 + more, 5 + more))
    return body + left_out(len(rows) - ROWS_MAX, "consumer")


def _cursors(topic: str, rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            str(row["partition"]),
            *lag(row),
            count(row["delayed"]),
            count(row["leased"]),
            count(row["pending_acks"]),
            count(row["acked_beyond"]),
            str(row["mark_delete"] or ""),
        )
        for row in rows[:ROWS_MAX]
    ]
    headings = (
        *("partition", *LAG, "not due", "in hand", "held"),
        *("acknowledged beyond", "all acknowledged up to"),
    )
    rows_shown = table(headings, cells, range(1, 11))
    return section("Partitions", rows_shown + left_out(len(rows) - ROWS_MAX, "partition"))


def changes(client: Client, where: Where) -> str:
    """The newest changes of a subscription's cursors: seeks, acknowledgements, its creation."""
    handle = client.subscription(where["topic"], where["subscription"])
    rows = client.store.ask(lambda view: recent_of_subscription(view, handle.short, handle.name))
    if not rows:
        return section("Changes", empty("no changes yet"))
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    cells = [
        [instant(row[name]) if name == "time" else _plain(row[name]) for name in names]
        for row in rows
    ]
    numeric = [at for at, name in enumerate(names) if isinstance(rows[0][name], int)]
    heads = ["time, UTC" if name == "time" else name.replace("_", " ") for name in names]
    body = table(heads, cells, [at for at in numeric if names[at] != "time"])
    return section("Changes", body, "From the log of the store, newest first.")


def _plain(value: object) -> str:
    return "" if value is None else str(value)


# --- transactions ----------------------------------------------------------------------------


def transactions(client: Client, where: Where, *, acts: bool = False) -> View:
    """The transactions on record, the newest first; they have no actions here."""
    del where, acts
    rows = client.transactions(all=True)
    newest = sorted(rows, key=lambda row: (-row["begin_time"], row["txn"]))[:ROWS_MAX]
    cells = [
        (
            _txn(row["txn"]),
            row["state"] + (f" ({row['reason']})" if row["reason"] else ""),
            f"{instant(row['begin_time'])}",
            duration(row["age_ms"]),
            count(row["messages"]),
            count(row["acks"]),
            ", ".join(row["topic_list"]),
            row["transaction_key"] or "",
            row["owner"],
        )
        for row in newest
    ]
    headings = (
        *("transaction", "state", "begun, UTC", "open for", "messages", "acks", "topics"),
        *("key", "owner"),
    )
    body = table(headings, cells, (3, 4, 5)) if cells else empty("no transactions yet")
    note = "Unfinished ones, and ended ones for as long as the store remembers them."
    return View(
        "transactions",
        head("Transactions")
        + section("Newest first", body + left_out(len(rows) - ROWS_MAX, "transaction"), note),
    )


def transaction(client: Client, where: Where, *, acts: bool = False) -> View:
    """A transaction: its life on a line, its steps, and its messages and acknowledgements."""
    txn_id, now_ms = TxnId.parse(where["id"]), _now_ms(client)
    row = client.show_transaction(txn_id)
    try:
        steps = client.admin.transaction_log(txn_id)
    except TxlogError:  # its steps are no longer kept, or cannot be read
        steps = []
    ended = row["end_time"]
    figures = [
        (row["state"], row["reason"] or "state"),
        (duration((ended or now_ms) - row["begin_time"]), "open for"),
        (count(row["messages"]), "messages"),
        (count(row["acks"]), "acknowledgements"),
    ]
    fields = [
        ("key", row["transaction_key"] or ""),
        ("owner", row["owner"]),
        ("begun", f"{instant(row['begin_time'])} UTC"),
        ("ended", f"{instant(ended)} UTC" if ended else ""),
        ("times out", "" if ended else f"{instant(row['timeout_at'])} UTC"),
        ("decided at LSN", _plain(row["decision_lsn"])),
        ("waits for", ", ".join(row["waiting_list"])),
        ("skipped, as it was deleted", ", ".join(row["skipped_list"])),
    ]
    about = {"id": txn_id}
    body = (
        head(f"Transaction {txn_id}", Link("Transactions", "transactions", {}))
        + tiles(figures)
        + section("Life", _life(row, steps, now_ms) + _steps(row, steps))
        + section("Sent", _sent(row))
        + section("Acknowledged", _acknowledged(row))
        + section("Transaction", pairs([pair for pair in fields if pair[1]]))
        + (later("actions", about) if acts and ended is None else "")
    )
    return View(f"transaction {txn_id}", body)


def _life(row: TransactionDescription, steps: Sequence[TransactionLogRow], now_ms: int) -> str:
    """The line from the begin to the end, or to the time-out of an open transaction."""
    begin, end = row["begin_time"], row["end_time"]
    last = end or max(row["timeout_at"], now_ms)
    span = max(1, last - begin)
    marks = [
        (
            _tone(step),
            (step["time"] - begin) / span,
            f"{_said(step)}, after {duration(max(0, step['time'] - begin))}",
        )
        for step in steps
    ]
    if not steps:
        marks = [(3, 0.0, f"begun {instant(begin)}")]
        if end:
            marks.append((1 if row["state"] == "committed" else 5, 1.0, row["state"]))
    until = 1.0 if end else (now_ms - begin) / span
    ticks = [instant(begin), "", instant(last) if end else f"times out {instant(last)}"]
    return life(marks, min(1.0, max(0.0, until)), ticks)


def _tone(step: TransactionLogRow) -> int:
    """The tone of a recorded step: its end, its acknowledgements, its messages."""
    detail = step["detail"] or ""
    tones = [tone for word, tone in _TONES.items() if word == step["op"] or word in detail]
    return tones[0] if tones else 4 if step["subscription"] else 2


def _said(step: TransactionLogRow) -> str:
    """A recorded step in words: `TxnOpened` is `opened`."""
    name = step["op"].removeprefix("Txn")
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
    return f"{words}: {step['detail']}" if step["op"] == "StatusUpdated" else words


def _steps(row: TransactionDescription, steps: Sequence[TransactionLogRow]) -> str:
    if not steps:
        return empty("the store keeps no steps of it any more")
    cells = [
        (
            f"+{duration(step['time'] - row['begin_time'])}",
            _said(step),
            "" if step["topic"] is None else f"{step['topic']}/{step['partition']}",
            step["subscription"] or "",
            _plain(step["count"]),
            "" if step["op"] == "StatusUpdated" else step["detail"] or "",
        )
        for step in steps[:ROWS_MAX]
    ]
    headings = ("after", "step", "partition", "subscription", "count", "detail")
    return table(headings, cells, (0, 4)) + left_out(len(steps) - ROWS_MAX, "step")


def _sent(row: TransactionDescription) -> str:
    rows = row["partition_list"]
    if not rows:
        return empty("no messages")
    cells = [
        (
            _topic(part["topic"]),
            str(part["partition"]),
            count(part["messages"]),
            _message(part["topic"], part["marker"]),
        )
        for part in rows[:ROWS_MAX]
    ]
    headings = ("topic", "partition", "messages", "visible at")
    return table(headings, cells, (2,)) + left_out(len(rows) - ROWS_MAX, "partition")


def _acknowledged(row: TransactionDescription) -> str:
    rows = row["ack_list"]
    if not rows:
        return empty("no acknowledgements")
    cells = [
        (
            _topic(part["topic"]),
            str(part["partition"]),
            _subscription(part["topic"], part["subscription"]),
            "" if part["done"] else count(part["acks"]),
            "done" if part["done"] else "held",
        )
        for part in rows[:ROWS_MAX]
    ]
    headings = ("topic", "partition", "subscription", "held", "state")
    return table(headings, cells, (3,)) + left_out(len(rows) - ROWS_MAX, "partition")


# --- clients ---------------------------------------------------------------------------------


def clients(
    client: Client,
    producers: Sequence[Any],
    consumers: Sequence[Any],
    streams: Sequence[tuple[str, str, str, int]],
    clients_of: ClientsOf = _itself,
) -> View:
    """The connected clients.

    producers, consumers: of Pulsar's protocol, as the server has them
    streams: (peer, role, path, since) of each request of HTTP that does not end
    clients_of: as for `subscription`
    """
    now_ms = _now_ms(client)
    rows = [row for row in client.lag() if row["consumers"]]
    lists = [
        (
            Link(f"{row['topic']} / {row['subscription']}", "subscription", _named(row)),
            client.subscription(row["topic"], row["subscription"]).describe()["consumer_list"],
        )
        for row in rows[:LISTS_MAX]
    ]
    figures = [
        (count(len({row.peer for row in (*producers, *consumers)})), "clients of Pulsar"),
        (count(len(producers)), "producers of Pulsar"),
        (count(len(consumers)), "consumers of Pulsar"),
        (count(sum(row["consumers"] for row in rows)), "consumers of the store"),
        (count(len(streams)), "streams of HTTP"),
    ]
    return View(
        "clients",
        head("Clients", note="Connected to this server, and consumers in all processes.")
        + tiles(figures)
        + section("Producers of Pulsar", _producers(producers, now_ms))
        + section("Consumers of Pulsar", _stock_consumers(consumers, now_ms))
        + section(
            "Consumers of the store",
            _consumers(lists, clients_of, now_ms)
            + left_out(len(rows) - LISTS_MAX, "subscription with consumers"),
        )
        + section("Streams of HTTP", _streams(streams, now_ms)),
    )


def _named(row: Mapping[str, Any]) -> dict[str, str]:
    return {"topic": row["topic"], "subscription": row["subscription"]}


def _short(name: str) -> str:
    return TopicName.parse(name, allow_partition=True).topic.short


def _producers(rows: Sequence[Any], now_ms: int) -> str:
    if not rows:
        return empty("no producer is connected")
    cells = [
        (
            row.name,
            _topic(_short(row.topic)),
            row.peer,
            row.version,
            count(row.messages),
            size(row.payload_bytes),
            ago(now_ms, row.since_ms),
        )
        for row in rows[:ROWS_MAX]
    ]
    headings = ("producer", "topic", "address", "library", "sent", "payload", "connected")
    return table(headings, cells, (4, 5, 6)) + left_out(len(rows) - ROWS_MAX, "producer")


def _stock_consumers(rows: Sequence[Any], now_ms: int) -> str:
    if not rows:
        return empty("no consumer is connected")
    cells = [
        (
            row.name,
            _topic(_short(row.topic)),
            row.subscription
            if row.consumer is None
            else _subscription(_short(row.topic), row.subscription),
            row.peer,
            row.version,
            count(row.unacked),
            count(row.permits),
            ago(now_ms, row.since_ms),
        )
        for row in rows[:ROWS_MAX]
    ]
    headings = (
        *("consumer", "topic", "subscription", "address", "library", "in hand", "asks for"),
        "connected",
    )
    return table(headings, cells, (5, 6, 7)) + left_out(len(rows) - ROWS_MAX, "consumer")


def _streams(rows: Sequence[tuple[str, str, str, int]], now_ms: int) -> str:
    if not rows:
        return empty("no stream is open")
    cells = [
        (peer, role, path, ago(now_ms, since_ms)) for peer, role, path, since_ms in rows[:ROWS_MAX]
    ]
    body = table(("address", "role", "path", "connected"), cells, (3,))
    return body + left_out(len(rows) - ROWS_MAX, "stream")


# --- keys and values ------------------------------------------------------------------------------

JSON_BYTES_MAX: Final = 256 << 10  # longer JSON is shown as the text that it is
TEXT_BYTES_MAX: Final = 64 << 10  # of a value without form
HEX_BYTES_MAX: Final = 4 << 10
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")|([{}\[\],:])|([^\s{}\[\],:"]+)')
_WORDS: Final = frozenset({"true", "false", "null"})


def text_of(value: bytes, most: int) -> str | None:
    """The first bytes of a value as text; None if they are no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(value[:most], final=len(value) <= most)
    except UnicodeDecodeError:
        return None


def preview(value: bytes | None, most: int) -> str:
    """A value on a line, of so many characters; bytes that are no text in hex."""
    if value is None:
        return ""
    text = text_of(value, 4 * most)
    if text is None:
        text = "0x" + value[:most].hex()
    return text if len(text) <= most and len(value) <= 4 * most else f"{text[: most - 1]}…"


def value_block(value: bytes | None, record: object = None) -> str:
    """A value as HTML: a record or JSON in lines, other text as it is, bytes in hex.

    record: the value as a record, if its topic has a schema
    """
    if value is None:
        return '<p class="note">null: it deletes its key</p>'
    if not value and record is None:
        return '<p class="note">empty</p>'
    note = f"{size(len(value))}"
    if record is not None:
        value = json.dumps(record, ensure_ascii=False, default=_hex_or_text).encode()
        note += ", by its schema"
    if len(value) <= JSON_BYTES_MAX and value.lstrip()[:1] in (b"{", b"["):
        text = text_of(value, JSON_BYTES_MAX)
        pretty = None if text is None else pretty_json(text)
        if pretty is not None:
            return f'<p class="note">{note}, JSON</p><pre class="json">{pretty}</pre>'
    text = text_of(value, TEXT_BYTES_MAX)
    if text is None:
        length = min(len(value), HEX_BYTES_MAX)
        cut = f", the first {size(length)}" if length < len(value) else ""
        return f'<p class="note">{note}, bytes{cut}</p><pre>{_hex(value[:length])}</pre>'
    cut = f", the first {size(TEXT_BYTES_MAX)}" if len(value) > TEXT_BYTES_MAX else ""
    return f'<p class="note">{note}, text{cut}</p><pre class="text">{block(text)}</pre>'


def pretty_json(text: str) -> str | None:
    """JSON as HTML, a member on a line; None if it is no JSON.

    Numbers, repeated names and the order stay as they are written.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth, is_open = 0, False  # is_open: directly behind an opening bracket
    tokens = _TOKEN.findall(text)
    for at, (string, mark, word) in enumerate(tokens):
        if mark and mark in "]}":
            depth -= 1
            if not is_open:
                out.append("\n" + "  " * depth)
        elif is_open:
            out.append("\n" + "  " * depth)
        is_open = False
        if string:
            is_name = at + 1 < len(tokens) and tokens[at + 1][1] == ":"
            out.append(f'<span class="{"name" if is_name else "string"}">{safe(string)}</span>')
        elif word:
            kind = "word" if word in _WORDS else "number"
            out.append(f'<span class="{kind}">{safe(word)}</span>')
        elif mark == ",":
            out.append(",\n" + "  " * depth)
        elif mark == ":":
            out.append(": ")
        else:
            out.append(mark)
            if mark in "[{":
                depth, is_open = depth + 1, True
    return "".join(out)


def _hex(value: bytes) -> str:
    """Bytes as lines of offset, hex and ASCII."""
    lines = []
    for at in range(0, len(value), 16):
        row = value[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {safe(plain)}")
    return "\n".join(lines)


def _hex_or_text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
