"""Owns the worker processes: starts them, kills them with SIGKILL, restarts them.

A stage has one worker at a time. The seed decides beforehand when it dies: at a number of committed
invoices, plus a time in which it runs unobserved, so that the kill may hit any point of a
transaction. A worker that must die may commit fewer invoices than there are. If it is faster than
its killer, it waits in the middle of a transaction to be killed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from txlog.errors import CommandFailed

Progress = Callable[[str, int, int, int], None]

# How many invoices a worker may commit after the number at which it is killed: about 30 ms.
_LEAD_MAX = 64
_DELAY_MAX_MS = 30
_WORDS = frozenset({"begun", "done", "held"})
_WORKER = "txlog.cli.demo.worker"
# `-m` runs in the directory of this process's package, so both use the same package.
_PACKAGE_PARENT = str(Path(__file__).absolute().parents[3])


@dataclass(frozen=True, slots=True)
class Death:
    """When a worker is killed: delay_ms after `at` invoices; it may commit `allow` at most."""

    at: int
    allow: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage to run: its name, its number of invoices, the options of its workers."""

    name: str
    total: int
    options: tuple[str, ...]


def draws(seed: int, purpose: str) -> Iterator[int]:
    """Yield endless 64-bit numbers, decided by seed and purpose alone."""
    index = 0
    while True:
        digest = blake2b(f"{seed}:{purpose}:{index}".encode(), digest_size=8).digest()
        yield int.from_bytes(digest, "big")
        index += 1


def deaths(total: int, kills: int, seed: int, purpose: str) -> list[Death]:
    """Return the moments of `kills` kills, in order of time, each before the stage is done."""
    numbers = draws(seed, purpose)
    last = max(total - 1, 0)
    points = sorted(next(numbers) % max(last, 1) for _ in range(kills))
    return [
        Death(
            at=at,
            allow=min(last, at + 1 + next(numbers) % _LEAD_MAX),
            delay_ms=next(numbers) % _DELAY_MAX_MS,
        )
        for at in points
    ]


def run_stage(stage: Stage, plan: list[Death], progress: Progress | None = None) -> int:
    """Run a stage to its end through all planned deaths; return the number of killed workers."""
    kills = 0
    for death in (*plan, None):
        worker = _start(stage, stage.total if death is None else death.allow)
        try:
            _follow(worker, stage, death, kills, progress)
        finally:
            worker.kill()  # does nothing to a process that has ended
            worker.communicate()
        kills += death is not None
    return kills


def parsed(line: str) -> tuple[str, int] | None:
    """Return the word and number of a worker's line; None for a line cut short by a kill."""
    word, _, number = line.partition(" ")
    if word not in _WORDS or not number.endswith("\n") or not number.strip().isdigit():
        return None
    return word, int(number)


def _start(stage: Stage, allow: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", _WORKER, stage.name, *stage.options, "--allow", str(allow)]
    return subprocess.Popen(
        command,
        cwd=_PACKAGE_PARENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _follow(
    worker: subprocess.Popen[str],
    stage: Stage,
    death: Death | None,
    kills: int,
    progress: Progress | None,
) -> None:
    """Read a worker's reports until it ends, and kill it at its planned moment."""
    killed = False
    assert worker.stdout is not None, "the worker was started with pipes"
    for line in worker.stdout:
        report = parsed(line)
        if report is None:
            continue
        word, done = report
        if progress is not None and word != "held":
            progress(stage.name, done, stage.total, kills)
        if death is None or killed or (word != "held" and done < death.at):
            continue
        with suppress(subprocess.TimeoutExpired):
            worker.wait(death.delay_ms / 1000)
        worker.kill()
        killed = True
    status = worker.wait()
    if status != 0 and not (killed and status < 0):
        _, complaint = worker.communicate()
        lines = complaint.strip().splitlines() or [f"status {status}"]
        raise CommandFailed(
            f"the worker of stage {stage.name} ended by itself: {lines[-1]}",
            hint="\n".join(lines[-20:]),
            status=status,
        )
    if death is not None and not killed:
        raise CommandFailed(f"the worker of stage {stage.name} ended before it could be killed")
