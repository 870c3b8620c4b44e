"""Runs simulations: `scripts/simulate [--seed N] [--minutes M] [--processes P] [--replay FILE]`."""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of text have the same order in each run
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

from tests.simulation.primitives import install

install()

from tests.simulation.command import main  # noqa: E402

code = main()
sys.stdout.flush()
sys.stderr.flush()
# Without the functions of `atexit`: they would wait for threads of killed processes.
os._exit(code)
