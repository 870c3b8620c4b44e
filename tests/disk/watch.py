"""Owns the watch of the disk in memory, which reports changed files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.engine.storage.disk.protocol import (
    WatchEvent,
)

if TYPE_CHECKING:
    from tests.disk.memory import MemoryDisk


class MemoryWatch:
    """`Watch` by comparison: its reports depend on the files alone, and not on timing."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._seen: dict[str, object] = {}
        self._what: dict[str, WatchEvent] = {}
        self._has_rung = False
        self._is_open = True

    def fileno(self) -> int:
        return -1

    def add(self, path: str, kind: WatchEvent) -> bool:
        self._what[path] = kind
        now = self._state(path)
        if self._is_open and now is not None:
            self._seen.setdefault(path, now)
        return path in self._seen

    def drop(self, path: str) -> None:
        self._seen.pop(path, None)

    def has(self, path: str) -> bool:
        return path in self._seen

    def wait(self, seconds: float | None) -> frozenset[str]:
        with self._disk.machine.released:
            self._disk.machine.released.wait_for(self._has_news, seconds)
            return self.take()

    def take(self) -> frozenset[str]:
        events = {""} if self._has_rung else set()
        self._has_rung = False
        for path, seen in [*self._seen.items()]:
            now = self._state(path)
            if now != seen:
                events |= self._told(path, seen, now)
                self._seen[path] = now
            if now is None:
                del self._seen[path]
        return frozenset(events)

    def ring(self) -> None:
        with self._disk.machine.released:
            self._has_rung = True
            self._disk.machine.released.notify_all()

    def close(self) -> None:
        self._is_open = False
        self._seen.clear()

    def _has_news(self) -> bool:
        return self._has_rung or any(
            self._state(path) != old for path, old in [*self._seen.items()]
        )

    def _told(self, path: str, seen: object, now: object) -> set[str]:
        """The report for a path: the closed files, if no other file changed."""
        if self._what[path] != "closings" or not (isinstance(seen, dict) and isinstance(now, dict)):
            return {path}
        others = {name for name in {*seen, *now} if seen.get(name) != now.get(name)}
        return {f"{path}/{name}" if name else path for name in others}

    def _state(self, path: str) -> object:
        node = self._disk.find(path)
        if node is None:
            return None
        if node.entries is None:
            return id(node), bytes(node.data)
        holders = self._disk.machine.holders
        if self._what[path] == "names":
            return sorted(node.entries)
        counts: dict[str, int] = {"": self._disk.machine.announced}
        return counts | {name: child in holders for name, child in node.entries.items()}
