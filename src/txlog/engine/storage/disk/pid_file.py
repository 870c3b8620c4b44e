"""Owns PidFile: a file outside any store with the id of the server that holds its flock.

The lock shows whether that server runs; the number does not: in two containers that share a volume,
both servers are process 1. A killed server leaves an unlocked file.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from txlog.engine.storage.disk.protocol import number_of
from txlog.errors import AlreadyExists, InvalidArgument

_DIGITS_MAX = 10


class PidFile:
    """The file of one server: `begin` before it opens anything, `write` once it serves, `end`."""

    __slots__ = ("_descriptor", "_path", "_shown")

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._shown = path
        self._descriptor = -1

    def begin(self) -> None:
        """Take the lock of an existing file.

        raises: AlreadyExists: a server holds it, or it has no process id; InvalidArgument: it
                cannot be read
        """
        while self._descriptor < 0:
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            except OSError as error:
                number_of(error)
                raise InvalidArgument(
                    f"--pidfile {self._shown} cannot be read: {error.strerror}"
                ) from error
            try:
                self._take(descriptor)
            finally:
                if self._descriptor != descriptor:
                    os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        """Keep the descriptor if it holds the lock of the file that the path leads to."""
        text = os.read(descriptor, 32).strip()
        if not text.isdigit() or len(text) > _DIGITS_MAX:
            raise AlreadyExists(f"{self._shown} is there, and has no process id", path=self._shown)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyExists(
                f"{self._shown} is of process {int(text)}, which serves",
                hint="stop it, or name another file",
            ) from None
        if self._is_at_path(descriptor):  # else its owner has just removed or replaced it
            self._descriptor = descriptor

    def write(self) -> None:
        """Put a locked file with our process id at the path.

        raises: as begin: another server was faster; OSError
        """
        temporary = f"{self._path}.{os.getpid()}.{id(self):x}.tmp"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        ours = os.open(temporary, flags, 0o644)
        try:
            fcntl.flock(ours, fcntl.LOCK_EX)
            os.write(ours, f"{os.getpid()}\n".encode())
            while True:
                if self._descriptor >= 0:  # another server finds one of our two locks at the path
                    os.replace(temporary, self._path)
                    os.close(self._descriptor)
                    break
                try:
                    os.link(temporary, self._path)
                    break
                except FileExistsError:
                    self.begin()
            self._descriptor = ours
        except BaseException:  # no other code can close it
            os.close(ours)
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def end(self) -> None:
        """Remove the file if this process still owns it, and free the lock."""
        if self._descriptor < 0:
            return
        try:
            with suppress(OSError):
                if self._is_at_path(self._descriptor) and self._says() == os.getpid():
                    os.unlink(self._path)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _says(self) -> int:
        text = os.pread(self._descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else -1

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False
