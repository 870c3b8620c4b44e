"""Owns the diagnostics of a running function on stderr: lines of text, progress on a terminal.

Events that need attention are warnings. `-q` leaves only warnings, `-qq` nothing; --json drops
informational lines. `--log-format json` makes each line a JSON object with the event's facts.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Final

from txlog.base.times import format_time
from txlog.cli.call import progress as bars
from txlog.cli.call.call import Call
from txlog.cli.terminal import say
from txlog.cli.terminal.tables import counted, duration
from txlog.errors import printable
from txlog.functions import Summary

_WARNINGS: Final = frozenset(
    {"retry", "split", "skipped", "dead-lettered", "conflict", "restarted", "left-open"}
)
_LINE_EVERY_S: Final = 10.0


class JobLog(logging.Handler):
    """The diagnostics of one run; also the handler of the function's own logger."""

    def __init__(self, call: Call, name: str, instance: int | None) -> None:
        super().__init__()
        flags = call.flags
        self._call = call
        self._name, self._instance = name, instance
        self._as_text = flags.log_format != "json"
        self._informs = flags.quiet < 1 and not call.output.as_json
        self._warns = flags.quiet < 2
        # The bar is drawn at commits, not by a thread, because functions may fork.
        self._bar = call.line = bars.Line(call)
        self._since = self._last = time.monotonic()
        self.total: int | None = None  # messages to read, if that is known

    def attach(self) -> None:
        """Become the only handler of the logger `txlog.function`."""
        logger = logging.getLogger("txlog.function")
        logger.handlers = [self]
        logger.propagate = False
        logger.setLevel(logging.DEBUG if self._call.flags.verbose else logging.INFO)

    def tell(self, event: str, facts: Mapping[str, object]) -> None:
        """Print a line about an event."""
        level = "warning" if event in _WARNINGS else "info"
        if isinstance(at := facts.get("watermark"), int):
            facts = {**facts, "watermark": format_time(at)}
        details = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        self._say(level, f"{event}: {details}" if details else event, {"event": event, **facts})

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record that a function logged."""
        level = "warning" if record.levelno >= logging.WARNING else "info"
        self._say(level, record.getMessage(), {"event": "log", "logger_level": record.levelname})

    def progress(self, summary: Summary, shares: Mapping[int, int] | None = None) -> None:
        """Redraw the bar, at most every EVERY_S; without a bar print a line every 10 s.

        An instance of --parallelism draws and prints none: its parent does, for all instances.
        shares: with --parallelism, the messages that each instance has consumed
        """
        if self._instance is not None:
            return
        now = time.monotonic()
        if self._bar.shows:
            if now - self._since >= bars.AFTER_S and now - self._last >= bars.EVERY_S:
                self._last = now
                self._bar.draw(*self._sights(summary, shares or {}))
        elif now - self._last >= _LINE_EVERY_S:
            self._last = now
            self._say(
                "info", f"progress: {figures(summary)}", {"event": "progress"} | counts(summary)
            )

    def _sights(self, summary: Summary, shares: Mapping[int, int]) -> list[bars.Sight]:
        """A bar for all, and with --parallelism one below for each worker's part of the whole."""
        if not shares:
            return [bars.Sight(f"{self._name}: {figures(summary)}")]
        workers = {f"  worker {number}": count for number, count in sorted(shares.items())}
        width = max(len(self._name), *map(len, workers))
        parts = [
            bars.Sight(name.ljust(width), f"{count:,} in", self._share(count))
            for name, count in workers.items()
        ]
        whole = bars.Sight(self._name.ljust(width), figures(summary), self._share(summary.consumed))
        return [whole, *parts]

    def _share(self, count: int) -> float | None:
        return min(1.0, count / self.total) if self.total else None

    @property
    def draws(self) -> bool:
        """Whether there are bars, which lines of other processes must not run into."""
        return self._bar.shows and self._instance is None

    @property
    def color(self) -> str:
        """The --color for child processes whose lines this process prints."""
        return "always" if self._bar.color else "never"

    def relay(self, lines: bytes) -> None:
        """Print lines of another process away from the bars."""
        with self._bar.aside():
            self._write(lines.decode("utf-8", "surrogateescape"))

    def ended(self, word: str, summary: Summary) -> None:
        """Print how the run ended, with its figures."""
        done = counted(summary.transactions, "transaction")
        text = f"{word}: {figures(summary)} ({done}, {duration(self._call.elapsed_ms())})"
        self._say("info", text, {"event": word} | counts(summary))

    def erase(self) -> None:
        """Remove the bar."""
        with self._bar.aside():
            pass

    def _say(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        if not (self._warns if level == "warning" else self._informs):
            return
        line = printable(text)
        if self._as_text:
            flags = self._call.flags
            choice = "never" if flags.log_file is not None else flags.color or "auto"
            is_warning = level == "warning"
            prefix = say.marked("warning", choice, os.environ) if is_warning else ""
            line = f"{prefix}{self._name}: {line}"
        else:
            fields = {
                "level": level,
                "message": text,
                "time": format_time(self._call.now_ms()),
                "function": self._name,
                "instance": self._instance or 0,
                **facts,
            }
            line = json.dumps(fields, ensure_ascii=False, default=str)
        path = self._call.flags.log_file
        if path is not None:
            say.log(path, line)
            return
        with self._bar.aside():
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        """Write a line in one call: processes of --parallelism share the descriptor."""
        try:
            os.write(sys.stderr.fileno(), text.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError, AttributeError):  # stderr is closed, or a test has replaced it
            if sys.stderr is not None and not sys.stderr.closed:
                sys.stderr.write(text)


def counts(summary: Summary) -> dict[str, object]:
    """The figures by name."""
    return {
        "consumed": summary.consumed,
        "produced": summary.produced,
        "transactions": summary.transactions,
        "aborted": summary.aborted,
        "skipped": summary.skipped,
        "dead_lettered": summary.dead_lettered,
        "late_messages": summary.late,
    }


def figures(summary: Summary) -> str:
    """The figures as a sentence."""
    text = f"{summary.consumed:,} in, {summary.produced:,} out"
    for count, word in (
        (summary.aborted, "aborted"),
        (summary.skipped, "skipped"),
        (summary.dead_lettered, "dead-lettered"),
        (summary.late, "late"),
    ):
        if count:
            text += f", {count:,} {word}"
    return text
