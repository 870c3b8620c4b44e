"""A worker of the demonstration that stores nothing: START TOTAL ALLOW."""

from __future__ import annotations

import sys

start, total, allow = map(int, sys.argv[1:])
print("begun", start, flush=True)
for done in range(start + 1, total + 1):
    if done > allow:
        print("held", done, flush=True)
        sys.stdin.read()
    print("done", done, flush=True)
