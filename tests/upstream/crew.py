"""Owns the workers: each runs tests in a network of its own, one group after the other.

In that network the ports of a suite (6650, 8080 and their like) are free, there is nothing but the
loopback device, and tests of two workers do not meet.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from tests.clients import bed
from tests.upstream.suite import Unavailable
from tests.upstream.verdicts import Outcome

OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "--")


def check() -> None:
    """Raise Unavailable where a process cannot have a network of its own."""
    if shutil.which(OWN_NETWORK[0]) is None:
        raise Unavailable("there is no unshare here")
    tried = subprocess.run([*OWN_NETWORK, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Unavailable(f"no network of one's own here: {tried.stderr.strip()}")


def run(
    command: Sequence[str],
    groups: Sequence[Sequence[str]],
    workers: int,
    ends_at: float,
    report: Callable[[Outcome], None],
) -> tuple[list[Outcome], list[str]]:
    """Run groups of tests; returns the outcomes, and the tests that did not fit into the time.

    command: of a worker
    ends_at: in seconds of the monotonic clock; no group begins after it
    report:  gets each outcome at once
    """
    waiting: SimpleQueue[Sequence[str]] = SimpleQueue()
    for group in groups:
        waiting.put(group)
    outcomes: list[Outcome] = []

    def work() -> None:
        process = _started(command)
        for group in _taken(waiting, ends_at):
            for outcome in _given(process, group):
                outcomes.append(outcome)
                report(outcome)
            if process.poll() is not None:
                process = _started(command)
        with process:
            assert process.stdin is not None
            process.stdin.close()

    threads = [Thread(target=work) for _ in range(max(1, min(workers, len(groups))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remaining: list[str] = []
    while not waiting.empty():
        remaining += waiting.get()
    return outcomes, remaining


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*OWN_NETWORK, sys.executable, "-m", "tests.upstream.worker", *command],
        cwd=bed.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{bed.ROOT / 'src'}:{bed.ROOT}"},
    )


def _taken(waiting: SimpleQueue[Sequence[str]], ends_at: float) -> Iterator[Sequence[str]]:
    while time.monotonic() < ends_at:
        try:
            yield waiting.get_nowait()
        except Empty:
            return


def _given(process: subprocess.Popen[str], group: Sequence[str]) -> Iterator[Outcome]:
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps(group), file=process.stdin, flush=True)
    remaining = list(group)
    for line in process.stdout:
        said = json.loads(line)
        if said == "done":
            return
        outcome = Outcome(**said)
        if outcome.test in remaining:
            remaining.remove(outcome.test)
        yield outcome
    process.wait()
    for test in remaining:
        yield Outcome(test, False, 0.0, "its worker ended, see stderr")
