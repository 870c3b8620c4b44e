"""Owns the endpoints of broker-stats: figures of all topics, and their sums.

Pulsar's figures of its machine, its JVM and Netty are missing: a store has no beans and no
allocators.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import txlog
from txlog.base.ids import TopicName
from txlog.client.client import Client
from txlog.errors import NotAllowed, TopicNotFound
from txlog.serve.core.service import ProducerStats
from txlog.serve.http.admin.store import BUNDLE, names
from txlog.serve.http.admin.topics import stats
from txlog.serve.http.core.context import Rates
from txlog.serve.http.core.declared import LOOK, EndpointList

_PATH: Final = "/admin/v2/broker-stats"
_SUMS: Final = {
    "brk_in_rate": "msgRateIn",
    "brk_in_tp_rate": "msgThroughputIn",
    "brk_out_rate": "msgRateOut",
    "brk_out_tp_rate": "msgThroughputOut",
    "brk_storage_size": "storageSize",
}
endpoint = EndpointList()


@endpoint("GET", f"{_PATH}/topics", LOOK, is_slow=True)
def topics_of_broker(
    client: Client, rates: Rates, now_ms: int, publishers: Sequence[ProducerStats]
) -> dict[str, object]:
    """Figures of all topics, by namespace and bundle."""
    out: dict[str, Any] = {}
    for name, figures in _all(client, rates, now_ms, publishers):
        bundles = out.setdefault(f"{name.tenant}/{name.namespace}", {BUNDLE: {"persistent": {}}})
        bundles[BUNDLE]["persistent"][f"persistent://{name.full}"] = figures
    return out


@endpoint("GET", f"{_PATH}/metrics", LOOK, is_slow=True)
def metrics_of_broker(
    client: Client, rates: Rates, now_ms: int, publishers: Sequence[ProducerStats]
) -> list[dict[str, object]]:
    """Figures of each namespace; /metrics has more, for Prometheus."""
    sums: dict[str, dict[str, float]] = {}
    for name, figures in _all(client, rates, now_ms, publishers):
        into = sums.setdefault(f"{name.tenant}/{name.namespace}", {})
        subscriptions = figures["subscriptions"].values()
        row = {
            **{ours: figures[theirs] for ours, theirs in _SUMS.items()},
            "brk_no_of_producers": len(figures["publishers"]),
            "brk_no_of_subscriptions": len(subscriptions),
            "brk_no_of_consumers": sum(
                len(subscription["consumers"]) for subscription in subscriptions
            ),
            "brk_msg_backlog": sum(subscription["msgBacklog"] for subscription in subscriptions),
        }
        for metric, value in row.items():
            into[metric] = into.get(metric, 0) + value
    return [
        {"metrics": row, "dimensions": {"namespace": namespace}} for namespace, row in sums.items()
    ]


@endpoint("GET", f"{_PATH}/load-report", LOOK, is_slow=True)
def load_report(
    client: Client,
    rates: Rates,
    now_ms: int,
    publishers: Sequence[ProducerStats],
    addresses: dict[str, str],
) -> dict[str, object]:
    """The figures that a load balancer needs: the load of this server."""
    all_of = [figures for _, figures in _all(client, rates, now_ms, publishers)]
    subscriptions = [
        subscription for figures in all_of for subscription in figures["subscriptions"].values()
    ]
    rate = {theirs: sum(figures[theirs] for figures in all_of) for theirs in _SUMS.values()}
    del rate["storageSize"]
    return {
        "loadReportType": "LocalBrokerData",
        "webServiceUrl": addresses.get("httpUrl"),
        "webServiceUrlTls": addresses.get("httpUrlTls"),
        "pulsarServiceUrl": addresses.get("brokerUrl"),
        "pulsarServiceUrlTls": addresses.get("brokerUrlTls"),
        "brokerVersionString": f"txlog {txlog.__version__}",
        **rate,
        "numTopics": len(all_of),
        "numBundles": 1,
        "numProducers": len(publishers),
        "numConsumers": sum(len(subscription["consumers"]) for subscription in subscriptions),
        "bundles": [BUNDLE],
        "lastUpdate": now_ms,
    }


@endpoint("GET", f"{_PATH}/mbeans", LOOK)
def beans(client: Client) -> list[object]:
    """Beans of a JVM: there is none."""
    return []


@endpoint("GET", f"{_PATH}/allocator-stats/{{allocator}}", LOOK)
def allocators(client: Client, allocator: str) -> None:
    """Refused: a store has no allocators of Netty."""
    raise NotAllowed("there is no JVM here, and no allocator of Netty", hint="see /metrics")


def _all(
    client: Client, rates: Rates, now_ms: int, publishers: Sequence[ProducerStats]
) -> list[tuple[TopicName, dict[str, Any]]]:
    """The figures of each topic, one read of the store each: other calls run in between."""
    of_topic: dict[str, list[ProducerStats]] = {}
    for publisher in publishers:
        of_topic.setdefault(publisher.topic, []).append(publisher)
    out = []
    for name in names(client):
        of_this_topic = of_topic.get(name.full, ())
        with suppress(TopicNotFound):  # it was deleted meanwhile
            out.append((name, stats(client, name, rates, now_ms, of_this_topic, ())))
    return out
