"""A metric as plain values: computed by `metrics`, written as text by `metrics_text`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txlog.base.rows.store import MetricRow


# (suffix of the name, labels, value)
Sample = tuple[str, dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its samples; type: gauge, counter, histogram or summary."""

    name: str
    type: str
    help: str
    samples: list[Sample]


def rows(found: Iterable[Family]) -> list[MetricRow]:
    """Families as {name, type, labels, value}, one row for each sample."""
    return [
        {"name": family.name + suffix, "type": family.type, "labels": labels, "value": value}
        for family in found
        for suffix, labels, value in family.samples
    ]
