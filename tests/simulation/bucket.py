"""Owns the simulated bucket, to which processes offload files.

It is on another machine, so it outlives power cuts. Each call of it is a step, which may fail.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.simulation.scheduler import here
from txlog.engine.storage import remote
from txlog.engine.upkeep.space import offload

BUCKET = "s3://bucket/simulated?region=nowhere"


@contextmanager
def simulated_bucket() -> Iterator[None]:
    """Meanwhile, tasks find the bucket of their machine at any address, and may use it."""
    far, offloading = remote, offload
    names = [(far, "_filesystem", _Objects), (offloading, "confirm", _confirm)]
    names.append((offloading, "confirmed", _confirmed))
    before = [getattr(module, name) for module, name, _ in names]
    for module, name, mine in names:
        setattr(module, name, mine)
    try:
        yield
    finally:
        for (module, name, _), usual in zip(names, before, strict=True):
            setattr(module, name, usual)


def trust_bucket(uuid: str) -> None:
    """Let this run read the bucket, as if its user had named it before."""
    remote.trust([remote.place_of(BUCKET, uuid)])


def _confirm(store: Any, place: str, *, removes: bool) -> None:
    remote.trust([place])


def _confirmed(store: Any) -> list[str]:
    return [remote.place_of(BUCKET, store.identity.uuid)]


class _Objects:
    """The file system of pyarrow, as far as txlog uses it, over the objects of the machine."""

    def __init__(self, *_: str) -> None:
        pass

    def open_input_file(self, path: str) -> _Input:
        objects = _reached("far_open", path)
        if path not in objects:
            raise FileNotFoundError(path)
        return _Input(path, objects[path])

    def open_output_stream(self, path: str) -> _Output:
        _reached("far_create", path)
        return _Output(path)

    def delete_file(self, path: str) -> None:
        if _reached("far_delete", path).pop(path, None) is None:
            raise FileNotFoundError(path)

    def get_file_info(self, selector: Any) -> list[Any]:
        from pyarrow.fs import FileType

        objects = _reached("far_list", selector.base_dir)
        return [
            SimpleNamespace(path=path, size=len(data), type=FileType.File)
            for path, data in sorted(objects.items())
            if path.startswith(selector.base_dir)
        ]


class _Input:
    """An object that is open for reading."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path, self._data = path, data

    def read_at(self, length: int, offset: int) -> bytes:
        _reached("far_read", self._path)
        return self._data[offset : offset + length]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


class _Output(io.BytesIO):
    """An object that is being written; it is there once this is closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        if not self.closed:
            _reached("far_write", self._path)[self._path] = self.getvalue()
        super().close()


def _reached(op: str, path: str) -> dict[str, bytes]:
    """The objects of the machine, after a step."""
    at = here()
    assert at is not None, "a simulated bucket is used by a task"
    process = at[1].process
    process.world.meet(process, op, path, {})
    objects: dict[str, bytes] = process.world.bucket
    return objects
