"""Owns the endpoints of the cluster: the only cluster, its broker, tenants and namespaces, lookup.

Tenants and namespaces exist by their topics and policies. So creating one stores nothing, and one
without topics can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import txlog
from txlog.base.ids import NAMESPACE_DEFAULT, TENANT_DEFAULT, TopicName, check_name
from txlog.base.rows.consuming import LagRow
from txlog.client.client import Client
from txlog.engine.door.store import View
from txlog.errors import NotFound, StillInUse, SubscriptionNotFound
from txlog.serve.http.core.declared import ADMIN, CONSUME, LOOK, EndpointList

CLUSTER: Final = "standalone"
BUNDLE: Final = "0x00000000_0xffffffff"  # the only one
NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
endpoint = EndpointList()
Sees = Callable[[TopicName], bool]  # whether a caller may see the name of a topic


def names(client: Client) -> list[TopicName]:
    """The topics of the store, by name."""
    return [*_partitions(client)]


def _partitions(client: Client) -> dict[TopicName, int]:
    """The topics of the store by name, and how many partitions each has.

    It reads only the catalog: the figures of `client.topics` take ten times as long.
    """

    def look(view: View) -> list[tuple[str, int]]:
        return sorted((topic.name, topic.partitions) for topic in view.catalog.topics.values())

    out = {}
    for full_name, count in client.store.read(look):
        tenant, namespace, name = full_name.split("/")
        out[TopicName(tenant, namespace, name)] = count
    return out


def full(name: TopicName) -> str:
    """`persistent://tenant/namespace/topic`, with the partition as Pulsar writes it."""
    end = "" if name.partition is None else f"-partition-{name.partition}"
    return f"persistent://{name.full}{end}"


def _unique(texts: Iterable[str]) -> list[str]:
    return sorted({*texts})


# --- the cluster -----------------------------------------------------------------------------


@endpoint("GET", "/admin/v2/clusters", LOOK)
def clusters(client: Client) -> list[str]:
    """The clusters: one, this store."""
    return [CLUSTER]


@endpoint("GET", "/admin/v2/clusters/{cluster}", LOOK)
def cluster(client: Client, cluster: str) -> dict[str, object]:
    """The cluster."""
    _known(cluster)
    return {"serviceUrl": "", "brokerServiceUrl": "", "peerClusterNames": []}


@endpoint("GET", "/admin/v2/brokers", LOOK)
def brokers(client: Client) -> list[str]:
    """The brokers: one, this process."""
    return [CLUSTER]


@endpoint("GET", "/admin/v2/brokers/version", LOOK)
def version(client: Client) -> str:
    """The version of txlog."""
    return f"txlog {txlog.__version__}"


@endpoint("GET", "/admin/v2/brokers/leaderBroker", LOOK)
def leader(client: Client, addresses: dict[str, str]) -> dict[str, str]:
    """The broker that leads: the only one."""
    url = addresses.get("httpUrl") or addresses.get("httpUrlTls", "")
    return {"brokerId": broker_of(addresses), "serviceUrl": url}


def broker_of(addresses: dict[str, str]) -> str:
    """The name of the broker: the address where it answers HTTP."""
    url = addresses.get("httpUrl") or addresses.get("httpUrlTls", "")
    return url.partition("://")[2]


@endpoint("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", LOOK)
def owned(client: Client, cluster: str, broker: str) -> dict[str, object]:
    """The namespaces of the broker: all."""
    _known(cluster)
    listed = _unique(
        [
            f"{TENANT_DEFAULT}/{NAMESPACE_DEFAULT}",
            *(f"{name.tenant}/{name.namespace}" for name in names(client)),
        ]
    )
    state = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return {f"{name}/{BUNDLE}": state for name in listed}


@endpoint("GET", "/admin/v2/brokers/internal-configuration", LOOK)
def internal_configuration(client: Client) -> dict[str, object]:
    """The address of Pulsar's metadata: a store has none."""
    return {}


@endpoint("GET", "/admin/v2/brokers/{cluster}", LOOK)
def brokers_of_cluster(client: Client, cluster: str) -> list[str]:
    """The brokers of the cluster."""
    _known(cluster)
    return [CLUSTER]


@endpoint("GET", "/admin/v2/brokers/configuration/runtime", ADMIN)
def settings(client: Client) -> dict[str, str]:
    """The settings of the store."""
    return {row["name"]: str(row["value"]) for row in client.admin.settings()}


def _known(cluster: str) -> None:
    if cluster != CLUSTER:
        raise NotFound(f"there is no cluster {cluster}", hint=f"the cluster is {CLUSTER}")


# --- tenants ---------------------------------------------------------------------------------


@endpoint("GET", "/admin/v2/tenants", LOOK)
def tenants(client: Client) -> list[str]:
    """The tenants that have topics, and public."""
    return _unique([TENANT_DEFAULT, *(name.tenant for name in names(client))])


@endpoint("GET", "/admin/v2/tenants/{tenant}", LOOK)
def tenant(client: Client, tenant: str) -> dict[str, object]:
    """A tenant."""
    if check_name("tenant", tenant) not in tenants(client):
        raise NotFound(f"there is no tenant {tenant}", hint="one exists when it has a topic")
    return {"adminRoles": [], "allowedClusters": [CLUSTER]}


@endpoint("PUT", "/admin/v2/tenants/{tenant}", ADMIN)
@endpoint("POST", "/admin/v2/tenants/{tenant}", ADMIN)
def create_tenant(client: Client, tenant: str, body: object = None) -> None:
    """Do nothing: a tenant exists when it has a topic."""
    check_name("tenant", tenant)


@endpoint("DELETE", "/admin/v2/tenants/{tenant}", ADMIN, is_aside=True)
def delete_tenant(client: Client, tenant: str, force: bool = False) -> None:
    """Delete a tenant without topics; force: with its topics."""
    _empty(client, [name for name in names(client) if name.tenant == tenant], tenant, force)


@endpoint("GET", "/admin/v2/lag", LOOK, is_aside=True)
def lag(client: Client, sees: Sees) -> list[LagRow]:
    """How far each subscription is behind; the rows of `txlog sub list`."""
    return [row for row in client.lag() if sees(TopicName.parse(row["topic"]))]


# --- namespaces ------------------------------------------------------------------------------


@endpoint("GET", "/admin/v2/namespaces/{tenant}", LOOK)
def namespaces(client: Client, tenant: str, sees: Sees) -> list[str]:
    """The namespaces of a tenant that have topics; of public also default."""
    listed = [
        f"{name.tenant}/{name.namespace}"
        for name in names(client)
        if name.tenant == tenant and sees(name)
    ]
    if tenant == TENANT_DEFAULT:
        listed.append(f"{TENANT_DEFAULT}/{NAMESPACE_DEFAULT}")
    return _unique(listed)


@endpoint("PUT", NAMESPACE, ADMIN)
def create_namespace(client: Client, namespace: str, body: object = None) -> None:
    """Do nothing: a namespace exists when it has a topic."""


@endpoint("PUT", f"{NAMESPACE}/unload", ADMIN)
def unload_namespace(client: Client, namespace: str) -> None:
    """Do nothing: no process holds a namespace."""


@endpoint("PUT", f"{NAMESPACE}/{{bundle}}/unload", ADMIN)
def unload_bundle(client: Client, namespace: str, bundle: str) -> None:
    """Do nothing: no process holds a bundle."""


@endpoint("POST", f"{NAMESPACE}/unsubscribe/{{subscription}}", CONSUME, is_aside=True)
@endpoint("POST", f"{NAMESPACE}/{{bundle}}/unsubscribe/{{subscription}}", CONSUME, is_aside=True)
def unsubscribe(client: Client, namespace: str, subscription: str) -> None:
    """Delete the subscriptions of a name from all topics of a namespace."""
    for name in _within(client, namespace):
        with suppress(SubscriptionNotFound):
            client.subscription(name.full, subscription).delete()


@endpoint("POST", f"{NAMESPACE}/clearBacklog", CONSUME, is_aside=True)
@endpoint("POST", f"{NAMESPACE}/{{bundle}}/clearBacklog", CONSUME, is_aside=True)
def clear_backlog(client: Client, namespace: str) -> None:
    """Acknowledge everything for all subscriptions of a namespace."""
    for name in _within(client, namespace):
        for row in client.subscriptions(name.full):
            client.subscription(name.full, row["subscription"]).clear_backlog()


@endpoint("POST", f"{NAMESPACE}/clearBacklog/{{subscription}}", CONSUME, is_aside=True)
@endpoint("POST", f"{NAMESPACE}/{{bundle}}/clearBacklog/{{subscription}}", CONSUME, is_aside=True)
def clear_backlog_of(client: Client, namespace: str, subscription: str) -> None:
    """Acknowledge everything for the subscriptions of a name in a namespace."""
    for name in _within(client, namespace):
        with suppress(SubscriptionNotFound):
            client.subscription(name.full, subscription).clear_backlog()


@endpoint("DELETE", NAMESPACE, ADMIN, is_aside=True)
def delete_namespace(client: Client, namespace: str, force: bool = False) -> None:
    """Delete a namespace without topics; force: with its topics."""
    _empty(client, _within(client, namespace), namespace, force)


def _empty(client: Client, topic_names: list[TopicName], noun: str, force: bool) -> None:
    if topic_names and not force:
        raise StillInUse(
            f"{noun} has {len(topic_names)} topics", hint="force=true deletes them, too"
        )
    for name in topic_names:
        client.admin.delete_topic(name.full, force=True)


def _within(client: Client, namespace: str) -> list[TopicName]:
    return [name for name in names(client) if f"{name.tenant}/{name.namespace}" == namespace]


@endpoint("GET", f"{NAMESPACE}/topics", LOOK)
@endpoint("GET", "/admin/v2/persistent/{tenant}/{namespace}", LOOK)
def topics(client: Client, namespace: str, sees: Sees) -> list[str]:
    """The topics of a namespace; of a partitioned one its partitions."""
    listed: list[str] = []
    for name, count in _partitions(client).items():
        if f"{name.tenant}/{name.namespace}" == namespace and sees(name):
            listed += topics_of(name, count)
    return listed


def topics_of(name: TopicName, partitions: int) -> list[str]:
    """A topic of the store as Pulsar's topics: itself, or its partitions if it has several."""
    if partitions == 1:
        return [full(name)]
    return [f"{full(name)}-partition-{number}" for number in range(partitions)]


@endpoint("GET", "/admin/v2/non-persistent/{tenant}/{namespace}", LOOK)
@endpoint("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", LOOK)
def not_persistent(client: Client, namespace: str) -> list[str]:
    """The topics that are not persistent: none."""
    return []


@endpoint("GET", "/admin/v2/persistent/{tenant}/{namespace}/partitioned", LOOK)
def partitioned(client: Client, namespace: str, sees: Sees) -> list[str]:
    """The topics of a namespace that have several partitions."""
    count = _partitions(client)
    return [
        full(name) for name in _within(client, namespace) if count.get(name, 1) > 1 and sees(name)
    ]


@endpoint("GET", f"{NAMESPACE}/bundles", LOOK)
def bundles(client: Client, namespace: str) -> dict[str, object]:
    """The bundles of a namespace: one."""
    return {"boundaries": BUNDLE.split("_"), "numBundles": 1}


@endpoint("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", LOOK)
def bundle(client: Client, topic: TopicName) -> str:
    """The bundle of a topic: the only one."""
    return BUNDLE
