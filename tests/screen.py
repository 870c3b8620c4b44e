"""Owns a program on an emulated terminal: what its screen shows, and the keys to type."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import pyte


class Screen:
    """A program in a real pseudo-terminal whose output pyte draws; a context manager."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], columns: int = 80, lines: int = 24
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._screen.write_process_input = self._answer  # type: ignore[method-assign, assignment]
        self._stream = pyte.ByteStream(self._screen)
        self.output = b""
        self.code: int | None = None
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", lines, columns, 0, 0)
            fcntl.ioctl(1, termios.TIOCSWINSZ, size)
            os.execvpe(argv[0], list(argv), {**env})

    def _answer(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    @property
    def lines(self) -> list[str]:
        """The lines that the screen shows, without blanks at their ends."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The screen as text, with all that scrolled out of it before."""
        history = self._screen.history.top
        above = ["".join(line[at].data for at in range(self._screen.columns)) for line in history]
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display]).rstrip()

    def colors(self) -> set[str]:
        """The foreground colours on the screen."""
        buffer = self._screen.buffer
        return {char.fg for line in buffer.values() for char in line.values() if char.data.strip()}

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._terminal, keys.encode())

    def wait(self, wanted: str | Callable[[], bool], seconds: float = 30) -> None:
        """Wait until the screen shows a text, or a condition holds."""
        is_met = wanted if callable(wanted) else lambda: wanted in self.text
        deadline = time.monotonic() + seconds
        while not is_met():
            assert self._read(1.0) or is_met(), f"ended without {wanted!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {wanted!r} on the screen:\n{self.text}"

    def until(self, *texts: str) -> str:
        """Wait until the screen shows texts in this order; return what it shows."""
        shown = ""

        def in_order() -> bool:
            nonlocal shown
            shown, at = "\n".join(self.lines), 0
            for text in texts:
                at = shown.find(text, at) + 1
                if not at:
                    return False
            return True

        self.wait(in_order)
        return shown

    def prompted(self, prompt: str) -> None:
        """Wait until the screen ends with a prompt, so that the program reads the next keys."""
        self.wait(lambda: self.text.endswith(prompt))

    def end(self) -> int:
        """Read until the program ends; return its exit code, or the signal as a negative number."""
        deadline = time.monotonic() + 30
        while self._read(1.0):
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        return self._wait()

    def _read(self, seconds: float) -> bool:
        """Draw what the program writes within this time; False after its end."""
        waiting = select.poll()
        waiting.register(self._terminal, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Linux raises EIO once the other side is closed
            return False
        self.output += data
        self._stream.feed(data)
        return bool(data)

    def _wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
        os.close(self._terminal)
