"""Checks what the log holds against what was sent: lost, invented, doubled and torn messages.

A message that some read shows is a row. Every row needs a send; a send that was answered needs a
row in each later read; a transaction is in a read with all its messages or none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from itertools import pairwise

from tests.history.model import (
    Call,
    Finding,
    History,
    Position,
    Round,
    Row,
    Txn,
    show,
)


def check_log(history: History) -> Iterator[Finding]:
    """Findings about single messages and transactions."""
    yield from changed(history)
    yield from unjustified(history)
    yield from copies(history)
    yield from misplaced(history)
    yield from decided_twice(history)
    yield from order_in_transactions(history)
    yield from torn_rounds(history)
    torn = yield from torn_transactions(history)
    yield from lost(history, torn)


def changed(history: History) -> Iterator[Finding]:
    """A message id that showed two values, and rounds out of order."""
    for row, value, call in history.changed:
        text = f"{place(row)} held {row.value!r}, and {value!r} in {call}"
        yield Finding("changed-message", text, [row.first.start, call.start])
    for call, (topic, partition), before, after in history.disordered:
        text = f"{call} showed {show(after)} behind {show(before)} of {topic}/{partition}"
        yield Finding("order-violation", text, call.events)


def place(row: Row) -> str:
    """Where a row is, in words."""
    return f"{show(row.position)} of {row.topic}/{row.partition}"


def unjustified(history: History) -> Iterator[Finding]:
    """Rows that no call justifies, or not yet when they were seen."""
    for rows in history.rows.values():
        for row in rows.values():
            units = history.candidates(row.topic, row.value)
            if units:
                if min(unit.start for unit in units) > row.first.end:
                    text = f"{row.first} saw {row.value!r} at {place(row)} before it was sent"
                    events = [*row.first.events, *units[0].events]
                    yield Finding("phantom-message", text, events)
                continue
            yield from _without_unit(history, row)


def _without_unit(history: History, row: Row) -> Iterator[Finding]:
    calls = history.sends.get((row.topic, row.value), ())
    seen = f"{row.first} saw {row.value!r} at {place(row)}"
    events = [event for call in calls for event in call.events] + row.first.events
    if not calls:
        if not history.is_derived(row.topic):
            yield Finding("phantom-message", f"{seen}, which was never sent", events)
        return
    if all(call.outcome == "fail" for call in calls):
        text = f"{seen}, although its send failed with {calls[0].error}"
        yield Finding("wrong-outcome", text, events)
        return
    writer = next(c for c in calls if c.outcome != "fail" and c.args.get("txn") is not None)
    txn = history.txn(writer.args["txn"])
    why = "was aborted" if txn.doomed else "was not committed"
    if txn.committed and txn.doomed:
        return  # `decided_twice` names it
    if txn.doomed:
        events += txn.doomed.events
    yield Finding("aborted-read", f"{seen}, but its transaction {txn.name} {why}", events)


def copies(history: History) -> Iterator[Finding]:
    """Messages that are in the log more often than their sends allow."""
    for (topic, value), rows_of in history.places.items():
        if len(rows_of) == 1:
            continue
        units = history.candidates(topic, value)
        calls = [c for c in history.sends.get((topic, value), ()) if c.outcome != "fail"]
        if not units:
            continue
        rows_of.sort(key=lambda row: row.position)
        in_partition = Counter(row.partition for row in rows_of)
        if max(in_partition.values()) <= len(units) and len(rows_of) <= len(calls):
            continue
        is_repeated = len(calls) > len(units) and calls[0].args.get("sequence") is not None
        where = " and ".join(place(row) for row in rows_of[:3])
        text = f"{value!r} is at {where}"
        if is_repeated:
            text += f", but sequence {calls[0].args['sequence']} was to be stored once"
        name = "duplicate-sequence" if is_repeated else "duplicate-message"
        yield Finding(name, text, [event for call in calls for event in call.events])
        for row in rows_of[1:]:
            row.unit = None  # a copy has no place in the order of units


def misplaced(history: History) -> Iterator[Finding]:
    """Sends that were answered with another place than that of their message."""
    for call in history.by_op["send"]:
        if call.outcome != "ok" or call.answer.get("id") is None:
            continue
        rows_of = history.places.get((call.args["topic"], call.args["value"]), [])
        if rows_of and all(show(row.position) != call.answer["id"] for row in rows_of):
            text = f"{call} was answered with {call.answer['id']}, and is at {place(rows_of[0])}"
            yield Finding("wrong-outcome", text, [*call.events, rows_of[0].first.start])


def decided_twice(history: History) -> Iterator[Finding]:
    """Transactions whose calls say both committed and aborted."""
    for txn in history.txns.values():
        if txn.committed and txn.doomed:
            text = (
                f"transaction {txn.name} was committed by {txn.committed}, "
                f"and {txn.doomed} says that it was not"
            )
            events = [*txn.committed.events, *txn.doomed.events]
            yield Finding("wrong-outcome", text, events)
        elif txn.unit and not txn.doomed:
            for call in txn.aborts:
                if call.outcome == "fail" and call.error == "InvalidTxnStatus":
                    txn.unit.end = min(txn.unit.end, call.end)  # it is committed


def order_in_transactions(history: History) -> Iterator[Finding]:
    """Messages of one transaction in one partition that are not in the order of their sends."""
    for (topic, partition), rows in history.rows.items():
        latest: dict[tuple[str, str | None], Call] = {}
        for row in (rows[at] for at in sorted(rows)):
            if row.unit is None or row.unit.txn is None:
                continue
            name = row.unit.txn
            calls = [
                c for c in history.sends[topic, row.value]
                if c.args.get("txn") is not None and str(c.args["txn"]) == name
            ]  # fmt: skip
            if len(calls) != 1:
                continue
            call = calls[0]
            session = call.args.get("session")
            for scope in {None, session}:
                before = latest.get((name, scope))
                if before is not None and (
                    call.end < before.start or (scope is not None and call.start < before.start)
                ):
                    text = f"{before} is before {call} in {topic}/{partition}, and was sent later"
                    yield Finding("order-violation", text, [*call.events, *before.events])
                    break
                if before is None or before.start < call.start:
                    latest[name, scope] = call


# --- in each read ---------------------------------------------------------------------------------


def covers(shown: Round, topic: str, partition: int | None) -> bool:
    """Whether a read covers a partition, or, if that is unknown, all of the topic it may be in."""
    return topic in shown.topics or (topic, partition) in shown.shows


def partition_of(call: Call) -> int | None:
    """The partition that a send went to, if anybody said so."""
    number = call.answer.get("partition", call.args.get("partition"))
    return None if number is None else int(number)


def values(history: History, shown: Round) -> dict[str, set[str]]:
    """The values that a read showed, by topic."""
    seen: dict[str, set[str]] = defaultdict(set)
    for (topic, partition), places in shown.shows.items():
        rows = history.rows[topic, partition]
        seen[topic].update(rows[at].value for at in places)
    return seen


def torn_rounds(history: History) -> Iterator[Finding]:
    """Transactions of which a reader showed one part in a round and another part in a later one."""
    first: dict[tuple[str, str], Call] = {}
    for call in history.by_op["round"]:
        rows = [(topic, value) for topic, each in call.args["topics"].items() for value in each]
        for topic, value in rows:
            sends = history.sends.get((topic, value), ())
            if len(sends) != 1 or sends[0].args.get("txn") is None:
                continue
            name = str(sends[0].args["txn"])
            before = first.setdefault((call.args["reader"], name), call)
            if before is not call:
                text = f"{before} shows a part of transaction {name}, and {call} shows {value!r}"
                yield Finding("torn-transaction", text, [before.start, call.start])
                first[call.args["reader"], name] = call


def torn_transactions(history: History) -> Generator[Finding, None, set[str]]:
    """Reads with a part of a transaction. Returns the names of the torn transactions."""
    torn: set[str] = set()
    yield from _interleaved(history, torn)
    for shown in history.rounds:
        if not shown.is_whole or shown.reader is not None:
            continue
        seen = values(history, shown)
        txns = {
            row.unit.txn
            for where, places in shown.shows.items()
            for at in places
            if (row := history.rows[where][at]).unit and row.unit.txn
        }
        for name in sorted(txns - torn):
            absent = _absent(history, history.txns[name], shown, seen)
            if absent:
                torn.add(name)
                forget(history, absent)
                values_of = ", ".join(repr(call.args["value"]) for call in absent[:5])
                text = f"{shown} shows a part of transaction {name}, without {values_of}"
                yield Finding("torn-transaction", text, [*shown.call.events, absent[0].start])
    return torn


def _interleaved(history: History, torn: set[str]) -> Iterator[Finding]:
    for (topic, partition), rows in history.rows.items():
        ended: set[str] = set()
        ordered = [rows[at] for at in sorted(rows)]
        for before, row in pairwise(ordered):
            if before.unit is not row.unit and before.unit and before.unit.txn:
                ended.add(before.unit.txn)
            if row.unit and row.unit.txn in ended and row.unit is not before.unit:
                if row.unit.txn not in torn:
                    text = f"{before.value!r} is among the messages of {row.unit.label}"
                    text += f" in {topic}/{partition}"
                    yield Finding("torn-transaction", text, row.unit.events)
                torn.add(str(row.unit.txn))
                row.unit = None


def _absent(history: History, txn: Txn, shown: Round, seen: dict[str, set[str]]) -> list[Call]:
    absent = []
    for call in txn.sends:
        topic, value = call.args["topic"], call.args["value"]
        partition = partition_of(call)
        if call.outcome != "ok" or value in seen.get(topic, ()):
            continue
        if covers(shown, topic, partition) and not call.answer.get("duplicate"):
            position = _position(history, call)
            if history.gone(topic, partition, position, call.start) > shown.call.end:
                absent.append(call)
    return absent


def _position(history: History, call: Call) -> Position | None:
    answered = call.answer.get("id")
    return tuple(map(int, answered.split(":"))) if answered else None


def lost(history: History, torn: set[str]) -> Iterator[Finding]:
    """Answered messages that the last read of their partition does not show."""
    last: dict[tuple[str, int | None], Round] = {}
    for shown in sorted(history.rounds, key=lambda shown: shown.call.start):
        if shown.is_whole and shown.reader is None:
            last.update(dict.fromkeys(shown.shows, shown))
            last.update(dict.fromkeys(((topic, None) for topic in shown.topics), shown))
    seen = {id(shown): values(history, shown) for shown in last.values()}
    for (topic, value), calls in history.sends.items():
        for call in calls:
            unit = history.unit_of(call) if call.outcome == "ok" else None
            if unit is None or unit.txn in torn:
                continue
            partition = partition_of(call)
            read = last.get((topic, partition), last.get((topic, None)))
            if read is None or unit.end >= read.call.start or value in seen[id(read)][topic]:
                continue
            place = _position(history, call)
            # what a repetition repeats may have been stored, and gone, long before
            since = calls[0].start if call.answer.get("duplicate") else call.start
            if history.gone(topic, partition, place, since) <= read.call.end:
                continue
            text = f"{read} does not show {value!r} of {topic}, which {unit.label} answered"
            if unit.txn is None:
                text = f"{read} does not show {value!r} of {topic}, answered by {call}"
            forget(history, [call])
            yield Finding("lost-message", text, [*call.events, *read.call.events])
            break


def forget(history: History, calls: list[Call]) -> None:
    """Let no other check miss these messages again."""
    for call in calls:
        for row in history.places.get((call.args["topic"], call.args["value"]), ()):
            row.gone = -1
