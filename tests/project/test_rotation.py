"""The rotation of slow tests: each has its day, whatever other tests there are."""

from __future__ import annotations

from tests.rotation import PARTS, chosen

NAMES = [f"test_{n}.py::test[{n}]" for n in range(700)]


def test_every_slow_test_has_one_day_in_seven() -> None:
    parts = [chosen(NAMES, day) for day in range(PARTS)]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    assert all(70 <= len(part) <= 130 for part in parts)


def test_a_test_keeps_its_day_when_others_come_and_go() -> None:
    """Only their order differs from week to week, as the time may end before the last."""
    some = {*NAMES[::3]}
    weeks = [chosen(NAMES, 3), chosen(NAMES, 3 + PARTS)]
    assert {*chosen(some, 3)} == some & {*weeks[0]}
    assert {*weeks[0]} == {*weeks[1]} and weeks[0] != weeks[1]
