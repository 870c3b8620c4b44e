"""What differs between two stores: `txlog diff`.

Each store becomes a table of facts, such as (cursor, orders, 0, billing, backlog) -> 3. A fact that
only one store has, or with another value, is a difference. Messages are compared by contents, in
their order in each partition, so a topic that `topic copy` made is equal although its ids are not.
Positions and single acknowledgements are compared only between two images of one store, which have
one uuid: elsewhere ids mean nothing.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import format_id_run
from txlog.engine.door.catalog import number_of
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.errors import TopicNotFound

if TYPE_CHECKING:
    from txlog.base.rows.store import Difference
    from txlog.client.client import Client
    from txlog.engine.door.store import View

# kind, topic, partition, subscription, name of the fact
Fact: TypeAlias = tuple[str, str | None, int | None, str | None, str]
Value: TypeAlias = int | str | float | bool | None
Facts: TypeAlias = dict[Fact, Value]

_ID: Final = ("ledger", "entry", "index")
_CONTENTS: Final = ("key", "value", "properties", "event_time", "deliver_at")
_AT_ONCE: Final = 50_000
_RUNS_SHOWN: Final = 5


def difference(store: Client, other: Client, topic: str | None = None) -> list[Difference]:
    """The differences between two stores, or between topics of one name in them.

    A store in use may change between two steps. Transactions that are open, consumers, producers
    and files are not compared, nor the messages of partitions that are offline in one store.
    topic:  only this topic; without it also settings and policies of namespaces
    raises: TopicNotFound (neither store has it), Corruption
    """
    short = None if topic is None else TopicName.parse(topic).short
    names = [{row["topic"] for row in client.topics()} for client in (store, other)]
    if short is not None:
        names = [having & {short} for having in names]
        if not names[0] | names[1]:
            raise TopicNotFound(f"neither store has a topic {short}", topic=short)
    rows: list[Difference] = []
    if short is None:
        rows += _compared(_of_store(store), _of_store(other))
    is_image = store.uuid == other.uuid
    for name in sorted(names[0] | names[1]):
        if name not in names[0] or name not in names[1]:
            there = [name in having for having in names]
            rows.append(_row(("topic", name, None, None, "exists"), there[0], there[1]))
            continue
        first, second = (_of_topic(client, name, is_image) for client in (store, other))
        count: Fact = ("topic", name, None, None, "partitions")
        common = min(int(str(facts[count])) for facts in (first, second))
        rows += _compared(
            *(
                {fact: value for fact, value in facts.items() if (fact[2] or 0) < common}
                for facts in (first, second)
            )
        )
        for partition in builtins.range(common):
            online: Fact = ("partition", name, partition, None, "online")
            if first[online] and second[online]:
                rows += _messages(store, other, name, partition)
    return rows


def _row(fact: Fact, store: Value, other: Value) -> Difference:
    kind, topic, partition, subscription, name = fact
    return {
        "kind": kind,
        "topic": topic,
        "partition": partition,
        "subscription": subscription,
        "name": name,
        "store": _text(store),
        "other": _text(other),
    }


def _text(value: Value) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _compared(first: Facts, second: Facts) -> list[Difference]:
    """A row for each fact that differs; a subscription in only one of the stores is one row."""
    exists = [
        {fact[3] for fact in facts if fact[0] == "subscription" and fact[4] == "exists"}
        for facts in (first, second)
    ]
    single = exists[0] ^ exists[1]
    return [
        _row(fact, first.get(fact), second.get(fact))
        for fact in {**first, **second}
        if first.get(fact) != second.get(fact) and (fact[3] not in single or fact[4] == "exists")
    ]


def _of_store(client: Client) -> Facts:
    facts: Facts = {
        ("setting", None, None, None, row["name"]): row["value"] for row in client.admin.settings()
    }

    def look(view: View) -> dict[str, dict[str, int]]:
        return {name: {**values} for name, values in view.catalog.namespace_policies.items()}

    for namespace, policies in client.store.ask(look).items():
        for name, value in policies.items():
            facts["namespace policy", None, None, None, f"{namespace} {name}"] = value
    return facts


def _of_topic(client: Client, name: str, is_image: bool) -> Facts:
    described = client.describe_topic(name)
    facts: Facts = {("topic", name, None, None, "partitions"): described["partitions"]}
    for row in client.topic(name).schemas.list(deleted=True):
        digest = hashlib.sha256(row["definition"].encode()).hexdigest()[:12]
        text = f"{row['type']} {digest}{' (deleted)' if row['deleted'] else ''}"
        facts["schema", name, None, None, f"version {row['version']}"] = text
    for policy, value in described["policies"].items():
        facts["policy", name, None, None, policy] = value
    for part in described["partition_list"]:
        facts["partition", name, part["partition"], None, "messages"] = part["messages"]
        facts["partition", name, part["partition"], None, "online"] = part["online"]
    for entry in described["subscription_list"]:
        facts |= _of_subscription(client, name, entry["subscription"], is_image)
    return facts


def _of_subscription(client: Client, topic: str, name: str, is_image: bool) -> Facts:
    described = client.subscription(topic, name).describe()
    facts: Facts = {
        ("subscription", topic, None, name, "exists"): True,
        ("subscription", topic, None, name, "type"): described["type"],
        ("subscription", topic, None, name, "isolation"): described["isolation"],
    }
    for policy, value in described["policies"].items():
        facts["subscription", topic, None, name, policy] = value
    for row in described["partition_list"]:
        at: tuple[str, str, int, str] = ("cursor", topic, row["partition"], name)
        facts[*at, "backlog"] = row["backlog"]
        if is_image:
            place = row["mark_delete"]
            facts[*at, "mark_delete"] = None if place is None else str(place)
            facts[*at, "acknowledged after it"] = _single(client, topic, name, row["partition"])
    return facts


def _single(client: Client, topic: str, name: str, partition: int) -> str:
    """The acknowledgements beyond mark-delete: the first ranges, and a digest if there are more."""

    def look(view: View) -> str:
        record = find_topic(view, TopicName.parse(topic))
        number = find_subscription(view, record, name).number
        acked = view.cursor(number, number_of(record, partition)).acked
        runs = acked.first_runs(_RUNS_SHOWN + 1)
        text = ",".join(format_id_run(run) for run in runs[:_RUNS_SHOWN])
        if len(runs) <= _RUNS_SHOWN:
            return text
        digest = hashlib.sha256(repr(acked.dump()).encode()).hexdigest()[:12]
        return f"{text} and more, digest {digest}"

    return client.store.ask(look)


# --- messages --------------------------------------------------------------------------------


def _messages(store: Client, other: Client, topic: str, partition: int) -> list[Difference]:
    """The first messages of a partition that differ, by their places in it; their ids."""
    tables = [_read(client, topic, partition) for client in (store, other)]
    rows = [next(read, None) for read in tables]
    while True:
        first, second = rows
        if first is None and second is None:
            return []
        size = min(0 if table is None else table.num_rows for table in rows)
        place = size
        if first is not None and second is not None:
            place = _equal_rows(first.slice(0, size), second.slice(0, size))
        if place < size or not size:
            fact: Fact = ("message", topic, partition, None, "first that differs")
            return [_row(fact, _id(first, place), _id(second, place))]
        rows = [
            next(read, None) if table is None or table.num_rows == size else table.slice(size)
            for read, table in zip(tables, rows, strict=True)
        ]


def _read(client: Client, topic: str, partition: int) -> Iterator[pa.Table]:
    for table in client.read(
        topic, partitions=[partition], columns=[*_ID, *_CONTENTS], batch_messages=_AT_ONCE
    ):
        if table.num_rows:
            yield table.select([*_ID, *_CONTENTS])


def _equal_rows(first: pa.Table, second: pa.Table) -> int:
    """How many of the first rows have the same contents."""
    first, second = first.select(_CONTENTS), second.select(_CONTENTS)
    if first.equals(second):
        return int(first.num_rows)
    low: int = 0
    high: int = first.num_rows - 1  # the rows before low are equal; those up to high are not
    while low < high:
        middle = (low + high) // 2
        if first.slice(low, middle + 1 - low).equals(second.slice(low, middle + 1 - low)):
            low = middle + 1
        else:
            high = middle
    return low


def _id(table: pa.Table | None, place: int) -> str | None:
    """The id of a message; None: the partition ends before it."""
    if table is None or place >= table.num_rows:
        return None
    ledger, entry, index = (table.column(name)[place].as_py() for name in _ID)
    return str(MessageId(ledger, entry, index or 0))
