"""Damage to every kind of file gives the same answers, or an error that names the file.

A small store has at least one file of each kind. Each damage is made on a copy; the test then reads
everything and writes to it. `TXLOG_STRIDE` 1 flips every byte of the files below 4 KiB instead of
some.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.crash.world import (
    SETTINGS,
    START_MS,
    TOPIC,
    after_reboot,
    observe,
    open_client,
    read_messages,
)
from tests.disk.memory import MemoryDisk
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import Message
from txlog.engine.store.identity import make_store
from txlog.errors import IntegrityError, StoreNotFound, TxlogError

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
STRIDE = int(os.environ.get("TXLOG_STRIDE", "131"))
KINDS = (
    "journal", "witness", "manifest", "toml", "state", "part", "side part", "sealed",
    "sealed side", "lock", "reserve",
)  # fmt: skip
SHORT = ("journal", "sealed side", "lock")


@cache
def sample(seed: int = 0) -> MemoryDisk:
    """A store with a sealed ledger, parts, frames and an open transaction; each seed gives
    another.
    """
    disk, clock = MemoryDisk(seed=seed), ManualClock(START_MS + 1000 * seed)
    make_store(disk, SETTINGS, clock)
    client = open_client(disk, clock)
    client.create_topic(TOPIC, 2)
    client.create_subscription(TOPIC, "s")
    # It keeps a sidecar from being sealed, so that it is compacted.
    early = client.begin(600_000)["txn"]
    for turn in range(2):
        producer = client.producer(TOPIC)
        producer.send(b"early%d" % turn, partition=0, txn=early)
        aborted = client.begin()["txn"]
        producer.send(b"aborted" * 9, partition=0, txn=aborted)
        client.abort(aborted)
        for number in range(3):
            producer.send(f"p{turn}{number}".encode(), partition=number % 2, key=b"k")
        txn = client.begin()["txn"]
        for number in range(3):
            producer.send(f"t{turn}{number}".encode(), partition=number % 2, txn=txn)
        client.commit(txn)
        ids = [m.message_id for m in read_messages(client, TOPIC) if m.message_id is not None]
        client.acknowledge(TOPIC, "s", ids[turn * 2 : turn * 2 + 1])
        client.checkpoint(roll_all=turn == 0)
        if turn == 0:
            sidecar = client.store.read(lambda view: view.buffer(1).ledgers)
            assert [(end.sealed, end.open_txns) for end in sidecar] == [(True, 1), (False, 0)]
    client.commit(early)
    client.producer(TOPIC, chunking=True).send(b"large" * 50, partition=0)
    producer.send(b"tail0", partition=0)
    txn = client.begin()["txn"]
    producer.send(b"held", partition=0, txn=txn)
    producer.send(b"tail1", partition=1)
    client.close()
    return disk


def kind_of(path: str) -> str:
    """The kind of the file at a path."""
    name = path.rpartition("/")[2]
    if path.startswith("journal/"):
        return "witness" if name == "witness" else "journal"
    if path.startswith(("manifest/", "state/")):
        return path.partition("/")[0]
    side = " side" if "_txnlog" in path else ""
    if name.endswith(".parquet"):
        return f"sealed{side}"
    if name.endswith(".arrow"):
        return f"{side[1:]} part".strip()
    return {"txlog.toml": "toml", "maintenance.lock": "lock"}.get(name, name)


def files_of(kind: str) -> list[str]:
    """The paths of the sample's files of a kind."""
    paths = [path for path in sample().files() if kind_of(path) == kind]
    return paths


def read_all(client: Client) -> dict[str, Any]:
    """The contents of the store as in `observe`, with each row's metadata and the partitions."""
    visible: list[Message] = []
    out = observe(client, visible)
    out["rows"] = [
        (m.partition, m.value, m.key, str(m.message_id), str(m.txn), m.publish_time)
        for m in visible
    ]
    out["described"] = str(client.describe_topic(TOPIC)["partitions"])
    return out


@cache
def truth(boot: bool) -> dict[str, Any]:
    """The answers of the undamaged store to a reader; after a reboot no writer has opened
    it yet.
    """
    disk = sample().copy()
    return read_all(open_client(disk, after_reboot() if boot else None))


def damages(
    path: str, rng: random.Random, stride: int = STRIDE
) -> Iterator[tuple[str, bytes | None]]:
    """The damages of a file, each as a pair: its name, and the new content or None."""
    data = sample().read(path)
    used = len(data.rstrip(b"\0"))
    if used <= 4096:
        places = list(range(0, used, stride))
    else:
        places = sorted(rng.sample(range(used), min(used, 4096 // stride)))
    places += [at for at in (0, used - 1, used, len(data) - 1) if 0 <= at < len(data)]
    for at in places:
        new = bytearray(data)
        new[at] ^= 1 << rng.randrange(8)
        yield f"byte {at} flipped", bytes(new)
    if data:
        for at in {0, 1, used // 2, max(used - 1, 0), len(data) // 2, len(data) - 1}:
            yield f"cut to {at}", data[:at]
        yield "zeroed", bytes(len(data))
        half = used // 2 // 512 * 512
        yield f"block {half} zeroed", data[:half] + bytes(512) + data[half + 512 :]
    yield "longer by zeros", data + bytes(512)
    yield "longer by garbage", data + b"garbage!" * 3
    yield "deleted", None
    for other in sample().files():
        if other != path and kind_of(other) == kind_of(path):
            yield f"swapped with {other}", sample().read(other)
    if sample(1).exists(path):
        yield "that of another store", sample(1).read(path)


def outcome(disk: MemoryDisk, clock: ManualClock | None, expected: dict[str, Any]) -> str:
    """`same`, or the class of the error; anything else fails."""
    try:
        answers = read_all(open_client(disk, clock))
    except TxlogError as error:
        assert isinstance(error, IntegrityError | StoreNotFound), repr(error)
        assert error.fields.get("path"), f"{error!r} names no file"
        return type(error).__name__
    assert answers == expected, f"SILENT: {answers} instead of {expected}"
    return "same"


HARMLESS = {"lock", "reserve"}


@pytest.mark.parametrize(
    ("kind", "boot", "stride"),
    [
        *(pytest.param(kind, False, 8 * STRIDE, id=f"{kind}-some") for kind in SHORT),
        *(pytest.param(kind, False, STRIDE, id=kind, marks=pytest.mark.deep) for kind in KINDS),
        *(
            pytest.param(kind, True, STRIDE, id=f"{kind}-boot", marks=pytest.mark.deep)
            for kind in ("journal", "witness", "manifest")
        ),
    ],
)
def test_damage_is_detected_or_harmless(kind: str, boot: bool, stride: int) -> None:
    """A reader and a writer get the same as before, or an error of the integrity family."""
    rng = random.Random(f"{SEED} {kind}")
    clock = after_reboot() if boot else None
    counts: dict[str, int] = {}
    assert files_of(kind)
    for path in files_of(kind):
        for name, data in damages(path, rng, stride):
            if data == sample().read(path):
                continue
            disk = sample().copy()
            disk.damage(path, data)
            where = f"seed {SEED}: {path} {name}"
            try:
                result = outcome(disk, clock, truth(boot))
                check_writer(disk, clock, result)
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error
            except (OSError, LookupError, ValueError, TypeError, MemoryError) as error:
                raise AssertionError(f"{where}: {error!r}") from error
            counts[result] = counts.get(result, 0) + 1
    print(f"{kind}: {counts}")
    if kind not in HARMLESS and kind not in ("witness", "manifest"):
        assert set(counts) != {"same"}


def check_writer(disk: MemoryDisk, clock: ManualClock | None, result: str) -> None:
    """Check that a writer after the damage gets the readers' answers, or an integrity error."""
    try:
        client = open_client(disk, clock)
        values_before = [m.value for m in read_messages(client, TOPIC)]
        client.producer(TOPIC).send(b"new", partition=0)
        values_after = sorted(m.value or b"" for m in read_messages(client, TOPIC))
    except TxlogError as error:
        assert isinstance(error, IntegrityError | StoreNotFound), repr(error)
        return
    assert values_after == sorted([*(value or b"" for value in values_before), b"new"])
    if result == "same":
        assert sorted(row[1] for row in truth(clock is not None)["rows"]) == sorted(
            value or b"" for value in values_before
        )


@pytest.mark.parametrize("kind", ["part", "sealed", "side part", "sealed side", "state"])
def test_the_error_names_the_damaged_file(kind: str) -> None:
    """The error has the path and the byte range, so that the user can restore a copy."""
    count = 0
    for path in files_of(kind):
        disk = sample().copy()
        data = disk.read(path)
        disk.damage(path, data[:20] + bytes([data[20] ^ 1]) + data[21:])
        try:
            read_all(open_client(disk))
        except IntegrityError as error:
            assert error.fields["path"] == path
            assert path in error.message
            count += 1
    assert count


@pytest.mark.deep
def test_a_store_is_restored_by_the_bytes_it_had() -> None:
    """With the old bytes back, and a quarantined partition online again, all messages are
    readable.
    """
    for kind in ("part", "sealed", "state", "manifest", "toml", "journal"):
        for path in files_of(kind):
            disk = sample().copy()
            data = disk.read(path)
            disk.damage(path, data[:33] + bytes([data[33] ^ 1]) + data[34:])
            outcome(disk, None, truth(False))
            disk.damage(path, data)
            client = open_client(disk)
            for partition in (0, 1):
                away = client.describe_topic(TOPIC)["partition_list"][partition]["online"] is False
                assert client.admin.set_online(TOPIC, partition)["changed"] is away
            assert outcome(disk, None, truth(False)) == "same"
