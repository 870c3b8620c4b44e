"""Owns progress bars: on the last lines of a terminal's stderr, removed when the command ends.

    files   orders ━━━━━━━━━━━━━━━━━━───────────── 58% 15.7 MiB of 27.0 MiB, 3.1 MiB/s, 4s left
    pipes   orders 1,204,000 messages, 12.3 MiB, 2.1 MiB/s
    words   orders: writing, 12s

A bar appears after half a second. The work only records its progress; a thread draws, so that a bar
appears even during one long call. Other output on stderr is printed inside `aside`, so that it does
not start in the line of a bar. The cursor is never hidden, and a second signal, which ends the
process at once, also removes the bar.

rich draws the line. This module shows and removes it without rich.live, because rich.live hides the
cursor until an orderly end, and a second signal or a kill prevents that.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from txlog.cli.call.call import is_terminal, truthy
from txlog.cli.terminal import signals
from txlog.cli.terminal.say import is_colored
from txlog.cli.terminal.tables import columns_of, counted, duration, size
from txlog.errors import printable

if TYPE_CHECKING:
    from txlog.cli.call.call import Call

AFTER_S: Final = 0.5
EVERY_S: Final = 0.1
ERASE: Final = "\r\x1b[K"


class Sight(NamedTuple):
    """The content of a line: a name, words, and between them a bar for a share from 0 to 1."""

    name: str
    words: str = ""
    share: float | None = None


class Line:
    """The last lines of stderr, with a bar on each; other output must not run into them.

    prints: the command also writes to stdout; then a bar appears only if stdout is a file, because
            the reader of a pipe may print on the same screen
    """

    def __init__(self, call: Call, *, prints: bool = False) -> None:
        flags = call.flags
        silent = flags.no_progress or truthy("TXLOG_NO_PROGRESS") or flags.quiet
        # a dumb terminal cannot erase the bar
        can = is_terminal(2) and os.environ.get("TERM") != "dumb"
        self.shows = not silent and not call.output.as_json and can
        self.color = is_colored(flags.color or "auto", can, os.environ)
        if prints and not _is_file(1):
            self.shows = False
        self._lock = threading.Lock()
        self._drawn: list[str] = []

    @property
    def _erase(self) -> str:
        """What removes the drawing: the cursor is at the end of its last line."""
        above = len(self._drawn) - 1
        return ERASE if above < 1 else f"\r\x1b[{above}A\x1b[J"

    def draw(self, *sights: Sight) -> None:
        """Replace the drawing, a line for each sight, cut to the width and height of the screen."""
        screen = importlib.import_module("txlog.cli.terminal.screen")
        columns = (columns_of(2, os.environ) or 80) - 1
        drawing = [
            screen.progress(
                printable(each.name), printable(each.words), each.share, columns, self.color
            )
            for each in sights[: max(1, _lines_of(2) - 1)]
        ]
        with self._lock:
            if drawing != self._drawn:
                before, self._drawn = self._erase, drawing
                _write(before + "\n".join(drawing))
                signals.parting(self._erase)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the drawing, and keep it away while the block runs."""
        with signals.shielded(), self._lock:
            if self._drawn:
                before, self._drawn = self._erase, []
                signals.parting("")
                _write(before)
            yield


class Bar(Line):
    """A line that a thread redraws while the `with` block runs.

    sight: returns the current content; the thread calls it
    """

    def __init__(self, call: Call, sight: Callable[[], Sight], *, prints: bool = False) -> None:
        super().__init__(call, prints=prints)
        self._call = call
        self._sight = sight
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self.shows:
            self._call.line = self
            self._thread = threading.Thread(target=self._keep_drawing, name="bar", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            with signals.shielded():
                self._ended.set()
                self._thread.join()
                self._thread = self._call.line = None
                with self.aside():
                    pass

    def _keep_drawing(self) -> None:
        wait_s = AFTER_S
        while not self._ended.wait(wait_s):
            wait_s = EVERY_S
            self.draw(self._sight())


class Words(Bar):
    """A bar of words: the current work, and for how long it has run.

    text: the first words; a call of the object replaces them
    """

    def __init__(self, call: Call, text: str = "", *, prints: bool = False) -> None:
        super().__init__(call, self._words, prints=prints)
        self._said = text
        self._since = time.monotonic()

    def __call__(self, text: str) -> None:
        """Replace the words that describe the current work."""
        self._said = text

    def _words(self) -> Sight:
        elapsed_s = int(time.monotonic() - self._since)
        if not self._said or not elapsed_s:
            return Sight(self._said)
        return Sight(f"{self._said},", duration(elapsed_s * 1000))


class Amount(Bar):
    """A bar for an amount: bytes of files whose sizes are known, else a counter.

    total:   bytes in all, if known
    read:    bytes read so far
    records: messages made from them
    done:    messages stored; the bar shows the same share of `read`
    """

    def __init__(self, call: Call, name: str, total: int | None, *, prints: bool = False) -> None:
        super().__init__(call, self._amount, prints=prints)
        self._name, self.total = name, total
        self._since = time.monotonic()
        self.read = self.records = self.done = 0

    def count(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self.read += size_bytes

    def _amount(self) -> Sight:
        records, done = self.records, self.done
        share = min(1.0, done / records) if records else 1.0
        elapsed_s = time.monotonic() - self._since
        return amount(self._name, int(self.read * share), self.total, done, elapsed_s)


class Count(Bar):
    """A counter of messages, and their rate; a call of the object sets how many are done."""

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, lambda: messages(name, self._done, time.monotonic() - self._since))
        self._since = time.monotonic()
        self._done = 0

    def __call__(self, done: int) -> None:
        """Set the number of messages that are done."""
        self._done = done


def messages(name: str, done: int, elapsed_s: float) -> Sight:
    """The content of a counter: messages done, and how many a second."""
    if not done:
        return Sight(name)
    rate = int(done / elapsed_s) if elapsed_s > 0 else 0
    return Sight(name, f"{counted(done, 'message')}, {rate:,}/s")


def amount(name: str, done_bytes: int, total: int | None, messages: int, elapsed_s: float) -> Sight:
    """The content of a bar for an amount: bytes done, rate, and with a total also the time left.

    total: bytes in all; None: unknown. The work may read more than that
    """
    rate = done_bytes / elapsed_s if elapsed_s > 0 else 0.0
    if not total:
        parts = [] if not messages else [counted(messages, "message")]
        if done_bytes:
            parts += [size(done_bytes), f"{size(int(rate))}/s"]
        return Sight(name, ", ".join(parts))
    share = min(1.0, done_bytes / total)
    caption = f"{int(share * 100):3}% {size(done_bytes)} of {size(total)}, {size(int(rate))}/s"
    if rate and share < 1:
        caption += f", {duration(int((total - done_bytes) / rate + 0.5) * 1000)} left"
    return Sight(name, caption, share)


def size_of(paths: Sequence[str]) -> int | None:
    """The bytes to read from the files, or from stdin without any; None: unknown."""
    total = 0
    try:
        for path in paths or ["-"]:
            if path == "-":
                if not _is_file(0):
                    return None
                total += max(0, os.fstat(0).st_size - os.lseek(0, 0, os.SEEK_CUR))
                continue
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                return None
            total += status.st_size
    except OSError:
        return None
    return total or None


def _lines_of(descriptor: int) -> int:
    """The height of a descriptor's terminal, 24 if it does not say."""
    try:
        return os.get_terminal_size(descriptor).lines or 24
    except OSError:
        return 24


def _is_file(number: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(number).st_mode)
    except OSError:
        return False


def _write(text: str) -> None:
    """Write in one call, and ignore failures: the command goes on without a bar."""
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), text.encode("utf-8", "backslashreplace"))
