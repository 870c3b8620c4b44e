"""Runs one input under all checks, and a campaign of mutated inputs over one target.

A finding is an exception that is not the target's own kind of error, a run of more steps than its
input allows, memory beyond a bound, or a descriptor, thread or file that is left behind.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import re
import resource
import signal
import tempfile
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import corpus
from tests.fuzz.mutation import mutated
from tests.fuzz.trace import ROOT, Edge, TooManySteps, Trace
from txlog.errors import InternalError, TxlogError

SIZE_MAX = 1 << 14
STEPS, STEPS_PER_BYTE = 200_000, 2_000
MEMORY, MEMORY_PER_BYTE = 32 << 20, 1_000
NATIVE_S = 120.0  # of the processor, for one input: code that is not Python has no steps to count
FIRST_TIMES = 10  # as many steps may a run take that imports modules
LEAKS_EVERY = 64
LEAKS_REPEATED = 3
_FILES_CHECKED = "/proc/self/fd"


class Target(NamedTuple):
    """A function to fuzz, and how.


    run:     reads an input
    seeds:   inputs that real runs of txlog have written
    allowed: errors that an input may end with
    repair:  gives an input valid checksums and lengths, so that the rest of it is read
    change:  a change of the structure in an input; raises an exception where there is none
    words:   pieces that mean something to it
    modules: of txlog, whose lines the report counts
    first:   an input to run without a trace, so that libraries are loaded
    steps:   allowed for any input, besides those for each of its bytes
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    modules: tuple[str, ...]
    allowed: tuple[type[Exception], ...] = (TxlogError,)
    repair: Callable[[bytes], bytes] | None = None
    change: Callable[[random.Random, bytes], bytes] | None = None
    words: tuple[bytes, ...] = ()
    first: bytes | None = None
    steps: int = STEPS
    size_max: int = SIZE_MAX
    memory: int = MEMORY


class Finding(NamedTuple):
    """A defect that an input showed; name: the same for the same mistake."""

    name: str
    sentence: str
    data: bytes
    details: str = ""


class Left(NamedTuple):
    """The resources of a process that a run could leave behind."""

    descriptors: int
    threads: int
    files: tuple[str, ...]


class Runner:
    """Runs inputs of one target. Only the coverage of the last run is kept.

    scratch: where temporary files go while it is in use
    """

    def __init__(self, target: Target, trace: Trace, scratch: Path) -> None:
        self.target = target
        self.trace = trace
        self._scratch = scratch

    def run(self, data: bytes) -> Finding | None:
        """Run an input, counting its steps; a first run may import modules and fill caches."""
        finding = self._run(data)
        if finding is not None and finding.name in ("steps", "memory"):
            self._run(data, times=FIRST_TIMES)
            finding = self._run(data)
        return finding

    def _run(self, data: bytes, times: int = 1) -> Finding | None:
        target, trace = self.target, self.trace
        trace.begin(times * (target.steps + STEPS_PER_BYTE * len(data)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_PROF, NATIVE_S)
        try:
            with trace:
                target.run(data)
        except TooManySteps:
            pass
        except target.allowed as error:
            if isinstance(error, InternalError):
                return _crash(error, data)
        except Exception as error:
            return _crash(error, data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if trace.is_over:
            return Finding("steps", f"{trace.steps} steps for {len(data)} bytes", data)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if grown > target.memory + MEMORY_PER_BYTE * len(data):
            return Finding("memory", f"{grown >> 20} MiB for {len(data)} bytes", data)
        return None

    def measure(self, data: bytes) -> Finding | None:
        """Run an input again, to measure its memory and to find resources that it leaves behind."""
        before = self.left()
        tracemalloc.start()
        try:
            self.target.run(data)
        except Exception:  # `run` has judged it
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        if peak > self.target.memory + MEMORY_PER_BYTE * len(data):
            return Finding("memory", f"{peak >> 20} MiB for {len(data)} bytes", data)
        if self.leak(before, data) is None:
            return None
        for _ in range(LEAKS_REPEATED):  # left only once: a cache, or a pool that grows
            before = self.left()
            self._run(data)
            finding = self.leak(before, data)
            if finding is None:
                return None
        return finding

    def leak(self, before: Left, data: bytes) -> Finding | None:
        """The resources held now that were not held before."""
        if self.left() == before:
            return None
        gc.collect()
        after = self.left()
        if after.descriptors > before.descriptors:
            return Finding("descriptors", f"{before.descriptors} became {after.descriptors}", data)
        if after.threads > before.threads:
            return Finding("threads", f"{before.threads} became {after.threads}", data)
        if after.files != before.files:
            return Finding("files", f"{after.files} are left", data)
        return None

    def left(self) -> Left:
        """The descriptors, threads and temporary files of this process."""
        return Left(
            len(os.listdir(_FILES_CHECKED)),
            threading.active_count(),
            tuple(sorted(os.listdir(self._scratch))),
        )


def _crash(error: Exception, data: bytes) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(ROOT)] or frames[-1:]
    place = f"{Path(ours[-1].filename).stem}.{ours[-1].name}"
    text = str(error).splitlines()[0][:100] if str(error) else ""
    kind = type(error).__name__
    name = re.sub(r"[\W_]+", "_", f"{place}_{kind}").strip("_").lower()
    details = "".join(traceback.format_exception(error))
    return Finding(name, f"{place} raises {kind}: {text}", data, details)


@contextmanager
def runner(target: Target) -> Iterator[Runner]:
    """A runner with a directory of its own for temporary files."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            if target.first is not None:
                with suppress(Exception):
                    target.run(target.first)
            yield Runner(target, Trace(), Path(folder))
        finally:
            tempfile.tempdir = before


class Campaign:
    """Mutates the inputs of one target, and keeps those that reach something new.

    executions, findings, inputs: so far; findings by name
    """

    def __init__(self, target: Target, seed: int, current: Path | None = None) -> None:
        """current: a file that has the input while it runs, for when the process dies of it."""
        self.target = target
        self.executions = 0
        self.findings: dict[str, Finding] = {}
        self.inputs: list[bytes] = []
        self.edges: set[Edge] = set()
        self._chance = random.Random(f"{target.name} {seed}")
        self._current = None if current is None else current.open("wb", buffering=0)
        self._since: list[bytes] = []

    def run(
        self, executions: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Run the seeds and the corpus, then mutated inputs, so many or for so long."""
        until = clock() + seconds
        with runner(self.target) as running:
            self._before = running.left()
            seeds = [*self.target.seeds(), *corpus.kept(self.target.name)]
            self._chance.shuffle(seeds)  # where the time is too short for all, they change daily
            for data in seeds:
                self._try(running, data, is_seed=True)
                if clock() > until:
                    break
            last = self.executions + executions
            while self.executions < last and clock() < until:
                self._try(running, self._next())

    def _next(self) -> bytes:
        chance, inputs = self._chance, self.inputs
        newest = inputs[-max(len(inputs) // 5, 1) :]
        data = chance.choice(newest if chance.random() < 0.4 else inputs)
        target = self.target
        if target.change is not None and chance.random() < 0.5:
            with suppress(Exception):  # no structure is left in this input
                for _ in range(chance.choice((1, 1, 2, 4))):
                    data = target.change(chance, data)
                return data if target.repair is None else target.repair(data)
        data = mutated(chance, data, inputs, target.words, target.size_max)
        if target.repair is not None and chance.random() < 0.7:
            data = target.repair(data)
        return data

    def _try(self, running: Runner, data: bytes, *, is_seed: bool = False) -> None:
        self.executions += 1
        if self._current is not None:
            self._current.seek(0)
            self._current.write(data)
            self._current.truncate()
        finding = running.run(data)
        is_new = not running.trace.edges <= self.edges
        self.edges |= running.trace.edges
        if is_new or is_seed or not self.inputs:
            self.inputs.append(data)
            finding = finding or running.measure(data)
        self._since.append(data)
        if len(self._since) >= LEAKS_EVERY:
            finding = finding or self._leaking(running)
        if finding is not None:
            self._report(finding)

    def _leaking(self, running: Runner) -> Finding | None:
        """The input since the last check that leaves a resource behind, if any does."""
        since, self._since = self._since, []
        if running.leak(self._before, b"") is None:
            return None
        for data in since:
            finding = running.measure(data)
            if finding is not None and finding.name != "memory":
                self._before = running.left()
                return finding
        self._before = running.left()  # it happens once in a process: a cache
        return None

    def _report(self, finding: Finding) -> None:
        known = self.findings.get(finding.name)
        if known is None or len(finding.data) < len(known.data):
            self.findings[finding.name] = finding

    @property
    def lines(self) -> set[tuple[str, int]]:
        """The lines that ran."""
        return {(code.co_filename, line) for code, _, line in self.edges}


def smallest_set(target: Target, inputs: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """A few of the inputs that together reach the same lines as all; short inputs first."""
    reached: set[tuple[object, int]] = set()
    chosen: list[bytes] = []
    size = 0
    with runner(target) as running:
        for data in sorted(set(inputs), key=len):
            if running.run(data) is not None:
                continue
            edges = running.trace.edges.copy()  # threads of a server go on
            lines = {(code, line) for code, _, line in edges}
            cost = len(corpus.packed(data))
            if not lines <= reached and size + cost <= most_bytes:
                reached |= lines
                chosen.append(data)
                size += cost
    return chosen


def shrunk(target: Target, finding: Finding, seconds: float = 10.0) -> Finding:
    """The same finding with a shorter input, by leaving out pieces."""
    data, until = finding.data, time.monotonic() + seconds
    with runner(target) as running:
        length = max(len(data) // 2, 1)
        while length and time.monotonic() < until:
            at = 0
            while at < len(data) and time.monotonic() < until:
                shorter = data[:at] + data[at + length :]
                if target.repair is not None:
                    repaired = target.repair(shorter)
                    shorter = repaired if len(repaired) < len(data) else shorter
                again = running.run(shorter)
                if again is not None and again.name == finding.name and len(shorter) < len(data):
                    data, finding = shorter, again
                else:
                    at += length
            length //= 2
    return finding


def digest(data: bytes) -> str:
    """A short name of an input."""
    return hashlib.sha256(data).hexdigest()[:8]
