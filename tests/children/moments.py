"""Interrupt a command at moments of its run: COMMAND STEP MOST; a line for each moment.

Each run is a fork of a process that has loaded only the entry point.
"""

from __future__ import annotations

import os
import sys

from txlog.cli import main

main.OBJECTS_MAX  # noqa: B018 - now it has run
print(sorted({"typing", "enum", "contextlib", "threading", "collections"} & set(sys.modules)))
import signal  # noqa: E402

words, step, most = sys.argv[1].split(), int(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["txlog", *words]


def run(at: int) -> tuple[int, str]:
    """Run the command with an interrupt in such a call; returns exit code and errors."""
    seen = 0

    def tell(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGINT)

    out, err = os.memfd_create("out"), os.memfd_create("err")
    pid = os.fork()
    if pid == 0:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.setprofile(tell)
        main.script()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), os.pread(err, 4000, 0).decode()


for number in range(most):
    code, errors = run(8 + number * step + number * number * number)
    print(code, "|".join(errors.splitlines()))
    if code == 0:
        break
