"""Fuzz some targets, or all: `scripts/fuzz [TARGET ...] [--minutes M] [--seed N] [--keep]`.

Each target runs in a process of its own, because an input may end it. The program prints a table of
the targets, and writes each finding to `tests/fuzz/found/`; it ends with 1 if there is any. With
`--keep` it also adds the inputs that reach new lines to `tests/fuzz/corpus/`.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import corpus
from tests.fuzz.engine import Campaign, Finding, shrunk, smallest_set
from tests.fuzz.targets import TARGETS
from tests.fuzz.trace import lines_in

MEMORY_MAX = 6 << 30
KEPT_BYTES = 18_000  # of the text of a target's corpus
_HEAD = ("target", "executions", "per second", "inputs", "lines", "of", "findings")


def main() -> int:
    """Run the campaigns; returns the exit code."""
    options = _options()
    names = options.targets or list(TARGETS)
    if options.child:
        print(json.dumps(_campaign(names[0], options)))
        return 0
    print(f"seed {options.seed}, {options.minutes:g} minutes for each of {len(names)} targets")
    print("  ".join(f"{word:>14}" for word in _HEAD), flush=True)
    found = 0
    for row in _all(names, options):
        print("  ".join(f"{row[word]!s:>14}" for word in _HEAD), flush=True)
        for sentence in row["sentences"]:
            print(f"    {sentence}", flush=True)
        found += row["findings"]
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86_400)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add to the corpus")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; the targets are {', '.join(TARGETS)}")
    return options


def _all(names: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run a process for each target, so many at once; yields the rows of the table."""
    waiting, running = list(names), list[tuple[str, Path, subprocess.Popen[str]]]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < options.processes:
                name = waiting.pop(0)
                current = Path(folder) / name
                words = [sys.executable, "-m", "tests.fuzz", name, "--child", str(current)]
                words += ["--minutes", str(options.minutes), "--seed", str(options.seed)]
                words += ["--keep"] if options.keep else []
                child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
                running.append((name, current, child))
            name, current, child = running.pop(0)
            output, _ = child.communicate()
            if child.returncode == 0:
                yield json.loads(output.splitlines()[-1])
            else:
                yield _died(name, current, child.returncode)


def _died(name: str, current: Path, code: int) -> dict[str, Any]:
    """The row of a target whose process ended at some input."""
    word = signal.Signals(-code).name if code < 0 else f"exit {code}"
    data = current.read_bytes() if current.exists() else b""
    path = corpus.note(name, word.lower().replace(" ", "_"), f"the process ends with {word}", data)
    row: dict[str, Any] = dict.fromkeys(_HEAD, "")
    return {**row, "target": name, "findings": 1, "sentences": [f"{path.name}: {word}"]}


def _campaign(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fuzz one target in this process; returns its row."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    target = TARGETS[name]
    campaign = Campaign(target, options.seed, Path(options.child))
    began = time.monotonic()
    campaign.run(sys.maxsize, 60 * options.minutes)
    seconds = time.monotonic() - began
    sentences = []
    for finding in campaign.findings.values():
        sentences.append(_noted(name, shrunk(target, finding)))
    if options.keep:
        kept = smallest_set(target, [*corpus.kept(name), *campaign.inputs], KEPT_BYTES)
        corpus.keep(name, kept)
    every = set().union(*(lines_in(importlib.import_module(part)) for part in target.modules))
    row = {
        "target": name,
        "executions": campaign.executions,
        "per second": round(campaign.executions / seconds),
        "inputs": len(campaign.inputs),
        "lines": len(every & campaign.lines),
        "of": len(every),
        "findings": len(sentences),
    }
    return {**row, "sentences": sentences}


def _noted(name: str, finding: Finding) -> str:
    path = corpus.note(name, finding.name, finding.sentence, finding.data)
    print(finding.details, file=sys.stderr)
    return f"{path.name}: {finding.sentence}"


if __name__ == "__main__":
    sys.exit(main())
