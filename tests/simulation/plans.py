"""Owns what processes of other kinds do: coroutines of `txlog.aio`, servers, and their clients."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

CLIENT_WEIGHTS: Final = {
    "produce": 10,
    "take": 10,
    "transact": 6,
    "seek": 1,
    "rest": 2,
    "hang_up": 1,
}


def draw_group(random: Random, topics: list[Any], keys: tuple[Any, ...]) -> dict[str, Any]:
    """An operation: calls that run together, and where one of them is cancelled."""
    calls = [_draw_call(random, topics, keys) for _ in range(random.randint(1, 4))]
    group: dict[str, Any] = {"op": "together", "calls": calls}
    if random.random() < 0.6:
        group["cancel"] = {
            "call": random.randrange(len(calls)),
            "await": random.choice((0, 0, 1, 2, 3, 5, 8)),
            "after_s": random.choice((0, 0.0001, 0.0005, 0.002, 0.02)),
        }
    return group


def _draw_call(random: Random, topics: list[Any], keys: tuple[Any, ...]) -> dict[str, Any]:
    topic = random.choice(topics)
    name = random.choice(("send", "send", "consume", "consume", "transfer", "transfer", "keyed"))
    call: dict[str, Any] = {"op": name, "topic": topic.name}
    call["subscription"] = random.choice(list(topic.kinds))
    call["key"] = random.choice((None, *keys))
    if name == "send":
        call["after_ms"] = random.choice((None, None, None, 0, 3_000))
        call["count"] = random.choice((1, 1, 3))
    else:
        call["take"] = random.choice((0, 1, 3)) if name != "consume" else random.randint(1, 4)
        call["timeout_ms"] = random.choice((0, 5, 500))
        call["alone"] = random.random() < 0.5
    if name in ("transfer", "keyed"):
        call["to"] = [
            [random.choice(topics).name, random.choice((None, *keys))]
            for _ in range(random.randint(0, 3))
        ]
        call["end"] = random.choice(("commit", "commit", "abort"))
    if name == "keyed":
        call["transaction_key"] = random.choice(("task1", "task3"))
    if name == "consume":
        call["then"] = random.choice(("acknowledge", "acknowledge", "nack", "nothing"))
    return call


def draw_of_client(
    random: Random,
    topics: list[Any],
    keys: tuple[Any, ...],
    weights: Mapping[str, int] = CLIENT_WEIGHTS,
) -> dict[str, Any]:
    """An operation of a client of the server."""
    name = random.choices([*weights], [*weights.values()])[0]
    topic = random.choice(topics)
    operation: dict[str, Any] = {"op": name, "topic": topic.name}
    if name in ("take", "transact", "seek", "seek_behind"):
        operation["subscription"] = random.choice(list(topic.kinds))
        operation["window"] = random.choice((1, 2, 5, 1000))
    if name in ("produce", "transact", "renew"):
        operation["producer"] = random.choice((None, "n1"))
        operation["batching"] = random.choice(("none", "plain", "key"))
        operation["messages"] = [
            [random.choice((None, *keys)), random.choice((None,) * 5 + (0, 3_000))]
            for _ in range(random.randint(1, 6))
        ]
        operation["wait"] = random.random() < 0.5
    if name in ("take", "transact", "seek_behind"):
        operation["take"] = random.choice((0, 1, 3, 10)) if name == "transact" else 5
        operation["timeout_s"] = random.choice((0.05, 0.5, 5))
    if name == "seek_behind":
        operation["pause_s"] = random.choice((0, 0, 0.00003))
    if name == "take":
        operation["then"] = random.choice(
            ("acknowledge",) * 4
            + ("cumulative", "cumulative", "redeliver", "redeliver_all", "nothing")
        )
    elif name == "transact":
        operation["to"] = random.sample(
            [each.name for each in topics], random.randint(0, len(topics))
        )
        operation["ttl_ms"] = random.choice((3_000, 60_000))
        operation["end"] = random.choice(("commit", "commit", "abort"))
    elif name == "seek":
        operation["to"] = random.choice(("earliest", "latest"))
    elif name == "rest":
        operation["seconds"] = random.choice((0.1, 2, 50))
    return operation
