"""Owns the short forms of the tests of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import txlog
from txlog import functions
from txlog.engine.session.reading.message import Message
from txlog.functions import FunctionOptions, Summary

MS = 1_700_000_000_000


def fill(client: txlog.Client, count: int, partition: int = 0, topic: str = "in") -> None:
    """Send b"0", b"1" … to one partition."""
    values = pa.array([str(n).encode() for n in range(count)], pa.binary())
    places = pa.repeat(pa.scalar(partition, pa.int32()), count)
    client.producer(topic).send_batch(pa.table({"value": values, "partition": places}))


def values(client: txlog.Client, topic: str = "out") -> list[bytes | None]:
    """The payloads of a topic."""
    return [message.value for message in client.reader(topic)]


def messages(client: txlog.Client, topic: str = "out") -> list[Message]:
    """The messages of a topic."""
    return list(client.reader(topic))


def backlog(client: txlog.Client) -> int:
    """The messages that subscription s has not acknowledged."""
    [row] = client.subscriptions("in")
    return int(row["backlog"])


def run(client: txlog.Client, function: Any, **options: Any) -> Summary:
    """Run a function from in to out."""
    return functions.run(client, function, "in", "out", "s", FunctionOptions(**options))


def poisoned(*bad: bytes) -> Callable[[pa.Table], pa.Table]:
    """A function of batches that fails if the batch has any of these messages."""

    def function(rows: pa.Table) -> pa.Table:
        if pc.any(pc.is_in(rows["value"], pa.array(bad, pa.binary()))).as_py():
            raise ValueError("somewhere")
        return rows

    return function
