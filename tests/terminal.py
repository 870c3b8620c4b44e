"""Owns running a program in a real terminal, and typing keys when it is ready for them."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time


def shown(argv: list[str], env: dict[str, str], code: int = 0) -> str:
    """The output of a program on a terminal, until it ends; lines end with a newline alone.

    code: the exit code that it must have
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, env)
    data = b""
    try:
        while more := os.read(terminal, 65536):
            data += more
    except OSError:
        pass  # Linux raises EIO once the other side is closed
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, data
    return data.decode().replace("\r\n", "\n")


def typed(
    argv: list[str], env: dict[str, str], keys: list[tuple[str, str]], prompt: str = "> "
) -> str:
    """The output on a terminal; keys: what to type at the prompt, and the text to wait for then."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, env)
    output = ""
    waiting = select.poll()  # `select.select` knows no descriptor from 1,024 on
    waiting.register(terminal, select.POLLIN)
    try:
        for text, awaited in [("", prompt), *keys]:
            os.write(terminal, text.encode())
            since = len(output)
            deadline = time.monotonic() + 60
            while awaited not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output[since:]):
                assert time.monotonic() < deadline, output
                if waiting.poll(1000):
                    output += os.read(terminal, 65536).decode(errors="replace")
                elif text == "\x03":
                    # Python looks for signals when its wait for a key is interrupted; one that
                    # comes just before that wait is seen with the next.
                    os.write(terminal, text.encode())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return output
