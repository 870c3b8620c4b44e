"""Owns the hunt for a mutant: a copy of the project gets the patch, and a detector runs on it."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

from tests.mutants.patch import ROOT, Detector, Mutant

COPIED = ("src", "tests", "pyproject.toml")
QUICK = "not slow and not deep and not spark and not clients"
# Much more than they need. What takes longer hangs, and the mutant counts as found.
TESTS_S = 400.0
SIMULATION_S, SEED_S = 150.0, 15.0
IDLE_S, WAIT_SHARE = 60.0, 3.0  # of a hunt with a bound: a machine with other work is slower
_FINDING = re.compile(r"seed (\d+): (.+)")
_FAILED = re.compile(r"(?:FAILED|ERROR) (\S+)")


@dataclass(frozen=True)
class Hunted:
    """The outcome: found_by is empty if nothing found it; seeds: how many it took."""

    found_by: str
    seeds: int
    seconds: float


class TimeIsOver(Exception):
    """The processor time for the hunt is used up, so nothing is decided."""


class Hunter:
    """Hunts mutants; seeds that fail without a patch find none.

    most: try at most so many seeds, whatever a header says; None: as many as it says
    first: the first seed
    bound_s: the processor time of all detectors; None: without a bound
    """

    def __init__(
        self, most: int | None = None, first: int = 1, bound_s: float | None = None
    ) -> None:
        self._most, self._first, self._bound_s = most, first, bound_s
        self._hung: subprocess.Popen[str] | None = None
        self._plain: dict[tuple[str, int], bool] = {}  # whether a seed passes without a patch

    def hunt(self, mutant: Mutant, detectors: Iterable[Detector]) -> Hunted:
        """Run detectors of a mutant, until one finds it; raises TimeIsOver."""
        began = time.monotonic()
        found_by, tried = "", 0
        with _copy(mutant) as copy:
            for detector in detectors:
                if detector.seeds:
                    seeds = detector.seeds if self._most is None else self._most
                    found_by, tried = self._simulate(copy, detector.profile, seeds)
                else:
                    found_by = self._tested(copy, detector.tests)
                if found_by:
                    break
        return Hunted(found_by, tried, time.monotonic() - began)

    def _simulate(self, copy: Path, profile: str, seeds: int) -> tuple[str, int]:
        seed, last = self._first, self._first + seeds - 1
        while seed <= last:
            failed = self._first_failure(copy, profile, seed, last)
            if failed is None:
                break
            seed, text = failed
            if self._passes(profile, seed):
                return f"{profile} seed {seed}: {text}", seed - self._first + 1
            seed += 1
        return "", seeds

    def _passes(self, profile: str, seed: int) -> bool:
        """Whether a seed finds nothing in the project as it is."""
        at = profile, seed
        if at not in self._plain:
            with _copy(None) as copy:
                self._plain[at] = self._first_failure(copy, profile, seed, seed) is None
        return self._plain[at]

    def _first_failure(
        self, copy: Path, profile: str, first: int, last: int
    ) -> tuple[int, str] | None:
        """(seed, finding) of the first seed that finds something; None: none does."""
        count = last - first + 1
        seeds = ["--seed", str(first), "--seeds", str(count), "--no-shrinking"]
        command = ["-u", "-m", "tests.simulation", "--profile", profile, *seeds]
        bound_s = SIMULATION_S + count * SEED_S
        with self._started(copy, command, bound_s) as process:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                if (finding := _FINDING.match(line)) is not None:
                    _end(process)
                    return int(finding[1]), finding[2].strip()
                said.append(line)
            if self._has_hung(process):
                return first, f"{count} seeds do not end within {bound_s} s"
            if process.returncode != 0:
                raise RuntimeError(
                    f"the simulation ends with {process.returncode}: {''.join(said)}"
                )
        return None

    def _tested(self, copy: Path, tests: Iterable[str]) -> str:
        """The first test that fails, of the quick ones or else of all; empty if all pass."""
        for marked in (["-m", QUICK], []):
            options = ["-q", "-x", "--tb=no", "--no-header", "-p", "no:cacheprovider", *marked]
            with self._started(copy, ["-m", "pytest", *options, *tests], TESTS_S) as process:
                said, _ = process.communicate()
                if self._has_hung(process):
                    return f"{' '.join(tests)}, which does not end within {TESTS_S} s"
            failed = _FAILED.search(said)
            if failed is not None:
                return failed[1]
            if process.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                raise RuntimeError(f"the tests do not run: {said}")
        return ""

    @contextmanager
    def _started(
        self, copy: Path, command: list[str], bound_s: float
    ) -> Iterator[subprocess.Popen[str]]:
        """A detector; it may use the processor time that is left, and so many seconds."""
        left_s = None if self._bound_s is None else int(self._bound_s - used_s())
        if left_s is not None and left_s <= 0:
            raise TimeIsOver
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=copy,
            env=_environment(copy),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that its children end with it
        )
        if left_s is not None:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (left_s, left_s + 1))
            bound_s = min(bound_s, IDLE_S + WAIT_SHARE * left_s)
        timer = Timer(bound_s, self._hang, [process])
        timer.start()
        with process:
            try:
                yield process
            finally:
                timer.cancel()
                _end(process)

    def _hang(self, process: subprocess.Popen[str]) -> None:
        """The time of a detector is over."""
        self._hung = process
        _end(process)

    def _has_hung(self, process: subprocess.Popen[str]) -> bool:
        """Whether a detector was ended because it hung. Raises TimeIsOver if the system ended it
        for its processor time, or if it hung in a hunt with a bound: the machine may be slow.
        """
        code = process.wait()
        if self._hung is process:
            if self._bound_s is not None:
                raise TimeIsOver
            return True
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise TimeIsOver
        return False


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a detector and its children, which are a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def used_s() -> float:
    """The processor time of all detectors so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _copy(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the project with the patch."""
    with tempfile.TemporaryDirectory(prefix="txlog-mutant-") as directory:
        copy = Path(directory)
        for path in ROOT.iterdir():
            if path.name not in COPIED:
                if not path.name.startswith("."):
                    (copy / path.name).symlink_to(path)
            elif path.is_dir():
                shutil.copytree(path, copy / path.name)
            else:
                shutil.copy2(path, copy / path.name)
        for changed, text in ({} if mutant is None else mutant.applied(copy)).items():
            (copy / changed).write_text(text, encoding="utf-8")
        yield copy


def _environment(copy: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", "PYTHONHASHSEED": "0"}
