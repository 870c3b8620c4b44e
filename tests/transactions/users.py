"""Owns the users that clients of one process act for."""

from __future__ import annotations

from txlog import Client
from txlog.engine.storage.disk.posix import PosixDisk

ANA, BEN, ROOT = (1000, "ana"), (1001, "ben"), (0, "root")


class Users:
    """The user of each client as the store sees it; ana by default."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[int, str]] = {}
        self.others = ANA

    def owner(self, disk: PosixDisk) -> tuple[int, str]:
        return self.of.get(id(disk), self.others)

    def let(self, client: Client, user: tuple[int, str]) -> Client:
        """Let this client run as that user."""
        self.of[id(client.store.disk)] = user
        return client
