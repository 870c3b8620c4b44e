"""Owns PosixWatch: the kernel reports when files of a store change (inotify).

One descriptor reports all watched files, to the thread that polls it. The caller's lock
(store/wakeups) allows one wait at a time; an event loop may poll it as well; a forked child closes
it like any other. Where the kernel, the file system or a limit of the machine refuses, there is no
watch, and the caller looks again from time to time.

How a process dies does not matter: the kernel closes its files, and reports that. The event comes a
moment before the kernel frees their locks.
"""

from __future__ import annotations

import os
import select
import struct

from txlog.engine.storage.disk.handle import Handle
from txlog.engine.storage.disk.libc import add_watch, open_inotify, remove_watch
from txlog.engine.storage.disk.protocol import WatchEvent, number_of

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_TO = 0x2, 0x4, 0x8, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_NO_LINKS = 0x2000000
_MASKS: dict[WatchEvent, int] = {
    "writes": _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF | _NO_LINKS,
    "names": _CREATE | _MOVED_TO | _DELETE_SELF | _NO_LINKS,
    "closings": _CLOSE_WRITE | _DELETE | _ATTRIB | _DELETE_SELF | _NO_LINKS,
    "moves": _MOVE_SELF | _DELETE_SELF,
}
_EVENT = struct.Struct("iIII")  # watch, what, cookie, length of the name
_READ_BYTES = 1 << 16
_WAIT_MS_MAX = 1 << 30


class PosixWatch(Handle):
    """`Watch` by inotify."""

    __slots__ = ("_at", "_files", "_named", "_paths", "_root")

    def __init__(self, root: Handle) -> None:
        """raises: OSError: this machine cannot watch files"""
        super().__init__(open_inotify(root.fd), "inotify")
        self._root = root
        self._paths: dict[int, str] = {}  # by number of the watch
        self._at: dict[str, int] = {}
        self._files: set[str] = set()
        self._named: set[int] = set()  # watches that report names in their directory

    def fileno(self) -> int:
        return self.fd

    def add(self, path: str, what: WatchEvent) -> bool:
        try:
            # through the descriptor: the directory of the store may have been renamed
            number = add_watch(self.fd, f"/proc/self/fd/{self._root.fd}/{path}", _MASKS[what])
        except OSError as error:
            number_of(error)
            self.drop(path)
            return False
        old = self._at.get(path)
        if old is not None and old != number:  # the name leads to another file now
            self.drop(path)
        self._paths[number], self._at[path] = path, number
        if what == "writes":
            self._files.add(path)
        elif what == "closings":
            self._named.add(number)
        return True

    def wait(self, seconds: float | None) -> frozenset[str]:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(None if seconds is None else min(int(seconds * 1000) + 1, _WAIT_MS_MAX))
        return self.take()

    def take(self) -> frozenset[str]:
        changed: set[str] = set()
        try:
            while data := os.read(self.fd, _READ_BYTES):
                at = 0
                while at < len(data):
                    number, mask, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + length
                    self._note(number, mask, changed, data[at - length : at])
        except OSError as error:  # nothing more; or it is closed
            number_of(error)
        return frozenset(changed)

    def _note(self, number: int, mask: int, changed: set[str], name: bytes) -> None:
        if mask & _OVERFLOW:
            changed.update(self._at)
        path = self._paths.get(number, "")
        if path and name and number in self._named:
            if mask & ~_ATTRIB:  # a new mode of a file is no event
                changed.add(f"{path}/{os.fsdecode(name.rstrip(bytes(1)))}")
        else:
            changed.add(path)
        if mask & (_ATTRIB | _MOVE_SELF) and path in self._files:
            changed.add("")  # it may have lost its name, while a process has it open
        if mask & _IGNORED and path:
            self._paths.pop(number, None)  # another thread may drop it at the same moment
            self._named.discard(number)
            if self._at.get(path) == number:
                self._at.pop(path, None)

    def drop(self, path: str) -> None:
        number = self._at.pop(path, None)
        if number is None:
            return
        self._paths.pop(number, None)
        self._named.discard(number)
        self._files.discard(path)
        try:
            remove_watch(self.fd, number)
        except OSError as error:
            number_of(error)

    def has(self, path: str) -> bool:
        return path in self._at

    def ring(self) -> None:
        try:  # the end of a watch is an event: no second descriptor is needed
            here = f"/proc/self/fd/{self._root.fd}"
            remove_watch(self.fd, add_watch(self.fd, here, _MOVE_SELF))
        except OSError as error:
            number_of(error)
