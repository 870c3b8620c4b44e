"""Owns the files between a crash test and its processes: the specification, and the trace.

A trace has a line of JSON for the begin of a call, and one for its end:

    {"event":3,"point":5,"call":"send","file":"bill.py","line":12,"what":""}
    {"event":3,"done":true,"topic":"bills","outputs":[["9f2c","b'bill'"]],"txn":""}
    {"outside":"/var/log/bill"}     a file or an address that the test does not compare
    {"stopped":true}                the program waited, so it was stopped
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec

EFFECT: Final = "effect"  # a call that changes something outside of the store
RECEIVING: Final = frozenset(("receive", "read"))
# Calls after which the process may die, too: their effect decides about the other calls.
DECIDING: Final = frozenset(("acknowledge", "commit"))
# Calls that can be refused because another process holds the lock.
REFUSABLE: Final = frozenset(("send", "acknowledge", "commit"))
VALUE_BYTES: Final = 40  # shown of a value


class Specification(msgspec.Struct, frozen=True):
    """What one process has to do.

    program: the path of the program, and its arguments
    folder:  the directory from which the user started the test
    work:    the working directory of the process
    store:   the store of the user, which the process does not open; copy: the store that it opens
    trace:   the file for its trace
    at:      the point at which it dies, None for none
    refuses: there, it does not die: the call raises StoreLocked
    idle_ms: stop it after so long without a message
    """

    program: str
    args: list[str]
    folder: str
    work: str
    store: str
    copy: str
    trace: str
    at: int | None = None
    refuses: bool = False
    idle_ms: int | None = None


class Event(msgspec.Struct):
    """A call of the program.

    point, after: the points before it and after it
    what:    the file or function of an effect
    done:    it returned; error: the class of its exception
    txn:     a name of its transaction
    outputs: (digest, first bytes) of the messages that it sends to `topic`
    queued:  they are in a queue, until a flush
    ids:     of the messages that it receives or acknowledges, with their first bytes
    """

    event: int
    point: int
    call: str
    file: str
    line: int
    what: str = ""
    done: bool = False
    error: str = ""
    after: int | None = None
    txn: str = ""
    topic: str = ""
    outputs: list[tuple[str, str]] = []
    duplicate: bool = False
    queued: bool = False
    ids: list[str] = []
    values: list[str] = []
    cumulative: bool = False


class Trace(msgspec.Struct):
    """The calls of a process, in the order in which they began."""

    events: list[Event] = []
    outside: list[str] = []
    is_stopped: bool = False

    @property
    def points(self) -> int:
        """How many points the process passed."""
        return max((event.after or event.point for event in self.events), default=0)


def read(path: str) -> Trace:
    """The trace of a process; its last line may be cut off."""
    trace = Trace()
    by_number: dict[int, Event] = {}
    file = Path(path)
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            fields: dict[str, Any] = msgspec.json.decode(line)
        except msgspec.DecodeError:
            break
        if "outside" in fields:
            trace.outside.append(fields["outside"])
        elif "stopped" in fields:
            trace.is_stopped = True
        elif "call" in fields:
            event = msgspec.convert(fields, Event)
            by_number[event.event] = event
            trace.events.append(event)
        else:
            _complete(by_number[fields["event"]], fields)
    return trace


def _complete(event: Event, fields: dict[str, Any]) -> None:
    event.after = fields.pop("point", None)
    event.outputs = [tuple(pair) for pair in fields.pop("outputs", ())]
    for name, value in fields.items():
        setattr(event, name, value)


def digest(key: bytes | None, value: bytes | None) -> str:
    """What tells a message from others."""
    return hashlib.sha256(repr((key, value)).encode()).hexdigest()[:16]


def shown(value: bytes | None) -> str:
    """The first bytes of a value, for people."""
    is_short = value is None or len(value) <= VALUE_BYTES
    return repr(value if is_short or value is None else value[:VALUE_BYTES] + b"...")
