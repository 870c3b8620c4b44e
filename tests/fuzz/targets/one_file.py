"""A disk that has the bytes of an input under every name, for targets that read one file."""

from __future__ import annotations

from tests.storage.test_segment import Bytes


class _Opened(Bytes):
    def close(self) -> None:
        """There is nothing to close."""


class OneFile:
    """The part of `Disk` that readers of one file need."""

    read_only = True
    description = "an input"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, path: str, write: bool = False) -> Bytes:
        return _Opened(self._data)

    def read(self, path: str) -> bytes:
        return self._data

    def exists(self, path: str) -> bool:
        return True
