"""Every crash around a typed topic leaves values with the same records in bytes and in columns.

One run collects, before each call with an effect, the disk as the death of the process leaves it,
and disks as a power cut may leave them. The run sends records, adds a second schema, seals ledgers,
adopts files and compacts. After each crash the values are those of the last answered step, or of
the whole step under way. Columns have the same records as the bytes, and sealing the rest changes
neither. `TXLOG_SEED` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.crash.contents import content
from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.engine_kit import relation_of
from tests.harness import SEED, kill_in_calls, ready
from tests.tiers import graded
from txlog import Client, Schema
from txlog.base.schemas.values import decode_one, encode_one
from txlog.base.settings import Settings
from txlog.client.answers.integrity import verify_disk
from txlog.clock import ManualClock
from txlog.engine.relation.scans import read_scan, scans_of
from txlog.engine.storage.segment import RECORD
from txlog.errors import TxlogError

IMAGES = int(os.environ.get("TXLOG_IMAGES", "1"))
# Every eighth of the different crashes is checked; with TXLOG_IMAGES=1, every one.
CHECKED_OF = 1 if "TXLOG_IMAGES" in os.environ else 8
SETTINGS = Settings(coordinators=1, txn_ids_reserved=2, reader_grace_ms=0)
WORKLOADS = {
    "short": "send schema send roll",
    "sealed": "send txn schema checkpoint send txn roll",
    "compacted": "send txn roll abort roll compact schema compact sweep",
    "adopted": "bulk schema bulk roll bulk compact",
    "compacted by key": "send schema send roll by_key send roll by_key sweep",
    "bytes again": "send roll delete send schema send roll compact",
}
OLD = {"type": "record", "name": "R", "fields": [{"name": "cups", "type": "long"}]}
NEW = {
    **OLD,
    "fields": [
        {"name": "price", "type": "double", "default": 1.5},
        {"name": "cups", "type": "long"},
    ],
}


def schema(fields: dict[str, Any], kind: str) -> Schema:
    """A schema with these fields; kind: avro or json."""
    return Schema.parse(kind, json.dumps(fields))


class Work:
    """A store with a typed topic, and the values that it has after each step."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = ManualClock(START_MS)
        self.disk = new_disk(SETTINGS, self.clock)
        self.client = open_client(self.disk, self.clock)
        self.client.create_topic("t", 2, schema=schema(OLD, kind))
        self.states: list[list[int]] = [[]]
        self.next: list[int] = []  # the values after the step under way
        self.number = 0

    def record(self) -> dict[str, int]:
        """The next record."""
        self.number += 1
        return {"cups": self.number}

    def send(self) -> None:
        """Send one record, with a key."""
        self.next = [*self.states[-1], self.number + 1]
        record = self.record()
        if self.is_typed():
            self.client.producer("t").send(record, key=b"a", partition=0)
        else:  # the same record as bytes, which no schema has checked
            self.client.producer("t").send(encode_one(schema(OLD, self.kind), record), partition=0)

    def is_typed(self) -> bool:
        """True unless the schemas were deleted."""
        return bool(self.client.topic("t").schemas.list())

    def txn(self) -> None:
        """Send two records in a transaction, and a message without a value."""
        self.next = [*self.states[-1], self.number + 1, self.number + 2]
        with self.client.transaction() as txn:
            for partition in (0, 1):
                self.client.producer("t").send(self.record(), partition=partition, txn=txn)
            self.client.producer("t").send(None, partition=0, txn=txn)

    def abort(self) -> None:
        """Send one record in a transaction that is aborted, so that no reader may see it."""
        with self.client.transaction() as txn:
            self.client.producer("t").send(self.record(), partition=0, txn=txn)
            txn.abort()

    def bulk(self) -> None:
        """Store two records in files of their own."""
        self.next = [*self.states[-1], self.number + 1, self.number + 2]
        newest = self.client.topic("t").schemas.get()
        values = [encode_one(newest, self.record()), encode_one(newest, self.record()), None]
        batch = self.client.bulk("t", key="k", batch=self.number)
        batch.commit(batch.stage([pa.table({"value": values, "partition": [0, 1, 0]})]))

    def schema(self) -> None:
        """Add a second version of the schema, with a field before the existing one."""
        self.client.topic("t").schemas.add(schema(NEW, self.kind))

    def delete(self) -> None:
        """Delete the schemas, so that the topic takes any bytes."""
        self.client.topic("t").schemas.delete()

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        self.client.checkpoint()

    def roll(self) -> None:
        """Write a checkpoint that begins new ledgers, so that the old ones are sealed."""
        self.client.checkpoint(roll_all=True)

    def compact(self) -> None:
        """Rewrite sealed files."""
        self.client.admin.compact("t")

    def by_key(self) -> None:
        """Compact by key, which removes nothing from the log."""
        self.client.admin.compact_topic("t")

    def sweep(self) -> None:
        """Remove the files that nothing refers to."""
        self.client.admin.gc(apply=True, keep_ms=0)


@dataclass
class Crash:
    """A disk at one moment of the run, and the values that it may hold."""

    disk: MemoryDisk
    clock: ManualClock
    states: list[list[int]]
    where: str


def crashes(label: str, kind: str, rng: random.Random) -> Iterator[Crash]:
    """Run the steps and yield a crash before each call with an effect, and one at the end."""
    work = Work(kind)
    found: list[Crash] = []
    at = "open"

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{label}, {kind}, seed {SEED}: {at}, before {op} {path}"
        states = [sorted(work.states[-1]), sorted(work.next)]
        found.append(Crash(work.disk.fork_kill(), ManualClock(START_MS), states, where))
        for number, image in enumerate(work.disk.images(rng, IMAGES)):
            found.append(Crash(image, after_reboot(), states, f"{where}, image {number}"))

    work.disk.step = collect
    for number, step in enumerate(WORKLOADS[label].split()):
        at = f"step {number} {step}"
        getattr(work, step)()
        work.states.append(work.next)
        yield from found
        found.clear()
    at = "the end"
    collect("", "")
    yield from found


def by_columns(client: Client) -> list[tuple[str, dict[str, Any] | None]]:
    """Each message that has a value, with its record as a Spark task reads it."""
    scans = scans_of(relation_of(client, "t"))
    rows = [
        row
        for scan in scans
        for table in read_scan(client.store.disk, scan, ("message_id", "value", RECORD))
        for row in table.to_pylist()
    ]
    return sorted((str(row["message_id"]), row[RECORD]) for row in rows if row["value"] is not None)


def by_bytes(client: Client) -> list[tuple[str, dict[str, Any] | None]]:
    """Each message that has a value, with its record as a reader decodes it."""
    with_value = [message for message in client.reader("t") if message.value is not None]
    return sorted(
        (str(message.message_id), None if message.schema_version is None else message.decode())
        for message in with_value
    )


def cups(client: Client, kind: str) -> list[int]:
    """The values that a reader gets, of checked and unchecked messages."""
    typed = schema(OLD, kind)
    decoded: list[dict[str, Any] | None] = [
        message.decode()
        if message.schema_version is not None
        else typed_value(typed, message.value)
        for message in client.reader("t")
        if message.value is not None
    ]
    return sorted(int(message["cups"]) for message in decoded if message)


def typed_value(typed: Schema, value: bytes | None) -> dict[str, Any]:
    """Decode bytes that no schema has checked."""
    assert value is not None
    return decode_one(typed, value)


def check(crash: Crash, kind: str) -> None:
    """Recover a crashed disk: each value exists with its record, and upkeep changes neither."""
    client = open_client(crash.disk, crash.clock)
    stored = cups(client, kind)
    assert stored in crash.states, f"{crash.where}: {stored}, expected one of {crash.states}"
    records_before = by_bytes(client)
    steps: list[Callable[[], object]] = [
        partial(client.checkpoint, roll_all=True),
        lambda: client.admin.compact("t"),
        lambda: client.admin.gc(apply=True, keep_ms=0),
    ]
    for step in steps:
        step()
        has_schema = bool(client.topic("t").schemas.list())
        assert by_bytes(client) == records_before, crash.where
        if has_schema:
            assert by_columns(client) == records_before, crash.where
    client.close()
    report = verify_disk(crash.disk, crash.clock, deep=True)
    assert report["errors"] == 0, (crash.where, report["problem_list"])


CASES = [f"{kind} {label}" for kind in ("json", "avro") for label in WORKLOADS]


@pytest.mark.parametrize("case", graded(CASES, ["avro short"]))
def test_every_crash_around_records(case: str) -> None:
    """R17, R30. Guards against files whose records do not match their values, and a lost
    version.
    """
    kind, _, label = case.partition(" ")
    rng = random.Random(f"{SEED} {label} {kind}")
    seen: set[object] = set()
    for crash in crashes(label, kind, rng):
        state = (content(crash.disk), repr(crash.states))
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % CHECKED_OF:
            continue
        try:
            check(crash, kind)
        except (TxlogError, AssertionError) as error:
            raise AssertionError(f"{crash.where}: {error!r}") from error
    print(f"{label}: {len(seen)} different crashes, seed {SEED}")
    assert len(seen) > 12


# --- processes that are killed ---------------------------------------------------------------


LINES = 40


@dataclass
class Cups:
    """The record of each line."""

    cups: int


def prepared(folder: Path) -> list[str]:
    """A store, and the command that produces, seals and compacts in it."""
    store, file = folder / "store", folder / "lines"
    txlog.init(str(store), reader_grace_ms=0, durability="os")
    with txlog.open(str(store)) as client:
        client.create_topic("t", partitions=2, schema=Cups)
    file.write_text("".join(f'{{"cups":{number}}}\n' for number in range(LINES)))
    return ready("typed", store, file)


@pytest.mark.parametrize(
    "kills", [pytest.param(10, marks=pytest.mark.deep), pytest.param(60, marks=pytest.mark.slow)]
)
def test_a_process_that_is_killed_at_a_typed_topic(tmp_path: Path, kills: int) -> None:
    """kill -9 in `produce`, between steps of sealing, at a new schema and in a compaction."""
    ends: set[int] = set()
    for name, where in kill_in_calls(lambda name: prepared(tmp_path / name), kills, 60):
        store = tmp_path / name / "store"
        with txlog.open(str(store)) as client:  # another process, which knows the newest schema
            stored = cups(client, "json")
            assert stored in ([], [*range(LINES)], [*range(LINES), 1000]), where
            records_before = by_bytes(client)
            assert by_columns(client) == records_before, where
            client.producer("t").send(Cups(2000), partition=0)
            client.checkpoint(roll_all=True)
            client.admin.compact("t")
            assert cups(client, "json") == [*stored, 2000], where
            assert by_columns(client) == by_bytes(client), where
            ends.add(len(stored))
        assert txlog.verify(str(store), deep=True)["errors"] == 0, where
    assert {0, LINES + 1} & ends
    assert len(ends) > 1
