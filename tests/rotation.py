"""Owns the rotation of the slow tests: each day another seventh of them runs (CONTRIBUTING.md)."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any
from zlib import crc32

import pytest

PARTS = 7
SECONDS = 25.0  # after these, a process skips its remaining slow tests


def chosen(names: Iterable[str], day: int) -> list[str]:
    """The tests of a day, in an order that differs from week to week.

    The name alone decides the day of a test, so that it keeps it when others are added or removed.
    """
    week, part = divmod(day, PARTS)
    return sorted(
        (name for name in names if crc32(name.encode()) % PARTS == part),
        key=lambda name: crc32(f"{week} {name}".encode()),
    )


class Rotation:
    """The plugin that leaves out slow tests of other days, and skips tests when the time is over.

    day: the number of the day
    """

    def __init__(self, day: int) -> None:
        self._day = day
        self._spent_s = self._ran_s = 0.0
        self._ran = self._skipped = self._chosen = self._all = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        slow = {item.nodeid: item for item in items if item.get_closest_marker("slow")}
        today = [slow[name] for name in chosen(slow, self._day)]
        self._chosen, self._all = len(today), len(slow)
        if hasattr(config, "workeroutput"):  # of xdist
            config.workeroutput["slow tests"] = self._chosen, self._all
        config.hook.pytest_deselected(items=[item for item in slow.values() if item not in today])
        places = iter(today)
        items[:] = [
            next(places) if item.nodeid in slow else item
            for item in items
            if item.nodeid not in slow or item in today
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if item.get_closest_marker("slow"):
                self._spent_s += time.monotonic() - began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._spent_s > SECONDS and item.get_closest_marker("slow"):
            pytest.skip("the time for slow tests is over")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts of any worker of xdist: all have collected the same tests."""
        self._chosen, self._all = node.workeroutput.get("slow tests", (0, 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, also in the process that xdist's workers report to."""
        if "slow" in report.keywords:
            self._ran_s += report.duration
            self._ran += report.when == "call"
            self._skipped += report.when == "setup" and report.skipped

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._all:
            share, expected = 100 * self._chosen / self._all, 100 / PARTS
            terminalreporter.write_line(
                f"slow tests, part {self._day % PARTS + 1} of {PARTS}: {self._chosen} of "
                f"{self._all} ({share:.0f} %, {expected:.0f} % expected), "
                f"{self._ran} ran in {self._ran_s:.0f} s, {self._skipped} were skipped"
            )
