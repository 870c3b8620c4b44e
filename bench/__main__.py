"""Runs one scenario of the bench, or lists them.

    python -m bench                        the scenarios
    python -m bench SCENARIO --help        its options
    python -m bench SCENARIO [OPTIONS]

A scenario measures the txlog of this checkout, unless PYTHONPATH has a folder with another one. So
two versions can run in turns.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENARIOS = (
    *("throughput", "everyday", "columns", "delayed", "watermarks", "serving", "lone", "growth"),
    *("consumers", "lag", "overlap", "guarantees", "stress", "soak"),
)


def main() -> int:
    """Run the scenario that the first argument names, or list all; returns the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in SCENARIOS:
        print((__doc__ or "").partition("\n\n")[2])
        for name in SCENARIOS:
            print(f"    {name:<11} {purpose(name)}")
        return 0 if sys.argv[1:] in ([], ["-h"], ["--help"]) else 2
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if not any(Path(folder, "txlog").is_dir() for folder in folders):
        folders.insert(0, str(HERE.parent / "src"))
    folders.append(str(HERE.parent))
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)  # for the processes of a scenario
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m bench {name}"
    return importlib.import_module(f"bench.{name}").main() or 0


def purpose(name: str) -> str:
    """The first line of a scenario's docstring; the module is not imported."""
    path = HERE / f"{name}.py" if (HERE / f"{name}.py").exists() else HERE / name / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
