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
    ProcessPlan,
    Scenario,
    TopicPlan,
    operation_of,
)

SEEDS: Final = 8  # of so many, each profile gets one
CLIENT_WEIGHTS: Final = {
    "produce": 8,
    "take": 3,
    "transact": 2,
    "seek_behind": 6,
    "renew": 4,
    "hang_up": 1,
}
SEND_WEIGHTS: Final = {"send": 8.0, "transfer": 6.0, "checkpoint": 4.0}
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


def focused(scenario: Scenario, *, faults: bool) -> Scenario:
    """The scenario of a seed, on one area if the seed has a profile."""
    profile = PROFILES.get(scenario.seed % SEEDS)
    if profile is not None:
        profile(Random(f"{scenario.seed} consumers"), scenario)
        if not faults:
            scenario.faults.clear()
    return scenario


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


PROFILES: Final[dict[int, Callable[[Random, Scenario], None]]] = {
    2: _clients,
    6: _watermarks,
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
