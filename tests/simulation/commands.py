"""Owns commands in a simulation: the command layer runs in a task, on the disk of its process."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.simulation.machine import SharedDisk
from tests.simulation.scheduler import here
from txlog.cli.main import main
from txlog.client import open as opening
from txlog.engine.storage.disk.posix import PosixDisk

STORE = "/simulated"


class TaskStreams:
    """Stands for stdout or stderr: each task writes to a stream of its own."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual
        self.of_task: dict[int, io.TextIOWrapper] = {}

    def __getattr__(self, name: str) -> Any:
        at = here()
        stream = None if at is None else self.of_task.get(at[1].number)
        return getattr(self._usual if stream is None else stream, name)


@contextmanager
def simulated_commands() -> Iterator[None]:
    """Meanwhile, commands in tasks open the simulated store and write to streams of their own."""
    module: Any = opening
    streams: Any = sys
    before = module.PosixDisk, sys.stdout, sys.stderr
    module.PosixDisk = _disk
    streams.stdout, streams.stderr = TaskStreams(sys.stdout), TaskStreams(sys.stderr)
    try:
        yield
    finally:
        module.PosixDisk, sys.stdout, sys.stderr = before


def _disk(path: str, *, read_only: bool = False, **options: Any) -> Any:
    at = here()
    if at is None or path != STORE:
        return PosixDisk(path, read_only=read_only, **options)
    return SharedDisk(at[1].process, read_only=read_only)


def run_command(args: Sequence[str]) -> tuple[int, str, str]:
    """Run a command in this task; returns its exit code, stdout and stderr."""
    at = here()
    assert at is not None, "a command of a simulation runs in a task"
    number, out, err = at[1].number, io.BytesIO(), io.BytesIO()
    streams: Any = sys
    streams.stdout.of_task[number] = io.TextIOWrapper(out, "utf-8", write_through=True)
    streams.stderr.of_task[number] = io.TextIOWrapper(err, "utf-8", write_through=True)
    try:
        code = main(["--store", STORE, *args])
    finally:
        kept = [stream.of_task.pop(number) for stream in (streams.stdout, streams.stderr)]
    for text in kept:
        text.flush()
    return code, out.getvalue().decode(), err.getvalue().decode()
