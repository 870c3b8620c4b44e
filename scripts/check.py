"""Run the checks that every commit passes: format, lint, types, then the tests.

usage: check.py [-h] [--all] [--slow] [--changed] [--only STEP] [PYTEST ARGUMENT ...]

The steps format, lint, types and tests are quick. --all adds five that take as long again: deep
tries each law at many places; spark has the tests of one Spark session; clients builds stock
clients of Apache Pulsar and tries them; upstream runs a part of those clients' own tests, and
mutants looks for patches that break a promise, both each day for others. With --all also a seventh
of the tests marked slow runs, each day another one (tests/rotation.py); with --slow, all of them.
With pytest arguments, only those tests run.
--changed is for while you work: ruff and the tests nearest to your changes, for 9 seconds. A failed
step does not stop the others; the exit code is then 1. `scripts/test` calls this in `.venv`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from scripts import changed

ROOT = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable, "-m"]
STEPS = {
    "format": [*PYTHON, "ruff", "format", "--check", "--quiet", "."],
    "lint": [*PYTHON, "ruff", "check", "--quiet", "."],
    "types": [*PYTHON, "mypy"],
    "tests": [*PYTHON, "pytest", "-q", "-n", "auto", "--dist", "worksteal"],
    "deep": [*PYTHON, "pytest", "-q", "-n", "auto", "--dist", "worksteal"],
    "spark": [*PYTHON, "pytest", "-q", "tests/spark"],
    "clients": [*PYTHON, "pytest", "-q", "tests/clients"],
    "upstream": [*PYTHON, "tests.upstream"],
    "mutants": [*PYTHON, "tests.mutants", "--today", "90"],
}
QUICK = ("format", "lint", "types", "tests")
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
    is_rotation = options.all and not options.slow
    today = ["--slow-day", str(datetime.now(UTC).toordinal())]  # also if midnight passes meanwhile
    names = [options.only] if options.only else ["tests"] if rest else names
    failed = []
    for name in names:
        command = list(STEPS[name])
        if name == "tests" and rest:
            command += rest if options.slow else ["-m", "not slow", *rest]
        elif name in MARKED:
            every = options.slow or is_rotation
            command += ["-m", MARKED[name] + ("" if every else " and not slow")]
            command += today if is_rotation else []
        began = time.monotonic()
        print(f"== {name}", flush=True)
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        print(f"== {name}: {'ok' if code == 0 else 'FAILED'}", end=" ")
        print(f"({time.monotonic() - began:.1f} s)", flush=True)
        if code != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
