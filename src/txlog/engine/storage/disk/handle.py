"""Owns Handle: a descriptor of this process, which a forked child closes at once (R27)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import NoReturn

from txlog.engine.storage.disk.protocol import failure

_CLOSED = 2**31 - 1  # no descriptor; some Python calls refuse -1 with their own error

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """A descriptor that a forked child closes, as does the collector if no code refers to it."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        _handles.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, _CLOSED  # a later use gets EBADF, never someone else's descriptor
        try:  # no call in between: an interrupt there could leave a lock's descriptor open
            os.close(fd)
        except OSError as error:  # close promises nothing (R33)
            if error.errno is None:
                raise

    def __reduce__(self) -> NoReturn:
        """Two handles of one descriptor would close it twice, the second time someone else's."""
        raise TypeError("an open store cannot be copied or pickled: open it again instead")

    def __del__(self) -> None:
        if getattr(self, "fd", _CLOSED) != _CLOSED:  # an interrupt may stop it half made
            self.close()

    def stat(self) -> os.stat_result:
        try:
            return os.fstat(self.fd)
        except OSError as error:
            raise failure(error, "look at", self.path) from error


def call_in_child(act: Callable[[], None]) -> None:
    """Have each child forked from now on call this first; it raises nothing."""
    os.register_at_fork(after_in_child=act)


def _close_inherited() -> None:
    """In a forked child, close the descriptors of the parent. Never LOCK_UN: R27."""
    for handle in list(_handles):
        handle.close()


call_in_child(_close_inherited)
