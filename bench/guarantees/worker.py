"""The client's process: it moves messages with some transactions in flight, and says how fast.

    python -m bench.guarantees.worker SYSTEM FOLDER DEPTH SECONDS WARM_UP PATIENCE

It prints `ready` when it is warm, then a line of JSON: `rate`, `p50_ms`, `p99_ms`, `ended` (timed
transactions), `moved` (messages, with the warm-up), `errors` and `error`. Then it waits for a line.
With 0 seconds it drains the input: it opens a session again after an error, and ends when no
message has come for a while. Otherwise an error is the result.
"""

from __future__ import annotations

import json
import pkgutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from bench.guarantees.peer import Peer, Session

LONGER_S = 60.0  # if no transaction has ended yet
TRIES = 500  # errors of all sessions until the client is warm


class Run:
    """A run of a client: its threads share it.

    ends: of transactions: when, how long it took, how many messages it moved
    last: when a message or an error came
    """

    def __init__(self, peer: Peer, depth: int, seconds: float, patience_s: float) -> None:
        self._peer, self._depth, self._seconds, self._patience_s = peer, depth, seconds, patience_s
        self._ends = list[tuple[float, float, int]]()
        self._last = time.monotonic()
        self._opened = 0
        self._errors = list[str]()
        self._is_ready = False  # errors count from now on; a service may be slow to begin
        self._is_over = False

    def measure(self, warm_up: float) -> None:
        """Run the client."""
        count = 1 if self._peer.is_single else self._depth
        threads = [
            threading.Thread(target=self._loop, args=(n,), daemon=True) for n in range(count)
        ]
        for thread in threads:
            thread.start()
        while self._seconds and (self._opened < count or not self._ends) and not self._is_over:
            time.sleep(0.01)
        time.sleep(warm_up)
        self._is_ready = True
        self._errors.clear()
        print("ready", flush=True)
        began = time.perf_counter()
        while any(thread.is_alive() for thread in threads) and not self._is_over:
            late = time.perf_counter() - began - self._seconds
            if self._seconds and late > 0 and (self._ends[-1][0] > began or late > LONGER_S):
                break
            time.sleep(0.01)
        timed = [end for end in list(self._ends) if end[0] >= began]
        self._is_over = True
        for thread in threads:
            thread.join(10)
        print(json.dumps(self._figures(timed, began)), flush=True)
        sys.stdin.readline()

    def _ended(self, began: float, moved: int) -> None:
        """A transaction is durable."""
        now = time.perf_counter()
        self._ends.append((now, now - began, moved))
        self._last = time.monotonic()

    def _loop(self, number: int) -> None:
        """A thread: move messages until the run is over."""
        session: Session | None = None
        while not self._is_over:
            try:
                if session is None:
                    session = self._peer.kind(self._peer, number, self._depth)
                    self._opened += 1
                    self._last = time.monotonic()  # to open may take longer than the patience
                moved = session.step(self._ended)
            except Exception as error:  # of a peer's client: each has its own classes
                self._errors.append(f"{type(error).__name__}: {error}"[:300])
                self._last = time.monotonic()
                if self._seconds and (self._is_ready or len(self._errors) > TRIES):
                    self._is_over = True
                    return
                with suppress(Exception):
                    if session is not None:
                        session.close()
                session = None
                time.sleep(0.2)
                continue
            is_late = time.monotonic() > self._last + self._patience_s
            if is_late and not moved and not self._seconds:
                break
        if session is not None and self._seconds:
            session.close()

    def _figures(self, timed: list[tuple[float, float, int]], began: float) -> dict[str, object]:
        took = sorted(end[1] for end in timed) or [0.0]
        elapsed = max((end[0] for end in timed), default=began + 1) - began
        return {
            "rate": len(timed) / elapsed,
            "p50_ms": took[len(took) // 2] * 1000,
            "p99_ms": took[len(took) * 99 // 100] * 1000,
            "ended": len(timed),
            "moved": sum(end[2] for end in self._ends),
            "errors": len(self._errors),
            "error": (self._errors or [""])[-1],
        }


if __name__ == "__main__":
    system: Peer = pkgutil.resolve_name(sys.argv[1])(Path(sys.argv[2]))
    seconds, warm_up, patience_s = map(float, sys.argv[4:7])
    Run(system, int(sys.argv[3]), seconds, patience_s).measure(warm_up)
