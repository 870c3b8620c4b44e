"""Owns the hunt for a mutant: a copy of the project gets the patch, and a detector runs on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.patch import ROOT, SIMULATION, Mutant

COPIED = ("src", "tests", "pyproject.toml")
MARKED = "not slow and not deep and not spark and not clients"
_FINDING = re.compile(r"seed (\d+): (.+)")
_FAILED = re.compile(r"(?:FAILED|ERROR) (\S+)")


@dataclass(frozen=True)
class Hunted:
    """The outcome: found_by is empty if nothing found it; seeds: how many it took."""

    found_by: str
    seeds: int
    seconds: float


class Hunter:
    """Hunts mutants; seeds that fail without a patch find none.

    most: try at most so many seeds, whatever a header says; None: as many as it says
    first: the first seed
    """

    def __init__(self, most: int | None = None, first: int = 1) -> None:
        self._most, self._first = most, first
        self._plain: dict[int, bool] = {}  # by seed: whether it passes without a patch

    def hunt(self, mutant: Mutant) -> Hunted:
        """Run the detector of a mutant."""
        began = time.monotonic()
        with _copy(mutant) as copy:
            if mutant.detector == SIMULATION:
                seeds = mutant.seeds if self._most is None else self._most
                found_by, tried = self._simulate(copy, seeds)
            else:
                found_by, tried = _tested(copy, mutant.detector), 0
        return Hunted(found_by, tried, time.monotonic() - began)

    def _simulate(self, copy: Path, seeds: int) -> tuple[str, int]:
        seed, last = self._first, self._first + seeds - 1
        while seed <= last:
            failed = _first_failure(copy, seed, last)
            if failed is None:
                break
            seed, text = failed
            if self._passes(seed):
                return f"seed {seed}: {text}", seed - self._first + 1
            seed += 1
        return "", seeds

    def _passes(self, seed: int) -> bool:
        """Whether a seed finds nothing in the project as it is."""
        if seed not in self._plain:
            with _copy(None) as copy:
                self._plain[seed] = _first_failure(copy, seed, seed) is None
        return self._plain[seed]


def _first_failure(copy: Path, first: int, last: int) -> tuple[int, str] | None:
    """(seed, finding) of the first seed that finds something; None: none does."""
    command = ["tests.simulation", "--seed", str(first), "--seeds", str(last - first + 1)]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", *command],
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if (finding := _FINDING.match(line)) is not None:
                process.kill()
                return int(finding[1]), finding[2].strip()
        error = process.stderr.read()
        if process.wait() != 0:
            raise RuntimeError(f"the simulation does not run: {error}")
    return None


def _tested(copy: Path, path: str) -> str:
    """The first test that fails; empty if all pass."""
    options = ["-q", "-x", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-m", MARKED]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *path.split()],
        cwd=copy,
        env=_environment(copy),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == 0:
        return ""
    failed = _FAILED.search(ran.stdout)
    if failed is None:
        raise RuntimeError(f"the tests do not run: {ran.stdout}{ran.stderr}")
    return failed[1]


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
    return {**kept, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
