"""Does a scenario, and dies in a named call of its disk: STORE SCENARIO OP PART NTH WHEN ARGUMENT…

OP is pwrite, datasync, publish or unlink, PART a part of the path, WHEN is `before`, `after`, or
for a pwrite the number of bytes that it writes before it dies. The scenario arms the disk, so
that what comes before is not counted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import txlog
from txlog.base.ids import TxnId
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.disk.protocol import as_views
from txlog.engine.store.identity import read_identity
from txlog.engine.store.store import Store
from txlog.errors import OutcomeUnknown

START_MS = 1_700_000_000_000


class KillingDisk(PosixDisk):
    """A disk in whose nth call of a kind the process dies, once armed."""

    def __init__(self, path: str, op: str, part: str, nth: int, when: str) -> None:
        super().__init__(path)
        self.aim = (op, part)
        self.left = nth
        self.when = when
        self.is_armed = False
        self.is_failing = False

    def meets(self, op: str, path: str) -> bool:
        """True when this is the call to die in."""
        if not self.is_armed or op != self.aim[0] or self.aim[1] not in path:
            return False
        self.left -= 1
        return self.left == 0

    def around(self, op: str, path: str, call: Callable[[], Any]) -> Any:
        """Make a call, or die before or after it."""
        hit = self.meets(op, path)
        if hit and self.is_failing:
            self.is_armed = False
            raise OSError(errno.EIO, "Input/output error")
        if hit and self.when == "before":
            die()
        answer = call()
        if hit:
            die()
        return answer

    def open(self, path: str, write: bool = False) -> Any:
        """Open, with the writes under watch."""
        return KillingFile(self, super().open(path, write), path)

    def leads_to(self, path: str, file: Any) -> bool:
        """Look through the watch."""
        return super().leads_to(path, file.file if isinstance(file, KillingFile) else file)

    def publish(self, path: str, parts: Any) -> None:
        """Publish, under watch."""
        self.around("publish", path, lambda: super(KillingDisk, self).publish(path, parts))

    @contextmanager
    def publishing(self, path: str, parts: Any) -> Iterator[None]:
        """Publish what is made meanwhile, under watch."""
        hit = self.meets("publish", path)
        if hit and self.when == "before":
            die()
        with super().publishing(path, parts):
            if hit:
                die()
            yield

    def publish_all(self, files: Any) -> None:
        """Publish many, each under watch."""
        for path, parts in files:
            publish = partial(super().publish_all, [(path, parts)])
            self.around("publish", path, publish)

    def unlink(self, path: str, missing_ok: bool = True) -> None:
        """Remove, under watch."""
        self.around("unlink", path, lambda: super(KillingDisk, self).unlink(path, missing_ok))


class KillingFile:
    """A file of such a disk."""

    def __init__(self, disk: KillingDisk, file: Any, path: str) -> None:
        self.disk, self.file, self.path = disk, file, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def pwrite(self, offset: int, data: Any) -> None:
        """Write all, or a part and die."""
        if self.disk.when.isdecimal() and self.disk.meets("pwrite", self.path):
            joined = b"".join(as_views(data))
            self.file.pwrite(offset, joined[: int(self.disk.when)])
            die()
        if self.disk.when.isdecimal():
            self.file.pwrite(offset, data)
            return
        self.disk.around("pwrite", self.path, lambda: self.file.pwrite(offset, data))

    def datasync(self) -> None:
        """Flush, or fail as a broken disk does."""
        try:
            self.disk.around("datasync", self.path, self.file.datasync)
        except OSError as error:
            raise OutcomeUnknown(f"cannot flush {self.path}: {error.strerror}") from error


def die() -> None:
    """End this process as kill -9 does; nothing of it runs any more."""
    os.kill(os.getpid(), signal.SIGKILL)


def clock_at(ms: int) -> ManualClock:
    """The clock of all processes of a scenario: of one boot, so and so long after the start."""
    clock = ManualClock(START_MS)
    clock.advance(ms)
    return clock


def open_killing(words: Sequence[str], after_ms: int = 0) -> tuple[Client, KillingDisk]:
    """A client whose disk kills its process."""
    path, op, part, nth, when = words[0], words[2], words[3], int(words[4]), words[5]
    disk = KillingDisk(path, op, part, nth, when)
    store = Store(
        disk, clock_at(after_ms), read_identity(disk), lock_timeout_ms=30_000, durability=None
    )
    client = Client(store, disk)
    client.checkpoint_automatically = False
    return client, disk


def main(words: Sequence[str]) -> None:
    """Run a scenario; print to stdout each answer that the process got before it died."""
    scenario, arguments = words[1], words[6:]
    client, disk = open_killing(words, int(arguments[1]) if len(arguments) > 1 else 0)
    txn = TxnId.parse(arguments[0]) if arguments and ":" in arguments[0] else None
    if scenario == "consume":
        consumer = client.consumer("t", "s")
        for message in txlog.messages(consumer.receive_batch(10)):
            assert message.value is not None
            print(message.value.decode(), flush=True)
        die()
    if scenario == "begin":
        opened = client.begin(1000)["txn"]
        client.producer("t").send(b"out0", partition=0, txn=opened)
        client.acknowledge("t", "s", [txlog.MessageId.parse(arguments[0])], txn=opened)
        print(opened, flush=True)
        die()
    if scenario == "grind":
        shared = client.consumer("t", "s", type="shared")
        disk.is_armed = True
        while (table := shared.receive_batch(5)).num_rows:
            shared.negative_acknowledge(table)
        print("empty", flush=True)
        return
    moving = client.consumer("t", "s") if scenario in ("give up", "put off") else None
    disk.is_armed = True
    if scenario == "fail":
        disk.is_failing = True
        try:
            assert txn is not None
            client.commit(txn)
        except OutcomeUnknown as error:
            print("unknown", error.fields["txn"], flush=True)
        die()
    acts: dict[str, Callable[[], object]] = {
        "commit": lambda: client.commit(txn) if txn else None,
        "send": lambda: client.producer("t", "p").send(b"x", partition=0, sequence_id=7),
        "online": lambda: client.admin.set_online("t/1"),
        "expire": client.expire,
        "give up": lambda: moving.receive() if moving is not None else None,
        "retry": lambda: client.topic("t-s-DLQ").retry_dead_letters(all=True),
        "put off": lambda: (
            moving.reconsume_later(txlog.MessageId.parse(arguments[2]))
            if moving is not None
            else None
        ),
        "flush": client.flush,
        "checkpoint": lambda: client.checkpoint(roll_all=True),
    }
    acts[scenario]()
    print("answered", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
