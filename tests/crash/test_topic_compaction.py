"""Every crash of a compaction by key keeps the newest value of each key, and leaves no extra file.

One run collects, before each call with an effect, the disk as the death of the process leaves it,
and disks as a power cut may leave them. The run compacts, trims, checkpoints, sweeps and deletes a
topic. A reader with read_compacted must then get the values of the last answered step, or of the
step under way. `TXLOG_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.crash.contents import content
from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.engine_kit import little_memory
from tests.tiers import graded
from txlog import Client
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX
from txlog.errors import TxlogError

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = int(os.environ.get("TXLOG_IMAGES", "1"))
# Every fifth of the different crashes is checked; with TXLOG_IMAGES=1, every one.
CHECKED_OF = 1 if "TXLOG_IMAGES" in os.environ else 5
SETTINGS = Settings(coordinators=1, txn_ids_reserved=2, reader_grace_ms=0)
State = dict[bytes, bytes]
KEYS = (b"a", b"b", b"c", b"d")
WORKLOADS = {
    "compact": "send send compact send null compact",
    "trim": "send send compact trim send compact trim checkpoint sweep",
    "checkpoint": "send checkpoint compact checkpoint send roll compact roll sweep",
    "nothing left": "send compact clear compact checkpoint send compact sweep",
    "deleted": "send compact checkpoint delete checkpoint sweep",
    "with little memory": "send send compact null send compact sweep",
}


class Work:
    """A store with a topic of two partitions, and the newest value of each key; methods are steps.

    states: the newest values after each step that was answered
    """

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.disk = new_disk(SETTINGS, self.clock)
        self.client = open_client(self.disk, self.clock)
        self.client.create_topic("t", 2)
        self.client.admin.set_retention_policies("t", retention_ms=1000)
        self.states: list[State] = [{}]
        self.next: State = {}  # the state after the step under way
        self.number = 0

    def put(self, values: dict[bytes, bytes | None]) -> None:
        """Send these values in one transaction."""
        newest = {**self.states[-1], **values}
        self.next = {key: value for key, value in newest.items() if value is not None}
        with self.client.transaction() as txn:
            producer = self.client.producer("t")
            for key, value in values.items():
                producer.send(value, key=key, txn=txn)
                producer.send(b"no key", txn=txn)

    def send(self) -> None:
        """Send a value for each key but one."""
        self.number += 1
        self.put({key: b"%d" % self.number for key in KEYS if key != KEYS[self.number % 4]})

    def null(self) -> None:
        """Delete one key."""
        self.put({b"a": None})

    def clear(self) -> None:
        """Delete all keys."""
        self.put(dict.fromkeys(KEYS))

    def compact(self) -> None:
        """Compact the topic by key."""
        self.client.admin.compact_topic("t")

    def trim(self) -> None:
        """Let the policy trim the log up to the horizon of the compaction."""
        self.clock.advance(100_000)
        assert self.client.admin.trim("t", by_policy=True)["messages"]

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        self.client.checkpoint()

    def roll(self) -> None:
        """Write a checkpoint that begins new ledgers."""
        self.client.checkpoint(roll_all=True)

    def sweep(self) -> None:
        """Remove the files that nothing refers to."""
        self.client.admin.gc(apply=True, keep_ms=0)

    def delete(self) -> None:
        """Delete the topic."""
        self.next = {}
        self.client.admin.delete_topic("t")


@dataclass
class Crash:
    """A disk at one moment of the run, and the newest values that it may hold."""

    disk: MemoryDisk
    clock: ManualClock
    states: list[State]
    where: str


def crashes(label: str, rng: random.Random) -> Iterator[Crash]:
    """Run the steps and yield a crash before each call with an effect, and one at the end."""
    work = Work()
    found: list[Crash] = []
    at = "open"

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{label}, seed {SEED}: {at}, before {op} {path}"
        states = [work.states[-1], work.next]
        now = ManualClock(work.clock.now().wall_ms)
        found.append(Crash(work.disk.fork_kill(), now, states, where))
        for number, image in enumerate(work.disk.images(rng, IMAGES)):
            clock = after_reboot()
            clock.set_wall(work.clock.now().wall_ms)
            found.append(Crash(image, clock, states, f"{where}, image {number}"))

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


def newest(client: Client) -> State:
    """The newest value of each key, as a reader with read_compacted gets them."""
    values: dict[bytes, bytes | None] = {}
    with client.reader("t", read_compacted=True) as reader:
        for message in reader:
            if message.key is not None:
                values[message.key] = message.value
    return {key: value for key, value in values.items() if value is not None}


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary file."""
    return name.startswith(TEMPORARY_PREFIX)


def files(client: Client) -> tuple[set[str], set[str]]:
    """The existing files of compacted rows with all temporaries, and those that the store refers
    to.
    """
    disk = client.store.disk
    below = [f"topics/public/default/t/partition={number}/_compacted" for number in (0, 1)]
    there = {f"{path}/{name}" for path in below for name in disk.listdir(path)}
    there |= {*filter(is_temporary, disk.listdir(""))}
    owners = client.store.read(lambda view: view.catalog.owners)
    ledgers = [ledger for ledger, (_, role) in owners.items() if role == "c"]
    referenced = client.store.read(
        lambda view: {ref.path for ledger in ledgers for ref in view.files.of(ledger)}
    )
    return there, referenced


def check(crash: Crash) -> None:
    """Recover a crashed disk: the newest values are readable, and upkeep goes on."""
    client = open_client(crash.disk, crash.clock)
    is_there = any(row["topic"] == "t" for row in client.topics())
    newest_before = newest(client) if is_there else {}
    assert newest_before in crash.states, (
        f"{crash.where}: {newest_before}, expected one of {crash.states}"
    )
    for number in range(3):  # files stay as long as one of the two newest manifests names them
        client.create_topic(f"other-{number}")
        client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    there, referenced = files(client)
    assert there == referenced, crash.where
    if is_there:
        client.admin.compact_topic("t")
        assert newest(client) == newest_before, crash.where
    client.close()
    client = open_client(crash.disk, crash.clock)
    assert (newest(client) if is_there else {}) == newest_before, crash.where
    client.close()


@pytest.mark.parametrize("label", graded(WORKLOADS, ("trim",)))
def test_every_crash_of_a_compaction_by_key(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws 4, 5, R18, R19.

    Guards against a reference to an unfinished file, and a horizon without its file. With little
    memory, keys and rows are put aside in scratch files, and files come in pieces.
    """
    if label == "with little memory":
        little_memory(monkeypatch)
    rng = random.Random(f"{SEED} {label}")
    seen: set[object] = set()
    was_left_over = False
    for crash in crashes(label, rng):
        was_left_over |= any(map(is_temporary, crash.disk.listdir("")))
        state = (content(crash.disk), repr(crash.states))
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % CHECKED_OF:
            continue
        try:
            check(crash)
        except (TxlogError, AssertionError) as error:
            raise AssertionError(f"{crash.where}: {error!r}") from error
    print(f"{label}: {len(seen)} different crashes, seed {SEED}")
    assert len(seen) > 20
    if label == "with little memory":
        assert was_left_over
