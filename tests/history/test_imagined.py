"""Random correct histories pass; each random change of one is found and named."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.harness import SEED
from tests.history.checker import check
from tests.history.events import Event
from tests.history.imagined import imagine

STEPS = 600
Events = list[Event]
Rows = list[list[str]]


class NothingToChange(Exception):
    """The history has nothing that this change applies to."""


@pytest.mark.parametrize("number", range(12))
def test_a_random_correct_history_passes(number: int) -> None:
    seed = SEED + number
    print("seed", seed)
    assert check(imagine(seed, STEPS)) == []


# --- what is looked up ------------------------------------------------------------------------


def outcome(events: Events, op: str) -> Event:
    """The last answer of an operation."""
    return next(e for e in reversed(events) if e.op == op and e.type == "ok")


def rows_of(event: Event) -> list[Rows]:
    """The partitions that a read shows, those with messages only."""
    topics = event.answer["topics"].values()
    return [rows for partitions in topics for rows in partitions.values() if rows]


def answered(events: Events, op: str, **has: bool) -> list[tuple[Event, Event]]:
    """Calls that returned: invocation and answer. has: which arguments they have or have not."""
    invoked = {e.call: e for e in events if e.type == "invoke" and e.op == op}
    pairs = [(invoked[e.call], e) for e in events if e.type == "ok" and e.call in invoked]
    return [
        (call, answer)
        for call, answer in pairs
        if all((name in call.args) == wanted for name, wanted in has.items())
    ]


def some(chance: random.Random, items: list[Any]) -> Any:
    """Any of them. Raises NothingToChange if there is none."""
    if not items:
        raise NothingToChange
    return chance.choice(items)


def stored(events: Events) -> set[str]:
    """The values that the last read shows."""
    return {value for rows in rows_of(outcome(events, "final_read")) for _, value in rows}


def remove(event: Event, value: str) -> None:
    """Take a value out of a read."""
    for rows in rows_of(event):
        rows[:] = [row for row in rows if row[1] != value]


# --- the changes ------------------------------------------------------------------------------


def lose_plain(events: Events, chance: random.Random) -> str:
    call, _ = some(chance, answered(events, "send", txn=False))
    for event in events:
        if event.type == "ok" and event.op in ("read", "final_read"):
            remove(event, call.args["value"])
    for event in events:
        if event.type == "ok" and event.op in ("receive", "final_drain"):
            messages = event.answer["messages"]
            messages[:] = [m for m in messages if m["value"] != call.args["value"]]
    return "lost-message"


def lose_at_the_end(events: Events, chance: random.Random) -> str:
    call, _ = some(chance, answered(events, "send", txn=False))
    remove(outcome(events, "final_read"), call.args["value"])
    return "lost-message"


def tear(events: Events, chance: random.Random) -> str:
    there = stored(events)
    sends: dict[str, list[str]] = {}
    for call, _ in answered(events, "send", txn=True):
        if call.args["value"] in there:
            sends.setdefault(call.args["txn"], []).append(call.args["value"])
    values = some(chance, [values for values in sends.values() if len(values) > 1])
    remove(outcome(events, "final_read"), chance.choice(values))
    return "torn-transaction"


def invent(events: Events, chance: random.Random) -> str:
    some(chance, rows_of(outcome(events, "final_read"))).append(["9:999:1", "invented"])
    return "phantom-message"


def double(events: Events, chance: random.Random) -> str:
    rows = some(chance, rows_of(outcome(events, "final_read")))
    rows.append(["9:999:1", chance.choice(rows)[1]])
    return "duplicate"


def swap(events: Events, chance: random.Random) -> str:
    ends = {call.args["value"]: (call.n, answer.n) for call, answer in
            answered(events, "send", txn=False)}  # fmt: skip
    pairs = [
        (before, after)
        for rows in rows_of(outcome(events, "final_read"))
        for before, after in pairwise(rows)
        if before[1] in ends and after[1] in ends and ends[before[1]][1] < ends[after[1]][0]
    ]
    before, after = some(chance, pairs)
    ids = {before[1]: after[0], after[1]: before[0]}
    for event in events:
        if event.type != "ok":
            continue
        if event.op == "send":
            event.answer.pop("id", None)
        for rows in rows_of(event) if "topics" in event.answer else []:
            for row in rows:
                row[0] = ids.get(row[1], row[0])
            rows.sort(key=lambda row: [int(part) for part in row[0].split(":")])
        for message in event.answer.get("messages", ()):
            message["id"] = ids.get(message["value"], message["id"])
    return "order-violation"


def miss(events: Events, chance: random.Random) -> str:
    reads = [(c, a) for c, a in answered(events, "read", reader=False) if rows_of(a)]
    call, answer = some(chance, reads)
    ended = [c.args["value"] for c, a in answered(events, "send", txn=False) if a.n < call.n]
    seen = [row[1] for rows in rows_of(answer) for row in rows]
    remove(answer, some(chance, [value for value in ended if value in seen]))
    return "lost-message stale-read torn-snapshot non-monotonic-read"


def abort(events: Events, chance: random.Random) -> str:
    there = stored(events)
    seen = {c.args["txn"] for c, _ in answered(events, "send", txn=True)
            if c.args["value"] in there}  # fmt: skip
    commits = [(c, a) for c, a in answered(events, "commit") if c.args["txn"] in seen]
    call, answer = some(chance, commits)
    call.op = answer.op = "abort"
    answer.answer = {"state": "aborted"}
    return "aborted-read"


def fail(events: Events, chance: random.Random) -> str:
    there = stored(events)
    sends = [c.args["value"] for c, _ in answered(events, "send") if c.args["value"] in there]
    value = some(chance, sends)
    calls = {e.call for e in events if e.type == "invoke" and e.args.get("value") == value}
    for event in events:
        if event.type in ("ok", "unknown") and event.call in calls:
            event.type, event.error, event.answer = "fail", "StoreFull", {}
    return "wrong-outcome"


def come_back(events: Events, chance: random.Random) -> str:
    ended = {c.args["txn"] for c, _ in answered(events, "commit")}
    acks = [c for c, _ in answered(events, "acknowledge", txn=True) if c.args["txn"] in ended]
    call = some(chance, acks)
    places = {row[0]: (int(number), row[1])
              for topic, partitions in outcome(events, "final_read").answer["topics"].items()
              for number, rows in partitions.items() for row in rows}  # fmt: skip
    id_ = chance.choice(call.args["ids"])
    for event in events:
        if event.op == "final_drain" and event.type == "ok":
            begin = next(e for e in events if e.call == event.call and e.type == "invoke")
            if begin.args["subscription"] == call.args["subscription"]:
                number, value = places[id_]
                event.answer["messages"].append({"id": id_, "partition": number, "value": value})
    return "returned-acknowledgement"


def hide(events: Events, chance: random.Random) -> str:
    drains = [e for e in events if e.op == "final_drain" and e.type == "ok"]
    acked = {(c.args["subscription"], id_) for c in events
             if c.op == "acknowledge" and c.type == "invoke" for id_ in c.args["ids"]}  # fmt: skip
    begun = {e.call: e.args["subscription"] for e in events
             if e.op == "final_drain" and e.type == "invoke"}  # fmt: skip
    left = [(e, m) for e in drains for m in e.answer["messages"]
            if (begun[e.call], m["id"]) not in acked]  # fmt: skip
    event, message = some(chance, left)
    event.answer["messages"].remove(message)
    return "unreachable-message"


def repeat_epoch(events: Events, chance: random.Random) -> str:
    connects = answered(events, "connect_key")
    if len(connects) < 2:
        raise NothingToChange
    (_, first), (_, second) = chance.sample(connects, 2)
    second.answer = dict(first.answer)
    return "epoch-reused"


CHANGES: list[Callable[[Events, random.Random], str]] = [
    lose_plain, lose_at_the_end, tear, invent, double, swap, miss, abort, fail, come_back, hide,
    repeat_epoch,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_history_is_found(change: Callable[[Events, random.Random], str]) -> None:
    applied = 0
    for number in range(8):
        seed = SEED + number
        print("seed", seed)
        events = imagine(seed, STEPS)
        try:
            expected = change(events, random.Random(seed))
        except NothingToChange:
            continue
        applied += 1
        names = {finding.name for finding in check(events)}
        assert any(name.startswith(tuple(expected.split())) for name in names), names
    assert applied >= 3
