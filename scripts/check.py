"""Run the checks that every commit passes: format, lint, types, then the tests.

usage: check.py [-h] [--all] [--slow] [--changed] [--only STEP] [PYTEST ARGUMENT ...]

The steps format, lint, types and tests are quick. --all adds five: deep tries each law at many
places; spark has the tests of one Spark session; clients builds stock clients of Apache Pulsar and
tries them; upstream runs those clients' own tests; mutants hunts patches that break a promise, for
45 seconds of processor time. Of each, another part runs each day, and so of
the tests marked slow (tests/rotation.py); with --slow, all run, and with --only STEP, all of that
step but the slow ones. With pytest arguments, only those tests run.
--changed is for while you work: ruff and the tests nearest to your changes, for 9 seconds. A failed
step does not stop the others; the exit code is then 1. `scripts/test` calls this in `.venv`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from scripts import changed
from tests import rotation

ROOT = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable, "-m"]
# A worker more than cores: now and then one waits for a disk, a clock or a program.
WORKERS = str((os.cpu_count() or 1) + 1)
STEPS = {
    "format": [*PYTHON, "ruff", "format", "--check", "--quiet", "."],
    "lint": [*PYTHON, "ruff", "check", "--quiet", "."],
    "types": [*PYTHON, "mypy"],
    "tests": [*PYTHON, "pytest", "-q", "-n", WORKERS, "--dist", "worksteal"],
    "deep": [*PYTHON, "pytest", "-q", "-n", WORKERS, "--dist", "worksteal"],
    "spark": [*PYTHON, "pytest", "-q", "tests/spark"],
    "clients": [*PYTHON, "pytest", "-q", "tests/clients"],
    "upstream": [*PYTHON, "tests.upstream"],
    "mutants": [*PYTHON, "tests.mutants", "--today", "45"],
}
QUICK = ("format", "lint", "types", "tests")
# Of --all: each keeps about one core busy, so that two run at once, behind the others.
BESIDE = ("clients", "spark", "types")
MARKED = {
    "tests": "not spark and not deep and not clients",
    "deep": "deep and not spark",
    "spark": "spark",
    "clients": "clients",
}


def main() -> int:
    """Run the selected steps and print the result of each; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="also the five steps that take long")
    parser.add_argument("--slow", action="store_true", help="also those, and every slow test")
    parser.add_argument("--only", choices=STEPS, help="one step")
    parser.add_argument("--changed", action="store_true", help="tests near the changes, 9 s")
    options, rest = parser.parse_known_args()
    if options.changed:
        return changed.check()
    names = [*STEPS] if options.all or options.slow else [*QUICK]
    names = [options.only] if options.only else ["tests"] if rest else names
    day = datetime.now(UTC).toordinal() if options.all and not options.slow else None
    commands = {name: _command(name, rest, day, every=options.slow) for name in names}
    beside = [name for name in BESIDE if name in names] if options.all or options.slow else []
    failed = [name for name in names if name not in beside and not _run(name, commands[name])]
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(lambda name: _run(name, commands[name], is_alone=False), beside)]
    failed += [name for name, is_ok in zip(beside, done, strict=True) if not is_ok]
    if day is not None:
        print(rotation.today(day))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _command(name: str, rest: list[str], day: int | None, *, every: bool) -> list[str]:
    """The command of a step.

    rest:  arguments for pytest
    day:   whose part of each tier runs; None: there are no parts
    every: with the slow tests
    """
    if name == "tests" and rest:
        return [*STEPS[name], *([] if every else ["-m", "not slow"]), *rest]
    if name not in MARKED:
        return STEPS[name]
    marked = MARKED[name] + ("" if every or day is not None else " and not slow")
    return [*STEPS[name], "-m", marked, *([] if day is None else ["--day", str(day)])]


def _run(name: str, command: list[str], *, is_alone: bool = True) -> bool:
    """Run a step, print its result, and return whether it succeeded.

    is_alone: show its output while it runs; another one's would be mixed with it
    """
    began = time.monotonic()
    head = f"== {name}\n"
    if is_alone:
        print(head, end="", flush=True)
        code, output = subprocess.run(command, cwd=ROOT, check=False).returncode, ""
    else:
        done = subprocess.run(
            command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        code, output = done.returncode, head + done.stdout
    result = "ok" if code == 0 else "FAILED"
    print(f"{output}== {name}: {result} ({time.monotonic() - began:.1f} s)\n", end="", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
