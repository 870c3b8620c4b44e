"""Owns TemporaryStore: a store in a directory of its own, whose clients a test can crash."""

from __future__ import annotations

import random
import shutil
import tempfile
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from txlog.base.arguments import StrPath, path_text
from txlog.base.choices import Durability
from txlog.client.aio.client import opening
from txlog.client.open import init, open_on
from txlog.clock import ManualClock
from txlog.testing.platter import CrashDisk, Crashed, Platter

if TYPE_CHECKING:
    from txlog.client.aio.client import Client as AsyncClient
    from txlog.client.aio.handles import Opening
    from txlog.client.client import Client
    from txlog.engine.door.disk import Disk

START_MS = 1_767_225_600_000  # 2026-01-01 00:00 UTC


class OpenOptions(TypedDict, total=False):
    """Options of a client, as of txlog.open."""

    lock_timeout_ms: int
    durability: Durability
    transaction_key: str


class TemporaryStore:
    """A store whose clock stands still until the test moves it, and whose clients can crash.

    path:  where the store is; commands and other processes may use it too, by the real clock
    clock: the clock of all clients that `open` returns, at first 2026-01-01 00:00 UTC
    """

    def __init__(self, path: StrPath | None = None, **settings: Any) -> None:
        """Create the store; without a path, in a directory that `close` removes.

        settings: as of txlog.init
        """
        folder = tempfile.mkdtemp(prefix="txlog-") if path is None else None
        self._set(f"{folder}/store" if path is None else path_text(path), folder)
        init(self.path, clock=self.clock, **settings)

    @classmethod
    def existing(cls, path: StrPath) -> Self:
        """Take over an existing store, such as a copy of one that a test prepared."""
        store = cls.__new__(cls)
        store._set(path_text(path), None)
        return store

    def _set(self, path: str, folder: str | None) -> None:
        self.path = path
        self._folder = folder
        self.clock = ManualClock(START_MS)
        self.platter = Platter()
        self._clients: list[tuple[Client, CrashDisk]] = []
        self._boots = 0

    def open(self, *, read_only: bool = False, **options: Unpack[OpenOptions]) -> Client:
        """Open a client, as another process would; options: as of txlog.open."""
        disk = CrashDisk(self.path, self.platter, read_only=read_only)
        client = open_on(cast("Disk", disk), self.clock, **options)
        self._clients.append((client, disk))
        return client

    def open_async(self, **options: Unpack[OpenOptions]) -> Opening[AsyncClient]:
        """Open a client of `txlog.aio`, by `await` or `async with`; options: as of `open`."""
        return opening(partial(self.open, **options))

    def crash(self, client: Client | None = None) -> None:
        """Kill a client as kill -9 kills its process, by default all clients.

        Its locks are free at once, and every further call of it or its handles raises Crashed. Its
        writes stay, as the kernel keeps them.
        """
        for each, disk in self._clients:
            if client is None or each is client:
                disk.die()
        self._clients = [pair for pair in self._clients if not pair[1].is_dead]

    def power_cut(self, seed: int | None = None) -> None:
        """Crash every client, lose unflushed writes, and boot again.

        seed: of a random choice of unflushed sectors that survive, as on a disk; without a seed
              all are lost
        """
        self.crash()
        chance = None if seed is None else random.Random(seed)
        self.platter.cut_power(self.path, chance)
        self._boots += 1
        self.clock.reboot(f"boot-{self._boots}")

    def close(self) -> None:
        """Close the clients that are left, and remove the directory if the store made it."""
        for client, _ in self._clients:
            with suppress(Crashed):
                client.close()
        self._clients.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TemporaryStore {self.path} with {len(self._clients)} clients>"
