"""Checks subscriptions: what was delivered, acknowledged, returned, and is left at the end.

What may give messages back is a stretch of the history: a nack, a close, a death, an abort. A
second delivery without such a stretch since the first began is a finding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.history.events import DIED
from tests.history.model import NEVER, Call, Finding, History, Position, Txn, position, show

SHARED = ("shared", "key_shared")
ORDERED = ("exclusive", "failover")
RETURNS = ("nack", "redeliver", "reconsume_later", "seek", "close", "unsubscribe")
MEMBERS = ("subscribe", "close", "unsubscribe")
# the call had its effect by its end, or has none: it ran in a process, not on a server
SETTLED = (DIED, "Interrupted", "OutcomeUnknown")
Name = tuple[str, str]
Holding = tuple[Position | None, str | None]


class Stretches:
    """Stretches of the history in which something may have happened."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def add(self, start: float, end: float) -> None:
        """Add a stretch."""
        insort(self._starts, start)
        insort(self._ends, end)

    def any(self, since: float, until: float) -> bool:
        """Whether a stretch meets this one."""
        return bisect_right(self._starts, until) > bisect_left(self._ends, since)

    def number(self, time: float) -> int:
        """How many began before this time."""
        return bisect_left(self._starts, time)


def stretch(call: Call) -> tuple[float, float]:
    """When a call may have taken effect: nobody knows when one does whose outcome is unknown."""
    is_settled = call.outcome in ("ok", "fail") or call.error in SETTLED
    return call.start, call.end if is_settled else NEVER


@dataclass(slots=True)
class Ack:
    """What acknowledged a message.

    first:      the first call that may have done it
    is_plain:   a call without a transaction may have done it
    txns:       the transactions that may have done it
    over:       when the last of these calls had ended
    sure:       the call that certainly did
    since:      when that call had ended
    is_durable: whether it was flushed
    was_held:   its consumer certainly held the message, so that no other had it in hand
    """

    first: Call
    is_plain: bool = False
    txns: list[Txn] = field(default_factory=list)
    over: float = 0
    sure: Call | None = None
    since: float = NEVER
    is_durable: bool = False
    was_held: bool = False


@dataclass(slots=True)
class Subscription:
    """A subscription of one topic.

    returns: what may have given messages back; broad: the part of it that may concern any message
    narrow:  the rest of it, by message and consumer; None: any
    """

    name: Name
    kind: str = ""
    returns: Stretches = field(default_factory=Stretches)
    broad: Stretches = field(default_factory=Stretches)
    narrow: dict[Holding, Stretches] = field(default_factory=lambda: defaultdict(Stretches))
    members: Stretches = field(default_factory=Stretches)
    seeks: list[Call] = field(default_factory=list)
    resets: Stretches = field(default_factory=Stretches)
    delivered: dict[Position, Call] = field(default_factory=dict)
    consumer_of: dict[Position, str] = field(default_factory=dict)
    acked: dict[Position, Ack] = field(default_factory=dict)
    last: dict[int, tuple[Position, Call]] = field(default_factory=dict)
    active: dict[tuple[int, int], tuple[str, Call]] = field(default_factory=dict)
    of_key: dict[tuple[int, str], tuple[Position, Call]] = field(default_factory=dict)
    held: dict[tuple[int, str], dict[Position, tuple[str, Call]]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    is_wild: bool = False
    may_return: bool = False

    def give_back(self, start: float, end: float, *holdings: Holding) -> None:
        """Note that messages may come back; without holdings, any."""
        self.returns.add(start, end)
        for holding in holdings:
            self.narrow[holding].add(start, end)
        if not holdings:
            self.broad.add(start, end)

    def is_back(self, place: Position, before: Call, since: float, call: Call) -> bool:
        """Whether something may have given back a message between two calls that delivered it."""
        consumer = before.args.get("consumer")
        if self.kind not in SHARED or consumer is None:
            return self.returns.any(since, call.end)
        holdings = (place, consumer), (place, None), (None, consumer)
        return self.broad.any(since, call.end) or any(
            self.narrow[holding].any(since, call.end)
            for holding in holdings
            if holding in self.narrow
        )


def topics_of(call: Call) -> list[str]:
    """The topics that a call of a consumer names."""
    topic = call.args["topic"]
    return topic if isinstance(topic, list) else [topic]


class Deliveries:
    """Follows the history once, in the order of its events."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.subscriptions: dict[Name, Subscription] = {}
        self.owners: dict[str, set[tuple[Name, str]]] = defaultdict(set)
        self.ahead: dict[str, Call] = {}
        self.kills: dict[str, list[int]] = defaultdict(list)  # by process
        self.findings: list[Finding] = []
        self.logs = {where: sorted(rows) for where, rows in history.rows.items()}
        self.partition_of: dict[tuple[str, Position], int] = {}
        self.place_of: dict[tuple[str, str], list[Position]] = defaultdict(list)
        for (topic, number), rows in history.rows.items():
            for at, row in rows.items():
                self.partition_of[topic, at] = number
                self.place_of[topic, row.value].append(at)
        self._prepare()

    def of(self, topic: str, subscription: str) -> Subscription:
        """The subscription of this name."""
        name = (topic, subscription)
        state = self.subscriptions.get(name)
        if state is None:
            state = self.subscriptions[name] = Subscription(name)
        return state

    def _of_call(self, call: Call) -> list[Subscription]:
        """The subscriptions of a call: those of its topic, or all of its consumer."""
        topic, name = call.args.get("topic"), call.args.get("subscription")
        if topic is not None and name is not None:
            return [self.of(each, name) for each in topics_of(call)]
        owners = self.owners.get(str(call.args.get("consumer")), set())
        return [self.of(*each) for each in sorted({each for each, _ in owners})]

    # --- what may give messages back --------------------------------------------------------------

    def _prepare(self) -> None:
        for call in self.history.by_op["subscribe"]:
            name = call.args.get("consumer")
            if call.args.get("is_ahead"):
                self.ahead[str(name)] = call
            for state in self._of_call(call):
                kind = call.args.get("kind", "").replace("-", "_")
                state.kind = kind if state.kind in ("", kind) else "mixed"
                if call.args.get("ack_timeout_ms"):
                    state.may_return = True
                if name is not None:
                    self.owners[name].add((state.name, call.process))
        for op in (*RETURNS, "subscribe"):
            for call in self.history.by_op[op]:
                for state in self._of_call(call):
                    self._add(state, call, *stretch(call))
        for call in self.history.by_op["kill"]:
            self.kills[call.process].append(call.start)
        for op in ("kill", "power_cut", "lossy"):
            for call in self.history.by_op[op]:
                start, end = stretch(call)
                is_server = op == "kill" and not call.process
                self._everywhere(call, start, max(end, self._back(end)) if is_server else end)
        for start, end in self.history.losses:
            for state in self.subscriptions.values():
                state.give_back(start, end)
        for call in self.history.by_op["receive"]:
            if call.outcome != "ok" and call.error != DIED:
                for state in self._of_call(call):  # it may hold messages that it did not return
                    state.give_back(call.start, NEVER)
        for txn in self.history.txns.values():
            self._add_abort(txn)
        if self.history.settings.get("ack_timeout_ms"):
            for state in self.subscriptions.values():
                state.may_return = True

    def _add(self, state: Subscription, call: Call, start: float, end: float) -> None:
        if call.outcome == "fail" and call.op != "close":
            return
        if call.op != "subscribe" or state.kind == "failover":
            state.give_back(start, end, *self._holdings(call))
        if call.op in MEMBERS:
            state.members.add(start, end)
        if call.op in ("seek", "unsubscribe"):
            state.resets.add(start, end)
        if call.op == "seek":
            state.seeks.append(call)

    def _holdings(self, call: Call) -> list[Holding]:
        """What a call gives back, if that is known: messages of its consumer, or all it holds."""
        consumer = call.args.get("consumer")
        if call.op == "close" and consumer is not None:
            return [(None, consumer)]
        if call.op in ("nack", "reconsume_later") and consumer is not None and "ids" in call.args:
            return [(position(text), consumer) for text in call.args["ids"]]
        return []

    def _everywhere(self, call: Call, start: float, end: float) -> None:
        names: dict[Name, list[Holding]] = defaultdict(list)
        for consumer, owners in self.owners.items():
            for name, process in owners:
                if call.op != "kill" or call.process in ("", process):
                    names[name].append((None, consumer))
        for name, holdings in names.items():
            is_of_one = call.op == "kill" and call.process != ""
            self.subscriptions[name].give_back(start, end, *(holdings if is_of_one else ()))
            self.subscriptions[name].members.add(start, end)

    def _back(self, time: float) -> float:
        """When clients certainly do not come back any more to a server that died by then.

        A client tells nobody that it subscribes again, so it may until its consumer ends.
        """
        ends = [time]
        for name, call in self.ahead.items():
            if call.start < time:
                closes = [c.end for c in self.history.by_op["close"] if c.args["consumer"] == name]
                kills = [
                    c.end for c in self.history.by_op["kill"]
                    if c.process == call.process and c.end > call.start
                ]  # fmt: skip
                end = min([*closes, *kills], default=NEVER)
                ends.append(end if end > time else time)
        return max(ends)

    def _add_abort(self, txn: Txn) -> None:
        """The abort of a transaction gives back what it had acknowledged, at an unknown time."""
        if txn.proof is not None:
            return
        end = txn.doomed.end if txn.doomed else NEVER
        for ack in txn.acks:
            holdings: list[Holding] = []
            if "ids" in ack.args and not ack.args.get("cumulative"):
                holdings = [(position(text), None) for text in ack.args["ids"]]
            for state in self._of_call(ack):
                state.give_back(ack.start, end, *holdings)

    # --- the walk ---------------------------------------------------------------------------------

    def run(self) -> list[Finding]:
        """Follow the history; returns the findings."""
        moments: list[tuple[float, int, Any]] = []
        for call in self.history.calls:
            if call.op == "acknowledge" and call.outcome != "fail":
                moments.append((call.start, 0, call))
                if call.outcome == "ok" and call.args.get("txn") is None:
                    moments.append((call.end, 1, call))
            elif call.op == "reconsume_later" and call.outcome != "fail":
                moments.append((call.start, 0, call))
            elif call.op == "receive" and call.outcome == "ok":
                moments.append((call.end, 3, call))
            elif call.op in ("seek", "unsubscribe") and call.outcome != "fail":
                moments.append((call.start, 4, call))
        for txn in self.history.txns.values():
            if txn.proof is not None and not txn.doomed and txn.acks:
                moments.append((txn.proof.end, 2, txn))
        steps = (self._ack_begins, self._ack_ends, self._committed, self._received, self._reset)
        for _, kind, subject in sorted(moments, key=lambda moment: moment[:2]):
            steps[kind](subject)
        self._check_members()
        for drain in self.history.by_op["final_drain"]:
            if drain.outcome == "ok":
                Drain(self, drain).check()
        return self.findings

    def find(self, name: str, text: str, *calls: Call) -> None:
        """Add a finding."""
        events = sorted({event for call in calls for event in call.events})
        self.findings.append(Finding(name, text, events))

    def places(self, state: Subscription, call: Call) -> list[Position]:
        """The messages that an acknowledgement names."""
        if "ids" not in call.args:
            values = call.args.get("values", ())
            return [place for v in values for place in self.place_of[state.name[0], v]]
        places = [position(text) for text in call.args["ids"]]
        if not call.args.get("cumulative"):
            return places
        covered = []
        for place in places:
            number = self.partition_of.get((state.name[0], place))
            if number is None:
                state.is_wild = True  # nobody knows what it covers
                continue
            log = self.logs[state.name[0], number]
            end = bisect_right(log, place)
            covered += log[state.reached.get(number, 0) : end]
            if call.outcome == "ok" and call.args.get("txn") is None:
                state.reached[number] = max(state.reached.get(number, 0), end)
        return covered

    def _ack_begins(self, call: Call) -> None:
        for state in self._of_call(call):
            reached = dict(state.reached)
            txn = self.history.txn(call.args["txn"]) if call.args.get("txn") is not None else None
            for place in self.places(state, call):
                ack = state.acked.setdefault(place, Ack(call))
                ack.over = max(ack.over, call.end)
                if txn is None:
                    ack.is_plain = True
                elif txn not in ack.txns:
                    ack.txns.append(txn)
                for held in self._held_of(state, place):
                    held.pop(place, None)
            if call.args.get("cumulative"):
                state.reached = reached

    def _held_of(self, state: Subscription, place: Position) -> Iterator[dict[Position, Any]]:
        row = self.partition_of.get((state.name[0], place))
        if row is not None:
            key = self.history.rows[state.name[0], row][place].value
            name = self.key_of.get((state.name[0], key))
            if name is not None and (row, name) in state.held:
                yield state.held[row, name]

    @property
    def key_of(self) -> dict[tuple[str, str], str]:
        """The key of each message that has one."""
        if self._keys is None:
            self._keys = {
                name: calls[0].args["key"]
                for name, calls in self.history.sends.items()
                if calls[0].args.get("key") is not None
            }
        return self._keys

    _keys: dict[tuple[str, str], str] | None = None

    def _ack_ends(self, call: Call) -> None:
        is_doubtful = call.answer.get("dropped") or call.answer.get("stale")
        for state in self._of_call(call):
            for place in self.places(state, call):
                ack = state.acked.get(place)
                if ack is None or is_doubtful or any(txn.proof is None for txn in ack.txns):
                    continue
                was_held = self._was_held(state, place, call)
                if call.args.get("cumulative") and not was_held:
                    continue  # it may have been stale
                if ack.sure is None and not state.resets.any(ack.first.start, call.end):
                    ack.sure, ack.since, ack.was_held = call, call.end, was_held

    def _was_held(self, state: Subscription, place: Position, call: Call) -> bool:
        before = state.delivered.get(place)
        return before is not None and not state.returns.any(self.since(before), call.end)

    def since(self, *calls: Call) -> int:
        """When the server may have delivered at the earliest what these calls received."""
        return min(self.ahead.get(str(call.args.get("consumer")), call).start for call in calls)

    def _committed(self, txn: Txn) -> None:
        call = txn.proof
        assert call is not None
        for acking in txn.acks:
            if acking.outcome != "ok":
                continue
            for state in self._of_call(acking):
                for place in self.places(state, acking):
                    self._acked_by(state, place, acking, call)

    def _acked_by(self, state: Subscription, place: Position, acking: Call, call: Call) -> None:
        ack = state.acked.setdefault(place, Ack(acking))
        if ack.sure is not None and ack.is_durable:
            if not acking.args.get("cumulative"):
                text = f"{show(place)} was acknowledged on {state.name[1]} by {ack.sure} and {call}"
                self.find("double-acknowledgement", text, ack.sure, acking, call)
        elif not state.resets.any(acking.start, call.end):
            ack.sure, ack.since, ack.is_durable = call, call.end, True
            ack.was_held = self._was_held(state, place, acking)

    def _reset(self, call: Call) -> None:
        for state in self._of_call(call):
            forgets = self._forgets(state, call)
            state.acked = {
                place: Ack(ack.first, ack.is_plain, ack.txns, ack.over)
                for place, ack in state.acked.items()
                if not forgets or ack.txns or ack.over >= call.start
            }
            state.delivered.clear()
            state.last.clear()
            state.of_key.clear()
            state.held.clear()
            state.reached.clear()

    def _forgets(self, state: Subscription, call: Call) -> bool:
        """Whether a call certainly made everything that was acknowledged before it come again.

        Cumulative acknowledgements of other types could cover it again, and clients do not seek in
        partitions that they do not know.
        """
        goes_back = call.outcome == "ok" and call.args.get("to") == "earliest"
        topic = call.args.get("topic")
        added = self.history.by_op["add_partitions"]
        is_fixed = all(each.args["topic"] != topic for each in added)
        return goes_back and is_fixed and state.kind in SHARED

    # --- a delivery -------------------------------------------------------------------------------

    def _received(self, call: Call) -> None:
        name = call.args.get("subscription")
        for message in call.answer["messages"]:
            topic = message.get("topic", call.args.get("topic"))
            state = self.of(topic, name) if name else None
            if state is None:
                continue
            place, number = position(message["id"]), int(message.get("partition", 0))
            self._check_returned(state, place, message, call)
            self._check_again(state, place, message, call)
            self._check_count(state, place, message, call)
            if state.kind in ORDERED:
                self._check_order(state, place, number, call)
                self._check_active(state, place, number, message, call)
            elif state.kind in SHARED:
                self._check_time(state, place, message, call)
            if state.kind == "key_shared":
                self._check_key(state, place, number, message, call)
            state.delivered[place] = call

    def is_sure(self, state: Subscription, ack: Ack | None, asked: float) -> bool:
        """Whether a message is certainly acknowledged when a call begins at `asked`."""
        if ack is None or ack.sure is None or ack.since > asked:
            return False
        if state.resets.any(ack.since, asked):
            return False
        return ack.is_durable or self.history.survives(ack.sure, asked)

    def _check_returned(
        self, state: Subscription, place: Position, message: dict[str, Any], call: Call
    ) -> None:
        ack = state.acked.get(place)
        since = self.since(call)
        if ack is None or not self.is_sure(state, ack, since):
            return
        # another consumer that held the message then has it from before, one that came later not
        is_older = call.op == "receive" and not ack.was_held and since == call.start
        if state.resets.any(ack.since, call.end) or is_older:
            return
        assert ack.sure is not None
        if ack.is_durable and ack.sure.op not in ("commit", "acknowledge"):
            text = f"{ack.sure} shows the transaction of {ack.first}, and {call} delivered"
            text += f" {message['value']!r} again"
            self.find("torn-transaction", text, ack.first, ack.sure, call)
            return
        text = f"{call} delivered {message['value']!r}, which {ack.sure} acknowledged"
        self.find("returned-acknowledgement", text, ack.first, ack.sure, call)

    def _check_again(
        self, state: Subscription, place: Position, message: dict[str, Any], call: Call
    ) -> None:
        before = state.delivered.get(place)
        if before is None or state.may_return:
            return
        ack = state.acked.get(place)
        since = self.since(before, call)
        if self.is_sure(state, ack, self.since(call)) or state.is_back(place, before, since, call):
            return
        text = f"{before} and {call} delivered {message['value']!r}, and nothing gave it back"
        self.find("duplicate-delivery", text, before, call)

    def _check_count(
        self, state: Subscription, place: Position, message: dict[str, Any], call: Call
    ) -> None:
        """The end of a process returns what its application got, and that is counted."""
        before = state.delivered.get(place)
        if before is None or before.end == NEVER or "redelivered" not in message:
            return
        kills, consumer = self.kills[before.process], str(before.args.get("consumer"))
        at = bisect_left(kills, before.end)
        if at == len(kills) or kills[at] > call.start or consumer in self.ahead:
            return
        is_kept = not any(s < call.end and e > before.start for s, e in self.history.losses)
        counts = [
            int(each.get("redelivered", 0))
            for each in before.answer["messages"]
            if position(each["id"]) == place
        ]
        if is_kept and int(message["redelivered"]) <= max(counts):
            text = f"{call} delivered {message['value']!r} as redelivery {message['redelivered']}"
            text += f", although {before.process} ended with it after {before}"
            self.find("uncounted-redelivery", text, before, call)

    def _check_order(self, state: Subscription, place: Position, number: int, call: Call) -> None:
        before = state.last.get(number)
        state.last[number] = (place, call)
        if before is None or state.may_return or place >= before[0]:
            return
        if before[1].end > call.start and before[1] is not call:
            return  # two threads receive at the same time
        if place in state.delivered or state.returns.any(self.since(before[1], call), call.end):
            return
        text = (
            f"{call} delivered {show(place)} of {state.name[0]}/{number} behind {show(before[0])}"
        )
        self.find("delivery-order", text, before[1], call)

    def _check_active(
        self,
        state: Subscription,
        place: Position,
        number: int,
        message: dict[str, Any],
        call: Call,
    ) -> None:
        """Two consumers got messages that were sent after the members last changed."""
        consumer = call.args.get("consumer")
        sends = self.history.sends.get((message.get("topic", call.args["topic"]), message["value"]))
        if consumer is None or not sends:
            return
        start = min(send.start for send in sends)
        if state.members.any(start, call.end):
            return
        epoch = (number, state.members.number(start))
        other, before = state.active.setdefault(epoch, (consumer, call))
        if other != consumer:
            text = f"{other} and {consumer} both get messages of {state.name[0]}/{number}"
            self.find("two-active-consumers", text, before, call)

    def _check_time(
        self, state: Subscription, place: Position, message: dict[str, Any], call: Call
    ) -> None:
        sends = self.history.sends.get((message.get("topic", call.args["topic"]), message["value"]))
        if not sends or call.at is None:
            return
        times = [
            send.args.get("deliver_at_ms", 0) + self.set_ahead(send, call)
            for send in sends
            if send.outcome != "fail"
        ]
        if not times:
            return
        tolerance = self.history.settings.get("tick_ms", 0) + self.back(call)
        if call.at + tolerance < min(times):
            text = f"{call} delivered {message['value']!r} {min(times) - call.at} ms too early"
            self.find("early-delivery", text, sends[0], call)

    def set_ahead(self, send: Call, call: Call) -> int:
        """How far the clock of the machine was set ahead between two calls of one boot.

        That makes no message due, unless it is so little that the clock is still trusted. After a
        power cut nobody knows what the clock was.
        """
        bound = self.history.settings.get("clock_jump_max_ms", 0)
        cuts = self.history.by_op["power_cut"]
        if "deliver_at_ms" not in send.args or any(send.start < c.start < call.end for c in cuts):
            return 0
        return sum(
            int(jump.args["by_ms"])
            for jump in self.history.by_op["clock_jump"]
            if send.end < jump.start < call.start
            and jump.process == ""
            and jump.args["by_ms"] > bound
        )

    def back(self, call: Call) -> int:
        """How far the clock of a process was set back by then."""
        return sum(
            max(0, -int(jump.args["by_ms"]))
            for jump in self.history.by_op["clock_jump"]
            if jump.start < call.end and jump.process in ("", call.process)
        )

    def _check_key(
        self,
        state: Subscription,
        place: Position,
        number: int,
        message: dict[str, Any],
        call: Call,
    ) -> None:
        topic = message.get("topic", call.args["topic"])
        key = message.get("key", self.key_of.get((topic, message["value"])))
        sends = self.history.sends.get((topic, message["value"]), [])
        if key is None or any(send.args.get("deliver_at_ms") is not None for send in sends):
            return
        name = (number, key)
        consumer = str(call.args.get("consumer"))
        held = state.held.setdefault(name, {})
        for earlier, (other, before) in list(held.items()):
            if state.may_return or state.returns.any(self.since(before, call), call.end):
                del held[earlier]
            elif other != consumer and earlier < place and before.end < call.start:
                text = f"{consumer} got {message['value']!r} while {other} held {show(earlier)}"
                self.find("key-order", f"{text} of key {key}", before, call)
                return
        if place not in state.acked:
            held[place] = (consumer, call)
        last = state.of_key.get(name)
        if last is None or place > last[0]:
            state.of_key[name] = (place, call)
        elif (
            place not in state.delivered
            and place not in state.acked
            and not state.may_return
            and (last[1].end < call.start or last[1] is call)
            and not state.returns.any(self.since(last[1], call), call.end)
        ):
            text = f"{call} delivered {show(place)} of key {key} first after {show(last[0])}"
            self.find("key-order", text, last[1], call)

    def _check_members(self) -> None:
        """No consumer attaches to an Exclusive subscription while another certainly is."""
        ends: dict[str, float] = {}
        for call in self.history.by_op["close"]:
            ends[call.args["consumer"]] = min(ends.get(call.args["consumer"], NEVER), call.start)
        kills: dict[str, list[int]] = defaultdict(list)
        for op in ("kill", "power_cut", "lossy"):
            for call in self.history.by_op[op]:
                insort(kills[call.process if op == "kill" else ""], call.start)
        attached: dict[Name, tuple[Call, float]] = {}
        for call in self.history.by_op["subscribe"]:
            if call.outcome != "ok" or call.args.get("kind") != "exclusive":
                continue
            ended = ends.get(str(call.args.get("consumer")), NEVER)
            for name in (call.process, ""):
                at = bisect_left(kills[name], call.start)
                ended = min([ended, *kills[name][at : at + 1]])
            for state in self._of_call(call):
                for op in ("unsubscribe", "delete_topic"):
                    gone = [c.start for c in self.history.by_op[op] if c.start > call.start]
                    ended = min([ended, *gone[:1]])
                before = attached.get(state.name)
                if before and before[0].end < call.start and before[1] > call.end:
                    text = f"{before[0]} and {call} both attached to {state.name[1]}"
                    self.find("two-active-consumers", text, before[0], call)
                if call.args.get("consumer") is not None:
                    attached[state.name] = (call, ended)


class Drain:
    """What a fresh consumer still received at the end, against what it should."""

    def __init__(self, walk: Deliveries, call: Call) -> None:
        self.walk, self.call = walk, call
        self.topic, self.subscription = call.args["topic"], call.args["subscription"]
        self.state = walk.of(self.topic, self.subscription)
        self.left = {
            position(message["id"]): message
            for message in call.answer["messages"]
            if message.get("topic", self.topic) == self.topic
        }

    def check(self) -> None:
        """Each message is either acknowledged or drained, and none is both."""
        for place, message in self.left.items():
            self.walk._check_returned(self.state, place, message, self.call)
            if self.state.kind in SHARED:
                self.walk._check_time(self.state, place, message, self.call)
        if not self.state.is_wild:
            self._check_missing()

    def _check_missing(self) -> None:
        history, state = self.walk.history, self.state
        start = self._begin()
        if start is None:
            return
        moved = self._moved()
        for (topic, number), rows in history.rows.items():
            if topic != self.topic:
                continue
            for place, row in rows.items():
                if place in self.left or row.gone <= self.call.end or self._is_handled(place):
                    continue
                unit = row.unit
                if unit is None or unit.start < start or not unit.calls:
                    continue
                if unit.end > self.call.start and row.first.end > self.call.start:
                    continue
                if place in moved or self._is_skipped(place, unit.start):
                    continue
                self._missing(row.value, number, state)

    def _missing(self, value: str, number: int, state: Subscription) -> None:
        sends = self.walk.history.sends[self.topic, value]
        times = [t for t in (send.args.get("deliver_at_ms") for send in sends) if t is not None]
        if times and state.kind in SHARED and self.call.at is not None:
            if max(times) + self.walk.history.settings.get("tick_ms", 0) > self.call.at:
                return  # not due yet
            text = f"{value!r} is due, and {self.call} did not get it from {self.subscription}"
            self.walk.find("late-delivery", text, sends[0], self.call)
            return
        if times and state.kind not in ORDERED:
            return
        text = f"nobody acknowledged {value!r} of {self.topic}/{number} on {self.subscription}"
        text += f", and {self.call} did not get it"
        self.walk.find("unreachable-message", text, sends[0], self.call)

    def _begin(self) -> float | None:
        """The event after which what was sent is certainly for this subscription."""
        calls = [
            call for call in self.walk.history.by_op["subscribe"]
            if self.topic in topics_of(call)
            and call.args["subscription"] == self.subscription and call.outcome != "fail"
        ]  # fmt: skip
        gone = [
            call.end for op in ("unsubscribe", "delete_topic")
            for call in self.walk.history.by_op[op]
            if call.args["topic"] == self.topic and call.outcome != "fail"
            and call.args.get("subscription", self.subscription) == self.subscription
        ]  # fmt: skip
        calls = [call for call in calls if call.start > max(gone, default=-1)]
        ok = [call for call in calls if call.outcome == "ok"]
        if not ok or max(gone, default=-1) == NEVER:
            return None
        if all(call.args.get("initial", "latest") == "earliest" for call in calls):
            return max(gone, default=-1)
        return min(call.end for call in ok)

    def _is_handled(self, place: Position) -> bool:
        ack = self.state.acked.get(place)
        if ack is None:
            return False
        return ack.is_plain or any(txn.unit and not txn.doomed for txn in ack.txns)

    def _moved(self) -> set[Position]:
        """Messages that are in the dead-letter or retry topic now, or were, as the drain says."""
        names = [f"{self.topic}-{self.subscription}-{end}" for end in ("DLQ", "RETRY")]
        names += [
            str(call.args[name]) for call in self.walk.history.by_op["subscribe"]
            for name in ("dead_letter_topic", "retry_topic") if name in call.args
        ]  # fmt: skip
        return {position(text) for text in self.call.answer.get("moved", ())} | {
            place
            for (topic, _), rows in self.walk.history.rows.items()
            if topic in names
            for row in rows.values()
            for place in self.walk.place_of[self.topic, row.value]
        }

    def _is_skipped(self, place: Position, start: float) -> bool:
        """Whether a seek may have passed over it."""
        for seek in self.state.seeks:
            to = str(seek.args.get("to", ""))
            if to == "earliest" or start >= stretch(seek)[1]:
                continue
            if ":" not in to or place < position(to):
                return True
        return False


def check_deliveries(history: History) -> list[Finding]:
    """Findings about subscriptions."""
    return Deliveries(history).run()
