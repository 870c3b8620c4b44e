"""Run a command of txlog with an exit function, and a thread that outlives it if told so."""

from __future__ import annotations

import atexit
import sys
import threading

from txlog.cli.main import script

atexit.register(lambda: print("at exit"))


def outlive() -> None:
    """Print once the command has ended."""
    threading.main_thread().join()
    print("worker")


if sys.argv[1] == "True":
    threading.Thread(target=outlive).start()
sys.argv = ["txlog", "--version", "--json"]
print("before", end=" ")
script()
