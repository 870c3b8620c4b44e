"""Owns what processes do with a function, and the rule that its results must fit.

All runs of a scenario call the same function: one that joins `window` inputs, once per message, per
window by count, or per batch that holds back what is not a whole group. An operation says what
happens during a run: calls that fail or take long, and outputs for a topic that others delete.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tests.simulation.answers import sent, value_of
from tests.simulation.scenario import (
    FUNCTION_IN,
    FUNCTION_OUT,
    FUNCTION_SUBSCRIPTION,
    FunctionPlan,
)
from txlog import Message, functions, messages
from txlog.base.ranges import END, START

DEAD: Final = "fdead"  # dead letters of the function
SIDE: Final = "fside"  # a second output, which is deleted and created again
BETWEEN: Final = "+"  # the inputs of an output
TAKE_OVER_MS: Final = 1_000
SEEK: Final = "function_seek"  # the event of a history


class Working:
    """Operations of an agent, which has the rest of what they use."""

    def feed(self: Any, op: dict[str, Any]) -> None:
        """Give the function something to do."""
        producer = self._producer(FUNCTION_IN)
        for _ in range(op["count"]):
            value = self._value()
            facts = {"topic": FUNCTION_IN, "value": value, "session": self._session(FUNCTION_IN)}
            self._call("send", partial(producer.send, value), sent, **facts)

    def function(self: Any, op: dict[str, Any]) -> None:
        """Run the function, until its input is drained or it has had enough."""
        plan: FunctionPlan = self.scenario.function
        options = functions.FunctionOptions(
            name="f",
            instance=op.get("instance", 0),
            batch=plan.kind == "batch",
            limit=op["limit"],
            txn_size=op["txn_size"],
            max_in_flight=op.get("max_in_flight", 8),
            retries=op.get("retries", 0),
            on_error="dead-letter" if op.get("has_dead_letters") else "stop",
            dead_letter_topic=DEAD if op.get("has_dead_letters") else None,
            max_wait_ms=op.get("max_wait_ms", 0),
            take_over_ms=TAKE_OVER_MS,
        )
        answered = partial(self.process.world.answered, self.process)
        hooks = functions.Hooks(
            committed=lambda _: answered("committed"), tell=lambda word, _: answered(word)
        )
        call = Call(op, plan.window, self)
        made: Any = {"message": call.message, "window": call.window, "batch": call.batch}[plan.kind]
        if plan.kind == "window":
            made = functions.tumbling(count=plan.window)(made)
        functions.run(
            self.client, made, FUNCTION_IN, FUNCTION_OUT, FUNCTION_SUBSCRIPTION, options, hooks
        )

    def redeliver_input(self: Any, op: dict[str, Any]) -> None:
        """An operator returns what a run of the function holds."""
        self.client.subscription(FUNCTION_IN, FUNCTION_SUBSCRIPTION).redeliver()

    def seek_input(self: Any, op: dict[str, Any]) -> None:
        """An operator sends the function back, or to the end."""
        self.recorder.event(SEEK, process=self.process.name, to=op["to"])
        to = START if op["to"] == "earliest" else END
        self.client.subscription(FUNCTION_IN, FUNCTION_SUBSCRIPTION).seek(to, force=True)


class Call:
    """A function of the user: it joins the values of its inputs, unless an operation disturbs it.

    count: the inputs of a group, for batches
    """

    def __init__(self, op: dict[str, Any], count: int, agent: Any) -> None:
        self.op, self.count = op, count
        self._agent = agent
        self._calls = 0

    def message(self, message: Message, context: functions.Context) -> str:
        self._disturb(context)
        return value_of(message.value)

    def window(self, rows: list[Message], context: functions.Context) -> str:
        self._disturb(context)
        return BETWEEN.join(value_of(message.value) for message in rows)

    def batch(self, rows: pa.Table, context: functions.Context) -> list[str]:
        self._disturb(context)
        whole = rows.num_rows - rows.num_rows % self.count
        context.hold_back(pa.array([number >= whole for number in range(rows.num_rows)]))
        values = [value_of(message.value) for message in messages(rows)]
        return [
            BETWEEN.join(values[first : first + self.count])
            for first in range(0, whole, self.count)
        ]

    def _disturb(self, context: functions.Context) -> None:
        """Before the function returns: a fault, a rest, an operator, or a failure."""
        self._calls += 1
        op, agent, number = self.op, self._agent, self._calls
        agent.process.world.answered(agent.process, "call")
        if number in op.get("rests", ()):
            agent.process.world.scheduler.sleep(op["rest_s"])
        if number in op.get("returns", ()):
            agent._guarded(partial(agent.redeliver_input, op))
        if number in op.get("sides", ()):
            context.publish(SIDE, f"side {number}")
        if number in op.get("renews", ()):  # the store refuses what goes to the old topic
            agent._guarded(partial(_renew_side, agent.client))
        if number in op.get("fails", ()):
            raise ValueError(f"call {number} fails")


def _renew_side(client: Any) -> None:
    """Delete the second output of the function, and create it again."""
    client.admin.delete_topic(SIDE, force=True)
    client.create_topic(SIDE)


def make_function(client: Any) -> None:
    """Create the outputs of the function; its input is a topic like others."""
    for topic in (FUNCTION_OUT, DEAD, SIDE):
        client.create_topic(topic)


def check_function(client: Any, plan: FunctionPlan, seeks: Sequence[str]) -> Iterator[str]:
    """What is wrong with the results of the function, a sentence each.

    Every input is in exactly one output, is a dead letter, or is left. Behind an exclusive
    subscription the inputs of each partition are in the outputs in their order, without a gap.
    seeks: the places to which operators sent the function; inputs may then come again, or not
    """
    inputs: dict[int, list[str]] = defaultdict(list)
    for table in client.read(FUNCTION_IN):
        for message in messages(table):
            inputs[message.partition].append(value_of(message.value))
    groups = [value.split(BETWEEN) for value in _values(client, FUNCTION_OUT)]
    dead = _values(client, DEAD)
    with client.consumer(FUNCTION_IN, FUNCTION_SUBSCRIPTION) as consumer:
        left = [value_of(m.value) for m in messages(consumer.receive_batch(10_000, 1000))]
    yield from _counted(inputs, [*groups, dead, left], seeks)
    for group in groups:
        if len(group) != plan.window:
            yield f"an output has {len(group)} inputs, not {plan.window}: {group}"
    if plan.subscription == "exclusive":
        for values in inputs.values():
            yield from _ordered(values, groups, seeks)


def _counted(
    inputs: Mapping[int, list[str]], places: list[list[str]], seeks: Sequence[str]
) -> Iterator[str]:
    """Inputs that are in no place, or in several."""
    counts = Counter(value for values in places for value in values)
    for value in [value for values in inputs.values() for value in values]:
        count = counts.pop(value, 0)
        is_right = count == 1 if not seeks else count or "latest" in seeks
        if not is_right:
            yield f"{value} is {count} times in outputs, dead letters and what is left"
    if counts:
        yield f"there are results of no input: {[*counts]}"


def _ordered(values: list[str], groups: list[list[str]], seeks: Sequence[str]) -> Iterator[str]:
    """Outputs of a partition in another order than its inputs, and groups with a gap."""
    place = {value: number for number, value in enumerate(values)}
    highest, turns = -1, 0
    for group in groups:
        places = [place[value] for value in group if value in place]
        if not places:
            continue
        if places != [*range(places[0], places[0] + len(places))]:
            yield f"the inputs of an output do not follow each other: {group}"
        turns += places[0] <= highest
        highest = places[-1]
    if turns > len(seeks):
        yield f"outputs go back {turns} times in the order of their inputs: {groups}"


def _values(client: Any, topic: str) -> list[str]:
    tables = client.read(topic)
    return [value_of(message.value) for table in tables for message in messages(table)]
