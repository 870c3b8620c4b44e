"""Owns progress bars: on the last line of a terminal's stderr, gone when the command ends.

    files   orders ━━━━━━━━━━━━━━━━━━───────────── 58% 15.7 MiB of 27.0 MiB, 3.1 MiB/s, 4s left
    pipes   orders 1,204,000 messages, 12.3 MiB, 2.1 MiB/s
    words   orders: writing, 12s

A bar appears after half a second. The work only notes how far it is; a thread draws, so that a bar
appears even during one long call. Other output on stderr is printed inside `aside`, so that no line
begins in a bar. The cursor is never hidden, and a second signal, which ends the process at once,
takes the bar away as well.

rich draws the line when there is one to draw. It is shown and removed here and not by rich.live,
which hides the cursor until it ends in order; a second signal or a kill ends nothing in order.
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
from txlog.cli.terminal.tables import counted, duration, size
from txlog.errors import printable

if TYPE_CHECKING:
    from txlog.cli.call.call import Call

AFTER_S: Final = 0.5
EVERY_S: Final = 0.1
ERASE: Final = "\r\x1b[K"


class Sight(NamedTuple):
    """What a line shows: a name, words, and between them a bar where a share, 0 to 1, is known."""

    name: str
    words: str = ""
    share: float | None = None


class Line:
    """The last line of stderr: what is drawn there, and what must not run into it.

    prints: the command writes to stdout meanwhile: then there is a bar only if stdout is a file,
            because whatever reads a pipe may be on the same screen
    """

    def __init__(self, call: Call, *, prints: bool = False) -> None:
        flags = call.flags
        silent = flags.no_progress or truthy("TXLOG_NO_PROGRESS") or flags.quiet
        can = is_terminal(2) and os.environ.get("TERM") != "dumb"  # that could not take it away
        self.shows = not silent and not call.output.as_json and can
        self._color = is_colored(flags.color or "auto", can, os.environ)
        if prints and not _is_file(1):
            self.shows = False
        self._lock = threading.Lock()
        self._drawn = ""

    def draw(self, sight: Sight) -> None:
        """Replace what is drawn, cut to the width."""
        screen = importlib.import_module("txlog.cli.terminal.screen")
        name, words = printable(sight.name), printable(sight.words)
        shown = screen.progress(name, words, sight.share, columns_of() - 1, self._color)
        with self._lock:
            if shown != self._drawn:
                self._drawn = shown
                _write(f"{ERASE}{shown}")
                signals.parting(ERASE)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the line and keep it away for the length of the block."""
        with signals.shielded(), self._lock:
            if self._drawn:
                self._drawn = ""
                signals.parting("")
                _write(ERASE)
            yield


class Bar(Line):
    """A line that a thread redraws for as long as the context lasts.

    sight: returns what it shows; the thread calls it
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
    """A bar of words: what the work is doing, and for how long.

    It is called with the words; said: the first ones
    """

    def __init__(self, call: Call, said: str = "", *, prints: bool = False) -> None:
        super().__init__(call, self._words, prints=prints)
        self._said = said
        self._since = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say what the work is doing."""
        self._said = text

    def _words(self) -> Sight:
        elapsed_s = int(time.monotonic() - self._since)
        if not self._said or not elapsed_s:
            return Sight(self._said)
        return Sight(f"{self._said},", duration(elapsed_s * 1000))


class Amount(Bar):
    """A bar for an amount: bytes of files whose sizes are known, else a counter.

    total:   bytes in all, as far as is known
    read:    bytes that were read
    records: messages made of them
    done:    those of the messages that are stored; `read` counts by their share
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


def amount(name: str, done_bytes: int, total: int | None, messages: int, elapsed_s: float) -> Sight:
    """What a bar of an amount shows.

    total: None when unknown; more bytes may come than that
    """
    rate = done_bytes / elapsed_s if elapsed_s > 0 else 0.0
    if not total:
        said = [] if not messages else [counted(messages, "message")]
        if done_bytes:
            said += [size(done_bytes), f"{size(int(rate))}/s"]
        return Sight(name, ", ".join(said))
    share = min(1.0, done_bytes / total)
    words = f"{int(share * 100):3}% {size(done_bytes)} of {size(total)}, {size(int(rate))}/s"
    if rate and share < 1:
        words += f", {duration(int((total - done_bytes) / rate + 0.5) * 1000)} left"
    return Sight(name, words, share)


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
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                return None
            total += found.st_size
    except OSError:
        return None
    return total or None


def _is_file(number: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(number).st_mode)
    except OSError:
        return False


def columns_of() -> int:
    """How wide the terminal of stderr is."""
    named = os.environ.get("TERMINAL_WIDTH") or os.environ.get("COLUMNS") or ""
    try:
        return (
            int(named) if named.isdecimal() and len(named) < 10 else os.get_terminal_size(2).columns
        ) or 80
    except OSError:
        return 80


def _write(text: str) -> None:
    """Write at once and whole; a terminal that is gone is not an error of the work."""
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), text.encode("utf-8", "backslashreplace"))
