"""Owns the effects of a program outside of the store that a crash test records.

The profiler of Python reports each call of a C function, such as `write` of a file or `execute` of
SQLite, and an audit hook each file that is opened to be written. Inside of a call of txlog nothing
is recorded.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType, ModuleType
from typing import Any, Final

from txlog.testing.crashtest.recorder import Recorder, inside

# By module, the C functions that change something outside of the process.
EFFECTS: Final = {
    "_io": frozenset(("write", "writelines", "truncate", "flush", "close", "__exit__")),
    "posix": frozenset(
        "rename replace unlink remove link symlink mkdir rmdir write pwrite truncate ftruncate"
        " system".split()
    ),
    "sqlite3": frozenset(("execute", "executemany", "executescript", "commit", "__exit__")),
    "_socket": frozenset(("send", "sendall", "sendto", "connect")),
    "_posixsubprocess": frozenset(("fork_exec",)),
}
NAMES: Final = frozenset[str]().union(*EFFECTS.values())
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STANDARD: Final = 2  # the last descriptor of stdin, stdout and stderr


class Effects:
    """Records the effects of one process, in each of its threads."""

    def __init__(self, recorder: Recorder, work: str) -> None:
        self._recorder = recorder
        self._work = os.path.join(os.path.realpath(work), "")

    def begin(self) -> None:
        """Begin in this thread, and in those that it starts."""
        sys.addaudithook(self._audit)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, kind: str, function: Any) -> None:
        """Record a C function that changes something; Python calls this for every function."""
        if kind != "c_call" or function.__name__ not in NAMES or inside.get():
            return
        owner, name = function.__self__, function.__name__
        module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
        if name not in EFFECTS.get(module, ()):
            return
        what = f"{module.lstrip('_')}.{name}"
        if module == "_io":
            path = self._path_of(owner)
            if path is None:
                return
            what = path
        self._recorder.effect(what, frame)

    def _path_of(self, file: Any) -> str | None:
        """The path of an open file that is written; None for memory and standard streams."""
        try:
            if file.closed or not file.writable() or file.fileno() <= STANDARD:
                return None
            return self._named(str(file.name))
        except (OSError, ValueError, AttributeError):
            return None

    def _named(self, path: str) -> str:
        """A path as the program would write it, below its working directory."""
        real = os.path.realpath(path)
        return real[len(self._work) :] if real.startswith(self._work) else real

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Record files that are opened to be written, and connections to elsewhere."""
        if event not in ("open", "sqlite3.connect", "socket.connect") or inside.get():
            return
        frame = sys._getframe(1)
        if event == "open" and not (args[2] or 0) & WRITING:
            return
        if event == "socket.connect":
            if self._recorder.place(frame, is_ours=False) is not None:
                self._recorder.outside(str(args[1]))
            return
        is_path = isinstance(args[0], str | bytes | os.PathLike)
        if not is_path or self._recorder.place(frame, is_ours=False) is None:
            return
        path = os.fsdecode(args[0])
        if path == ":memory:" or path.startswith(("/dev/", "/proc/")):
            return
        name = self._named(path)
        if os.path.isabs(name):
            self._recorder.outside(name)
        if event == "open":
            self._recorder.effect(name, frame)
