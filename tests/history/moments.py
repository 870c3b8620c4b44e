"""Checks that one order of all units explains every read, as Elle does for databases.

The order has a node for each unit and each read. Its edges are facts:

    log      the unit is before the other in a partition
    time     the one had ended before the other began
    session  one producer sent the one before the other, to the same partition
    sees     the read shows the unit, so the unit is before it
    misses   the read does not show the unit, so the unit is after it

The order exists if the facts have no cycle. A read is a moment of the store, so a cycle through a
read says that no moment had what it shows; the facts in the cycle give the finding its name. `time`
is kept short by nodes of time: whatever ends is before the next of them, and that is before
whatever begins later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tests.history.model import NEVER, Finding, History, Partition, Position, Round, Row, Unit, show

Node = int
FINDINGS_MAX = 20


@dataclass(slots=True)
class Step:
    """An edge of a cycle."""

    node: Node
    kind: str


class Order:
    """The nodes and facts."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.nodes: list[Unit | Round | None] = []
        self.after: list[dict[Node, str]] = []
        self._of: dict[int, Node] = {}
        self.skipped: list[tuple[Round, Row]] = []
        self.back: list[tuple[Round, Row]] = []
        self._seen: dict[tuple[str, Partition], Position] = {}
        self._tangled = tangled(history.rounds)
        self._renewed = {call.args["topic"] for call in history.by_op["delete_topic"]}
        self._logs: dict[Partition, list[Row]] = {}
        self._positions: dict[Partition, list[Position]] = {}
        self._add_logs()
        self._add_reads()
        self._add_sessions()
        self._add_time()

    def node(self, thing: Unit | Round | None) -> Node:
        """The node of a unit or a read; each None is a new node of time."""
        number = self._of.get(id(thing)) if thing is not None else None
        if number is None:
            number = len(self.nodes)
            self.nodes.append(thing)
            self.after.append({})
            if thing is not None:
                self._of[id(thing)] = number
        return number

    def add(self, before: Node, after: Node, kind: str) -> None:
        """A fact."""
        if before != after:
            self.after[before].setdefault(after, kind)

    def _add_logs(self) -> None:
        for where, rows in self.history.rows.items():
            ordered = [rows[at] for at in sorted(rows)]
            for row in ordered:
                if row.unit is None:  # nothing is known of it but its place
                    row.unit = Unit(f"message {row.value!r} of {row.topic}", 0)
            self._logs[where] = ordered
            self._positions[where] = [row.position for row in ordered]
            last = None
            for row in ordered:
                assert row.unit is not None
                node = self.node(row.unit)
                if last is not None:
                    self.add(last, node, "log")
                last = node

    def _add_reads(self) -> None:
        for shown in sorted(self.history.rounds, key=lambda shown: shown.call.start):
            for where, places in shown.shows.items():
                if shown.reader is None:
                    self._add_round(shown, where, places)
                else:
                    self._add_continued(shown, where, places)

    def _add_round(self, shown: Round, where: Partition, places: list[Position]) -> None:
        log = self._logs.get(where, [])
        end = bisect_right(self._positions[where], places[-1]) if places else 0
        node = self.node(shown)
        if shown.is_whole and end != len(places):
            present = set(places)
            self._note_skipped(shown, [r for r in log[:end] if r.position not in present])
        self._sees(node, where, places)
        if shown.is_whole:
            self._misses(shown, node, log[end:] if end < len(log) else [])

    def _add_continued(self, shown: Round, where: Partition, places: list[Position]) -> None:
        log = self._logs.get(where, [])
        node = self.node(shown)
        name = (str(shown.reader), where)
        if shown.reader in self._tangled:
            self._sees(node, where, places)
            return
        before = self._seen.get(name)
        if before is None and shown.call.args.get("start") == "earliest":
            before = ()
        if places and before is not None:
            if places[0] <= before:
                self.back.append((shown, self.history.rows[where][places[0]]))
            keys = self._positions[where]
            begin, end = bisect_right(keys, before), bisect_right(keys, places[-1])
            if end - begin > len(places):
                present = set(places)
                skipped = [r for r in log[begin:end] if r.position not in present]
                if before and where[0] not in self._renewed:  # no trim lets a reader jump
                    self.skipped += [(shown, row) for row in skipped if row.gone >= 0]
                else:
                    self._note_skipped(shown, skipped)
        if places:
            before = max(before or (), places[-1])
        if before is None:
            return
        self._seen[name] = before
        self._sees(node, where, [before] if before else [])
        if shown.is_whole:
            self._misses(shown, node, log[bisect_right(self._positions.get(where, []), before) :])

    def _note_skipped(self, shown: Round, rows: list[Row]) -> None:
        self.skipped += [(shown, row) for row in rows if row.gone > shown.call.end]

    def _sees(self, node: Node, where: Partition, places: list[Position]) -> None:
        if places:
            unit = self.history.rows[where][places[-1]].unit
            assert unit is not None
            self.add(self.node(unit), node, "sees")

    def _misses(self, shown: Round, node: Node, rest: list[Row]) -> None:
        for row in rest:
            if row.gone > shown.call.end:
                assert row.unit is not None
                self.add(node, self.node(row.unit), "misses")
                return

    def _add_sessions(self) -> None:
        last: dict[tuple[str, Partition], tuple[Unit, int]] = {}
        unit_of = {}
        for where, rows in self.history.rows.items():
            for row in rows.values():
                unit_of[where[0], row.value] = (row, where)
        for call in self.history.by_op["send"]:
            session = call.args.get("session")
            if session is None or call.args.get("txn") is not None or call.outcome == "fail":
                continue
            name = (call.args["topic"], call.args["value"])
            if name not in unit_of or len(self.history.sends[name]) > 1:
                continue
            row, where = unit_of[name]
            assert row.unit is not None
            before = last.get((session, where))
            if before is not None:
                self.add(self.node(before[0]), self.node(row.unit), "session")
            last[session, where] = (row.unit, call.start)

    def _add_time(self) -> None:
        moments: list[tuple[float, bool, Node]] = []
        for node, thing in enumerate(self.nodes):
            if isinstance(thing, Round):
                moments += [(thing.call.start, False, node), (thing.call.end, True, node)]
            elif thing is not None:
                moments.append((thing.start, False, node))
                if thing.end != NEVER:
                    moments.append((thing.end, True, node))
        moments.sort(key=lambda moment: moment[:2])
        now, is_used = self.node(None), False
        for _, is_end, node in moments:
            if is_end:
                if is_used:
                    later = self.node(None)
                    self.add(now, later, "time")
                    now, is_used = later, False
                self.add(node, now, "time")
            else:
                self.add(now, node, "time")
                is_used = True


def tangled(rounds: list[Round]) -> set[str]:
    """Readers whose reads overlap, as two threads use them: nobody knows which was first."""
    ends: dict[str, float] = {}
    names = set()
    for shown in sorted(rounds, key=lambda shown: shown.call.start):
        if shown.reader is not None:
            if ends.get(shown.reader, -1) > shown.call.start:
                names.add(shown.reader)
            ends[shown.reader] = shown.call.end
    return names


def check_moments(history: History) -> Iterator[Finding]:
    """Findings about the order of units and reads."""
    order = Order(history)
    lost_rows: dict[int, tuple[Round, Row]] = {}
    for shown, row in order.skipped:
        lost_rows.setdefault(id(row), (shown, row))
    for shown, row in lost_rows.values():
        text = f"{shown} shows later messages than {row.value!r} of {row.topic}, and not that one"
        yield Finding("lost-message", text, shown.call.events)
    for shown, row in order.back:
        text = f"{shown} of reader {shown.reader} shows {row.value!r} at {show(row.position)} again"
        yield Finding("non-monotonic-read", text, shown.call.events)
    for _ in range(FINDINGS_MAX):
        cycle = find_cycle(order)
        if cycle is None:
            return
        yield name_cycle(order, cycle)
        weakest = next((at for at, s in enumerate(cycle) if s.kind == "misses"), None)
        if weakest is None:
            weakest = next((at for at, s in enumerate(cycle) if s.kind == "log"), 0)
        del order.after[cycle[weakest - 1].node][cycle[weakest].node]


def core(after: list[dict[Node, str]]) -> set[Node]:
    """The nodes that are on a cycle or between two: all others are taken away from both ends."""
    before: list[list[Node]] = [[] for _ in after]
    for node, edges in enumerate(after):
        for other in edges:
            before[other].append(node)
    alive = [True] * len(after)
    for ahead, behind in ((after, before), (before, after)):
        count = [sum(alive[n] for n in edges) for edges in behind]
        ends = [n for n, c in enumerate(count) if c == 0 and alive[n]]
        while ends:
            node = ends.pop()
            alive[node] = False
            for other in ahead[node]:
                count[other] -= 1
                if count[other] == 0 and alive[other]:
                    ends.append(other)
    return {node for node, is_alive in enumerate(alive) if is_alive}


def find_cycle(order: Order) -> list[Step] | None:
    """A cycle with few units and reads, each step with the fact that leads to its node."""
    rest = core(order.after)
    best: list[Step] | None = None
    starts = sorted(rest, key=lambda node: not isinstance(order.nodes[node], Round))
    for start in starts[:50]:
        cycle = shortest(order, start, rest)
        if cycle is not None and (best is None or weight(order, cycle) < weight(order, best)):
            best = cycle
    if best is None:
        for start in starts[50:]:
            best = best or shortest(order, start, rest)
    return best


def weight(order: Order, cycle: list[Step]) -> int:
    """How many units and reads a cycle has."""
    return sum(order.nodes[step.node] is not None for step in cycle)


def shortest(order: Order, start: Node, rest: set[Node]) -> list[Step] | None:
    """The cycle through a node with the fewest units and reads."""
    came: dict[Node, Node] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for other in order.after[node]:
            if other == start:
                path = [Step(start, order.after[node][start])]
                while node != start:
                    path.append(Step(node, order.after[came[node]][node]))
                    node = came[node]
                return path[::-1]
            if other in rest and other not in came:
                came[other] = node
                if order.nodes[other] is None:
                    queue.appendleft(other)
                else:
                    queue.append(other)
    return None


def name_cycle(order: Order, cycle: list[Step]) -> Finding:
    """The finding of a cycle."""
    things = [order.nodes[step.node] for step in cycle if order.nodes[step.node] is not None]
    units = [thing for thing in things if isinstance(thing, Unit)]
    rounds = [thing for thing in things if isinstance(thing, Round)]
    kinds = {step.kind for step in cycle}
    events = sorted({e for unit in units for e in unit.events} | {r.call.start for r in rounds})
    names = " and ".join(unit.label for unit in units[:3])
    if not rounds:
        if kinds == {"log"}:
            return Finding("commit-order", f"{names} have another order elsewhere", events)
        text = f"{names} are in the log in another order than they were sent"
        return Finding("order-violation", text, events)
    shown = rounds[0]
    if len(units) == 1 and len(rounds) == 1:
        if "misses" not in kinds:
            return Finding("phantom-message", f"{shown} shows {names} before it was sent", events)
        if "time" not in kinds:
            return Finding("torn-transaction", f"{shown} shows a part of {names}", events)
        text = f"{shown} does not show {names}, which had been answered"
        return Finding("stale-read", text, events)
    if len(rounds) == 1:
        if any(s.kind == "time" and isinstance(order.nodes[s.node], Round) for s in cycle):
            text = f"{shown} does not show what was answered: {names}"
            return Finding("stale-read", text, events)
        text = f"{shown} shows what no moment had: one of {names} without the other"
        return Finding("torn-snapshot", text, events)
    if "time" in kinds:
        return _backwards(rounds, names, events)
    text = f"{' and '.join(map(str, rounds))} disagree on which of {names} came first"
    return Finding("torn-snapshot", text, events)


def _backwards(rounds: list[Round], names: str, events: list[int]) -> Finding:
    calls = [shown.call for shown in rounds]
    is_session = len({(call.process, call.client) for call in calls}) == 1
    earlier, later = min(calls, key=lambda c: c.start), max(calls, key=lambda c: c.start)
    text = f"the read [{later.start}] shows less than the read [{earlier.start}]: {names}"
    return Finding("non-monotonic-read" if is_session else "stale-read", text, events)
