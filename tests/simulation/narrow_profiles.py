"""Owns the narrow profiles: each makes what one rule forbids as likely as it can be.

Most break no other rule, so they leave out the faults and operations that would hide it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.consumer_profiles import PROFILES as OF_CONSUMERS
from tests.simulation.handing import draw_hand_over
from tests.simulation.scenario import ProcessPlan, Scenario, TopicPlan, operation_of
from tests.simulation.watching import IDLE_MS

HOUR_MS: Final = 3_600_000
RETENTION_MS, JUMP_MS_MAX = 30_000, 60_000
HAND_WEIGHTS: Final = {
    "consume": 6.0,
    "send": 4.0,
    "checkpoint": 2.0,
    "reopen": 1.0,
    "expire": 1.0,
    "sleep": 1.0,
}
RETENTION_WEIGHTS: Final = {
    "send": 10.0,
    "send_many": 0.5,
    "transfer": 0.5,
    "consume": 10.0,
    "trim_by_policy": 5.0,
    "checkpoint": 5.0,
    "sleep": 6.0,
    "gc": 0.5,
    "verify": 1.0,
    "reopen": 0.5,
}
IDLING_WEIGHTS: Final = {
    "stream": 8.0,
    "stream_slowly": 3.0,
    "watch_again": 5.0,
    "announce": 6.0,
    "go_idle": 3.0,
    "watch": 8.0,
    "sleep": 3.0,
    "reopen": 1.0,
    "checkpoint": 2.0,
}
TORN_WEIGHTS: Final = {
    "send": 10.0,
    "transfer": 6.0,
    "leave_open": 2.0,
    "read": 5.0,
    "checkpoint": 3.0,
    "reopen": 2.0,
    "consume": 2.0,
}


def _handovers(random: Random, scenario: Scenario) -> None:
    """Consumers of a subscription come, go, are slow, and return messages late."""
    scenario.settings |= {
        "checkpoint_frames": random.choice((8, 30, 1000)),
        "ledger_entries_max": random.choice((3, 20)),
        "max_message_bytes": 10_000,
        "tick_time_ms": 0,
    }
    scenario.topics = [_topic("a", random.choice(("shared", "key_shared", "failover")))]
    scenario.processes = [
        ProcessPlan(f"p{number}", _drawn(random, HAND_WEIGHTS, scenario.topics, 6))
        for number in (1, 2)
    ]
    for plan in scenario.processes:
        hands = [draw_hand_over(random, "a") for _ in range(random.randint(2, 4))]
        plan.operations += hands
        random.shuffle(plan.operations)
    scenario.faults = [_after_receiving(random) for _ in range(random.choice((0, 0, 1, 2)))]


def _retention(random: Random, scenario: Scenario) -> None:
    """Ledgers go when every subscription has acknowledged them, or when they are too old."""
    scenario.settings |= {
        "checkpoint_frames": random.choice((8, 30, 100_000)),
        "ledger_entries_max": random.choice((2, 3, 5)),
        "reader_grace_ms": random.choice((0, 600_000)),
        "max_message_bytes": 10_000,
        "clock_jump_max_ms": JUMP_MS_MAX,
        "lock_timeout_ms": 30_000,
    }
    slow = {"s1": "shared", "s2": "shared"}
    scenario.topics = [
        TopicPlan("a", 1, slow, {"retention_acked": 1}),
        TopicPlan("b", 1, {"s1": "shared"}, {"retention_ms": RETENTION_MS}),
    ]
    scenario.processes = [
        ProcessPlan(name, _drawn(random, RETENTION_WEIGHTS, scenario.topics, 60))
        for name in ("p1", "p2")
    ]
    for operation in _operations(scenario):
        if operation["op"] == "consume":
            is_slow = operation["subscription"] == "s2" and random.random() < 0.5
            operation |= {"take": 2 if is_slow else 100, "timeout_ms": 0, "then": "acknowledge"}
        elif operation["op"] == "sleep":
            operation["seconds"] = random.choice((0.5, 5, 12, 20, 31))
    has_grace = scenario.settings["reader_grace_ms"] > 0
    for plan in scenario.processes:
        plan.operations = [
            each
            for operation in plan.operations
            for each in (operation, *_read_after(random, operation, has_grace=has_grace))
        ]
    jump = {"kind": "clock", "answer": "send", "nth": random.randint(10, 40), "ms": HOUR_MS}
    scenario.faults = [_after_receiving(random) for _ in range(random.choice((0, 1, 2)))]
    scenario.faults += random.choice(([], [jump]))


def _pending(random: Random, scenario: Scenario) -> None:
    """Delayed messages of open transactions go to dumps, and come back from them."""
    draw = OF_CONSUMERS["delays"]
    draw(random, scenario)
    for operation in _operations(scenario):
        if operation["op"] in ("transfer", "leave_open"):
            operation |= {"flushes": True, "joined": False, "in_flight": False}
            operation["after_ms"] = random.choice((None, 500, 3_000, 60_000))
            operation["to"] = random.randint(2, 5) * operation["to"][:1]
            operation["rest_s"] = random.choice((0, 0.5, 1.5))
        elif operation["op"] == "consume":
            operation["take"] = random.choice((1, 2, 5))
    for plan in scenario.processes[1:]:
        plan.operations += [
            {"op": name, "topic": "a", "roll_all": False} for name in ("checkpoint", "reopen")
        ]
        random.shuffle(plan.operations)


def _torn(random: Random, scenario: Scenario) -> None:
    """The frames of large messages are torn, refused when they are whole, and follow a new file."""
    scenario.settings |= {
        "checkpoint_frames": random.choice((8, 30)),
        "txn_ids_reserved": random.choice((2, 16)),
        "coordinators": 1,
        "max_message_bytes": 10_000,
    }
    for topic in scenario.topics:
        topic.is_typed = False
    scenario.padding = random.choice((50, 1_500, 4_000))
    _plan(random, scenario, TORN_WEIGHTS)
    kinds = (_cut_in_flush, _cut_in_flush, _refused_whole, _refused_whole, _death_at_new_file)
    scenario.faults = [random.choice(kinds)(random) for _ in range(random.randint(3, 8))]


def _idling(random: Random, scenario: Scenario) -> None:
    """Producers of watermarks join late, go idle and are silent; consumers come after others."""
    scenario.settings |= {
        "watermark_producer_idle_timeout_ms": random.choice((0, IDLE_MS, IDLE_MS)),
        "txn_timeout_default_ms": 600_000,
        "checkpoint_frames": random.choice((8, 30)),
        "watermark_snapshot_entries_max": random.choice((1, 10_000)),
    }
    topic = TopicPlan("a", random.randint(1, 2), {"s1": "shared", "s2": "exclusive"})
    topic.has_watermarks = True
    scenario.topics, scenario.announcers = [topic], ["p1-n1"]
    _plan(random, scenario, IDLING_WEIGHTS, most=24)
    for plan in scenario.processes:
        for operation in plan.operations:
            operation["producer"] = "n1" if plan.name == "p1" else "n2"
            if operation["op"] == "stream" and plan.name != "p1":
                operation |= {"op": "announce", "back_ms": 0}
            if operation["op"] == "announce":
                operation["back_ms"] = random.choice((0, 0, 5_000, 100_000))
            elif operation["op"] == "watch_again":
                operation["kind"] = random.choice(("shared", "exclusive"))
            elif operation["op"] == "watch":
                operation |= {"subscription": "s2" if plan.name == "p2" else "s1"}
                operation["goes_back"] = random.random() < 0.1
    scenario.faults = [_after_receiving(random) for _ in range(random.choice((0, 1, 2)))]


Profile = Callable[[Random, Scenario], None]
PROFILES: Final[dict[str, Profile]] = {
    "handovers": _handovers,
    "retention": _retention,
    "pending": _pending,
    "torn": _torn,
    "idling": _idling,
}


def _topic(name: str, kind: str) -> TopicPlan:
    return TopicPlan(name, 1, {"s1": "shared", "s2": kind})


def _operations(scenario: Scenario) -> list[dict[str, Any]]:
    return [each for plan in scenario.processes for each in plan.operations]


def _plan(random: Random, scenario: Scenario, weights: dict[str, float], most: int = 30) -> None:
    """Two or three processes with operations of the area, each at most so many."""
    scenario.processes = [
        ProcessPlan(f"p{number}", _drawn(random, weights, scenario.topics, most))
        for number in range(1, random.choice((2, 3)) + 1)
    ]


def _drawn(
    random: Random, weights: dict[str, float], topics: list[TopicPlan], most: int
) -> list[dict[str, Any]]:
    count = random.randint(most // 3, most)
    return [operation_of(random, weights, topics) for _ in range(count)]


def _read_after(
    random: Random, operation: dict[str, Any], *, has_grace: bool
) -> list[dict[str, Any]]:
    """A read right after what trims, slow if what it reads must stay that long."""
    if operation["op"] not in ("trim_by_policy", "checkpoint"):
        return []
    return [{"op": "read", "topic": "a", "rest_s": random.choice((0, 2)) if has_grace else 0}]


# --- faults -------------------------------------------------------------------------------------


def _after_receiving(random: Random) -> dict[str, Any]:
    """A consumer dies, or the power fails, after an answer."""
    answer = random.choice(("receive", "receive", "acknowledge", "nack", "send"))
    kind = random.choice(("kill", "kill", "power_cut"))
    return {"kind": kind, "answer": answer, "nth": random.randint(1, 40)}


def _cut_in_flush(random: Random) -> dict[str, Any]:
    """The power fails before a flush, when whole frames are not on the disk."""
    on = random.choice((["datasync", "journal/"], ["lock", "flush.lock"]))
    return {"kind": "power_cut", "on": on, "nth": random.randint(1, 30)}


def _refused_whole(random: Random) -> dict[str, Any]:
    """All bytes of a frame are in the file when its write fails; then its process stops or dies."""
    kind = random.choice(("short_EIO", "short_ENOSPC"))
    fault = {"kind": kind, "on": ["pwrite", "journal/0"], "nth": random.randint(1, 40)}
    end: dict[str, Any] = {"kind": random.choice(("stop", "kill")), "own": random.randint(1, 12)}
    if end["kind"] == "stop":
        end["seconds"] = random.choice((0.5, 5))
    return fault | {"is_whole": True, "then": random.choice(([end], [end], []))}


def _death_at_new_file(random: Random) -> dict[str, Any]:
    """A process dies after a new journal file has its name, while others write on."""
    death = {"kind": "kill", "own": random.choice((1, 1, 2, 3))}
    fault = {"kind": "nothing", "on": ["link", "journal/"], "nth": random.randint(1, 4)}
    return fault | {"then": [death]}
