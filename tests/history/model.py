"""Owns what a history says: its calls, the messages that were sent, and what was seen of the log.

A *unit* becomes visible in one step: a plain message, or all messages of a transaction. It cannot
be visible before its `start`, the invocation of its send or commit, and must be visible from its
`end`, the answer, on. A unit whose call has no definite outcome has no `end`. Numbers of events are
positions in the history.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tests.history.events import DIED, Event

NEVER = math.inf
Position = tuple[int, ...]
Partition = tuple[str, int]

# the transaction of the call has ended, and for the first three it was aborted
ABORTED_ERRORS = {"TransactionConflict", "TransactionTimedOut", "ExpiredTransaction"}
ENDED_ERROR = "InvalidTxnStatus"
# calls that write a frame and return when it and all before it are on disk
DURABLE = {"create_topic", "delete_topic", "connect_key"}


@dataclass(slots=True)
class Finding:
    """A promise that the history breaks.

    name:   the kind, such as `lost-message`
    text:   a sentence that names the messages and calls
    events: the positions of the events concerned
    """

    name: str
    text: str
    events: list[int]

    def __str__(self) -> str:
        return f"{self.name}: {self.text} (events {', '.join(map(str, self.events))})"


@dataclass(slots=True)
class Call:
    """A call with its outcome; an event is a call that begins and ends at once."""

    op: str
    process: str
    client: str
    args: dict[str, Any]
    start: int
    end: float = NEVER
    outcome: str = "unknown"
    answer: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    at: int | None = None

    @property
    def events(self) -> list[int]:
        """The positions of its events."""
        end = [int(self.end)] if self.end not in (NEVER, self.start) else []
        return [self.start, *end]

    def __str__(self) -> str:
        return f"{self.op} [{self.start}]"


@dataclass(slots=True, eq=False)
class Unit:
    """Messages that become visible together."""

    label: str
    start: float
    end: float = NEVER
    txn: str | None = None
    calls: list[Call] = field(default_factory=list)

    @property
    def events(self) -> list[int]:
        """The positions of its first call's events."""
        return self.calls[0].events if self.calls else []


@dataclass(slots=True, eq=False)
class Txn:
    """A transaction: its calls, and whether it may have committed.

    doomed: the call that proves that it was aborted
    shown:  the first read or receive that showed a message which only it can have sent
    """

    name: str
    sends: list[Call] = field(default_factory=list)
    acks: list[Call] = field(default_factory=list)
    commits: list[Call] = field(default_factory=list)
    aborts: list[Call] = field(default_factory=list)
    begin: Call | None = None
    doomed: Call | None = None
    unit: Unit | None = None
    shown: Call | None = None

    @property
    def committed(self) -> Call | None:
        """The first call that answered that it is committed."""
        return next((c for c in self.commits if is_commit(c)), None)

    @property
    def proof(self) -> Call | None:
        """The call whose answer proves that it is committed."""
        return self.committed or self.shown


@dataclass(slots=True, eq=False)
class Row:
    """A message at its position, as somebody saw it first."""

    topic: str
    partition: int
    position: Position
    value: str
    first: Call
    unit: Unit | None = None
    gone: float = NEVER


@dataclass(slots=True, eq=False)
class Round:
    """A read: what it showed of each partition it covers.

    shows:    the positions it returned
    is_whole: it shows everything that is visible at its moment, up to the last position
    topics:   of these it covers all partitions
    """

    call: Call
    shows: dict[Partition, list[Position]]
    reader: str | None
    is_whole: bool
    topics: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"the read [{self.call.start}]"


@lru_cache(1 << 20)
def position(text: str) -> Position:
    """The position of a message id."""
    return tuple(map(int, text.split(":")))


def show(place: Position) -> str:
    """The id of a position."""
    return ":".join(map(str, place))


def is_commit(call: Call) -> bool:
    """Whether a commit was answered with success."""
    return call.outcome == "ok" and call.answer.get("state") not in ("aborted", "aborting")


class History:
    """All that the checks need, read once from the events."""

    def __init__(self, events: Iterable[Event]) -> None:
        events = list(events)
        self.calls = pair(events)
        end_by_kills(self.calls)
        self.by_op: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            self.by_op[call.op].append(call)
        self.settings: dict[str, Any] = {}
        for call in self.by_op["settings"]:
            self.settings.update(call.args)
        self.txns: dict[str, Txn] = {}
        self.sends: dict[tuple[str, str], list[Call]] = defaultdict(list)
        self.rows: dict[Partition, dict[Position, Row]] = defaultdict(dict)
        self.rounds: list[Round] = []
        self._times = [event.at for event in events]
        self.changed: list[tuple[Row, str, Call]] = []
        self.disordered: list[tuple[Call, Partition, Position, Position]] = []
        self._units: dict[tuple[Any, ...], Unit] = {}
        self._derived = {c.args["topic"] for c in self.by_op["create_topic"] if "derived" in c.args}
        self._take_sends()
        self._take_txns()
        self._take_rounds()
        self._take_deliveries()
        for shown in self.rounds:
            for where in self.rows:
                if where[0] in shown.topics:
                    shown.shows.setdefault(where, [])
        self.places: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self._place_removals()
        self.losses = self._losses()
        self._durable = self._durable_starts()

    # --- what was sent ----------------------------------------------------------------------------

    def _take_sends(self) -> None:
        for call in self.by_op["send"]:
            self.sends[call.args["topic"], call.args["value"]].append(call)

    def txn(self, name: object) -> Txn:
        """The transaction of this name."""
        return self.txns.setdefault(str(name), Txn(str(name)))

    def _take_txns(self) -> None:
        for call in self.by_op["begin"]:
            if call.outcome == "ok" and "txn" in call.answer:
                txn = self.txn(call.answer["txn"])
                txn.begin = txn.begin or call
        lists = (("send", "sends"), ("acknowledge", "acks"), ("commit", "commits"))
        for op, name in (*lists, ("abort", "aborts")):
            for call in self.by_op[op]:
                if call.args.get("txn") is not None:
                    getattr(self.txn(call.args["txn"]), name).append(call)
        for txn in self.txns.values():
            self._decide(txn)

    def _decide(self, txn: Txn) -> None:
        answers = [*txn.commits, *txn.aborts, *txn.sends, *txn.acks]
        for call in sorted(answers, key=lambda call: call.end):
            if call.outcome == "fail" and (
                call.error in ABORTED_ERRORS or (call.error == ENDED_ERROR and call.op == "commit")
            ):
                txn.doomed = txn.doomed or call
            if call.op == "abort" and call.outcome == "ok":
                txn.doomed = txn.doomed or call
        may = [call for call in txn.commits if call.outcome != "fail"]
        if may:
            ok = txn.committed
            end = ok.end if ok else NEVER
            label = f"transaction {txn.name}"
            txn.unit = Unit(label, min(c.start for c in may), end, txn.name, may)

    def candidates(self, topic: str, value: str) -> list[Unit]:
        """The units that may have brought this message into the log, without repetitions."""
        units: dict[int, Unit] = {}
        for call in self.sends.get((topic, value), ()):
            if call.outcome != "fail":
                unit = self.unit_of(call)
                if unit is not None:
                    units[id(unit)] = unit
        return list(units.values())

    def unit_of(self, call: Call) -> Unit | None:
        """The unit of a send; None if its transaction was never to be committed."""
        args = call.args
        if args.get("txn") is not None:
            txn = self.txn(args["txn"])
            return None if txn.doomed else txn.unit
        is_named = args.get("producer") is not None and args.get("sequence") is not None
        scope = (args["producer"], args["sequence"]) if is_named else (call.start,)
        name = (args["topic"], args["value"], scope)
        unit = self._units.get(name)
        if unit is None:
            same = [
                c
                for c in self.sends[args["topic"], args["value"]]
                if c.outcome != "fail" and c.args.get("txn") is None
                and (c is call or (is_named and c.args.get("producer") == args["producer"]
                     and c.args.get("sequence") == args["sequence"]))
            ]  # fmt: skip
            ends = [c.end for c in same if c.outcome == "ok"]
            unit = Unit(
                f"message {args['value']!r} of {args['topic']}",
                min(c.start for c in same), min(ends, default=NEVER), None, same,
            )  # fmt: skip
            self._units[name] = unit
        return unit

    def is_derived(self, topic: str) -> bool:
        """Whether messages come into this topic without a send: dead letters, functions."""
        return topic in self._derived or topic.endswith(("-DLQ", "-RETRY"))

    # --- what was seen ----------------------------------------------------------------------------

    def _see(self, topic: str, partition: int, place: Position, value: str, call: Call) -> None:
        rows = self.rows[topic, partition]
        row = rows.get(place)
        if row is None:
            rows[place] = Row(topic, partition, place, value, call)
        elif row.value != value:
            self.changed.append((row, value, call))
        elif call.end < row.first.end:
            row.first = call

    def _take_rounds(self) -> None:
        for call in self.calls:
            is_final = call.op == "final_read"
            if (not is_final and call.op != "read") or call.outcome != "ok":
                continue
            if call.args.get("isolation") == "uncommitted":
                continue
            shows: dict[Partition, list[Position]] = {}
            for topic, partitions in call.answer.get("topics", {}).items():
                for number, entries in partitions.items():
                    where = (topic, int(number))
                    places = [position(entry[0]) for entry in entries]
                    for place, entry in zip(places, entries, strict=True):
                        self._see(*where, place, entry[1], call)
                    for before, after in pairwise(places):
                        if after <= before:
                            self.disordered.append((call, where, before, after))
                    shows[where] = sorted(set(places))
            reader = call.args.get("reader")
            is_whole = not call.args.get("partial") and not call.args.get("compacted")
            has_all = is_whole and reader is None and not call.args.get("partitions")
            topics = set(call.answer.get("topics", {})) if has_all else set()
            self.rounds.append(Round(call, shows, reader, is_whole, topics))

    def _take_deliveries(self) -> None:
        for op in ("receive", "final_drain"):
            for call in self.by_op[op]:
                if call.outcome == "ok":
                    for message in call.answer["messages"]:
                        place = position(message["id"])
                        topic = message.get("topic", call.args["topic"])
                        where = (topic, int(message.get("partition", 0)))
                        self._see(*where, place, message["value"], call)

    # --- what may be gone -------------------------------------------------------------------------

    def _place_removals(self) -> None:
        """Find the unit of each row, and the event from which the row may be gone."""
        removals = defaultdict(list)
        for op in ("trim", "delete_topic"):
            for call in self.by_op[op]:
                if call.outcome != "fail":
                    removals[call.args["topic"]].append(call)
        self._removals = removals
        self._policies = {
            call.args["topic"]: call
            for call in self.by_op["create_topic"]
            if any(name.startswith("retention_") for name in call.args)
        }
        cuts = [c.start for c in self.by_op["power_cut"]]
        is_lossy = self.settings.get("durability") == "os"
        self._cuts = cuts if is_lossy else []
        for (topic, partition), rows in self.rows.items():
            for row in rows.values():
                self.places[topic, row.value].append(row)
                units = self.candidates(topic, row.value)
                row.unit = units[0] if len(units) == 1 else None
                if row.unit is not None and row.unit.txn is not None:
                    txn = self.txns[row.unit.txn]
                    if txn.shown is None or row.first.end < txn.shown.end:
                        txn.shown = row.first
                if topic in removals or topic in self._policies or self._cuts:
                    start = row.unit.start if row.unit else 0
                    row.gone = self.gone(topic, partition, row.position, start)

    def gone(
        self, topic: str, partition: int | None, place: Position | None, start: float
    ) -> float:
        """The event from which a message that was sent after `start` may be gone."""
        gone = NEVER
        for call in self._removals.get(topic, ()):
            number = call.args.get("partition")
            end = call.end if call.outcome == "ok" else NEVER
            if end < start or (None not in (number, partition) and number != partition):
                continue
            if place is not None and "ids" in call.args:
                if show(place) not in call.args["ids"]:
                    continue
            elif place is not None and place >= position(call.args.get("before", f"{1 << 62}:0")):
                continue
            gone = min(gone, call.start)
        if topic in self._policies:
            gone = min(gone, self._expired(self._policies[topic].args, place, start))
        later = bisect_left(self._cuts, start)
        return min(gone, self._cuts[later]) if later < len(self._cuts) else gone

    def _expired(self, topic: dict[str, Any], place: Position | None, start: float) -> float:
        """The event from which a policy of its topic may remove a message."""
        expired = NEVER
        if "retention_ms" in topic:
            expired = self._aged(int(start), topic["retention_ms"])
        if topic.get("retention_acked"):
            expired = min(expired, self._acknowledged(topic["topic"], place))
        return expired

    def _aged(self, start: int, age_ms: int) -> float:
        """The event at which what happened at `start` is so old.

        That the clock was set far ahead makes nothing old, until the machine boots.
        """
        booted = min((c.start for c in self.by_op["power_cut"] if c.start > start), default=NEVER)
        bound = self.settings.get("clock_jump_max_ms", NEVER)
        jumps = {
            call.start: call.args["by_ms"]
            for call in self.by_op["clock_jump"]
            if call.process == "" and call.args["by_ms"] > bound
        }
        began, ahead = self._times[start], 0
        for event, now in enumerate(self._times[start:], start):
            ahead = ahead + jumps.get(event, 0) if event < booted else 0
            if began is None or (now is not None and now - ahead >= began + age_ms):
                return event
        return NEVER

    def _acknowledged(self, topic: str, place: Position | None) -> float:
        """The event from which every subscription of a topic may have acknowledged a message."""
        first: dict[str, float] = {
            call.args["subscription"]: NEVER
            for call in self.by_op["subscribe"] if call.args["topic"] == topic
        }  # fmt: skip
        for op in ("acknowledge", "reconsume_later", "seek", "unsubscribe", "final_drain"):
            for call in self.by_op[op]:
                name = call.args.get("subscription")
                ids = call.args.get("ids")
                is_named = place is None or ids is None or show(place) in ids
                if call.args.get("topic") != topic or call.outcome == "fail" or name not in first:
                    continue
                if is_named or call.args.get("cumulative"):
                    first[name] = min(first[name], call.start)
        return max(first.values(), default=NEVER)

    # --- what survives a power cut ----------------------------------------------------------------

    def _losses(self) -> list[tuple[float, float]]:
        """Stretches in which frames that no flush covers may be lost.

        That is a power cut, and a failed flush until the next call that was flushed.
        """
        losses: list[tuple[float, float]] = [(c.start, c.end) for c in self.by_op["power_cut"]]
        flushed = first_end_after([call for call in self.calls if self.is_durable(call)])
        for call in self.calls:
            is_failed = call.outcome == "unknown" and call.error == "OutcomeUnknown"
            if is_failed or call.op == "lossy":
                after = flushed(call.end)
                losses.append((call.start, after.end if after else NEVER))
        return sorted(losses)

    def is_durable(self, call: Call) -> bool:
        """Whether this call returned after a flush."""
        if call.outcome != "ok" or self.settings.get("durability") == "os":
            return False
        name = call.args.get("txn")
        if call.op == "commit":
            # one that is repeated, or that is empty, writes nothing
            txn = self.txn(name)
            has_work = any(work.outcome == "ok" for work in (*txn.sends, *txn.acks))
            return has_work and txn.commits[0] is call
        is_plain_send = call.op == "send" and name is None and not call.answer.get("duplicate")
        return is_plain_send or call.op in DURABLE

    def _durable_starts(self) -> dict[str | None, tuple[list[float], list[float]]]:
        """Ends of flushed calls, and the latest start of those that ended by then.

        A `flush` is certain only for what its own process had written; None has the other calls.
        """
        by_process: dict[str | None, tuple[list[float], list[float]]] = {None: ([], [])}
        for call in sorted(self.calls, key=lambda call: call.end):
            is_flush = call.op == "flush" and call.outcome == "ok"
            if is_flush and self.settings.get("durability") == "os":
                continue
            if is_flush or self.is_durable(call):
                name = call.process if is_flush else None
                ends, starts = by_process.setdefault(name, ([], []))
                ends.append(call.end)
                starts.append(max(call.start, starts[-1] if starts else -1))
        return by_process

    def survives(self, call: Call, asked: float) -> bool:
        """Whether what a call that has ended had written is certain at `asked`."""
        for start, end in self.losses:
            if end < call.end or start > asked:
                continue
            # if it was flushed before the first loss, then also before the later ones
            return any(self._flushed(name, call.end, start) for name in (None, call.process))
        return True

    def _flushed(self, name: str | None, written: float, lost: float) -> bool:
        ends, starts = self._durable.get(name, ([], []))
        at = bisect_left(ends, lost)
        return at > 0 and starts[at - 1] > written


def first_end_after(calls: list[Call]) -> Callable[[float], Call | None]:
    """A function from a time to the call that ended first of those that began after it."""
    ordered = sorted(calls, key=lambda call: call.start)
    starts = [call.start for call in ordered]
    first: list[Call] = []
    for call in reversed(ordered):
        first.append(call if not first or call.end < first[-1].end else first[-1])
    first.reverse()

    def after(time: float) -> Call | None:
        at = bisect_right(starts, time)
        return first[at] if at < len(first) else None

    return after


def end_by_kills(calls: list[Call]) -> None:
    """A call of a process that was killed ended with it, if its end is not in the history."""
    kills: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.op == "kill" and call.process:
            kills[call.process].append(call)
    for call in calls:
        if call.end == NEVER and call.op != "kill":
            kill = next((k for k in kills.get(call.process, ()) if k.end > call.start), None)
            if kill is not None and kill.end != NEVER:
                call.end, call.error = kill.end, DIED


def pair(events: Iterable[Event]) -> list[Call]:
    """The calls of a history in the order of their invocations."""
    calls: dict[int, Call] = {}
    ordered: list[Call] = []
    for at, event in enumerate(events):
        if event.type in ("invoke", "event"):
            call = Call(event.op, event.process, event.client, event.args, at, at=event.at)
            ordered.append(call)
            if event.type == "event":
                call.end, call.outcome, call.answer = at, "ok", event.answer
            elif event.call is not None:
                calls[event.call] = call
            continue
        if event.call is None or event.call not in calls:
            raise ValueError(f"event {at} ends a call that did not begin: {event.call}")
        call = calls.pop(event.call)
        call.outcome, call.answer, call.error = event.type, event.answer, event.error
        call.at = event.at if event.at is not None else call.at
        call.end = at
    return ordered
