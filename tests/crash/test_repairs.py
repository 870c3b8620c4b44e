"""Repairs that die or fail at any call, over every kind of damage that repair knows.

What the next repair makes is what one makes that nobody disturbs, and nothing that could be read
before is unreadable between them. R3, R4, Law 5: a step names what it made by one manifest or one
frame, and lets go of nothing that a later step needs.
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
    """Sealed, trimmed, compacted and checkpointed, with everything swept that may be."""
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
    """The file is gone."""


def flipped(data: bytes) -> bytes:
    """One byte is another one, in the middle of what is used."""
    at = len(data.rstrip(b"\0")) // 2
    if not data:
        return b"x"
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def halved(data: bytes) -> bytes:
    """The second half is gone."""
    return data[: len(data.rstrip(b"\0")) // 2]


def headless(data: bytes) -> bytes:
    """The first bytes are others."""
    return b"\xff" * 16 + data[16:]


def kind_of(path: str) -> str:
    """What kind of file a path is."""
    for kind, part in KINDS.items():
        if re.search(part, path):
            return kind
    return ""


# of the stores below, which have one of each; buckets are in test_buckets
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


def chosen(disk: MemoryDisk, kind: str, place: str) -> str:
    """A file of a kind: the oldest or newest by its generation."""
    found = [path for path in disk.files() if kind_of(path) == kind]
    assert found, f"no {kind} in this store"
    return sorted(found, key=lambda path: re.findall(r"\d+", path)[-1:])[
        -1 if place == "new" else 0
    ]


def readable(disk: MemoryDisk) -> set[tuple[int, bytes | None, str]]:
    """What a reader gets, of each partition up to where it gets an error; it writes nothing."""
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
    return [row(one) for one in read_messages(open_client(disk.copy()), TOPIC)]


def mend(disk: MemoryDisk) -> Repaired:
    return repair_disk(disk, CLOCK, apply=True, accept_loss=True)


class Fault:
    """Lets so many calls with an effect happen, then kills the process, or fails one of them."""

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
    disk: MemoryDisk, stride: int, start: int, what: str, faults: Sequence[BaseException]
) -> int:
    """Repair with a fault at every so manieth call, then without; returns the calls tried."""
    whole = disk.copy()
    mend(whole)
    assert verify_disk(whole, CLOCK, deep=True)["errors"] == 0, what
    expected, before, tried = outcome(whole), readable(disk), 0
    assert before <= {*expected}, what
    for fault in faults:
        at = start
        while True:
            one = disk.copy()
            victim = one.process()
            victim.step = hook = Fault(at, fault)
            with suppress(Killed, TxlogError):
                mend(victim)
            where = f"{what}: {fault!r} at call {at}"
            if hook.left >= 0:
                break  # it ended before
            # without a witness all is shown; a new one says less, until a writer has flushed
            if "witness" not in what:
                assert before <= readable(one), where
            mend(one)
            assert outcome(one) == expected, where
            assert verify_disk(one, CLOCK, deep=True)["errors"] == 0, where
            tried += 1
            at += stride
    return tried


def broken(store: str, kind: str, place: str, change: str) -> tuple[MemoryDisk, str]:
    """A store with one damage, and the file that has it."""
    disk = STORES[store]().copy()
    path = chosen(disk, kind, place)
    disk.damage(path, CHANGES[change](disk.read(path)))
    return disk, f"{store}: {path} {change}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_that_dies_is_done_by_the_next(kind: str) -> None:
    """Some calls, of the newest file of each kind; the next test takes them all."""
    disk, what = broken("trimmed", kind, "new", "flipped" if kind == "journal" else "lost")
    swept(disk, 67, 11, what, [Killed()])


@pytest.mark.deep
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["new", "old"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_a_repair_that_dies_or_fails_anywhere(
    store: str, kind: str, place: str, change: str
) -> None:
    """Every kind, both ends of the history, killed, a bad sector, a full disk."""
    disk, what = broken(store, kind, place, change)
    swept(disk, 29, 3, what, FAULTS)


@pytest.mark.deep
def test_every_call_of_the_repair_of_the_newest_state() -> None:
    """Where repair destroyed stores: the dumps of the newest checkpoint, each call."""
    disk, what = broken("trimmed", "state", "new", "lost")
    assert swept(disk, 1, 0, what, [Killed()]) > 20
