"""Owns the endpoints of what Pulsar has and a store has not: rates, quotas, properties, roles.

A look answers what holds here, mostly nothing; to take it away is done already; to set it is
refused, as a success would promise what nobody keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from txlog.api.client import Client
from txlog.errors import NotAllowed
from txlog.ids import TopicName
from txlog.serve.http.admin.store import CLUSTER, NAMESPACE
from txlog.serve.http.admin.subscriptions import SUBSCRIPTION
from txlog.serve.http.admin.topics import TOPIC, TYPES
from txlog.serve.http.core.declared import ADMIN, CONSUME, LOOK, Declared

_ALL_TYPES: Final = list(TYPES.values())
# What each answers; None is what Pulsar answers for a policy that is not set.
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
    **{"replication": [CLUSTER], "subscriptionTypesEnabled": _ALL_TYPES},
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
    **{"isAllowAutoUpdateSchema": True, "encryptionRequired": False, "maxTopicsPerNamespace": 0},
    **{"subscriptionAuthMode": "None", "antiAffinity": None, "permissions/subscription": {}},
    **{"offloadThreshold": -1, "offloadThresholdInSeconds": -1},
    **{"dispatcherPauseOnAckStatePersistent": False, "allowedClusters": [CLUSTER]},
}
OF_CLUSTER: Final[dict[str, object]] = {
    "/admin/v2/clusters/{cluster}/peers": [],
    "/admin/v2/clusters/{cluster}/failureDomains": {},
    "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies": {},
    "/admin/v2/brokers/configuration": [],
    "/admin/v2/brokers/configuration/values": {},
    "/admin/v2/resourcegroups": [],
}
endpoint = Declared()


def _named(act: Callable[..., object], name: str, says: str) -> Callable[..., object]:
    act.__name__, act.__doc__ = name, says
    return act


def _of_topic(path: str, name: str, value: object) -> None:
    def look(client: Client, topic: TopicName) -> object:
        client.describe_topic(topic.full)
        return value

    def change(client: Client, topic: TopicName, body: object = None) -> None:
        client.describe_topic(topic.full)
        raise _refused(name)

    def unset(client: Client, topic: TopicName) -> None:
        client.describe_topic(topic.full)

    _declare(path, name, "topic", (look, change, unset))


def _of_namespace(path: str, name: str, value: object) -> None:
    def look(client: Client, namespace: str) -> object:
        return value

    def change(client: Client, namespace: str, body: object = None) -> None:
        raise _refused(name)

    def unset(client: Client, namespace: str) -> None:
        return None

    _declare(path, name, "namespace", (look, change, unset))


def _declare(path: str, name: str, of: str, acts: tuple[Callable[..., Any], ...]) -> None:
    look, change, unset = acts
    end = f"{name.replace('/', '_')}_of_{of}"
    endpoint("GET", path, LOOK)(_named(look, f"get_{end}", f"{name}: what holds here."))
    for method in ("POST", "PUT"):
        says = f"{name}: refused, a store has none."
        endpoint(method, path, ADMIN)(_named(change, f"set_{end}", says))
    endpoint("DELETE", path, ADMIN)(_named(unset, f"remove_{end}", f"{name}: there is none."))


def _refused(name: str) -> NotAllowed:
    if name == "permissions":
        return NotAllowed(
            "roles are given in the file of rules", hint="--auth FILE, read again by SIGHUP"
        )
    return NotAllowed(f"{name}: a store has no such setting", hint="see docs/http.md")


def _of_cluster(path: str, value: object) -> None:
    def look(client: Client) -> object:
        return value

    name = "_".join(word for word in path.split("/")[3:] if not word.startswith("{"))
    endpoint("GET", path, LOOK)(_named(look, f"get_{name}", f"{name}: what holds here."))


for _name, _value in OF_TOPIC.items():
    _of_topic(f"{TOPIC}/{_name}", _name, _value)
for _name, _value in OF_NAMESPACE.items():
    _of_namespace(f"{NAMESPACE}/{_name}", _name, _value)
for _name, _value in OF_CLUSTER.items():
    _of_cluster(_name, _value)


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


@endpoint("POST", f"{NAMESPACE}/permissions/{{role}}", ADMIN)
@endpoint("DELETE", f"{NAMESPACE}/permissions/{{role}}", ADMIN)
def grant_in_namespace(client: Client, namespace: str, role: str, body: object = None) -> None:
    """Refused: roles are given in the file of rules."""
    raise _refused("permissions")


@endpoint("POST", f"{TOPIC}/permissions/{{role}}", ADMIN)
@endpoint("DELETE", f"{TOPIC}/permissions/{{role}}", ADMIN)
def grant_on_topic(client: Client, topic: TopicName, role: str, body: object = None) -> None:
    """Refused: roles are given in the file of rules."""
    raise _refused("permissions")


@endpoint("PUT", f"{NAMESPACE}/property/{{name}}/{{value}}", ADMIN)
def set_property(client: Client, namespace: str, name: str, value: str) -> None:
    """Refused: a namespace has no properties."""
    raise _refused("properties")


@endpoint("PUT", f"{TOPIC}/backlogSize", LOOK)
def backlog_size(client: Client, topic: TopicName, body: object = None) -> None:
    """Refused: bytes behind a message are not counted."""
    raise NotAllowed("bytes behind a message are not counted", hint="stats has backlogSize")
