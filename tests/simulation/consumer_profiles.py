"""Owns the profiles of consumers and clients: some seeds concentrate on them.

A seed over all areas seldom has what a step of these protects: a transaction that is acknowledged
in part while a watermark rises, a SEEK right behind acknowledgements, or a producer that comes back
before its messages are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.plans import draw_of_client
from tests.simulation.scenario import (
    MESSAGE_KEYS,
    FunctionPlan,
    ProcessPlan,
    Scenario,
    TopicPlan,
    operation_of,
)

CLIENT_WEIGHTS: Final = {
    "produce": 8,
    "take": 3,
    "transact": 2,
    "seek_behind": 6,
    "renew": 4,
    "hang_up": 1,
}
SEND_WEIGHTS: Final = {"send": 8.0, "transfer": 6.0, "checkpoint": 4.0}
DELIVERY_WEIGHTS: Final = {
    "send": 6.0,
    "send_many": 4.0,
    "transfer": 6.0,
    "consume": 24.0,
    "come_again": 10.0,
    "retry_later": 1.0,
    "leave_open": 3.0,
    "seek": 1.0,
    "checkpoint": 3.0,
    "reopen": 1.5,
    "sleep": 2.0,
    "together": 2.0,
    "expire": 1.0,
}
DELAY_WEIGHTS: Final = {
    "send_delayed": 14.0,
    "send": 4.0,
    "consume": 14.0,
    "transfer": 5.0,
    "leave_open": 2.0,
    "checkpoint": 6.0,
    "merge": 2.0,
    "sleep": 6.0,
    "reopen": 1.0,
    "retry_later": 1.0,
    "seek": 0.5,
    "trim": 0.3,
}
SENDER_WEIGHTS: Final = {
    "claim": 6.0,
    "send_claimed": 14.0,
    "send_numbers": 10.0,
    "send_named": 4.0,
    "send": 3.0,
    "transfer": 4.0,
    "follow": 8.0,
    "checkpoint": 4.0,
    "sleep": 1.0,
    "reopen": 0.5,
}
NUMBERS: Final = (  # the numbers of messages; some are missing, late or there twice
    (2, 5, 0, 5, 0, 2),
    (1, 3, 5, 2, 4, 1, 4),
    (0, 1, 2, 0, 1),
    (4, 2, 0, 2, 4, 1),
)
WATCH_WEIGHTS: Final = {
    "stream": 12.0,
    "watch": 20.0,
    "send_named": 4.0,
    "add_partition": 1.0,
    "checkpoint": 3.0,
    "sleep": 4.0,
}
HOLDING_WEIGHTS: Final = {  # what holds a watermark back for long
    "consume": 3.0,
    "transfer": 3.0,
    "retry_later": 1.0,
    "send_delayed": 2.0,
    "seek": 0.3,
}
READER_WEIGHTS: Final = {
    "follow_in_parts": 14.0,
    "follow_rounds": 8.0,
    "transfer": 10.0,
    "send_many": 4.0,
    "send_numbers": 5.0,
    "checkpoint": 5.0,
    "trim": 4.0,
    "read": 3.0,
    "sleep": 2.0,
    "reopen": 0.5,
}
FUNCTION_WEIGHTS: Final = {
    "disturbed_function": 12.0,
    "feed": 14.0,
    "redeliver_input": 8.0,
    "checkpoint": 2.0,
    "expire": 1.0,
    "sleep": 2.0,
    "reopen": 0.5,
}


def _clients(random: Random, scenario: Scenario) -> None:
    """Clients of a server send commands behind others that have no answer yet."""
    scenario.topics = [_topic(random, "a", 2), _topic(random, "b", random.randint(1, 3))]
    clients = [
        ProcessPlan(
            f"p{number}",
            [
                draw_of_client(random, scenario.topics, MESSAGE_KEYS, CLIENT_WEIGHTS)
                for _ in range(random.randint(8, 16))
            ],
            kind="client",
        )
        for number in (1, 2)
    ]
    other = _process(random, scenario, "p3", SEND_WEIGHTS)
    scenario.processes = [*clients, other, ProcessPlan("server", [], kind="server")]
    scenario.closes_parts = True
    del scenario.faults[random.choice((0, 1, 2)) :]


def _watermarks(random: Random, scenario: Scenario) -> None:
    """Several processes acknowledge parts of transactions while producers announce times."""
    scenario.topics = [_topic(random, "a", random.randint(1, 2))]
    scenario.topics[0].kinds["s2"] = "exclusive"
    scenario.topics[0].has_watermarks = True
    scenario.topics[0].redeliveries = random.choice((None, None, 0, 1))
    weights = WATCH_WEIGHTS | random.choice(({}, HOLDING_WEIGHTS))
    scenario.processes = [
        _process(random, scenario, name, weights | favourites)
        for name, favourites in (("p1", {"stream": 40.0}), ("p2", {"watch": 60.0}), ("p3", {}))
    ]
    scenario.announcers = ["p1-n1"]
    for plan in scenario.processes:
        for operation in plan.operations:
            if "producer" in operation:
                operation["producer"] = "n1"
                if f"{plan.name}-n1" not in scenario.announcers:  # it would hold the others back
                    facts = {"topic": "a", "subscription": "s1", "take": random.randint(1, 5)}
                    facts["goes_back"] = False
                    operation |= {"op": "watch", **facts}
            if operation["op"] == "watch":  # the exclusive one is always at the same consumer
                operation["subscription"] = "s2" if plan.name == "p2" else "s1"
    del scenario.faults[random.choice((0, 1, 3)) :]


def _deliveries(random: Random, scenario: Scenario) -> None:
    """Consumers of all types come, return messages and die, while cursors go to checkpoints."""
    scenario.settings |= {
        "checkpoint_frames": random.choice((8, 30, 1000)),
        "ledger_entries_max": random.choice((3, 20)),
        "txn_timeout_default_ms": random.choice((2_000, 60_000)),
    }
    scenario.topics = scenario.topics[:2]
    for topic in scenario.topics:
        topic.is_typed = False
        topic.redeliveries = random.choice((None, None, 0, 1, 2))
    alone = scenario.topics[0]  # its messages come again to the consumer that returned them
    alone.kinds["s1"], alone.redeliveries = "exclusive", None
    count = random.choice((2, 3, 3))
    scenario.processes = [
        _process(random, scenario, f"p{number}", DELIVERY_WEIGHTS) for number in range(1, count + 1)
    ]
    for operation in [each for plan in scenario.processes for each in plan.operations]:
        if operation["op"] == "come_again":
            operation |= {"topic": alone.name, "subscription": "s1"}
        elif operation["op"] == "transfer" and random.random() < 0.4:  # one marker, read in parts
            operation["to"] = random.randint(3, 5) * [[operation["topic"], "k1"]]
        elif operation["op"] == "consume" and random.random() < 0.4:
            operation["take"], operation["then"] = random.choice(
                ((1, "acknowledge"), (6, "ends"), (3, "stale"))
            )
    scenario.faults = [_of_consumers(random) for _ in range(random.choice((0, 1, 2, 4)))]


def _delays(random: Random, scenario: Scenario) -> None:
    """Delayed messages fill small buckets, also in transactions, while these are moved."""
    scenario.settings |= {
        "mutable_ids_max": 3,
        "ledger_step_per_bucket": random.choice((1, 2)),
        "max_num_buckets": random.choice((1, 2, 3)),
        "ledger_entries_max": random.choice((3, 8)),
        "checkpoint_frames": random.choice((8, 30)),
        "tick_time_ms": random.choice((0, 10)),
        "clock_jump_max_ms": 60_000,
    }
    scenario.topics = [_topic(random, "a", random.randint(1, 2))]
    scenario.processes = [
        _process(random, scenario, f"p{number}", DELAY_WEIGHTS) for number in (1, 2, 3)
    ]
    for plan in scenario.processes:
        for operation in plan.operations:
            if operation["op"] in ("transfer", "leave_open"):
                operation["after_ms"] = random.choice((None, 0, 3_000, 60_000))
    scenario.faults = [
        random.choice((_of_consumers, _of_clock))(random)
        for _ in range(random.choice((0, 1, 2, 3)))
    ]


def _senders(random: Random, scenario: Scenario) -> None:
    """Producers fence each other, hold a topic alone, and leave numbers out; readers follow."""
    scenario.settings |= {
        "dedup_idle_ms": random.choice((1_800_000, 604_800_000)),
        "clock_jump_max_ms": 60_000,
        "checkpoint_frames": random.choice((8, 30, 1000)),
    }
    scenario.topics = [_topic(random, "a", random.randint(1, 2)), _topic(random, "b", 1)]
    scenario.processes = [
        _process(random, scenario, f"p{number}", SENDER_WEIGHTS) for number in (1, 2, 3)
    ]
    for plan in scenario.processes:
        for operation in plan.operations:
            if operation["op"] in ("claim", "send_claimed"):
                alone = ("exclusive", "exclusive", "exclusive-with-fencing")
                operation["access"] = (
                    "shared" if operation["topic"] == "a" else random.choice(alone)
                )
            elif operation["op"] == "send_numbers":
                operation |= {"topic": "a", "numbers": [*random.choice(NUMBERS)]}
    scenario.faults = [
        random.choice((_of_senders, _of_slow_clock))(random)
        for _ in range(random.choice((0, 1, 2, 4)))
    ]


def _readers(random: Random, scenario: Scenario) -> None:
    """Readers stop inside transactions, and lag behind writers and trims."""
    scenario.settings |= {
        "ledger_entries_max": random.choice((3, 8)),
        "checkpoint_frames": random.choice((8, 30, 1000)),
    }
    scenario.topics = [_topic(random, "a", random.randint(1, 2)), _topic(random, "b", 1)]
    scenario.processes = [
        _process(random, scenario, name, READER_WEIGHTS | favourites)
        for name, favourites in (
            ("p1", {"follow_rounds": 40.0}),
            ("p2", {"transfer": 40.0}),
            ("p3", {"follow_in_parts": 30.0}),
        )
    ]
    for operation in [each for plan in scenario.processes for each in plan.operations]:
        if operation["op"] == "transfer":
            operation |= {"take": 0, "flushes": random.random() < 0.3, "rest_s": 0}
            operation["to"] = [[name, None] for name in random.choices("ab", k=4)]
        elif operation["op"] == "trim":
            operation["force"] = True
        elif operation["op"] == "send_numbers":
            operation |= {"topic": "a", "numbers": [*random.choice(NUMBERS)], "inside": True}
    scenario.faults = [_of_senders(random) for _ in range(random.choice((0, 0, 1, 2)))]


def _rest(random: Random, scenario: Scenario) -> None:
    """Little happens, so that what waits and looks in the end, see RestAgent, takes most time."""
    scenario.topics = [_topic(random, "a", 1)]
    scenario.processes = [_process(random, scenario, "p1", SEND_WEIGHTS)]
    del scenario.processes[0].operations[4:]
    scenario.faults = []


def _of_senders(random: Random) -> dict[str, Any]:
    """A producer dies or stops, or the power fails, right after an answer."""
    kind = random.choice(("kill", "stop", "power_cut", "power_cut"))
    answer = random.choice(("send", "send", "open_producer"))
    fault = {"kind": kind, "answer": answer, "nth": random.randint(1, 25)}
    return fault | ({"seconds": random.choice((5, 90))} if kind == "stop" else {})


def _of_clock(random: Random) -> dict[str, Any]:
    """The wall clock is set ahead, mostly by an hour.

    Not back: what was stamped with a slow clock looks old once the clock is right again.
    """
    fault = {"kind": "clock", "answer": random.choice(("send", "receive"))}
    return fault | {
        "nth": random.randint(1, 15),
        "ms": random.choice((3_600_000, 3_600_000, 3_600_000, 5_000)),
    }


def _of_slow_clock(random: Random) -> dict[str, Any]:
    """As `_of_clock`, or the wall clock is set back; another fault may set it right again."""
    hour_ms = 3_600_000
    fault = _of_clock(random)
    return fault | {"ms": random.choice((hour_ms, hour_ms, -hour_ms, 5_000))}


def _functions(random: Random, scenario: Scenario) -> None:
    """Runs of a function fence each other, fail and die; operators take its messages back."""
    scenario.settings |= {
        "checkpoint_frames": random.choice((8, 30, 1000)),
        "txn_timeout_default_ms": random.choice((2_000, 60_000)),
        "max_message_bytes": 10_000,
    }
    scenario.topics = [_topic(random, "a", 1)]
    kind = random.choice(("message", "window", "window", "window", "batch"))
    scenario.function = FunctionPlan(
        kind,
        1 if kind == "message" else random.randint(2, 5),
        random.choice((1, 1, 2)),
        random.choice(("exclusive", "exclusive", "exclusive", "failover", "shared")),
    )
    weights = FUNCTION_WEIGHTS | {"seek_input": random.choice((0.0, 0.0, 1.0))}
    scenario.processes = [
        _process(random, scenario, name, weights | {"disturbed_function": runs})
        for name, runs in (("p1", 30.0), ("p2", 6.0), ("p3", 1.0))
    ]
    for plan in scenario.processes:
        for operation in plan.operations:
            if operation["op"] == "feed":
                operation["count"] = random.randint(2, 10)
    scenario.faults = [_of_functions(random) for _ in range(random.choice((0, 1, 2, 4)))]


def _of_functions(random: Random) -> dict[str, Any]:
    """Something happens in a call of the function, while a commit is flushed, or soon after."""
    if random.random() < 0.4:
        death = {"kind": random.choice(("kill", "power_cut")), "own": random.randint(1, 8)}
        flush = {"on": ["datasync", "journal/"], "nth": random.randint(1, 60)}
        return {"kind": "nothing", **flush, "then": [death]}
    kind = random.choice(("kill", "power_cut", "stop", "stop", "slow", "clock", "EIO", "ENOSPC"))
    fault: dict[str, Any] = {"kind": kind, "nth": random.randint(1, 20)}
    if kind in ("EIO", "ENOSPC"):
        return fault | {"on": ["datasync" if kind == "EIO" else "pwrite", "journal/"]}
    if kind == "slow" or random.random() < 0.3:
        fault["on"] = random.choice((["datasync", "journal/"], ["lock", ""]))
    else:
        fault["answer"] = random.choice(("call", "call", "committed", "retry", "conflict"))
    if kind in ("stop", "slow"):
        fault["seconds"] = random.choice((0.05, 5, 90))
    elif kind == "clock":
        fault["ms"] = random.choice((-3_600_000, -500, 5_000, 3_600_000))
    return fault


def _of_consumers(random: Random) -> dict[str, Any]:
    """A consumer dies or stops after it got something, or the power fails."""
    kind = random.choice(("kill", "kill", "stop", "power_cut"))
    answer = random.choice(("receive", "receive", "acknowledge", "nack", "subscribe"))
    fault = {"kind": kind, "answer": answer, "nth": random.randint(1, 15)}
    return fault | ({"seconds": random.choice((5, 90))} if kind == "stop" else {})


PROFILES: Final[dict[str, Callable[[Random, Scenario], None]]] = {
    "clients": _clients,
    "deliveries": _deliveries,
    "delays": _delays,
    "watermarks": _watermarks,
    "senders": _senders,
    "readers": _readers,
    "rest": _rest,
    "functions": _functions,
}


def _topic(random: Random, name: str, partitions: int) -> TopicPlan:
    """A topic with a shared subscription, and another one."""
    kind = random.choice(("shared", "key_shared", "failover"))
    return TopicPlan(name, partitions, {"s1": "shared", "s2": kind})


def _process(
    random: Random, scenario: Scenario, name: str, weights: dict[str, float]
) -> ProcessPlan:
    operations: list[dict[str, Any]] = [
        operation_of(random, weights, scenario.topics) for _ in range(random.randint(10, 30))
    ]
    return ProcessPlan(name, operations, late_events_s=random.choice((0, 0, 0.001)))
