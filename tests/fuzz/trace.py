"""Counts the lines that run in txlog, and notes which line followed which.

A hang is a count of lines, not of seconds, so that it is the same on every machine. Calls of other
Python code count as one each, because their lines are not traced.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

import txlog

ROOT = str(txlog.__path__[0])
Edge = tuple[CodeType, int, int]  # where, the line before (of any code), the line


class TooManySteps(BaseException):
    """The run needs more lines than its input allows; no Exception, so that nothing hides it."""


class Trace:
    """Traces the threads that run while it is entered.

    edges:   which line of txlog followed which
    steps:   how many lines have run since `begin`
    is_over: whether they were more than allowed
    """

    def __init__(self) -> None:
        self.edges: set[Edge] = set()
        self.steps = 0
        self.is_over = False
        self._most = sys.maxsize
        self._last = 0
        self._ours: dict[CodeType, bool] = {}

    def begin(self, most: int) -> None:
        """Count from zero; the run may take this many steps."""
        self.edges = set()
        self.steps, self._most, self.is_over, self._last = 0, most, False, 0

    def __enter__(self) -> Trace:
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: FrameType, event: str, value: object) -> Any:
        code = frame.f_code
        self.steps += 1
        is_ours = self._ours.get(code)
        if is_ours is None:
            is_ours = self._ours[code] = code.co_filename.startswith(ROOT)
        if self.steps > self._most:
            self._stop()
        return self._line if is_ours else None

    def _line(self, frame: FrameType, event: str, value: object) -> Any:
        if event == "line":
            line = frame.f_lineno
            self.edges.add((frame.f_code, self._last, line))
            self._last = line
            self.steps += 1
            if self.steps > self._most:
                self._stop()
        return self._line

    def _stop(self) -> None:
        self.is_over, self._most = True, sys.maxsize
        raise TooManySteps


def lines_in(module: ModuleType) -> set[tuple[str, int]]:
    """The lines of a module's functions."""
    path = str(module.__file__)
    with open(path, encoding="utf-8") as file:
        whole = compile(file.read(), path, "exec", dont_inherit=True)
    lines: set[tuple[str, int]] = set()
    codes = [whole]
    while codes:
        code = codes.pop()
        codes += [item for item in code.co_consts if isinstance(item, CodeType)]
        if code.co_flags & 0x2:  # of a function: it has fast locals
            lines |= {
                (path, line)
                for _, _, line in code.co_lines()
                if line is not None and line > code.co_firstlineno
            }
    return lines
