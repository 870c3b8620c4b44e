"""Hold the lock of a store in a write, until a line comes."""

from __future__ import annotations

import sys

import txlog
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.view import View


def hold(view: View, now: Instant) -> Decision[None]:
    """Decide nothing, late."""
    print("held", flush=True)
    sys.stdin.readline()
    return Decision([], None, False)


with txlog.open(sys.argv[1]) as client:
    client.store.write(hold)
