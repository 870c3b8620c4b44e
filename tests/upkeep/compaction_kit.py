"""Owns the short forms of the tests of compaction by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engine_kit import Bench
from txlog import Client, Message
from txlog.base.ranges import END
from txlog.engine.folds.topic import Compaction

LARGE = 99  # copies of a value: more bytes than a message may have without chunks


def bench_of(folder: Path, partitions: int = 1, **settings: int) -> Bench:
    """A store with a topic, and ledgers of five entries."""
    options: dict[str, Any] = {"coordinators": 1, "reader_grace_ms": 0, "ledger_entries_max": 5}
    bench = Bench(folder / "store", **{**options, **settings})
    bench.client.create_topic("t", partitions)
    return bench


def put(client: Client, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> None:
    """Send (key, value) one by one."""
    for key, value in pairs:
        client.producer("t").send(value, key=key, **options)


def compacted(client: Client, start: Any = None, **options: Any) -> list[Message]:
    """The messages of a reader with read_compacted."""
    with client.reader("t", start, read_compacted=True, **options) as reader:
        return list(reader)


def pairs(found_messages: list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values."""
    return [(message.key, message.value) for message in found_messages]


def state(client: Client, number: int = 1) -> Compaction | None:
    """The compaction that the fold has recorded."""
    return client.store.read(lambda view: view.topic(number).compaction)


def files(bench: Bench) -> list[Path]:
    """The files of compacted rows that exist."""
    return sorted(Path(bench.path).rglob("_compacted/*.parquet"))


def trim_all(client: Client) -> int:
    """Trim all messages; returns how many were trimmed."""
    client.checkpoint(roll_all=True)
    return client.admin.trim("t", END, force_unacked=True)["messages"]
