"""Owns the format of a mutant: a header, then a unified diff that applies exactly.

    broken: what the patch breaks, in a sentence
    lost: what a user would lose
    found by: simulation of journal, 60 seeds; tests/crash/test_torn.py::test_a_clean_store_is_fine

`found by` names what has found it: the simulation of a profile within a number of seeds, or tests.
If it names several, one of them must find it again. `nothing yet` is a task for whoever works on
the tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent
SIMULATION = "simulation"
NOTHING = "nothing yet"
_HEADER = re.compile(r"broken: (.+)\nlost: (.+)\nfound by: (.+)\n\n(?=--- )")
_SEEDS = re.compile(rf"{SIMULATION} of (\w+), (\d+) seeds")
_FILE = re.compile(r"^--- a/(\S+)\n\+\+\+ b/\1\n", re.MULTILINE)
_HUNK = re.compile(r"^@@ .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Hunk:
    """Lines of a file, before and after."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Detector:
    """What finds a mutant: tests, or the simulation of a profile within so many seeds, else 0."""

    tests: tuple[str, ...]
    seeds: int = 0
    profile: str = ""

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{SIMULATION} of {self.profile}" if self.seeds else " ".join(self.tests)


@dataclass(frozen=True)
class Mutant:
    """A patch and its header."""

    name: str
    broken: str
    lost: str
    detectors: tuple[Detector, ...]
    hunks: tuple[Hunk, ...]

    def applied(self, root: Path = ROOT) -> dict[str, str]:
        """The new text of each file that it changes; ValueError: it does not apply exactly once."""
        texts: dict[str, str] = {}
        for hunk in self.hunks:
            text = texts.get(hunk.path) or (root / hunk.path).read_text(encoding="utf-8")
            count = text.count(hunk.before)
            if count != 1:
                raise ValueError(f"{self.name}: lines of {hunk.path} are there {count} times")
            texts[hunk.path] = text.replace(hunk.before, hunk.after)
        return texts


def read_mutant(path: Path) -> Mutant:
    """Read a patch; ValueError: its header is not complete, or the diff is none."""
    text = path.read_text(encoding="utf-8")
    header = _HEADER.match(text)
    if header is None:
        raise ValueError(f"{path.name} does not begin with broken, lost and found by")
    broken, lost, found_by = header.groups()
    parts = [] if found_by == NOTHING else found_by.split("; ")
    detectors = tuple(map(_detector, parts))
    files = _FILE.split(text[header.end() :])[1:]
    hunks = [
        Hunk(changed, *_sides(hunk))
        for changed, diff in zip(files[::2], files[1::2], strict=True)
        for hunk in _HUNK.split(diff)[1:]
    ]
    if not hunks:
        raise ValueError(f"{path.name} changes nothing")
    return Mutant(path.stem, broken, lost, detectors, tuple(hunks))


def _detector(text: str) -> Detector:
    seeds = _SEEDS.fullmatch(text)
    return Detector(tuple(text.split())) if seeds is None else Detector((), int(seeds[2]), seeds[1])


def _sides(hunk: str) -> tuple[str, str]:
    lines = hunk.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    return before, after


def all_mutants() -> list[Mutant]:
    """All mutants, by number."""
    return [read_mutant(path) for path in sorted(PATCHES.glob("*.patch"))]
