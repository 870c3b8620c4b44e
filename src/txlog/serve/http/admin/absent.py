"""Owns the endpoints for features of Pulsar that a store lacks: rates, quotas, properties, roles.

A GET answers with the effective value, mostly none. A DELETE succeeds, because nothing is set. An
attempt to set a value is refused: a success would promise a behaviour that the store does not have.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.convertors import CONVERTOR_TYPES, StringConvertor

from txlog.base.ids import TopicName
from txlog.client.client import Client
from txlog.errors import NotAllowed
from txlog.serve.http.admin.store import CLUSTER, NAMESPACE, broker_of, full
from txlog.serve.http.admin.subscriptions import SUBSCRIPTION
from txlog.serve.http.admin.topics import TOPIC, TYPES
from txlog.serve.http.core.declared import ADMIN, CONSUME, LOOK, EndpointList

_ALL_TYPES: Final = list(TYPES.values())
# The answer of each; Pulsar answers None for a policy that is not set.
OF_TOPIC: Final[dict[str, object]] = {
    **dict.fromkeys(
        (
            *("publishRate", "dispatchRate", "subscribeRate", "subscriptionDispatchRate"),
            *("persistence", "inactiveTopicPolicies", "offloadPolicies"),
            *("maxProducers", "maxConsumers", "maxConsumersPerSubscription", "maxMessageSize"),
            *("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"),
            *("maxSubscriptionsPerTopic", "replicatorDispatchRate", "entryFilters"),
            *("deduplicationSnapshotInterval", "autoSubscriptionCreation"),
        )
    ),
    **{"properties": {}, "permissions": {}, "backlogQuotaMap": {}, "shadowTopics": []},
    **{"subscriptionTypesEnabled": _ALL_TYPES, "backlogQuota": {}},
}
OF_NAMESPACE: Final[dict[str, object]] = {
    **dict.fromkeys(
        (
            *("publishRate", "dispatchRate", "subscribeRate", "subscriptionDispatchRate"),
            *("persistence", "inactiveTopicPolicies", "offloadPolicies", "replicatorDispatchRate"),
            *("autoTopicCreation", "autoSubscriptionCreation", "entryFilters"),
            *("offloadDeletionLagMs", "deduplicationSnapshotInterval"),
            *("maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription"),
            *("maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"),
            *("maxSubscriptionsPerTopic", "subscriptionExpirationTime", "resourcegroup"),
        )
    ),
    **{"properties": {}, "backlogQuotaMap": {}, "subscriptionTypesEnabled": _ALL_TYPES},
    **{"backlogQuota": {}, "removeOffloadPolicies": None},
    **{"isAllowAutoUpdateSchema": True, "encryptionRequired": False, "maxTopicsPerNamespace": 0},
    **{"subscriptionAuthMode": "None", "permissions/subscription": {}},
    **{"offloadThreshold": -1, "offloadThresholdInSeconds": -1},
    "dispatcherPauseOnAckStatePersistent": False,
}
OF_CLUSTER: Final[dict[str, object]] = {
    "/admin/v2/clusters/{cluster}/peers": [],
    "/admin/v2/clusters/{cluster}/failureDomains": {},
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies": {},
    "/admin/v2/brokers/configuration": [],
    "/admin/v2/brokers/configuration/values": {},
    "/admin/v2/resourcegroups": [],
    "/admin/v2/bookies/racks-info": {},
    "/admin/v2/bookies/all": {"bookies": []},
    f"/admin/v2/namespaces/{CLUSTER}/antiAffinity/{{group}}": [],
    f"/admin/namespaces/{CLUSTER}/antiAffinity/{{group}}": [],  # the path that the client uses
}
_ONE_CLUSTER: Final = f"the one cluster is {CLUSTER}"
_ONE_BUNDLE: Final = "a namespace has one bundle"
_NO_BOOKIES: Final = "a store has no bookies"
_NO_GROUPS: Final = "a store has no resource groups"
_NO_DOMAINS: Final = "a store has no failure domains"
_NO_ISOLATION: Final = "there is one broker: no policies of isolation"
_ALL: Final = "GET POST PUT DELETE"
# Requests that the server always refuses: methods, path and reason.
REFUSED: Final = (
    ("PUT POST DELETE", "/admin/v2/clusters/{cluster}", _ONE_CLUSTER),
    ("POST", "/admin/v2/clusters/{cluster}/peers", _ONE_CLUSTER),
    ("GET POST", "/admin/v2/clusters/{cluster}/migrate", _ONE_CLUSTER),
    (_ALL, "/admin/v2/clusters/{cluster}/failureDomains/{domain}", _NO_DOMAINS),
    (_ALL, "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}", _NO_ISOLATION),
    ("POST", "/admin/v2/brokers/configuration/{name}/{value}", "a broker has no settings here"),
    ("DELETE", "/admin/v2/brokers/configuration/{name}", "a broker has no settings here"),
    ("POST", "/admin/v2/brokers/shutdown", "a server ends by SIGTERM"),
    (_ALL, "/admin/v2/bookies/racks-info/{bookie}", _NO_BOOKIES),
    (_ALL, f"{NAMESPACE}/persistence/bookieAffinity", _NO_BOOKIES),
    (_ALL, "/admin/v2/resource-quotas", "a store has no resource quotas"),
    (_ALL, "/admin/v2/resource-quotas/{rest:path}", "a store has no resource quotas"),
    (_ALL, "/admin/v2/resourcegroups/{group}", _NO_GROUPS),
    ("POST", f"{NAMESPACE}/resourcegroup/{{group}}", _NO_GROUPS),
    ("POST", f"{NAMESPACE}/migration", _ONE_CLUSTER),
    ("PUT", f"{NAMESPACE}/{{bundle}}/split", _ONE_BUNDLE),
    ("GET", f"{NAMESPACE}/{{bundle}}/topicHashPositions", _ONE_BUNDLE),
    (
        "GET",
        "/admin/v3/transactions/transactionBufferInternalStats/{tenant}/{namespace}/{topic}",
        "there are no snapshots of transaction buffers",
    ),
    *(
        (_ALL, f"{path}/{{rest:path}}", f"a store has no {what}")
        for path, what in (
            ("/admin/v3/functions", "functions of Pulsar"),
            ("/admin/v3/source", "sources"),
            ("/admin/v3/sink", "sinks"),
            ("/admin/v3/packages", "packages"),
            ("/admin/v2/worker", "workers of functions"),
            ("/admin/v2/worker-stats", "workers of functions"),
            ("/proxy-stats", "proxies"),
        )
    ),
)
ISOLATION: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
endpoint = EndpointList()


class _OfTopic(StringConvertor):
    """The end of a path that is a name in OF_TOPIC; other names are other routes."""

    regex = "|".join(map(re.escape, OF_TOPIC))


class _OfNamespace(StringConvertor):
    """The end of a path that is a name in OF_NAMESPACE."""

    regex = "|".join(map(re.escape, OF_NAMESPACE))


CONVERTOR_TYPES.update(absent_topic=_OfTopic(), absent_namespace=_OfNamespace())
_TOPIC_SETTING: Final = f"{TOPIC}/{{setting:absent_topic}}"
_NAMESPACE_SETTING: Final = f"{NAMESPACE}/{{setting:absent_namespace}}"


def _refused(name: str) -> NotAllowed:
    if name == "permissions":
        return NotAllowed(
            "roles get their rights in the file of rules", hint="--auth FILE, read again by SIGHUP"
        )
    return NotAllowed(f"{name}: a store has no such setting", hint="see docs/http.md")


@endpoint("GET", _TOPIC_SETTING, LOOK)
def topic_setting(client: Client, topic: TopicName, setting: str) -> object:
    """The value of a setting that topics of a store do not have."""
    client.describe_topic(topic.full)
    return OF_TOPIC[setting]


@endpoint("POST", _TOPIC_SETTING, ADMIN)
@endpoint("PUT", _TOPIC_SETTING, ADMIN)
def set_topic_setting(client: Client, topic: TopicName, setting: str, body: object = None) -> None:
    """Refused: a topic of a store has no such setting."""
    client.describe_topic(topic.full)
    raise _refused(setting)


@endpoint("DELETE", _TOPIC_SETTING, ADMIN)
def remove_topic_setting(client: Client, topic: TopicName, setting: str) -> None:
    """Do nothing: the topic has no such setting."""
    client.describe_topic(topic.full)


@endpoint("GET", _NAMESPACE_SETTING, LOOK)
def namespace_setting(client: Client, namespace: str, setting: str) -> object:
    """The value of a setting that namespaces of a store do not have."""
    return OF_NAMESPACE[setting]


@endpoint("POST", _NAMESPACE_SETTING, ADMIN)
@endpoint("PUT", _NAMESPACE_SETTING, ADMIN)
def set_namespace_setting(
    client: Client, namespace: str, setting: str, body: object = None
) -> None:
    """Refused, unless the body is null, which removes the setting."""
    if body is not None:
        raise _refused(setting)


@endpoint("DELETE", _NAMESPACE_SETTING, ADMIN)
def remove_namespace_setting(client: Client, namespace: str, setting: str) -> None:
    """Do nothing: the namespace has no such setting."""


def cluster_setting(client: Client, route: str) -> object:
    """The value of a setting that the only cluster does not have."""
    return OF_CLUSTER[route]


def refuse(client: Client, route: str) -> None:
    """Refused: a store has nothing of this kind."""
    raise NotAllowed(_REASONS[route], hint="see docs/http.md")


@endpoint("GET", f"{ISOLATION}/brokers", LOOK)
def isolated_brokers(client: Client, addresses: dict[str, str]) -> list[dict[str, object]]:
    """The brokers and their isolation policies: one broker, without policies."""
    return [{"brokerName": broker_of(addresses), "namespaceRegex": [], "primary": False}]


@endpoint("GET", f"{ISOLATION}/brokers/{{broker}}", LOOK)
def isolated_broker(client: Client, broker: str) -> dict[str, object]:
    """The isolation policies of a broker: none."""
    return {"brokerName": broker, "namespaceRegex": [], "primary": False}


# After isolated_brokers: the first route that matches counts, and REFUSED has …/{policy}.
for _path in OF_CLUSTER:
    endpoint("GET", _path, LOOK)(cluster_setting)
for _methods, _path, _reason in REFUSED:
    for _method in _methods.split():
        endpoint(_method, _path, LOOK if _method == "GET" else ADMIN)(refuse)
_REASONS: Final = {path: reason for _, path, reason in REFUSED}


@endpoint("GET", f"{SUBSCRIPTION}/properties", LOOK)
def subscription_properties(
    client: Client, topic: TopicName, subscription: str
) -> dict[str, object]:
    """The properties of a subscription: none."""
    client.subscription(topic.full, subscription).describe()
    return {}


@endpoint("PUT", f"{SUBSCRIPTION}/properties", CONSUME)
def set_subscription_properties(
    client: Client, topic: TopicName, subscription: str, body: object = None
) -> None:
    """Refused: a subscription has no properties."""
    raise _refused("properties")


@endpoint("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}", ADMIN)
@endpoint("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", ADMIN)
@endpoint("POST", f"{NAMESPACE}/permissions/{{role}}", ADMIN)
@endpoint("DELETE", f"{NAMESPACE}/permissions/{{role}}", ADMIN)
def grant_in_namespace(client: Client, namespace: str, body: object = None) -> None:
    """Refused: roles get their rights in the file of rules."""
    raise _refused("permissions")


@endpoint("POST", f"{TOPIC}/permissions/{{role}}", ADMIN)
@endpoint("DELETE", f"{TOPIC}/permissions/{{role}}", ADMIN)
def grant_on_topic(client: Client, topic: TopicName, role: str, body: object = None) -> None:
    """Refused: roles get their rights in the file of rules."""
    raise _refused("permissions")


@endpoint("PUT", f"{NAMESPACE}/property/{{name}}/{{value}}", ADMIN)
def set_property(client: Client, namespace: str, name: str, value: str) -> None:
    """Refused: a namespace has no properties."""
    raise _refused("properties")


@endpoint("GET", f"{NAMESPACE}/property/{{name}}", LOOK)
@endpoint("DELETE", f"{NAMESPACE}/property/{{name}}", ADMIN)
def no_property(client: Client, namespace: str, name: str) -> None:
    """Return nothing: a namespace has no properties."""


@endpoint("GET", f"{NAMESPACE}/antiAffinity", LOOK)
@endpoint("DELETE", f"{NAMESPACE}/antiAffinity", ADMIN)
def no_group(client: Client, namespace: str) -> None:
    """Return nothing: there is one broker, and no anti-affinity group."""


@endpoint("POST", f"{NAMESPACE}/antiAffinity", ADMIN)
def set_group(client: Client, namespace: str) -> None:
    """Refused, whatever the body says, which is not JSON."""
    raise _refused("antiAffinity")


@endpoint("GET", f"{NAMESPACE}/replication", LOOK)
@endpoint("GET", f"{NAMESPACE}/allowedClusters", LOOK)
def clusters_of_namespace(client: Client, namespace: str) -> list[str]:
    """The clusters of a namespace: one."""
    return [CLUSTER]


@endpoint("GET", f"{TOPIC}/replication", LOOK)
def clusters_of_topic(client: Client, topic: TopicName, applied: bool = False) -> list[str]:
    """The clusters of a topic: one."""
    client.describe_topic(topic.full)
    return [CLUSTER]


@endpoint("POST", f"{NAMESPACE}/replication", ADMIN)
@endpoint("POST", f"{NAMESPACE}/allowedClusters", ADMIN)
@endpoint("POST", f"{TOPIC}/replication", ADMIN)
def set_clusters(client: Client, body: object) -> None:
    """Accept the list of the one cluster, which changes nothing; refuse any other."""
    if body != [CLUSTER]:
        raise NotAllowed(_ONE_CLUSTER)


@endpoint("DELETE", f"{TOPIC}/replication", ADMIN)
def inherit_clusters(client: Client, topic: TopicName) -> None:
    """Do nothing: there is one cluster."""
    client.describe_topic(topic.full)


@endpoint("GET", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", LOOK)
def replicated(client: Client, topic: TopicName, subscription: str) -> dict[str, bool]:
    """Whether a subscription is replicated to other clusters: never."""
    client.subscription(topic.full, subscription).describe()
    return {full(topic): False}


@endpoint("POST", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", ADMIN)
def set_replicated(client: Client, topic: TopicName, subscription: str, body: object) -> None:
    """Accept false, which changes nothing; refuse true."""
    client.subscription(topic.full, subscription).describe()
    if body is not False:
        raise NotAllowed(_ONE_CLUSTER)


@endpoint("PUT", f"{TOPIC}/backlogSize", LOOK)
def backlog_size(client: Client, topic: TopicName, body: object = None) -> None:
    """Refused: a store does not count the bytes after a message."""
    raise NotAllowed(
        "a store does not count the bytes after a message", hint="stats has backlogSize"
    )
