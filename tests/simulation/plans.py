"""Owns what processes of other kinds do: coroutines of `txlog.aio`, servers, and their clients."""

from __future__ import annotations

from random import Random
from typing import Any


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
