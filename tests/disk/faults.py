"""Owns fault points on any disk: a call fails, or something else happens at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from txlog.engine.storage.disk.protocol import Disk, File


@dataclass
class FaultPoint:
    """Calls of a disk, or of a file opened through it, at which `act` runs.

    path:  a pattern; nth: the number of the matching call, from 1; 0: each matching call
    count: the matching calls so far
    """

    call: str
    act: Callable[[], object]
    path: str
    nth: int
    is_after: bool
    count: int = 0


class FaultyDisk:
    """A `Disk` that passes every call on to another one, and stops at its fault points."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._points: list[FaultPoint] = []

    def fail_at(self, call: str, error: BaseException, path: str = "*", nth: int = 1) -> FaultPoint:
        """Raise an error instead of making the call."""

        def fail() -> None:
            raise error

        return self.before(call, fail, path, nth)

    def before(
        self, call: str, act: Callable[[], object], path: str = "*", nth: int = 1
    ) -> FaultPoint:
        """Act before the call."""
        self._points.append(FaultPoint(call, act, path, nth, is_after=False))
        return self._points[-1]

    def after(
        self, call: str, act: Callable[[], object], path: str = "*", nth: int = 1
    ) -> FaultPoint:
        """Act after the call, unless it failed."""
        self._points.append(FaultPoint(call, act, path, nth, is_after=True))
        return self._points[-1]

    def clear(self) -> None:
        """Forget all fault points."""
        self._points.clear()

    def reach(self, target: Any, call: str, path: str, *arguments: Any, **options: Any) -> Any:
        """Make a call of a disk or file, and act at its fault points."""
        due = []
        for point in self._points:
            if point.call == call and fnmatchcase(path, point.path):
                point.count += 1
                if point.nth in (0, point.count):
                    due.append(point)
        for point in due:
            if not point.is_after:
                point.act()
        files = [each.file if isinstance(each, _FaultyFile) else each for each in arguments]
        answer = getattr(target, call)(*files, **options)
        for point in due:
            if point.is_after:
                point.act()
        return answer

    def open(self, path: str, write: bool = False) -> Any:
        return _FaultyFile(self, self.reach(self._disk, "open", path, path, write), path)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._disk, name)
        if not callable(value):
            return value
        return lambda *arguments, **options: self.reach(
            self._disk,
            name,
            arguments[0] if arguments and isinstance(arguments[0], str) else "",
            *arguments,
            **options,
        )


class _FaultyFile:
    """A file of a faulty disk."""

    def __init__(self, disk: FaultyDisk, file: File, path: str) -> None:
        self._disk, self.file, self._path = disk, file, path

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.file, name)
        return partial(self._disk.reach, self.file, name, self._path) if callable(value) else value
