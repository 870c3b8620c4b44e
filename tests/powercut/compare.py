"""Owns the comparison of a recovered store with the answers that its users got before the cut.

The checker of `tests/history` judges the calls. This module also compares the plain lists: each of
the two would find a mistake of the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.history import events as vocabulary
from tests.history.checker import check

from .outside import WATCH
from .workers import SUBSCRIPTION

Event = Mapping[str, Any]
Place = tuple[str, str, int, str]  # topic, value, partition, id


@dataclass(slots=True)
class Transaction:
    """A transaction, as its users know it."""

    sends: list[tuple[str, str]] = field(default_factory=list)  # topic and value, answered
    acknowledged: list[str] = field(default_factory=list)  # values
    end: str = "open"  # then the call that ends it, and its type: commit ok, abort invoke


class Told:
    """The calls and answers before a cut, by kind."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.invoked: dict[int, Event] = {}
        self.sent: set[tuple[str, str]] = set()  # invoked: may be stored
        self.topics: set[str] = set()  # invoked: may be there
        self.created: set[str] = set()
        self.stored: list[tuple[str, str, int | None, str | None]] = []  # answered plain sends
        self.seen: list[Place] = []  # by readers and consumers
        self.txns: dict[str, Transaction] = defaultdict(Transaction)
        self.counts: Counter[str] = Counter()
        for event in events:
            if event["type"] == "invoke":
                self.invoked[event["call"]] = event
                self._begins(event["op"], event["args"])
            elif event["type"] == "ok":
                self.counts[event["op"]] += 1
                args = self.invoked[event["call"]].get("args", {})
                self._answered(event["op"], args, event.get("answer", {}))

    def _begins(self, op: str, args: Event) -> None:
        if op == "send":
            self.sent.add((args["topic"], args["value"]))
        elif op == "create_topic":
            self.topics.add(args["topic"])
        elif op in ("commit", "abort"):
            self.txns[args["txn"]].end = f"{op} invoke"

    def _answered(self, op: str, args: Event, answer: Event) -> None:
        if op == "send" and "txn" in args:
            self.txns[args["txn"]].sends.append((args["topic"], args["value"]))
        elif op == "send":
            place = args["topic"], args["value"], answer.get("partition"), answer.get("id")
            self.stored.append(place)
        elif op == "acknowledge" and "txn" in args:
            self.txns[args["txn"]].acknowledged += args["values"]
        elif op == "create_topic":
            self.created.add(args["topic"])
        elif op in ("commit", "abort"):
            self.txns[args["txn"]].end = f"{op} ok"
        elif op == "read":
            self.seen += [
                (topic, value, int(partition), id_)
                for topic, parts in answer["topics"].items()
                for partition, rows in parts.items()
                for id_, value in rows
            ]
        elif op == "receive":
            self.seen += [
                (row["topic"], row["value"], row["partition"], row["id"])
                for row in answer["messages"]
            ]

    @property
    def confirmed(self) -> int:
        """Messages that were confirmed as durable: plain, or of a committed transaction."""
        committed = [txn for txn in self.txns.values() if txn.end == "commit ok"]
        return len(self.stored) + sum(len(txn.sends) for txn in committed)


def faults(events: Sequence[Event], answer: Event) -> list[str]:
    """The faults of a store after a cut, as sentences of this module and of the checker."""
    said = list(_faults(Told(events), answer))
    if "messages" in answer:
        said += map(str, check(msgspec.convert([*history(events, answer)], list[vocabulary.Event])))
    return said


def _faults(told: Told, answer: Event) -> Iterator[str]:
    if "error" in answer:
        yield f"recovery raised {answer['error'].strip().splitlines()[-1]}"
        return
    if "open" in answer and told.counts["init"]:
        yield f"the store does not open: {answer['open']}"
    yield from (f"verify: {problem}" for problem in answer["verified"])
    yield from (f"topic {topic} is lost" for topic in told.created - {*answer["topics"]})
    yield from (f"topic {topic} is a phantom" for topic in {*answer["topics"]} - told.topics)
    places = [
        (row["topic"], row["value"], row["partition"], row["id"]) for row in answer["messages"]
    ]
    by_value = {(topic, value): (partition, id_) for topic, value, partition, id_ in places}
    yield from _messages(told, places, by_value)
    yield from _order(answer["messages"])
    yield from _transactions(told, by_value)
    yield from _subscription(told, answer, by_value)
    yield from _numbers(told, answer, by_value)
    yield from _later(answer, places)


def _messages(
    told: Told, places: Sequence[Place], by_value: Mapping[tuple[str, str], tuple[int, str]]
) -> Iterator[str]:
    for (topic, value), count in Counter((place[0], place[1]) for place in places).items():
        if count > 1:
            yield f"{value} is {count} times in {topic}"
        if (topic, value) not in told.sent:
            yield f"{value} in {topic} is a phantom"
    for topic, value, partition, id_ in told.stored:
        stored = by_value.get((topic, value))
        if stored is None:
            yield f"{value} of {topic} was confirmed and is lost"
        elif partition not in (None, stored[0]) or id_ not in (None, stored[1]):
            yield f"{value} of {topic} was confirmed as {partition} {id_} and is {stored}"
    for topic, value, partition, id_ in {*told.seen}:
        if by_value.get((topic, value)) != (partition, id_):
            at = by_value.get((topic, value))
            yield f"{value} of {topic} was seen as {partition} {id_} and is taken back ({at})"


def _order(rows: Sequence[Event]) -> Iterator[str]:
    """Ids grow along a partition, and the numbers of a producer for each key."""
    ends: dict[tuple[str, int], tuple[int, ...]] = {}
    numbers: dict[tuple[Any, ...], int] = {}
    for row in rows:
        topic, partition, id_ = row["topic"], row["partition"], row["id"]
        position = tuple(map(int, id_.split(":")))
        if position <= ends.get((topic, partition), ()):
            yield f"{topic} {partition} has {id_} behind {ends[topic, partition]}"
        ends[topic, partition] = position
        if topic == "orders":
            name, _, text = row["value"].partition(":")
            line = name, row["key"], partition
            if int(text) <= numbers.get(line, 0):
                yield f"{row['value']} is out of order in {topic} {partition}"
            numbers[line] = int(text)


def _transactions(told: Told, by_value: Mapping[tuple[str, str], tuple[int, str]]) -> Iterator[str]:
    for name, txn in told.txns.items():
        present = sum(send in by_value for send in txn.sends)
        if txn.end == "commit ok" and present < len(txn.sends):
            yield f"{name} was committed and has {present} of {len(txn.sends)} messages"
        elif txn.end in ("open", "abort ok", "abort invoke") and present:
            yield f"{name} ({txn.end}) has {present} messages"
        elif present not in (0, len(txn.sends)):
            yield f"{name} is torn: {present} of {len(txn.sends)} messages"


def _subscription(
    told: Told, answer: Event, by_value: Mapping[tuple[str, str], tuple[int, str]]
) -> Iterator[str]:
    if "drained_again" not in answer:
        if told.counts["create_subscription"]:
            yield f"subscription {SUBSCRIPTION} is lost"
        return
    if answer["drained_again"]:
        yield f"{answer['drained_again']} messages came again after they were acknowledged"
    drained = Counter(row["value"] for row in answer["drained"])
    yield from (f"{value} is delivered {n} times" for value, n in drained.items() if n > 1)
    billed: Counter[str] = Counter()
    for txn in told.txns.values():
        if txn.end.startswith("commit") and any(send in by_value for send in txn.sends):
            billed.update(txn.acknowledged)
    orders = {value for topic, value in by_value if topic == "orders"}
    for value in orders:
        if billed[value] + drained[value] != 1:
            yield (
                f"{value} is acknowledged by {billed[value]} committed transactions "
                f"and delivered {drained[value]} times"
            )
    yield from (f"{value} is delivered and not stored" for value in {*drained} - orders)


def _numbers(
    told: Told, answer: Event, by_value: Mapping[tuple[str, str], tuple[int, str]]
) -> Iterator[str]:
    highest: dict[str, int] = {}
    for topic, value in by_value:
        if topic == "orders":
            name, _, number = value.partition(":")
            highest[name] = max(highest.get(name, 0), int(number))
    for name, last in answer.get("numbers", {}).items():
        if max(last if last is not None else 0, 0) != highest.get(name, 0):
            yield f"producer {name} has number {last}, its last message {highest.get(name, 0)}"


def _later(answer: Event, places: Sequence[Place]) -> Iterator[str]:
    """The store went on: it has its earlier messages and the added ones."""
    later = [(row["topic"], row["value"], row["partition"], row["id"]) for row in answer["later"]]
    for place in {*places} - {*later}:
        yield f"{place} was there after recovery and is not any more"
    added = Counter((row["topic"], row["value"]) for row in answer["added"])
    new = Counter((topic, value) for topic, value, _, _ in {*later} - {*places})
    if added != new:
        yield f"after recovery {dict(added)} were added, and {dict(new)} are there"


# --- for the checker ------------------------------------------------------------------------------

WORDS = frozenset(
    "create_topic flush send connect_key begin commit abort"
    " subscribe receive acknowledge read kill".split()
)


def history(events: Sequence[Event], answer: Event) -> Iterator[dict[str, Any]]:
    """Events of tests/history: calls before a cut, the cut, a read of the recovered store."""
    lines = [dict(event) for event in events if event["op"] in WORDS]
    lines.append({"type": "event", "op": "power_cut"})
    topics: dict[str, dict[str, list[list[str]]]] = {topic: {} for topic in answer["topics"]}
    for row in answer["messages"]:
        parts = topics.setdefault(row["topic"], {}).setdefault(str(row["partition"]), [])
        parts.append([row["id"], row["value"]])
    finals: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("final_read", {}, {"topics": topics})
    ]
    if "drained_again" in answer:
        args = {"topic": "orders", "subscription": SUBSCRIPTION}
        finals.append(("final_drain", args, {"messages": answer["drained"]}))
    if "watched" in answer:
        args = {"topic": "orders", "subscription": WATCH}
        finals.append(("final_drain", args, {"messages": answer["watched"]}))
    for call, (op, args, result) in enumerate(finals, 1):
        same: dict[str, Any] = {"process": "after", "call": -call, "op": op}
        lines.append({**same, "type": "invoke", "args": args})
        lines.append({**same, "type": "ok", "answer": result})
    yield from ({"n": n, **line} for n, line in enumerate(lines))
