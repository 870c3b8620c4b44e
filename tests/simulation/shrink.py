"""Owns shrinking: a scenario that fails becomes the smallest found that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from tests.simulation.scenario import Scenario

RUNS_MAX = 300
CALM: tuple[tuple[str, Any], ...] = (("has_no_watch", False), ("late_events_s", 0.0))

T = TypeVar("T")


def shrink(
    scenario: Scenario, fails: Callable[[Scenario], bool], runs_max: int = RUNS_MAX
) -> Scenario:
    """Take out processes, faults, operations and settings while the scenario still fails.

    fails: runs a scenario; True if it has the finding
    """
    runs = 0
    has_changed = True
    while has_changed:
        has_changed = False
        for smaller in _smaller(scenario):
            if runs >= runs_max:
                return scenario
            runs += 1
            if fails(smaller):
                scenario, has_changed = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that lack something, the largest parts first."""
    replace = msgspec.structs.replace
    plans = scenario.processes
    if len(plans) > 1:
        for left in _without_parts(plans, 1):
            yield replace(scenario, processes=left)
    for faults in _without(scenario.faults):
        yield replace(scenario, faults=faults)
    for number, plan in enumerate(plans):
        for operations in _without(plan.operations):
            smaller = replace(plan, operations=operations)
            yield replace(scenario, processes=_put(plans, number, smaller))
    for number, plan in enumerate(plans):
        for name, value in CALM:
            if getattr(plan, name) != value:
                smaller = replace(plan, **{name: value})
                yield replace(scenario, processes=_put(plans, number, smaller))
    if len(scenario.topics) > 1:
        for topics in _without_parts(scenario.topics, 1):
            names = {topic.name for topic in topics}
            if all(_topics_of(op) <= names for plan in plans for op in plan.operations):
                yield replace(scenario, topics=topics)
    for name in scenario.settings:
        yield replace(
            scenario, settings={key: v for key, v in scenario.settings.items() if key != name}
        )


def _topics_of(operation: dict[str, Any]) -> set[str]:
    inner = [_topics_of(op) for op in operation.get("of", ())]
    sends = [*operation.get("to", ()), *chain.from_iterable(operation.get("txns", ()))]
    return {operation["topic"], *(topic for topic, _ in sends)}.union(*inner)


def _put(items: list[T], number: int, item: T) -> list[T]:
    return [*items[:number], item, *items[number + 1 :]]


def _without(items: list[T]) -> Iterator[list[T]]:
    """The list without a part of it: halves first, single items last."""
    size = len(items)
    while size:
        yield from _without_parts(items, size)
        size //= 2


def _without_parts(items: list[T], size: int) -> Iterator[list[T]]:
    for begin in range(len(items) - size, -size, -size):
        at = max(begin, 0)
        yield items[:at] + items[at + size :]
