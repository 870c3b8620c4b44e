"""Hold the lock of a file until stdin ends."""

from __future__ import annotations

import fcntl
import sys

with open(sys.argv[1], "r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
