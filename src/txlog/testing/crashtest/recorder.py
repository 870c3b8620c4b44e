"""Owns Recorder: the trace of a user's program, and the point at which its process dies.

A *point* is an instant before a recorded call, or after a commit or an acknowledgement. At the
point that the test names, the process kills itself by SIGKILL, or the call raises StoreLocked, as
it does while another process holds the lock for too long. A call belongs to the innermost line of
the program's directory that runs.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, Final

import txlog
from txlog.errors import StoreLocked
from txlog.testing.crashtest.trace import DECIDING, EFFECT, RECEIVING, REFUSABLE, Specification

Fields = dict[str, Any]

STOP_S: Final = 5.0  # how long the program may take to end after SIGTERM
LIBRARY: Final = os.path.join(os.path.dirname(os.__file__), "")
PACKAGE: Final = os.path.join(os.path.dirname(txlog.__file__), "")
IMPORT: Final = "-"  # instead of a name: a frame of the import system
OURS: Final = "="  # a frame of txlog

# True in a thread or task that is in a call of txlog.
inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def within() -> Iterator[None]:
    """Record nothing while a call of txlog runs in this thread or task."""
    token = inside.set(True)
    try:
        yield
    finally:
        inside.reset(token)


class Recorder:
    """Writes the trace, counts the points, and ends the process at the chosen point."""

    def __init__(self, spec: Specification) -> None:
        self._at = spec.at
        self._refuses = spec.refuses
        self._root = os.path.join(os.path.dirname(spec.program), "")
        self._waits_since_s: float | None = None  # since when it has got no message
        self._file = os.open(spec.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.RLock()
        self._events = self._points = 0
        self._open: dict[int, str] = {}
        self._names: dict[CodeType, str] = {}
        self._outside: set[str] = set()

    # --- whose line it is ------------------------------------------------------------------------

    def place(self, frame: FrameType | None, *, is_ours: bool = True) -> tuple[str, int] | None:
        """The innermost line of the program that runs; None in a thread of a library.

        is_ours: the line may run it by way of txlog
        """
        while frame is not None:
            code = frame.f_code
            name = self._names.get(code)
            if name is None:
                name = self._names[code] = self._name(code.co_filename)
            if name == IMPORT or (name == OURS and not is_ours):
                return None
            if name and name != OURS:
                return name, frame.f_lineno
            frame = frame.f_back
        return None

    def _name(self, path: str) -> str:
        """The path below the directory of the program; "" of a library."""
        if path.startswith("<frozen importlib"):
            return IMPORT
        if path.startswith(PACKAGE):
            return OURS
        is_program = path.startswith(self._root) and "site-packages" not in path
        return path[len(self._root) :] if is_program and not path.startswith(LIBRARY) else ""

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, call: str, frame: FrameType | None, what: str = "") -> int | None:
        """Record that a call begins, or die; returns its number, None if it is not the program's.

        raises: StoreLocked, at the point of a test that refuses the call
        """
        place = self.place(frame, is_ours=call != EFFECT)
        if place is None:
            return None
        file, line = place
        with self._lock:
            self._events += 1
            self._points += 1
            event = self._events
            begun = {"event": event, "point": self._points, "call": call, "file": file}
            self._put({**begun, "line": line, "what": what})
            if self._points == self._at:
                if not self._refuses:
                    os.kill(os.getpid(), signal.SIGKILL)
                elif call in REFUSABLE:
                    error = StoreLocked("the crash test refuses this call, as a lock that is held")
                    self.failed(event, error)
                    raise error
            self._open[event] = call
            if call not in RECEIVING:
                self._waits_since_s = None
            elif self._waits_since_s is None:
                self._waits_since_s = time.monotonic()
        return event

    def end(self, event: int, call: str, fields: Fields) -> None:
        """Record what a call did, or die after it."""
        with self._lock:
            self._open.pop(event, None)
            if call not in RECEIVING or fields.get("ids"):
                self._waits_since_s = None
            if call in DECIDING:
                self._points += 1
                fields = {**fields, "point": self._points}
            self._put({"event": event, "done": True, **fields})
            if call in DECIDING and self._points == self._at and not self._refuses:
                os.kill(os.getpid(), signal.SIGKILL)

    def failed(self, event: int, error: BaseException) -> None:
        """Record that a call raised an exception."""
        with self._lock:
            self._open.pop(event, None)
            self._put({"event": event, "error": type(error).__name__})

    def effect(self, what: str, frame: FrameType | None) -> None:
        """Record a call that changes something outside of the store."""
        event = self.begin(EFFECT, frame, what)
        if event is not None:
            self.end(event, EFFECT, {})

    def outside(self, place: str) -> None:
        """Record a file or an address that the test neither copies nor compares."""
        if place not in self._outside:
            self._outside.add(place)
            self._put({"outside": place})

    def _put(self, fields: Fields) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")

    # --- the end of a program that waits for ever ------------------------------------------------

    def watch(self, idle_s: float) -> None:
        """End the process by SIGTERM when it has had nothing to do for so long; in a thread."""
        while True:
            time.sleep(idle_s / 10)
            with self._lock:
                since_s = self._waits_since_s
                is_busy = any(call not in RECEIVING for call in self._open.values())
                if is_busy or since_s is None or time.monotonic() - since_s < idle_s:
                    continue
                self._put({"stopped": True})
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(STOP_S)
            os.kill(os.getpid(), signal.SIGKILL)
