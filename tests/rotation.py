"""Owns the rotation of tests that do not all run each day: of a tier, another part runs each day.

A test belongs to the first tier whose marker it has (CONTRIBUTING.md, "The ladder of tests").
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple
from zlib import crc32

import pytest


class Tier(NamedTuple):
    """How the tests with one marker are spread over days.

    parts:     after so many days, each test has run
    limit_s:   a process that has spent so much on them skips those that remain
    has_files: of each file a test runs every day, because the quick suite has none of its kind
    """

    parts: int
    limit_s: float = float("inf")
    has_files: bool = False


TIERS = {
    "slow": Tier(7, limit_s=15.0),
    "deep": Tier(4),
    "spark": Tier(2, has_files=True),
    "clients": Tier(2, has_files=True),
}


def chosen(names: Iterable[str], tier: Tier, day: int) -> list[str]:
    """The tests of a day. If there is a limit, their order differs from one round to the next.

    The name alone decides the day of a test, so that it keeps it when others are added or removed.
    A file without a test on that day has one all the same, each day another one.
    """
    turn, part = divmod(day, tier.parts)
    today = {name for name in names if _hash(name) % tier.parts == part}
    if tier.has_files:
        files: dict[str, list[str]] = {}
        for name in sorted(names):
            files.setdefault(name.partition("::")[0], []).append(name)
        today |= {tests[day % len(tests)] for tests in files.values() if today.isdisjoint(tests)}
    if tier.limit_s < float("inf"):
        return sorted(today, key=lambda name: _hash(f"{turn} {name}"))
    return [name for name in names if name in today]


def today(day: int) -> str:
    """What runs on a day, in one line."""
    parts = (f"{name} {day % tier.parts + 1} of {tier.parts}" for name, tier in TIERS.items())
    return f"parts of today: {', '.join(parts)}; the others run on other days and with --slow"


def _hash(text: str) -> int:
    return crc32(text.encode())


def _tier(item: pytest.Item) -> str | None:
    return next((name for name in TIERS if item.get_closest_marker(name)), None)


class _Count:
    """Of a tier: how many tests there are, were chosen, ran and were skipped, and their time."""

    def __init__(self) -> None:
        self.all = self.chosen = self.ran = self.skipped = 0
        self.ran_s = self.spent_s = 0.0


class Rotation:
    """The plugin that leaves out tests of other days, and skips tests when the time is over.

    day: the number of the day
    """

    def __init__(self, day: int) -> None:
        self._day = day
        self._counts = {name: _Count() for name in TIERS}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        others = list[pytest.Item]()
        for tier, count in self._counts.items():
            of_tier = {item.nodeid: item for item in items if _tier(item) == tier}
            names = dict.fromkeys(chosen(of_tier, TIERS[tier], self._day))
            count.all, count.chosen = len(of_tier), len(names)
            for item in of_tier.values():
                item.user_properties.append(("tier", tier))  # reports of xdist's workers have it
            others += (of_tier[name] for name in of_tier if name not in names)
            places = iter(of_tier[name] for name in names)
            items[:] = [
                next(places) if item.nodeid in of_tier else item
                for item in items
                if item.nodeid not in of_tier or item.nodeid in names
            ]
        if hasattr(config, "workeroutput"):  # of xdist
            config.workeroutput["rotation"] = {
                tier: (count.all, count.chosen) for tier, count in self._counts.items()
            }
        config.hook.pytest_deselected(items=others)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if tier := _tier(item):
                self._counts[tier].spent_s += time.monotonic() - began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        tier = _tier(item)
        if tier and self._counts[tier].spent_s > TIERS[tier].limit_s:
            pytest.skip(f"the time for {tier} tests is over")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts of any worker of xdist: all have collected the same tests."""
        for tier, (everything, chosen_tests) in node.workeroutput.get("rotation", {}).items():
            self._counts[tier].all, self._counts[tier].chosen = everything, chosen_tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, also in the process that xdist's workers report to."""
        if tier := dict(report.user_properties).get("tier"):
            count = self._counts[str(tier)]
            count.ran_s += report.duration
            count.ran += report.when == "call"
            count.skipped += report.when == "setup" and report.skipped

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, count in self._counts.items():
            if count.all:
                parts = TIERS[name].parts
                share, expected = 100 * count.chosen / count.all, 100 / parts
                terminalreporter.write_line(
                    f"{name} tests, part {self._day % parts + 1} of {parts}: {count.chosen} of "
                    f"{count.all} ({share:.0f} %, {expected:.0f} % expected), "
                    f"{count.ran} ran in {count.ran_s:.0f} s, {count.skipped} were skipped"
                )
