"""Pass sockets on to a program as systemd does: NAMES DESCRIPTORS PROGRAM…

They become 3, 4, …, and LISTEN_PID is the program's own.
"""

from __future__ import annotations

import os
import sys

names, numbers, program = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
kept = [os.dup(int(number)) for number in numbers]
high = [os.dup2(descriptor, 100 + n) for n, descriptor in enumerate(kept)]
for n, descriptor in enumerate(high):
    os.dup2(descriptor, 3 + n)
count = str(len(numbers))
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=count, LISTEN_FDNAMES=names)
os.execv(program[0], program)
