"""Owns the signals: SIGINT, SIGTERM and SIGHUP as exceptions, held back while a frame is written.

The first signal raises where the program waits or prints; inside `shielded()` it is remembered and
raised at its end, so that no call into the store is cut in two. A second one ends the process at
once, which leaves the store as any other death of a process does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

_WATCHED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the process to end; not an Exception, so that no handler swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit = 130 if number == signal.SIGINT else 143


class _State:
    __slots__ = ("depth", "number", "parting", "pending", "seen")

    def __init__(self) -> None:
        self.depth = 0
        self.number = 0  # the signal received
        self.parting = b""  # for stderr, when a second signal ends the process
        self.pending: int | None = None
        self.seen = False


_state = _State()


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _state.seen:
        if _state.parting:
            with suppress(OSError):
                os.write(2, _state.parting)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _state.seen, _state.number = True, number
    if _state.depth:
        _state.pending = number
    else:
        raise Interrupted(number)


def parting(text: str) -> None:
    """Written to the terminal before a second signal ends the process."""
    _state.parting = text.encode()


def raise_if_asked() -> None:
    """Raise Interrupted again if a signal came: for the last step before something is final.

    Python drops an exception that a handler raises inside a destructor or a callback.
    """
    if _state.seen:
        raise Interrupted(_state.number)


def asked() -> int | None:
    """The exit code of the signal that asked this command to end; None when none came."""
    return Interrupted(_state.number).exit if _state.seen else None


def _drop(told: sys.UnraisableHookArgs) -> None:
    """Stay silent about an Interrupted that Python dropped; raise_if_asked knows of it."""
    if not issubclass(told.exc_type, Interrupted):
        sys.__unraisablehook__(told)


@contextmanager
def watched() -> Iterator[None]:
    """Turn the signals into exceptions for the length of one command.

    An ignored signal (nohup) stays ignored; a thread that is not the main one changes nothing.
    """
    before = {}
    hook = sys.unraisablehook
    _state.depth, _state.pending, _state.seen = 0, None, False
    try:
        for number in _WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _on_signal)
    except ValueError:
        before = {}
    try:
        if before:
            sys.unraisablehook = _drop
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Hold signals back until the end of the block."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
    if _state.depth == 0 and _state.pending is not None:
        number, _state.pending = _state.pending, None
        raise Interrupted(number)
