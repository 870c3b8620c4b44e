"""Every crash of a short workload, by a kill or a power cut, leaves a state that once existed.

One run collects, before each call with an effect, the disk as the death of the process leaves it,
and disks as a power cut may leave them. Each is then recovered and compared with the model. Disks
that give a reader the same bytes are read only once: see `Known`. `TXLOG_SEED` repeats a run; the
message of a failure has the seed. `TXLOG_IMAGES` sets how many images of a power cut are made at
each call.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.crash.contents import content, digest
from tests.crash.world import (
    PARTITIONS,
    START_MS,
    TOPIC,
    Model,
    Workload,
    after_reboot,
    differs,
    new_disk,
    observe,
    observe_ids,
    open_client,
    places_of,
)
from tests.disk.memory import Killed, MemoryDisk
from tests.tiers import graded
from txlog.base.ids import MessageId
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import Message
from txlog.engine.store.identity import FORMAT
from txlog.errors import TxlogError

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = int(os.environ.get("TXLOG_IMAGES", "2"))
RANDOM_WORKLOADS = int(os.environ.get("TXLOG_WORKLOADS", "2"))
RECOVERY_CRASH_SHARE = 0.004
THOROUGH_SHARE = 0.2
Found = tuple[dict[str, Any], dict[str, MessageId]]
Question = tuple[bool, str]  # (whether the question was about a directory, the path)

WORKLOADS = {
    "plain": "create create send send ack send ack",
    "transaction": "create create send begin txn_send txn_ack txn_send commit send",
    "two open": "create create send send begin begin txn_send txn_ack send abort commit",
    "joined": "create create send joined begin txn_send joined commit ack checkpoint joined send",
    "lazy tail": "create create send begin txn_send begin txn_send ack txn_ack txn_send commit",
    "ids": "begin begin begin abort begin begin commit begin",
    "checkpoint": "create create send begin txn_send checkpoint txn_send commit checkpoint send",
    "compact": "create create send begin txn_send begin txn_send abort compact commit compact send",
    "trim": "create create begin txn_send commit send trim send checkpoint trim checkpoint",
    "trim held": "create create begin txn_send commit begin txn_send txn_ack roll trim commit send",
    "trim compact": "create create begin txn_send begin txn_send commit roll trim compact commit",
    "roll": "create create send begin txn_send commit begin txn_send roll commit roll send",
    "keys": "create create send connect key_begin txn_send txn_ack connect key_begin send "
    "key_begin txn_send commit key_delete connect checkpoint key_begin",
    "seek": "create create send begin txn_send commit seek ack begin txn_ack send seek roll seek",
    "skip": "create create send begin txn_send txn_send commit skip begin txn_ack skip checkpoint",
    "grow": "create create send grow begin send txn_send txn_ack grow txn_send commit roll send",
    "delete sub": "create create send ack begin txn_ack txn_send delete_sub commit create roll ack",
    "delete topic": "create create send begin txn_send roll txn_ack txn_send delete_topic commit "
    "checkpoint create send create checkpoint",
    "delete and roll": "create send begin txn_send checkpoint delete_topic roll create send roll",
    "large": "create create large begin txn_large txn_send commit sweep large checkpoint send",
    "large aborted": "create create begin txn_large txn_large abort compact large trim sweep",
    "large lazy": "create large begin txn_send begin txn_large send roll txn_large commit commit",
    "bulk": "create create send bulk bulk_again send bulk checkpoint bulk_again bulk",
    "bulk key": "create create connect key_begin txn_send send bulk key_begin txn_send bulk commit",
    "bulk and upkeep": "create create begin txn_send bulk ack commit bulk trim bulk roll sweep",
    "bulk deleted": "create create bulk key_delete bulk delete_topic create bulk",
    "prepared": "create create send begin txn_send txn_ack prepare send resolve begin txn_send "
    "prepare begin txn_send checkpoint roll compact resolve commit",
    "prepared twice": "create create send begin txn_send prepare begin txn_ack txn_send prepare "
    "resolve send resolve roll",
    "lazy key": "create send connect key_begin txn_send begin connect connect key_begin commit",
}
QUICK = ("transaction",)
OF_OLD_FORMATS = ("plain", "transaction", "checkpoint", "keys", "delete topic", "large", "bulk")
STEPS = [
    "create", "send", "begin", "txn_send", "txn_send", "ack", "txn_ack", "commit", "abort",
    "checkpoint", "roll", "connect", "key_begin", "key_delete", "compact", "trim", "joined",
    "seek", "skip", "grow", "delete_sub", "delete_topic",
    "large", "txn_large", "sweep", "bulk", "bulk_again",
]  # fmt: skip


@dataclass
class Crash:
    """A disk at one moment of the run, and the states that the answers until then allow."""

    disk: MemoryDisk
    is_power_cut: bool
    models: list[Model]  # states that a recovery may end in
    visible: list[Model]  # states that a reader may see before recovery
    txn_ids: list[str]
    ids: dict[str, MessageId]
    where: str


def crash_of(work: Workload, disk: MemoryDisk, where: str, *, is_power_cut: bool) -> Crash:
    """The crash on this disk, with the states that it may lead to."""
    after_cut = work.possible_after_cut()
    models = [m.recovered() for m in after_cut] if is_power_cut else work.possible()
    return Crash(disk, is_power_cut, models, after_cut, list(work.txn_ids), dict(work.ids), where)


def crashes(
    steps: list[str], rng: random.Random, label: str, of_format: int = FORMAT
) -> Iterator[Crash]:
    """Run the steps and yield a crash before each call with an effect, and one at the end."""
    disk = new_disk(of_format=of_format)
    work = Workload(open_client(disk))
    found: list[Crash] = []
    at = "open"

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{label}, seed {SEED}: {at}, before {op} {path}"
        found.append(crash_of(work, disk.fork_kill(), where, is_power_cut=False))
        for number, image in enumerate(disk.images(rng, IMAGES)):
            text = f"{where}, image {number}"
            found.append(crash_of(work, image, text, is_power_cut=True))

    disk.step = collect
    for number, step in enumerate(steps):
        at = f"step {number} {step}"
        work.run(step, rng)
        yield from found
        found.clear()
    at = "the end"
    collect("", "")
    yield from found


class Known:
    """The contents of all disks that were read so far.

    A reader is a function of its clock and of the answers of the disk (Law 7). So two disks that
    give the first reader the same answers have the same content. After a recovery and `gc` all
    files are compared.
    """

    def __init__(self) -> None:
        self._by_answers: dict[tuple[Question, ...], dict[tuple[object, ...], Found]] = {}
        self._by_content: dict[object, Found] = {}
        self._tried: set[object] = set()

    def as_reader(self, disk: MemoryDisk, clock: ManualClock) -> dict[str, Any]:
        """The contents that a process without write access reads."""
        boot = clock.now().boot_id
        for asked_before, contents in self._by_answers.items():
            content = contents.get((boot, *answers(disk, asked_before)))
            if content is not None:
                return content[0]
        process, new_questions = disk.process(read_only=True), set[Question]()

        def note(op: str, path: str, **info: int) -> None:
            assert op != "holder", "who holds a lock is not written on a disk"
            new_questions.add((op == "listdir", path))

        process.look = note
        seen = observe(open_client(process, clock))
        asked_before = tuple(sorted(new_questions))
        self._by_answers.setdefault(asked_before, {})[boot, *answers(disk, asked_before)] = (
            seen,
            {},
        )
        return seen

    def as_writer(self, client: Client, disk: MemoryDisk, clock: ManualClock) -> Found:
        """The contents that a client reads after the recovery, and the position of each message."""
        key = (clock.now().boot_id, content(disk))
        if key not in self._by_content:
            visible: list[Message] = []
            seen = observe(client, visible)
            self._by_content[key] = (seen, places_of(visible))
        return self._by_content[key]

    def is_new(self, crash: Crash) -> bool:
        """Whether this is the first store of its kind, after promises of this kind."""
        key = (crash.is_power_cut, content(crash.disk), *crash.txn_ids, *crash.ids)
        is_new = key not in self._tried
        self._tried.add(key)
        return is_new


def answers(disk: MemoryDisk, questions: tuple[Question, ...]) -> list[object]:
    """For each question, the names in a directory or the digest of a file, None if missing."""
    contents: list[object] = []
    for is_directory, path in questions:
        if is_directory:
            contents.append(tuple(disk.listdir(path)))
            continue
        node = disk.find(path)
        contents.append(None if node is None else digest(bytes(node.data)))
    return contents


def check(crash: Crash, rng: random.Random, known: Known) -> None:
    """Recover a crashed disk and compare it with the promises of the answers."""
    clock = after_reboot() if crash.is_power_cut else ManualClock(START_MS)
    wrong = differs(known.as_reader(crash.disk, clock), crash.visible)
    assert not wrong, f"{crash.where}: a reader before recovery {wrong}"
    if rng.random() < RECOVERY_CRASH_SHARE:
        for number, (image, boot) in enumerate(crashes_of_recovery(crash, clock, rng)):
            text = f"{crash.where}, crash {number} in its recovery"
            recover_and_compare(image, replace(crash, where=text), boot, known)
    places = recover_and_compare(crash.disk, crash, clock, known)
    if known.is_new(crash) and rng.random() < THOROUGH_SHARE:
        recover_again_and_write(crash, clock, places)


def settle(disk: MemoryDisk, clock: ManualClock) -> None:
    """Let a writer open the store and recover it."""
    client = open_client(disk, clock)
    client.store.flush()
    client.close()


def crashes_of_recovery(
    crash: Crash, clock: ManualClock, rng: random.Random
) -> Iterator[tuple[MemoryDisk, ManualClock]]:
    """Disks as a death during the recovery leaves them, each with the clock of the next process."""
    disk = crash.disk.copy()
    crashes: list[tuple[MemoryDisk, ManualClock]] = []

    def collect(op: str, path: str, **info: int) -> None:
        crashes.append((disk.fork_kill(), clock))
        if crash.is_power_cut:
            crashes.extend((image, after_reboot("a third boot")) for image in disk.images(rng, 3))

    disk.step = collect
    settle(disk, clock)
    yield from crashes


def recover_and_compare(disk: MemoryDisk, crash: Crash, clock: ManualClock, known: Known) -> Found:
    """Check the promises of spec/reliability 5.1 after a crash."""
    settle(disk, clock)
    client = open_client(disk, clock)
    client.admin.gc(apply=True, keep_ms=0)  # gc may not remove a file that is still needed
    seen, places = known.as_writer(client, disk, clock)
    client.close()
    wrong = differs(seen, crash.models)
    assert not wrong, f"{crash.where}: {wrong}"
    for value, where in crash.ids.items():
        assert places.get(value, where) == where, f"{crash.where}: {value} was at {where}: {places}"
    return seen, places


def recover_again_and_write(crash: Crash, clock: ManualClock, recovered: Found) -> None:
    """A second recovery changes nothing, and the store accepts writes."""
    seen, places = recovered
    settle(crash.disk, clock)
    client = open_client(crash.disk, clock)
    assert observe(client) == seen, f"{crash.where}: the second recovery changed the store"
    check_a_write(client, crash, places)
    client.close()


def check_a_write(client: Client, crash: Crash, places: dict[str, MessageId]) -> None:
    """A transaction over both partitions works, and none of its messages has an old id."""
    client.create_topic(TOPIC, PARTITIONS, if_not_exists=True)
    txn = client.begin()["txn"]
    assert str(txn) not in crash.txn_ids, f"{crash.where}: id {txn} was given out twice"
    producer = client.producer(TOPIC)
    for partition in range(PARTITIONS):
        producer.send(f"new{partition}".encode(), partition=partition, txn=txn)
    client.commit(txn)
    client.checkpoint(roll_all=True)
    places_after = observe_ids(client)
    new = [places_after.pop(f"new{partition}") for partition in range(PARTITIONS)]
    assert places_after == places, f"{crash.where}: {places_after}, was {places}"
    assert not set(new) & {*places.values(), *crash.ids.values()}, crash.where


def check_all(steps: list[str], label: str, of_format: int = FORMAT) -> None:
    """Check every crash of the steps, which begin in a new store of this format."""
    rng = random.Random(f"{SEED} {label}")
    seen: set[object] = set()
    known = Known()
    for crash in crashes(steps, rng, label, of_format):
        promise = [str(model.shape()) for model in crash.visible]
        key = (crash.is_power_cut, content(crash.disk), tuple(promise), tuple(crash.txn_ids))
        if key in seen:
            continue
        seen.add(key)
        try:
            check(crash, rng, known)
        except TxlogError as error:
            raise AssertionError(f"{crash.where}: {error!r}") from error
    print(f"{label}: {len(seen)} different crashes, seed {SEED}")
    assert len(seen) > len(steps)


@pytest.mark.parametrize("label", graded(WORKLOADS, QUICK))
def test_every_crash_of_a_workload(label: str) -> None:
    """Acknowledged calls are exactly there, unknown ones whole or absent; see the module."""
    check_all(WORKLOADS[label].split(), label)


@pytest.mark.parametrize("label", graded(OF_OLD_FORMATS, "plain"))
@pytest.mark.parametrize("of_format", range(1, FORMAT))
def test_every_crash_of_a_workload_in_a_store_of_an_older_format(
    label: str, of_format: int
) -> None:
    """Its first write raises the format; a crash within that leaves the store as it was."""
    check_all(WORKLOADS[label].split(), f"{label}, format {of_format}", of_format)


@pytest.mark.parametrize("number", graded(range(RANDOM_WORKLOADS), 0))
def test_every_crash_of_a_random_workload(number: int) -> None:
    """The same for steps that the seed chooses."""
    rng = random.Random(f"{SEED} steps {number}")
    steps = ["create", "create", "send", *rng.choices(STEPS, k=rng.randrange(3, 7))]
    check_all(steps, f"random {number} ({' '.join(steps)})")


@pytest.mark.parametrize("label", graded(["transaction", "lazy tail"], 1))
@pytest.mark.parametrize("written", graded([64, 1, 200], 1))
def test_a_process_that_dies_within_a_write(label: str, written: int) -> None:
    """A frame whose write was cut short does not count; all other calls go on."""
    total = 0
    known = Known()
    while True:
        disk = new_disk()
        work = Workload(open_client(disk))
        count = 0

        def die(op: str, path: str, *, nth: int = total + 1, **info: int) -> None:
            nonlocal count
            if op == "pwrite":
                count += 1
                if count == nth:
                    raise Killed(min(written, info["length"] - 1))

        disk.step = die
        rng = random.Random(f"{SEED} {label}")
        try:
            for step in WORKLOADS[label].split():
                work.run(step, rng)
        except Killed:
            where = f"{label}, seed {SEED}: write {total}, {written} bytes"
            crash = crash_of(work, disk.fork_kill(), where, is_power_cut=False)
            check(crash, rng, known)
            total += 1
            continue
        break
    assert total > 10
