"""Owns the scenario: processes, their operations and the faults, drawn from a seed.

A scenario says everything that a run depends on, so its JSON repeats the run. Shrinking takes parts
out of it, and an operation makes sense whatever else is missing.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from tests.simulation.plans import draw_group, draw_of_client

TOPICS: Final = ("a", "b", "c")
SUBSCRIPTIONS: Final = ("s1", "s2")
KINDS: Final = ("shared", "key_shared", "failover", "exclusive")
MESSAGE_KEYS: Final = ("k1", "k2", "k3")
FUNCTION_IN, FUNCTION_OUT, FUNCTION_SUBSCRIPTION = "fin", "fout", "f"
TRANSACTION_KEYS: Final = ("task1", "task2")
FAULTS: Final = (
    ("kill", 30),
    ("power_cut", 30),
    ("stop", 8),
    ("slow", 10),
    ("clock", 6),
    ("interrupt", 10),
    ("EIO", 12),
    ("ENOSPC", 8),
    ("EMFILE", 4),
    ("short_ENOSPC", 5),
    ("short_EIO", 5),
)
NETWORK_FAULTS: Final = (
    ("net_cut", 20),
    ("net_half", 5),
    ("net_silent", 5),
    ("net_late", 8),
    ("net_stop", 5),
    ("net_kill", 15),
)
AIO_SHARE: Final = 0.2  # of processes
SERVER_SHARE: Final = 0.3  # of scenarios
CLIENT_SHARE: Final = 0.7  # of the processes there
CALLS_PER_OPERATION: Final = 25  # calls of the disk, about


class ProcessPlan(msgspec.Struct):
    """A process: its operations in order, and what is particular about it."""

    name: str
    operations: list[dict[str, Any]]
    has_no_watch: bool = False
    late_events_s: float = 0.0
    kind: str = "agent"  # or aio, server, client
    transaction_key: str | None = None  # of the client of an aio process


class TopicPlan(msgspec.Struct):
    """A topic that exists from the start."""

    name: str
    partitions: int
    kinds: dict[str, str]  # of its subscriptions, by name
    policies: dict[str, Any] = {}
    redeliveries: int | None = None  # of its subscriptions, before a message is a dead letter
    is_typed: bool = False
    has_watermarks: bool = False


class FunctionPlan(msgspec.Struct, frozen=True):
    """The function, and the subscription of its input.

    kind:   the function gets one message, a window, or a batch, of which it holds some rows back
    window: the inputs of an output
    """

    kind: str = "message"
    window: int = 1
    partitions: int = 2
    subscription: str = "exclusive"


class Scenario(msgspec.Struct):
    """Everything that a run depends on."""

    seed: int
    switch_rate: float
    settings: dict[str, Any]
    topics: list[TopicPlan]
    processes: list[ProcessPlan]
    faults: list[dict[str, Any]]
    announcers: list[str] = []  # producers that announce times; by default all named ones
    closes_parts: bool = False  # waiting clients also close consumers of single partitions
    has_table: bool = False  # a topic that is compacted by key, see upkeep
    padding: int = 0  # bytes behind the name of each message
    function: FunctionPlan = FunctionPlan()


def draw(seed: int, processes: int | None = None, *, faults: bool = True) -> Scenario:
    """A scenario over all areas; processes: how many, by default drawn as well."""
    random = Random(f"{seed} scenario")
    count = processes or random.choice((1, 2, 2, 3, 3, 4))
    topics = [_topic(random, name) for name in TOPICS[: random.randint(1, len(TOPICS))]]
    settings: dict[str, Any] = {
        "coordinators": random.choice((1, 2, 4)),
        "txn_timeout_default_ms": random.choice((2_000, 20_000, 60_000)),
        "txn_ids_reserved": random.choice((2, 16, 1024)),
        "checkpoint_frames": random.choice((8, 30, 100, 100_000)),
        "ledger_entries_max": random.choice((3, 20, 1_000_000)),
        "reader_grace_ms": random.choice((0, 0, 600_000)),
        "max_message_bytes": random.choice((100, 10_000)),
        "lock_timeout_ms": random.choice((2_000, 30_000, 300_000)),
        "ledger_step_per_bucket": random.choice((1, 2, 5)),
        "mutable_ids_max": random.choice((3, 500_000)),
        "max_num_buckets": random.choice((1, 2, 20)),
        "tick_time_ms": random.choice((0, 10, 1000)),
        "sidecar_garbage_ratio": random.choice((0.01, 0.5)),
        "watermark_snapshot_entries_max": random.choice((1, 10_000)),
    }
    weights = _weights(random)
    plans = []
    for number in range(1, count + 1):
        length = random.randint(5, 40)
        plan = ProcessPlan(
            f"p{number}", [operation_of(random, weights, topics) for _ in range(length)]
        )
        if random.random() < AIO_SHARE:
            plan.kind = "aio"
            plan.transaction_key = random.choice((None, TRANSACTION_KEYS[-1]))
            groups = max(2, length // 3)
            plan.operations = [draw_group(random, topics, MESSAGE_KEYS) for _ in range(groups)]
        plan.has_no_watch = random.random() < 0.1
        plan.late_events_s = random.choice((0, 0, 0, 0.001, 0.3))
        plans.append(plan)
    operations = sum(len(plan.operations) for plan in plans)
    wanted = random.choice((0, 1, 2, 3, 5, 8)) if faults else 0
    has_server = random.random() < SERVER_SHARE
    if has_server:
        add_server(random, plans, topics)
        wanted *= 2
    kinds, shares = zip(*FAULTS, *(NETWORK_FAULTS if has_server else ()), strict=True)
    drawn = []
    for _ in range(wanted):
        fault: dict[str, Any] = {
            "at": 1 + random.randrange(operations * CALLS_PER_OPERATION),
            "kind": random.choices(kinds, shares)[0],
        }
        if fault["kind"] in ("power_cut", "kill") and random.random() < 0.5:
            fault |= {"at": 1 + random.randrange(2 * operations), "after": True}  # an answer
        if fault["kind"].startswith("net_"):
            fault["byte"] = random.choice((0, 1, random.random()))
        if fault["kind"] in ("stop", "net_stop", "net_late"):
            fault["seconds"] = random.choice((0.5, 5, 90, 400))
        elif fault["kind"] == "slow":
            fault["seconds"] = random.choice((0.001, 0.05, 1))
        elif fault["kind"] == "clock":
            fault["ms"] = random.choice((-3_600_000, -500, 500, 5_000, 3_600_000))
        drawn.append(fault)
    drawn.sort(key=lambda fault: fault["at"])
    return Scenario(seed, random.choice((0.05, 0.3, 0.7)), settings, topics, plans, drawn)


def add_server(random: Random, plans: list[ProcessPlan], topics: list[TopicPlan]) -> None:
    """Make some processes clients of a server, and add the server."""
    for plan in plans:
        if random.random() < CLIENT_SHARE:
            plan.kind = "client"
            count = max(3, len(plan.operations) // 2)
            plan.operations = [draw_of_client(random, topics, MESSAGE_KEYS) for _ in range(count)]
    for topic in topics:
        topic.is_typed, topic.redeliveries = False, None  # clients send plain bytes
    plans.append(ProcessPlan("server", [], kind="server"))


def _topic(random: Random, name: str) -> TopicPlan:
    kinds = {sub: random.choice(KINDS) for sub in SUBSCRIPTIONS[: random.randint(1, 2)]}
    topic = TopicPlan(name, random.randint(1, 3), kinds)
    topic.redeliveries = random.choice((None, None, None, 0, 1))
    topic.is_typed = random.random() < 0.2
    topic.has_watermarks = random.random() < 0.3
    return topic


def _weights(random: Random) -> dict[str, float]:
    """Each seed likes other operations, and leaves some out."""
    weights = {
        "send": 10,
        "send_many": 4,
        "send_named": 6,
        "send_delayed": 4,
        "send_large": 1,
        "transfer": 12,
        "keyed": 5,
        "leave_open": 2,
        "pipeline": 3,
        "consume": 12,
        "read": 5,
        "follow": 4,
        "checkpoint": 4,
        "compact": 1,
        "compact_topic": 0.5,
        "trim": 1,
        "add_partition": 0.5,
        "seek": 1,
        "flush": 1,
        "sleep": 4,
        "expire": 1,
        "announce": 2,
        "verify": 1,
        "reopen": 1,
        "merge": 0.5,
        "together": 3,
        "function": 3,
        "feed": 4,
        "command": 4,
        "retry_later": 1,
        "recreate_subscription": 0.3,
        "recreate_topic": 0.2,
        "rename_topic": 0.5,
    }
    return {name: weight * random.choice((0, 0.5, 1, 1, 3)) for name, weight in weights.items()}


WITH_TAKE: Final = ("transfer", "keyed", "leave_open", "with_database")


def operation_of(
    random: Random, weights: dict[str, float], topics: list[TopicPlan]
) -> dict[str, Any]:
    """An operation, and what is particular about it."""
    names = list(weights)
    name = random.choices(names, [weights[each] + 1e-6 for each in names])[0]
    topic = random.choice(topics)
    operation: dict[str, Any] = {"op": name, "topic": topic.name}
    subscription = random.choice(list(topic.kinds))
    if name in (*WITH_TAKE, "consume", "seek", "watch", "pipeline"):
        operation["subscription"] = subscription
    if name in ("send", "send_many", "send_named", "send_delayed", "send_large"):
        operation["key"] = random.choice((None, *MESSAGE_KEYS))
        if name == "send":
            operation["queued"] = random.random() < 0.3
        if name == "send_many":
            operation["count"] = random.randint(2, 8)
        if name == "send_named":
            operation["producer"] = random.choice(("n1", "n2"))
        if name == "send_delayed":
            operation["after_ms"] = random.choice((0, 200, 3_000, 60_000, 600_000))
    elif name in WITH_TAKE:
        operation["to"] = [
            [random.choice(topics).name, random.choice((None, *MESSAGE_KEYS))]
            for _ in range(random.randint(1, 4))
        ]
        operation["take"] = random.randint(0, 4)
        operation["end"] = random.choice(("commit", "commit", "commit", "abort"))
        operation["joined"] = random.random() < 0.5
        operation["in_flight"] = random.random() < 0.4
        operation["rest_s"] = random.choice((0, 0, 0.01, 3))
        if name == "keyed":
            operation["transaction_key"] = random.choice(TRANSACTION_KEYS)
    elif name == "pipeline":
        operation["txns"] = [
            [
                [random.choice(topics).name, random.choice((None, *MESSAGE_KEYS))]
                for _ in range(random.randint(0, 3))
            ]
            for _ in range(random.randint(2, 4))
        ]
        operation["repeats"] = random.random() < 0.6
    elif name == "consume":
        operation["take"] = random.randint(1, 6)
        operation["timeout_ms"] = random.choice((0, 0, 50, 5_000))
        operation["then"] = random.choice(
            ("acknowledge", "acknowledge", "acknowledge", "nack", "nothing", "cumulative", "close")
        )
        operation["ahead"] = random.random() < 0.4
    elif name == "seek":
        operation["to"] = random.choice(("earliest", "latest"))
    elif name == "checkpoint":
        operation["roll_all"] = random.random() < 0.4
    elif name == "rename_topic":
        operation["seconds"] = random.choice((0, 0.01, 0.5))
    elif name == "sleep":
        operation["seconds"] = random.choice((0.01, 0.5, 5, 100))
    elif name == "trim":
        operation["force"] = random.random() < 0.2
    elif name == "together":
        alone = {name: weights[name] for name in weights if name not in ("together", "reopen")}
        operation["of"] = [operation_of(random, alone, topics) for _ in "12"]
    elif name == "function":
        operation["limit"] = random.randint(1, 6)
        operation["txn_size"] = random.choice((1, 2, 1000))
    elif name == "disturbed_function":
        operation["op"] = "function"
        operation["limit"] = random.choice((None, 20))
        operation["txn_size"] = random.choice((1, 2, 3, 8))
        operation["max_in_flight"] = random.choice((1, 2, 8))
        operation["instance"] = random.choice((0, 0, 1))
        operation["retries"] = random.choice((0, 1, 2))
        operation["has_dead_letters"] = random.random() < 0.6
        operation["max_wait_ms"] = random.choice((0, 50, 2_000))
        operation["rest_s"] = random.choice((0.001, 0.05, 3))
        for what in ("fails", "rests", "returns", "renews"):
            operation[what] = random.sample(range(1, 12), random.choice((0, 0, 1, 2)))
        operation["sides"] = sorted({*operation["renews"], *random.sample(range(1, 12), 2)})
    elif name == "seek_input":
        operation["to"] = random.choice(("earliest", "earliest", "latest"))
    elif name == "feed":
        operation["count"] = random.randint(1, 4)
    elif name == "command":
        operation["command"] = random.choice(("produce", "produce-txn", "consume", "list"))
        operation["subscription"] = subscription
    elif name in ("retry_later", "recreate_subscription"):
        operation["subscription"] = subscription
    elif name == "announce":
        operation["producer"] = random.choice(("n1", "n2"))
        operation["back_ms"] = random.choice((0, 1000))
    elif name == "stream":
        operation["producer"] = random.choice(("n1", "n2"))
        operation["count"] = random.randint(1, 4)
        operation["inside"] = random.random() < 0.5
    elif name == "watch":
        operation["take"] = random.randint(1, 5)
        operation["goes_back"] = random.random() < 0.4
    elif name == "follow_in_parts":
        operation |= {"op": "follow", "most": random.randint(1, 3)}
    elif name == "follow_rounds":
        operation["most"] = random.randint(1, 2)
        operation["rest_s"] = random.choice((0.0002, 0.001, 0.005))
    elif name == "gc":
        operation["keep_ms"] = random.choice((0, 0, 600_000))
    elif name == "put":
        operation["number"] = random.randint(1, 3)
    elif name == "delete_key":
        operation["transaction_key"] = random.choice(TRANSACTION_KEYS)
    elif name == "acknowledge_twice":
        operation["subscription"] = subscription
        operation["take"] = random.randint(1, 3)
        operation["is_held"] = random.random() < 0.5
    elif name == "come_again":
        operation["subscription"] = subscription
        operation["take"] = random.randint(2, 6)
        operation["how"] = random.choice(("nack", "abort", "seek", "hold"))
        operation["reopens"] = operation["how"] == "hold" or random.random() < 0.4
    return operation
