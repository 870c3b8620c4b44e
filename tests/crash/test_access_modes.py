"""Every crash of exclusive producers leaves the topic free, and no epoch is given out twice.

The process is killed, or the power is cut, before each call that changes a file: the lock file, the
frame that grants access, the frame that ends it, the removal of the file. The next producer must
then get the topic with an epoch above all epochs that were answered. Another test kills a process
at each of its calls while a second process waits. `TXLOG_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pytest

import txlog
from tests.crash.contents import content
from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.harness import SEED, Child, ready
from tests.tiers import graded
from txlog import Client, Producer
from txlog.base.choices import AccessMode
from txlog.clock import ManualClock
from txlog.engine.decide.sending.producers import EXCLUSIVE, FENCING, WAITING
from txlog.engine.store.liveness import CONSUMERS_DIR
from txlog.errors import ProducerFenced, TxlogError

IMAGES = int(os.environ.get("TXLOG_IMAGES", "2"))
# Every fifth of the different crashes is checked; with TXLOG_IMAGES, every one.
CHECKED_OF = 1 if "TXLOG_IMAGES" in os.environ else 5
WORKLOADS = {
    "left": "take send leave take send checkpoint leave",
    "fenced": "take send fence send fence checkpoint send leave",
    "dead": "take send die take send checkpoint die checkpoint",
}


class Work:
    """A store with a topic whose producers are exclusive; each public method is a step.

    epoch: the newest epoch that the store answered
    """

    def __init__(self) -> None:
        self.disk = new_disk()
        self.client = open_client(self.disk)
        self.client.create_topic("t")
        self.epoch = 0
        self.sent: list[bytes] = []
        self.next: list[bytes] = []
        self.producer: Producer | None = None
        self.fenced: list[Producer] = []

    def take(self, mode: AccessMode = EXCLUSIVE) -> None:
        """Open a producer."""
        producer = self.client.producer("t", access_mode=mode)
        self.epoch, self.producer = producer.access.epoch, producer

    def fence(self) -> None:
        """Open a producer that fences the current one."""
        assert self.producer is not None
        old = self.producer
        self.take(FENCING)
        with pytest.raises(ProducerFenced):
            old.send(b"too late")
        self.fenced.append(old)

    def send(self) -> None:
        """Send the next message."""
        assert self.producer is not None
        self.next = [*self.sent, b"%d" % len(self.sent)]
        self.producer.send(self.next[-1])
        self.sent = self.next

    def leave(self) -> None:
        """Close the producer."""
        assert self.producer is not None
        self.producer.close()

    def die(self) -> None:
        """Lose the lock, as by the death of its process."""
        assert self.producer is not None
        access = self.producer.access
        lock, access._lock = access._lock, None
        assert lock is not None
        lock.close()

    def checkpoint(self) -> None:
        """Write a checkpoint, which removes the files that nothing refers to."""
        self.client.checkpoint()


@dataclass
class Crash:
    """A disk at one moment of the run, with the answers of the store until then."""

    disk: MemoryDisk
    clock: ManualClock
    epoch: int
    logs: tuple[list[bytes], list[bytes]]
    where: str


def crashes(label: str) -> Iterator[Crash]:
    """Run the steps and yield a crash before each call with an effect, and one at the end."""
    work, rng = Work(), random.Random(f"{SEED} {label}")
    found: list[Crash] = []
    at = "open"

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{label}, seed {SEED}: {at}, before {op} {path}"
        logs = (work.sent, work.next)
        killed = work.disk.fork_kill()
        found.append(Crash(killed, ManualClock(START_MS), work.epoch, logs, where))
        for number, image in enumerate(work.disk.images(rng, IMAGES)):
            text = f"{where}, image {number}"
            found.append(Crash(image, after_reboot(), work.epoch, logs, text))

    work.disk.step = collect
    for number, step in enumerate(WORKLOADS[label].split()):
        at = f"step {number} {step}"
        getattr(work, step)()
        yield from found
        found.clear()
    at = "the end"
    collect("", "")
    yield from found


def values(client: Client) -> list[bytes | None]:
    """The values of the topic."""
    return [message.value for message in client.reader("t")]


def check(crash: Crash) -> None:
    """Recover, and check that answered messages exist and the next producer has a new epoch."""
    client = open_client(crash.disk, crash.clock)
    assert values(client) in crash.logs
    client.producer("t").send(b"shared")
    with client.producer("t", access_mode=EXCLUSIVE) as producer:
        assert producer.access.epoch > crash.epoch and producer.access.epoch % 2
        producer.send(b"exclusive")
        client.checkpoint()
        assert locks(client) == [f"1-{producer.access.epoch}.lock"]
    assert locks(client) == []
    assert values(client)[-2:] == [b"shared", b"exclusive"]
    client.close()


def locks(client: Client) -> list[str]:
    """The lock files of producers."""
    return [name for name in client.store.disk.listdir(CONSUMERS_DIR) if "-" in name]


@pytest.mark.parametrize("label", graded(WORKLOADS, ("dead",)))
def test_every_crash_leaves_the_topic_free(label: str) -> None:
    """Guards against a seat that no producer can take any more, and an epoch that two producers
    have.
    """
    seen: set[object] = set()
    for crash in crashes(label):
        state = (content(crash.disk), crash.epoch, repr(crash.logs))
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % CHECKED_OF:
            continue
        try:
            check(crash)
        except (TxlogError, AssertionError) as error:
            raise AssertionError(f"{crash.where}: {error!r}") from error
    assert len(seen) > 10


@pytest.mark.parametrize("part", graded(range(6), 0))
def test_a_kill_at_any_call_lets_the_next_producer_in(tmp_path: Path, part: int) -> None:
    """Another process waits for its turn meanwhile; the death of the holder must wake it."""
    for nth in range(part + 1, 60, 6):
        path = str(tmp_path / str(nth))
        txlog.init(path, free_bytes_min=0, durability="os")
        with txlog.open(path) as client:
            client.create_topic("t")
            holder = client.producer("t", access_mode=EXCLUSIVE)
            got: Queue[Producer] = Queue()
            with Child(ready("fencing", path, nth)) as child:
                assert child.line() == "open"
                with txlog.open(path) as other:
                    thread = threading.Thread(
                        target=lambda other=other, got=got: got.put(
                            other.producer("t", access_mode=WAITING)
                        ),
                        daemon=True,
                    )
                    thread.start()
                    child.tell("go")
                    code, output = child.end()
                    holder.close()  # if it was not fenced
                    producer = got.get(timeout=60)
                    assert producer.access.epoch > max([1, *map(int, output.split())])
                    producer.send(b"mine")
                    thread.join()
            assert values(client)[-1] == b"mine"
            if not code:
                return
    assert part < 5, "the child was always killed: look at more of its calls"
