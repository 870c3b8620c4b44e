"""Owns Workplace: a directory in which a program runs on copies, as often as a crash test likes.

The working directory of the program has a copy of the store, where the store lies below the user's
directory, and copies of the files that the user names. A run that was killed leaves them as they
are for the next.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from txlog.testing.crashtest import trace as traces
from txlog.testing.crashtest.trace import Specification, Trace

KILLED: Final = -signal.SIGKILL
STDERR_BYTES: Final = 4096
# Variables of the user that would lead the program elsewhere.
UNWANTED: Final = ("TXLOG_STORE", "TXLOG_TXN", "TXLOG_NOW", "TXLOG_PROFILE")
FRAME: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


class Program(msgspec.Struct, frozen=True):
    """A program to test.

    path:     its file, absolute; args: its arguments
    folder:   the directory of the user; files: paths in it that each run gets a copy of
    store:    the store of the user, a real path; prepared: the copy that each run copies again
    idle_ms:  stop it when it has waited for so long; None: it ends by itself
    """

    path: str
    args: list[str]
    folder: str
    files: list[str]
    store: str
    prepared: str
    timeout_s: float
    idle_ms: int | None


class Run(msgspec.Struct):
    """One run: its trace, and how it ended.

    exit:   the exit code, negative for a signal; None: it ran into the time limit
    stderr: the last bytes that it wrote there
    """

    trace: Trace
    exit: int | None
    stderr: str

    @property
    def is_complete(self) -> bool:
        """The program ended as it should, or was stopped when it had nothing more to do."""
        return self.exit == 0 or (self.trace.is_stopped and self.exit is not None)

    def reason(self) -> str:
        """Why it is not complete, in words."""
        if self.exit is None:
            return "it does not end within the time limit"
        last = self.stderr.strip().splitlines()[-1:]
        how = f"signal {-self.exit}" if self.exit < 0 else f"exit code {self.exit}"
        return f"{how}: {last[0]}" if last else how

    def place(self, folder: str) -> tuple[str, int] | None:
        """The innermost line of the program in the traceback on stderr."""
        root = os.path.join(folder, "")
        frames = [(path, int(line)) for path, line in FRAME.findall(self.stderr)]
        own_frames = [(path[len(root) :], line) for path, line in frames if path.startswith(root)]
        return own_frames[-1] if own_frames else None


class Workplace:
    """A directory with copies, in which a program runs again and again."""

    def __init__(self, program: Program, folder: str) -> None:
        self._program = program
        self._folder = folder
        self._runs = 0
        self.work = os.path.join(folder, "work")
        inner = os.path.join(os.path.realpath(program.folder), "")
        is_inside = program.store.startswith(inner)
        self.store = os.path.join(
            self.work if is_inside else folder,
            program.store[len(inner) :] if is_inside else "store",
        )
        shutil.copytree(program.prepared, self.store)
        for name in program.files:
            _copy(os.path.join(program.folder, name), os.path.join(self.work, name))
        os.makedirs(self.work, exist_ok=True)

    def run(self, at: int | None = None, *, refuses: bool = False) -> Run:
        """Run the program in a new process until it ends, or dies at a point."""
        program, self._runs = self._program, self._runs + 1
        begin = os.path.join(self._folder, f"run-{self._runs}")
        specification = Specification(
            program.path,
            program.args,
            program.folder,
            self.work,
            program.store,
            self.store,
            f"{begin}.trace",
            at,
            refuses,
            program.idle_ms,
        )
        Path(f"{begin}.json").write_bytes(msgspec.json.encode(specification))
        exit_code = self._run(f"{begin}.json", f"{begin}.stderr")
        with open(f"{begin}.stderr", "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - STDERR_BYTES))
            stderr = file.read().decode(errors="replace")
        return Run(traces.read(specification.trace), exit_code, stderr)

    def _run(self, specification: str, stderr: str) -> int | None:
        command = [sys.executable, "-P", "-m", "txlog.testing.crashtest.child", specification]
        with open(stderr, "wb") as file:
            process = subprocess.Popen(  # noqa: S603  # our interpreter
                command,
                cwd=self.work,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
            try:
                return process.wait(self._program.timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:  # also the processes that it started
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        paths = [
            os.path.abspath(path)
            for path in environment.get("PYTHONPATH", "").split(os.pathsep)
            if path
        ]
        return {**environment, "PYTHONPATH": os.pathsep.join(paths), "TXLOG_STORE": self.store}


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
