"""Ends its process by SIGKILL: in the nth call that changes a file or a lock, or at a named step.

`begin` and `end` count such calls between them, `at` names the step to die at, `step` is a step.
"""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Any

CALLS = ("open", "pwrite", "pwritev", "fsync", "fdatasync", "link", "unlink", "mkdir", "rmdir")
_nth = _left = 0
_aim = ""


def begin(nth: int, calls: tuple[str, ...] = CALLS) -> None:
    """Die in the nth such call from now on."""
    for name in calls:
        around(os, name, before="call")
    around(fcntl, "flock", before="call")
    at("call", nth)


def end(*answers: object) -> None:
    """Live on, and print the number of calls and some answers."""
    global _left
    calls, _left = _nth - _left, 0
    print("answered", calls, *answers, flush=True)


def at(aim: str, nth: int = 1) -> None:
    """Die at the nth step of this name."""
    global _nth, _left, _aim
    _nth, _left, _aim = nth, nth, aim


def step(name: str) -> None:
    """Pass a step, or die at it."""
    global _left
    if name == _aim:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, before: str = "", after: str = "") -> None:
    """Make a step of the moment before each call of a function, or of the moment after it."""
    call = getattr(owner, name)

    def stepping(*arguments: Any, **named: Any) -> Any:
        step(before)
        answer = call(*arguments, **named)
        step(after)
        return answer

    setattr(owner, name, stepping)
