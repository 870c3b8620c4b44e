"""Owns the signals: SIGINT, SIGTERM and SIGHUP as exceptions, held back while a frame is written.

The first signal raises Interrupted at once. Inside `shielded()` it waits for the end of the block,
so it never cuts a call into the store in two. A second signal ends the process at once, which the
store survives like any other death of a process.
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
    """Set the text that a second signal writes to the terminal before it ends the process."""
    _state.parting = text.encode()


def raise_if_asked() -> None:
    """Raise Interrupted again if a signal came; call it before a final step.

    Python drops an exception that a handler raises inside a destructor or a callback.
    """
    if _state.seen:
        raise Interrupted(_state.number)


def asked() -> int | None:
    """The exit code for the signal that this command received; None if it received none."""
    return Interrupted(_state.number).exit if _state.seen else None


def _drop(unraisable: sys.UnraisableHookArgs) -> None:
    """Print nothing about an Interrupted that Python dropped; raise_if_asked raises it again."""
    if not issubclass(unraisable.exc_type, Interrupted):
        sys.__unraisablehook__(unraisable)


@contextmanager
def watched() -> Iterator[None]:
    """Turn signals into exceptions while one command runs.

    An ignored signal (nohup) stays ignored; outside the main thread this changes nothing.
    """
    previous_handlers = {}
    hook = sys.unraisablehook
    _state.depth, _state.pending, _state.seen = 0, None, False
    try:
        for number in _WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous_handlers[number] = signal.signal(number, _on_signal)
    except ValueError:
        previous_handlers = {}
    try:
        if previous_handlers:
            sys.unraisablehook = _drop
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Delay signals until the end of the block."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
    if _state.depth == 0 and _state.pending is not None:
        number, _state.pending = _state.pending, None
        raise Interrupted(number)
