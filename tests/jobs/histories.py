"""Random histories for tests of jobs, and the messages that a reader then gets."""

from __future__ import annotations

import random
from typing import Any

from tests.sql.test_querying import History
from txlog import Client

SAME = (
    "partition", "key", "value", "properties", "publish_time", "event_time", "deliver_at",
    "producer", "sequence_id",
)  # fmt: skip

WITHOUT_TRIMS = (
    "send", "send_in_txn", "send_large", "commit", "abort", "checkpoint", "roll", "compact",
    "reopen",
)  # fmt: skip


def in_topic(client: Client, topic: str) -> list[tuple[object, ...]]:
    """The messages of a topic by a reader: id, visible time and the fields SAME, in order of id."""
    rows = [row for table in client.read(topic) for row in table.to_pylist()]
    return sorted(
        (
            (row["ledger"], row["entry"], row["index"] or 0),
            row["visible_time"],
            *(plain(row[name]) for name in SAME),
        )
        for row in rows
    )


def plain(value: Any) -> object:
    """Properties as text, because Delta returns a map in any order."""
    return sorted(dict(value).items()) if isinstance(value, list | dict) else value


def step(history: History, rng: random.Random, names: tuple[str, ...]) -> None:
    """Do one random step of the given kinds."""
    name = rng.choice(names)
    history.trace.append(name)
    getattr(history, name)(rng)
