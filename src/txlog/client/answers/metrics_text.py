"""The Prometheus text of a store's metrics, made with prometheus-client.

    >>> from txlog.client.answers.metric_family import Family
    >>> found = [Family("txlog_x_total", "counter", "of a kind", [("", {"kind": "a"}, 3)])]
    >>> print(exposition(found), end="")
    # HELP txlog_x_total of a kind
    # TYPE txlog_x_total counter
    txlog_x_total{kind="a"} 3.0

The registry is our own, so the text has only metrics of the store, none of the calling process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from txlog.client.answers.metric_family import Family


class _Figures(Collector):
    """Families as prometheus-client wants them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            # prometheus-client itself adds `_total` to the name of a counter
            name = family.name.removesuffix("_total") if family.type == "counter" else family.name
            metric = Metric(name, family.help, family.type)
            for suffix, labels, value in family.samples:
                metric.add_sample(family.name + suffix, labels, value)
            yield metric


def exposition(families: Iterable[Family]) -> str:
    """The text exposition format, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(families))
    return generate_latest(registry).decode()
