"""Repairs that die or fail at any call, over every kind of damage that repair can mend.

The next repair makes the same store as a repair without a fault, and every message that was
readable before stays readable between them. R3, R4, Law 5: a step publishes its files by one
manifest or one frame, and removes nothing that a later step needs.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

import pytest

from tests.crash.test_corruption import sample
from tests.crash.world import SETTINGS, START_MS, TOPIC, open_client, read_messages
from tests.disk.memory import Killed, MemoryDisk
from tests.tiers import graded
from txlog.base.ranges import Bound
from txlog.base.rows.store import Repaired
from txlog.client.answers.integrity import repair_disk, verify_disk
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import Message
from txlog.engine.store.identity import make_store
from txlog.errors import TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")

Change = Callable[[bytes], bytes | None]
CLOCK = ManualClock(START_MS)
MINUTE_MS = 60_000


@cache
def trimmed() -> MemoryDisk:
    """A store that was sealed, trimmed, compacted and checkpointed, with all old files swept."""
    disk = MemoryDisk()
    make_store(disk, SETTINGS, CLOCK)
    client = open_client(disk)
    client.create_topic(TOPIC, 2)
    client.create_subscription(TOPIC, "s")
    producer = client.producer(TOPIC)
    for turn in range(3):
        for number in range(4):
            producer.send(b"%d.%d" % (turn, number), partition=number % 2)
        with client.transaction() as txn:
            producer.send(b"in %d" % turn, partition=0, txn=txn)
        producer.send(b"late %d" % turn, partition=1, deliver_after=MINUTE_MS)
        client.checkpoint(roll_all=turn < 2)
    client.admin.trim(TOPIC, Bound("last", 4), force_unacked=True)
    producer.send(b"more", partition=0)
    client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    producer.send(b"tail", partition=0)
    client.close()
    return disk


def lost(data: bytes) -> None:
    """Remove the file."""


def flipped(data: bytes) -> bytes:
    """Change one byte in the middle of the used part."""
    at = len(data.rstrip(b"\0")) // 2
    if not data:
        return b"x"
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def halved(data: bytes) -> bytes:
    """Cut off the second half."""
    return data[: len(data.rstrip(b"\0")) // 2]


def headless(data: bytes) -> bytes:
    """Replace the first bytes."""
    return b"\xff" * 16 + data[16:]


def kind_of(path: str) -> str:
    """The kind of the file at a path."""
    for kind, part in KINDS.items():
        if re.search(part, path):
            return kind
    return ""


# Each kind is in at least one of the stores below; test_buckets has the buckets.
KINDS = {
    "journal": r"\.journal$", "witness": "witness", "manifest": r"\.manifest$",
    "state": r"\.state$", "history": "^system/",
    "side part": "_txnlog/_ledger",
    "sealed side": "_txnlog/ledger", "part": "/_ledger", "sealed": "/ledger", "reserve": "reserve",
    "lock": "^lock$",
}  # fmt: skip
STORES: dict[str, Callable[[], MemoryDisk]] = {"sample": sample, "trimmed": trimmed}
CHANGES: dict[str, Change] = {
    "lost": lost, "flipped": flipped, "halved": halved, "headless": headless,
}  # fmt: skip


def chosen(disk: MemoryDisk, kind: str, age: str) -> str:
    """A file of a kind: the oldest or newest by its generation."""
    paths = [path for path in disk.files() if kind_of(path) == kind]
    assert paths, f"no {kind} in this store"
    return sorted(paths, key=lambda path: re.findall(r"\d+", path)[-1:])[-1 if age == "new" else 0]


def readable(disk: MemoryDisk) -> set[tuple[int, bytes | None, str]]:
    """The messages that a reader gets from each partition before its first error.

    It writes nothing.
    """
    out: set[tuple[int, bytes | None, str]] = set()
    other = disk.copy()
    other.read_only = True
    try:
        client = open_client(other)
    except TxlogError:
        return out
    for partition in range(2):
        try:
            for message in read_messages(client, f"{TOPIC}/{partition}"):
                out.add(row(message))
        except TxlogError:
            continue
    return out


def row(message: Message) -> tuple[int, bytes | None, str]:
    return message.partition, message.value, str(message.message_id)


def outcome(disk: MemoryDisk) -> list[tuple[int, bytes | None, str]]:
    return [row(message) for message in read_messages(open_client(disk.copy()), TOPIC)]


def mend(disk: MemoryDisk) -> Repaired:
    return repair_disk(disk, CLOCK, apply=True, accept_loss=True)


class Fault:
    """A hook that lets `after` calls with an effect pass, then kills the process or fails one."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.left = after
        self.error = error

    def __call__(self, op: str, path: str, **info: int) -> None:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and isinstance(self.error, Killed)):
            raise self.error


FAULTS = (
    Killed(), OSError(errno.EIO, "Input/output error"),
    OSError(errno.ENOSPC, "No space left on device"),
)  # fmt: skip


def swept(
    disk: MemoryDisk, stride: int, start: int, label: str, faults: Sequence[BaseException]
) -> int:
    """Repair with a fault at each `stride`-th call, then without; returns the number of tries."""
    whole = disk.copy()
    mend(whole)
    assert verify_disk(whole, CLOCK, deep=True)["errors"] == 0, label
    expected, readable_before, tried = outcome(whole), readable(disk), 0
    assert readable_before <= {*expected}, label
    for fault in faults:
        at = start
        while True:
            disk_copy = disk.copy()
            victim = disk_copy.process()
            victim.step = hook = Fault(at, fault)
            with suppress(Killed, TxlogError):
                mend(victim)
            where = f"{label}: {fault!r} at call {at}"
            if hook.left >= 0:
                break  # the repair ended before the fault
            # Without a witness a reader gets all frames. With a new one it gets fewer, until a
            # writer has flushed.
            if "witness" not in label:
                assert readable_before <= readable(disk_copy), where
            mend(disk_copy)
            assert outcome(disk_copy) == expected, where
            assert verify_disk(disk_copy, CLOCK, deep=True)["errors"] == 0, where
            tried += 1
            at += stride
    return tried


def broken(store: str, kind: str, age: str, change: str) -> tuple[MemoryDisk, str]:
    """A store with one damage, and the name of the damaged file."""
    disk = STORES[store]().copy()
    path = chosen(disk, kind, age)
    disk.damage(path, CHANGES[change](disk.read(path)))
    return disk, f"{store}: {path} {change}"


@pytest.mark.parametrize("kind", graded(KINDS, 3))
def test_a_repair_that_dies_is_done_by_the_next(kind: str) -> None:
    """Some calls, for the newest file of each kind; the next test tries them all."""
    disk, label = broken("trimmed", kind, "new", "flipped" if kind == "journal" else "lost")
    swept(disk, 67, 11, label, [Killed()])


@pytest.mark.deep
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["new", "old"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_a_repair_that_dies_or_fails_anywhere(
    store: str, kind: str, place: str, change: str
) -> None:
    """Every kind, the oldest and the newest file, with a kill, a bad sector and a full disk."""
    disk, label = broken(store, kind, place, change)
    swept(disk, 29, 3, label, FAULTS)


@pytest.mark.deep
def test_every_call_of_the_repair_of_the_newest_state() -> None:
    """Repair once destroyed stores here: each call, with the dumps of the newest
    checkpoint lost.
    """
    disk, label = broken("trimmed", "state", "new", "lost")
    assert swept(disk, 1, 0, label, [Killed()]) > 20
