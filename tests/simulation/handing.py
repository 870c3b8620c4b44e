"""Owns what the consumers of a subscription do to each other, beside a model of what each may get.

The subscription is new and nobody else uses it. So a message that one consumer holds, or that is
acknowledged, must not come to another; its count is that of its returns; and when each consumer
acknowledges what it gets, everything comes, unless it was returned too often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from threading import current_thread
from typing import Any, Final

from tests.history.model import position
from tests.simulation.answers import acked, nothing, rows_of, sent, text_id, value_of
from tests.simulation.machine import Interrupted
from tests.simulation.returning import SIDE_THREAD
from tests.simulation.scenario import MESSAGE_KEYS
from txlog import Message, messages
from txlog.clock import SystemClock
from txlog.errors import TxlogError

SHARED: Final = ("shared", "key_shared")
ACK_TIMEOUT_MS: Final = 1_000
DELAY_MS: Final = 500
REST_S: Final = 1.5  # every delay and time-out of an acknowledgement is over then
QUEUE: Final = 8  # messages that a consumer leases ahead
PATIENCE_MS: Final = 50
FAULTS: Final = ("power_cut", "lossy", "stop", "clock_jump")  # that change what the model knows
KEYS: Final = (*MESSAGE_KEYS, *(f"key {number}" for number in range(9)))
STEPS: Final = {
    "post": 4.0,
    "take": 12.0,
    "settle": 5.0,
    "give_back": 6.0,
    "give_back_late": 5.0,
    "abort": 1.0,
    "leave": 1.5,
    "join": 2.0,
    "rest": 1.5,
    "checkpoint": 0.5,
}


class WrongHand(Exception):
    """A message came to a consumer that must not get it, with a wrong count, or to nobody."""


def draw_hand_over(random: Random, topic: str) -> dict[str, Any]:
    """An operation: the type of the subscription, and what its consumers do in turn."""
    kind = random.choice(("exclusive", "failover", "shared", "key_shared", "key_shared"))
    has_timeout = kind in SHARED and random.random() < 0.4
    weights = STEPS | ({"rest": 4.0} if has_timeout else {})
    acts = random.choices([*weights], [*weights.values()], k=random.randint(15, 40))
    steps = [
        {
            "act": act,
            "of": random.randrange(2),
            "count": random.choice((1, 2, 2, 4)),
            "which": random.choice(("first", "last", "all", "mark")),
            "form": random.choice(("alone", "alone", "marker", "delayed")),
            "ahead": random.random() < (0.8 if has_timeout else 0.5),
            "name": random.choice("abcxyz"),
            "keys": random.choices(KEYS, k=4),
        }
        for act in ("post", *acts)
    ]
    return {
        "op": "hand_over",
        "topic": topic,
        "kind": kind,
        "redeliveries": random.choice((None, 1, 1, 2)),
        "has_timeout": has_timeout,
        "ends_alone": random.random() < 0.5,
        "steps": steps,
    }


@dataclass
class Standing:
    """What the model knows of a message that was sent.

    holder:   the consumer that got it last and has neither settled nor returned it
    is_loose: the acknowledgement of its holder may be overdue, so it may come to others
    least, most: how often it has been returned, at least and at most
    """

    value: str
    holder: str | None = None
    is_loose: bool = False
    is_over: bool = False
    least: int = 0
    most: int = 0


@dataclass
class Member:
    """A consumer, what it holds, and what it returned."""

    consumer: Any
    held: dict[str, Message] = field(default_factory=dict)
    returned: dict[str, Message] = field(default_factory=dict)


class Handing:
    """An operation of an agent, which has the rest of what it uses."""

    def hand_over(self: Any, op: dict[str, Any]) -> None:
        """Let consumers of a new subscription hand messages to each other."""
        if current_thread().name == SIDE_THREAD:
            return
        subscription = f"hand-{self._value()}"
        hands = Hands(self, op, subscription)
        try:
            hands.play()
        except (TxlogError, Interrupted):
            self._guarded(hands.end)
            raise
        hands.end()


class Hands:
    """The consumers of a subscription, and the model."""

    def __init__(self, agent: Any, op: dict[str, Any], subscription: str) -> None:
        self.agent, self.op, self.subscription = agent, op, subscription
        self.topic, self.kind = op["topic"], op["kind"]
        self.most = op["redeliveries"]
        self.members: dict[int, Member] = {}
        self.standings: dict[str, Standing] = {}  # by value
        self.joined, self.begin = 0, 0

    def play(self) -> None:
        """Perform the steps, then let everything come."""
        agent, policies = self.agent, {}
        if self.most is not None:
            policies["max_redeliver_count"] = self.most
        create = partial(
            agent.client.create_subscription,
            *(self.topic, self.subscription),
            type=self.kind.replace("_", "-"),
            position="latest",
            **policies,
        )
        facts = {"topic": self.topic, "subscription": self.subscription, "kind": self.kind}
        agent._call("subscribe", create, nothing, **facts, consumer=None, initial="latest")
        self.begin = len(agent.recorder.events)
        for step in self.op["steps"]:
            getattr(self, step["act"])(step)
        self._drain()
        lost = [each.value for each in self.standings.values() if self._must_come(each)]
        if lost:
            self._wrong(f"{lost} came to nobody on {self.subscription}, {self.kind}")

    def end(self) -> None:
        """Close all consumers, and delete the subscription."""
        for number in [*self.members]:
            self.leave({"of": number})
        handle = self.agent.client.subscription(self.topic, self.subscription)
        facts = {"topic": self.topic, "subscription": self.subscription}
        delete = partial(handle.delete, force=True)
        self.agent._call("unsubscribe", delete, nothing, **facts)

    def _wrong(self, text: str) -> None:
        """Raise WrongHand, unless a fault may be the reason."""
        events = self.agent.recorder.events[self.begin :]
        if not any(event.op in FAULTS for event in events):
            raise WrongHand(text)

    def _must_come(self, standing: Standing) -> bool:
        return not standing.is_over and (self.most is None or standing.most <= self.most)

    def _drain(self) -> None:
        """Acknowledge what is held and what comes, until nothing comes any more."""
        self.agent.process.world.scheduler.sleep(REST_S)
        if not self.members:
            self.join({"of": 0, "name": "m"})
        for member in self.members.values():
            self._acknowledge(member, [*member.held])
        if self.op["ends_alone"] and len(self.members) > 1:
            self.leave({"of": max(self.members)})
        empty = 0
        while empty < 2:
            taken = 0
            for member in self.members.values():
                taken += len(self._receive(member, 2, PATIENCE_MS))
                self._acknowledge(member, [*member.held])
            empty = 0 if taken else empty + 1

    def _member(self, step: dict[str, Any]) -> Member:
        """The consumer of a step; a subscription that is exclusive has one."""
        number = 0 if self.kind == "exclusive" else step["of"]
        if number not in self.members:
            self.join(step)
        return self.members[number]

    # --- steps -----------------------------------------------------------------------------------

    def post(self, step: dict[str, Any]) -> None:
        """Send messages: each alone, in one marker, or with one time of delivery."""
        agent, topic = self.agent, self.topic
        form, producer = step["form"], agent._producer(topic)
        options: dict[str, Any] = {"partition": 0}
        facts: dict[str, Any] = {"topic": topic, "session": agent._session(topic)}
        if form == "delayed" and self.kind in SHARED:
            due = SystemClock().now().wall_ms + DELAY_MS
            facts["deliver_at_ms"] = options["deliver_at"] = due
        answer: Callable[[Any], dict[str, Any]] = sent
        txn = None
        if form == "marker":
            txn, answer = agent._begin({}), nothing
            options["txn"], facts["txn"] = txn, str(txn.id)
            facts["session"] += f".{txn.id}"
        posted = []
        for key in step["keys"][: 4 if txn else step["count"]]:
            value = agent._value()
            act = partial(producer.send, value, key=key, **options)
            agent._call("send", act, answer, **facts, value=value, key=key)
            posted.append(value)
        if txn:
            agent._end(txn, str(txn.id), "commit", {})
        self.standings |= {value: Standing(value) for value in posted}

    def take(self, step: dict[str, Any]) -> None:
        """Receive some messages, one after the other or as a batch."""
        member = self._member(step)
        for _ in range(step["count"] if step["ahead"] else 1):
            self._receive(member, 1 if step["ahead"] else step["count"], 0, ahead=step["ahead"])

    def settle(self, step: dict[str, Any]) -> None:
        """Acknowledge something that a consumer holds; a mark covers what is before it."""
        member, which = self._member(step), step["which"]
        ids = _chosen(member.held, which)
        if ids and which == "mark" and self.kind not in SHARED:
            self._acknowledge_up_to(member, ids[-1])
        else:
            self._acknowledge(member, ids)

    def give_back(self, step: dict[str, Any]) -> None:
        """Return something that a consumer holds, and perhaps acknowledge what came behind it."""
        member = self._member(step)
        ids = _chosen(member.held, step["which"])
        last = next(reversed(member.held), None)
        self._return(member, {id_: member.held[id_] for id_ in ids})
        if step["ahead"] and self.kind not in SHARED and last in member.held:
            self._acknowledge_up_to(member, last)

    def give_back_late(self, step: dict[str, Any]) -> None:
        """Return messages once more, which others may have got meanwhile."""
        member = self._member(step)
        late = {id_: each for id_, each in member.returned.items() if id_ not in member.held}
        if late:
            self._return(member, late)

    def abort(self, step: dict[str, Any]) -> None:
        """Acknowledge in a transaction, and abort it."""
        member, agent = self._member(step), self.agent
        ids = _chosen(member.held, step["which"])
        if not ids:
            return
        txn = agent._begin({})
        named = [member.held[id_] for id_ in ids]
        act = partial(member.consumer.acknowledge, named, txn=txn)
        agent._call("acknowledge", act, acked, **self._facts(member, named), txn=str(txn.id))
        txn.flush()  # else nothing was written, and the consumer would keep the messages
        for id_ in ids:
            self._gone(member, id_, 1, 1)
        agent._end(txn, str(txn.id), "abort", {})

    def leave(self, step: dict[str, Any]) -> None:
        """Close a consumer: what it holds comes to others."""
        member = self.members.pop(0 if self.kind == "exclusive" else step["of"], None)
        if member is not None:
            act = member.consumer.close
            self.agent._call("close", act, nothing, consumer=member.consumer.name)
            for id_ in [*member.held]:
                self._gone(member, id_, 0, 1)

    def join(self, step: dict[str, Any]) -> None:
        """Open a consumer, if its place is free; a failover one may become the active one."""
        number = 0 if self.kind == "exclusive" else step["of"]
        if number in self.members:
            return
        agent = self.agent
        self.joined += 1
        name = f"{step['name']}{self.joined}.{self.subscription}"
        options: dict[str, Any] = {"name": name, "receiver_queue_size": QUEUE}
        facts = {"topic": self.topic, "subscription": self.subscription, "kind": self.kind}
        if self.op["has_timeout"]:
            options["ack_timeout_ms"] = facts["ack_timeout_ms"] = ACK_TIMEOUT_MS
        act = partial(agent.client.consumer, self.topic, self.subscription, **options)
        opened = agent._call("subscribe", act, nothing, **facts, consumer=name)
        self.members[number] = Member(opened)

    def rest(self, step: dict[str, Any]) -> None:
        """Let delays and time-outs pass."""
        self.agent.process.world.scheduler.sleep(REST_S)
        for standing in self.standings.values():
            if self.op["has_timeout"] and standing.holder is not None:
                standing.is_loose = True
                standing.most += 1

    def checkpoint(self, step: dict[str, Any]) -> None:
        """Write the cursor to a dump."""
        self.agent.client.checkpoint()

    # --- calls, and what they mean to the model ---------------------------------------------------

    def _receive(
        self, member: Member, most: int, timeout_ms: int, *, ahead: bool = False
    ) -> list[Message]:
        consumer = member.consumer

        def receive() -> list[Message]:
            if ahead:
                return [each for each in [consumer.receive(timeout_ms)] if each is not None]
            return [*messages(consumer.receive_batch(most, timeout_ms))]

        facts = {"topic": self.topic, "subscription": self.subscription, "consumer": consumer.name}
        act: Callable[[list[Message]], Any] = lambda rows: {"messages": rows_of(rows)}  # noqa: E731
        received: list[Message] = self.agent._call("receive", receive, act, **facts)
        for message in received:
            self._came(member, message)
        return received

    def _standing(self, message: Message) -> Standing:
        """The standing of a message; others send to the topic as well."""
        return self.standings.setdefault(value_of(message.value), Standing(value_of(message.value)))

    def _came(self, member: Member, message: Message) -> None:
        """A consumer got a message: check that it may, and with this count."""
        standing, name = self._standing(message), member.consumer.name
        count, holder = message.redelivery_count or 0, standing.holder
        what = f"{standing.value} came to {name}, {self.kind},"
        if standing.is_over:
            self._wrong(f"{what} although it is acknowledged")
        if holder is not None and not standing.is_loose and (holder != name or self._is_shared):
            self._wrong(f"{what} while {holder} held it")
        others = {each.consumer.name for each in self.members.values() if each.held} - {name}
        if self.kind == "failover" and others:
            self._wrong(f"{what} before {others} settled what they hold")
        if not standing.least <= count <= standing.most:
            text = f"{standing.least} to {standing.most} returns"
            self._wrong(f"{what} as redelivery {count} after {text}")
        if self.most is not None and count > self.most:
            self._wrong(f"{what} as redelivery {count} of at most {self.most}")
        for other in self.members.values():
            other.held.pop(_id(message), None)
        standing.least = standing.most = count
        standing.holder, standing.is_loose = name, False
        member.held[_id(message)] = message

    @property
    def _is_shared(self) -> bool:
        return self.kind in SHARED

    def _gone(self, member: Member, id_: str, least: int, most: int) -> None:
        """A consumer no longer holds a message, which counts as so many returns."""
        standing = self._standing(member.held.pop(id_))
        standing.holder, standing.is_loose = None, False
        standing.least += least
        standing.most += most

    def _facts(self, member: Member, named: list[Message]) -> dict[str, Any]:
        facts: dict[str, Any] = self.agent._acked_of(
            {"topic": self.topic, "subscription": self.subscription}, member.consumer, named
        )
        return facts

    def _acknowledge(self, member: Member, ids: list[str]) -> None:
        if not ids:
            return
        named = [member.held[id_] for id_ in ids]
        act = partial(member.consumer.acknowledge, named)
        answer = self.agent._call("acknowledge", act, acked, **self._facts(member, named))
        for id_, message in zip(ids, named, strict=True):
            if not (answer.dropped or answer.stale):
                self._standing(message).is_over = True
            self._gone(member, id_, 0, 0)

    def _acknowledge_up_to(self, member: Member, id_: str) -> None:
        """Acknowledge cumulatively; what came back and has not come again must not be covered."""
        message = member.held[id_]
        facts = self._facts(member, [message])
        del facts["values"]
        act = partial(member.consumer.acknowledge_cumulative, message)
        facts |= {"partition": message.partition, "cumulative": True}
        answer = self.agent._call("acknowledge", act, acked, **facts)
        if answer.dropped or answer.stale:
            return
        for other, held in [*member.held.items()]:
            if held.partition == message.partition and position(other) <= position(id_):
                self._standing(held).is_over = True
                self._gone(member, other, 0, 0)

    def _return(self, member: Member, returned: dict[str, Message]) -> None:
        if not returned:
            return
        named = [*returned.values()]
        act = partial(member.consumer.negative_acknowledge, named, delay_ms=0)
        self.agent._call("nack", act, nothing, **self._facts(member, named))
        for id_ in returned:
            if id_ in member.held:
                loose = self._standing(member.held[id_]).is_loose
                self._gone(member, id_, 0 if loose else 1, 1)
        member.returned |= returned


def _id(message: Message) -> str:
    return str(text_id(message.message_id))


def _chosen(held: dict[str, Message], which: str) -> list[str]:
    """Some of the messages that a consumer holds, in the order in which they came."""
    ids = [*held]
    return {"first": ids[:1], "last": ids[-1:], "all": ids, "mark": ids[: len(ids) // 2 + 1]}[which]
