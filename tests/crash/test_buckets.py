"""Every crash of upkeep leaves a correct, complete delayed index, and files that gc can remove.

One run collects, before each call with an effect, the disk as the death of the process leaves it,
and disks as a power cut may leave them. The run seals, merges, prunes, deletes, loses and rebuilds
the index, with checkpoints between. Each disk is then recovered: log and index must have every
delayed message, the index must have no other, and no file may be left over. `TXLOG_SEED` repeats a
run.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.crash.contents import content
from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.delayed.bucket_kit import (
    DAY_MS,
    bucket_files,
    check_index,
    delay,
    delay_txn,
    index,
    indexed_times,
    logged_times,
    named_files,
)
from tests.disk.memory import MemoryDisk
from tests.engine_kit import read
from tests.tiers import graded
from txlog import Client, Consumer, MessageId, messages
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.engine.upkeep.delayed import buckets as delayed
from txlog.errors import MissingFile, TxlogError

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = int(os.environ.get("TXLOG_IMAGES", "1"))
# Every fifth of the different crashes is checked; with TXLOG_IMAGES=1, every one.
CHECKED_OF = 1 if "TXLOG_IMAGES" in os.environ else 5
STRIDE = int(os.environ.get("TXLOG_STRIDE", "12"))
THOROUGH_SHARE = 0.2
HOUR_MS = 3_600_000
SETTINGS = Settings(
    coordinators=1,
    txn_ids_reserved=2,
    reader_grace_ms=0,
    mutable_ids_max=3,
    max_num_buckets=0,
    max_indexes_per_snapshot_segment=2,
)


class Work:
    """A store with delayed messages; each public method is a step."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.disk = new_disk(SETTINGS, self.clock)
        self.client = open_client(self.disk, self.clock)
        self.sent = 0
        self.answered = 0  # delayed messages that were answered as durable

    def create(self) -> None:
        """Create the topic and a subscription that honours delays."""
        self.client.create_topic("t")
        self.client.create_subscription("t", "s", type="shared")

    def send(self) -> None:
        """Send two delayed messages and one without a delay."""
        self.sent += 2
        delay(self.client, HOUR_MS * self.sent, None, DAY_MS + HOUR_MS * self.sent)
        self.answered = self.sent

    def commit(self) -> None:
        """Send delayed messages in a transaction."""
        self.sent += 2
        delay_txn(self.client, HOUR_MS * self.sent, None, DAY_MS + HOUR_MS * self.sent)
        self.answered = self.sent

    def merge(self) -> None:
        """Merge all buckets into one."""
        delayed.merge_now(self.client.store, 1)

    def wait(self) -> None:
        """Let a day pass."""
        self.clock.advance(DAY_MS)

    def tend(self) -> None:
        """Run the upkeep that is due: delete, prune, seal, rebuild."""
        delayed.tend(self.client.store, None, wait=True)

    def lose(self) -> None:
        """Report the first bucket as unreadable."""
        first = index(self.client).buckets[0]
        delayed.drop_lost(self.client.store, 1, first.gen, MissingFile("it is gone"))

    def rebuild(self) -> None:
        """Rebuild the index from the log."""
        delayed.rebuild_now(self.client.store, 1)

    def checkpoint(self) -> None:
        """Write a checkpoint, with all upkeep that belongs to it."""
        self.client.checkpoint()

    def roll(self) -> None:
        """Write a checkpoint that begins new ledgers."""
        self.client.checkpoint(roll_all=True)

    def sweep(self) -> None:
        """Remove the files that nothing refers to."""
        self.client.admin.gc(apply=True, keep_ms=0)

    def delete(self) -> None:
        """Delete the topic."""
        self.client.admin.delete_topic("t", force=True)
        self.sent = self.answered = 0


WORKLOADS = {
    "seal": "create send send commit checkpoint commit send sweep",
    "merge": "create send send commit send merge checkpoint send send merge checkpoint checkpoint",
    "prune": "create send send send send wait tend checkpoint wait tend send checkpoint sweep",
    "lost": "create send commit send lose tend checkpoint lose sweep checkpoint rebuild",
    "ledgers": "create send roll commit send roll merge lose checkpoint rebuild roll",
    "deleted": "create send send checkpoint send send delete checkpoint checkpoint sweep",
}


@dataclass
class Crash:
    """A disk at a moment of the run."""

    disk: MemoryDisk
    clock: ManualClock
    answered: int
    sent: int
    where: str


def crashes(label: str, rng: random.Random) -> Iterator[Crash]:
    """Run the steps and yield a crash before each call with an effect, and one at the end."""
    work = Work()
    found: list[Crash] = []
    at = "open"

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{label}, seed {SEED}: {at}, before {op} {path}"
        low = min(work.answered, work.sent)
        now = ManualClock(work.clock.now().wall_ms)
        found.append(Crash(work.disk.fork_kill(), now, low, work.sent, where))
        for number, image in enumerate(work.disk.images(rng, IMAGES)):
            clock = after_reboot()
            clock.set_wall(work.clock.now().wall_ms)
            found.append(Crash(image, clock, low, work.sent, f"{where}, image {number}"))

    work.disk.step = collect
    for number, step in enumerate(WORKLOADS[label].split()):
        at = f"step {number} {step}"
        getattr(work, step)()
        yield from found
        found.clear()
    at = "the end"
    collect("", "")
    yield from found


def check(crash: Crash, rng: random.Random) -> None:
    """Recover a crashed disk: the index agrees with the log, and upkeep goes on."""
    client = open_client(crash.disk, crash.clock)
    client.store.flush()
    if not any(row["topic"] == "t" for row in client.topics()):
        client.admin.gc(apply=True, keep_ms=0)
        assert not bucket_files(client), crash.where
        client.close()
        return
    delayed_count = len(client.store.read(lambda view: logged_times(view, 1)))
    if crash.sent:
        assert crash.answered <= delayed_count <= crash.sent, crash.where
    check_index(client)
    times_before = indexed_times(client)
    delayed.tend(client.store, None, wait=True)
    check_index(client)
    client.checkpoint()
    client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert not client.store.bucket_ops.counts[("rebuild", "failed")], client.reports()
    check_index(client)
    assert bucket_files(client) == named_files(client), crash.where
    client.close()

    client = open_client(crash.disk, crash.clock)
    check_index(client)
    times_after = indexed_times(client)
    now_ms = crash.clock.now().wall_ms
    lacks = {
        message_id: at
        for message_id, at in times_before.items()
        if at > now_ms and message_id not in times_after
    }
    assert not lacks, f"{crash.where}: {lacks} are not indexed any more"
    if rng.random() < THOROUGH_SHARE:
        if rng.random() < 0.5:
            delayed.rebuild_now(client.store, 1)
            check_index(client)
        check_delivery(client, crash)
    client.close()


def check_delivery(client: Client, crash: Crash) -> None:
    """No message comes early, and later each one comes once: no consumer has acknowledged any."""
    times = client.store.read(lambda view: logged_times(view, 1))
    now_ms = crash.clock.now().wall_ms
    expected = sorted(str(message.message_id) for message in read(client))
    late = {str(MessageId(*message_id)) for message_id, at in times.items() if at > now_ms}
    if not client.subscriptions("t"):
        return
    with client.consumer("t", "s", type="shared") as consumer:
        got = received(consumer)
        assert not late & set(got), f"{crash.where}: {late & set(got)} are not due"
        crash.clock.advance(30 * DAY_MS)
        got += received(consumer)
    assert sorted(got) == expected, f"{crash.where}: {sorted(got)} came, {expected} are there"


def received(consumer: Consumer) -> list[str]:
    """The ids that a consumer receives until no more messages come."""
    out: list[str] = []
    while (table := consumer.receive_batch(100)).num_rows:
        out += [str(message.message_id) for message in messages(table)]
    return out


@pytest.mark.parametrize("label", graded(WORKLOADS, ("seal",)))
def test_every_crash_of_upkeep(label: str) -> None:
    """Law 5, R18: a file is real only when a frame or the manifest names it."""
    rng = random.Random(f"{SEED} {label}")
    seen: set[object] = set()
    for crash in crashes(label, rng):
        state = (content(crash.disk), crash.answered)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % CHECKED_OF:
            continue
        try:
            check(crash, rng)
        except (TxlogError, AssertionError) as error:
            raise AssertionError(f"{crash.where}: {error!r}") from error
    print(f"{label}: {len(seen)} different crashes, seed {SEED}")
    assert len(seen) > 20


class Fault:
    """A hook that lets one call fail."""

    def __init__(self, at: int, number: int) -> None:
        self.at = at
        self.number = number
        self.count = 0

    def __call__(self, op: str, path: str, **info: int) -> None:
        """Count the call, and fail it if it is the one."""
        self.count += 1
        if self.count == self.at:
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("label", "number", "stride"),
    graded(
        [
            ("merge", errno.EIO, 4 * STRIDE),
            ("merge", errno.EIO, STRIDE),
            ("lost", errno.EMFILE, STRIDE),
            ("merge", errno.ENOSPC, STRIDE),
            ("lost", errno.EIO, STRIDE),
        ],
        1,
    ),
)
def test_every_call_of_upkeep_may_fail(label: str, number: int, stride: int) -> None:
    """A failed step is retried or changes nothing; the index stays correct and complete."""
    at = 1
    while True:
        work = Work()
        fault = Fault(at, number)
        for count, step in enumerate(WORKLOADS[label].split()):
            if count == 5:
                work.disk.step = fault
            try:
                getattr(work, step)()
            except TxlogError:
                work.client = open_client(work.disk.process(), work.clock)
            except IndexError:
                assert step == "lose", "there is no bucket: the steps before it failed"
        where = f"{label}, seed {SEED}, call {at} with {errno.errorcode[number]}"
        disk, clock = work.disk.fork_kill(), ManualClock(work.clock.now().wall_ms)
        try:
            check(Crash(disk, clock, 0, work.sent, where), random.Random(where))
        except (TxlogError, AssertionError) as error:
            raise AssertionError(f"{where}: {error!r}") from error
        if fault.count < at:
            break
        at += stride
    assert at > 100
