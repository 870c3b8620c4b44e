"""The client's process: it moves messages with some transactions in flight, and says how fast.

It prints `ready` when it is warm, then a line of JSON: `rate`, `p50_ms`, `p99_ms`, `ended` (timed
transactions), `moved` (messages, with the warm-up), `errors` and `error`. Then it waits for a line.
With 0 seconds it drains the input: it opens a session again after an error, and ends when no
message has come for a while. Otherwise an error is the result.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from bench.guarantees.peer import Peer, Session

LONGER_S = 60.0  # if no transaction has ended yet
TRIES = 500  # errors of all sessions until the client is warm


@dataclass
class Run:
    """What the threads of a client share."""

    peer: Peer
    depth: int
    seconds: float
    patience_s: float
    fault: str | None = None
    ends: list[tuple[float, float, int]] = field(default_factory=list)  # when, how long, messages
    last: float = field(default_factory=time.monotonic)  # when a message or an error came
    opened: int = 0
    errors: int = 0
    error: str = ""
    is_ready: bool = False  # errors count from now on; a service may be slow to begin
    is_over: bool = False

    def ended(self, began: float, moved: int) -> None:
        """A transaction is durable."""
        now = time.perf_counter()
        self.ends.append((now, now - began, moved))
        self.last = time.monotonic()

    def loop(self, number: int) -> None:
        """A thread: move messages until the run is over."""
        session: Session | None = None
        while not self.is_over:
            try:
                if session is None:
                    session = self.peer.session(number, self.depth)
                    session.fault = self.fault
                    self.opened += 1
                moved = session.step(self.ended)
            except Exception as error:  # of a peer's client: each has its own classes
                self.errors += 1
                self.error = f"{type(error).__name__}: {error}"[:300]
                self.last = time.monotonic()
                if self.seconds and (self.is_ready or self.errors > TRIES):
                    self.is_over = True
                    return
                with suppress(Exception):
                    if session is not None:
                        session.close()
                session = None
                time.sleep(0.2)
                continue
            if not moved and time.monotonic() > self.last + self.patience_s:
                break
        if session is not None and self.seconds:
            session.close()


def work(
    peer: Peer,
    depth: int,
    seconds: float,
    warm_up: float,
    patience_s: float,
    fault: str | None = None,
) -> None:
    """Run a client; see above."""
    run = Run(peer, depth, seconds, patience_s, fault)
    threads = [
        threading.Thread(target=run.loop, args=(number,), daemon=True)
        for number in range(peer.threads(depth))
    ]
    for thread in threads:
        thread.start()
    while seconds and (run.opened < len(threads) or not run.ends) and not run.is_over:
        time.sleep(0.01)
    time.sleep(warm_up)
    run.is_ready, run.errors, run.error = True, 0, ""
    print("ready", flush=True)
    began = time.perf_counter()
    end = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and not run.is_over:
        now = time.monotonic()
        if seconds and now > end and (run.ends[-1][0] > began or now > end + LONGER_S):
            break
        time.sleep(0.01)
    timed = [each for each in list(run.ends) if each[0] >= began]
    run.is_over = True
    for thread in threads:
        thread.join(10)
    print(json.dumps(figures(run, timed, began)), flush=True)
    sys.stdin.readline()


def figures(
    run: Run, timed: list[tuple[float, float, int]], began: float
) -> dict[str, float | str]:
    """What a client prints."""
    took = sorted(each[1] for each in timed) or [0.0]
    elapsed = max((each[0] for each in timed), default=began + 1) - began
    return {
        "rate": len(timed) / elapsed,
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[len(took) * 99 // 100] * 1000,
        "ended": len(timed),
        "moved": sum(each[2] for each in run.ends),
        "errors": run.errors,
        "error": run.error,
    }
