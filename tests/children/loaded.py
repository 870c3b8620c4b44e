"""Run commands of txlog; tell which modules are loaded then: MODULES WORD… [; WORD…]…

One command alone starts as a user's does. Prints exit codes and loaded modules to stderr.
"""

from __future__ import annotations

import sys

from txlog.cli.main import main

names, *words = sys.argv[1:]
sys.argv[1:] = words
codes, line = set(), list[str]()
if ";" not in words:
    codes.add(main())
for word in words if not codes else ():
    if word == ";":
        codes.add(main(line))
        line = []
    else:
        line.append(word)
print(*sorted(codes), sorted({*names.split()} & sys.modules.keys()), file=sys.stderr)
