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
from txlog.serve.http.admin.store import CLUSTER, NAMESPACE, broker_of, full
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
    f"/admin/namespaces/{CLUSTER}/antiAffinity/{{group}}": [],  # so asks the client
}
_ONE_CLUSTER: Final = f"the one cluster is {CLUSTER}"
_ONE_BUNDLE: Final = "a namespace has one bundle"
_NO_BOOKIES: Final = "a store has no bookies"
_NO_GROUPS: Final = "a store has no resource groups"
_NO_DOMAINS: Final = "a store has no failure domains"
_NO_ISOLATION: Final = "there is one broker: no policies of isolation"
_ALL: Final = "GET POST PUT DELETE"
# What cannot be looked at either, or only be changed: by which methods, and the reason.
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
        if body is not None:  # null takes it away
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


def _of_nothing(methods: str, path: str, reason: str) -> None:
    def refuse(client: Client) -> None:
        raise NotAllowed(reason, hint="see docs/http.md")

    words = [word for word in path.split("/")[2:] if word and not word.startswith("{")]
    for method in methods.split():
        name = f"{method.lower()}_{'_'.join(words).replace('-', '_')}"
        operation = LOOK if method == "GET" else ADMIN
        endpoint(method, path, operation)(_named(refuse, name, f"Refused: {reason}."))


@endpoint("GET", f"{ISOLATION}/brokers", LOOK)
def isolated_brokers(client: Client, addresses: dict[str, str]) -> list[dict[str, object]]:
    """The brokers, and the policies that they are set apart by: one, by none."""
    return [{"brokerName": broker_of(addresses), "namespaceRegex": [], "primary": False}]


@endpoint("GET", f"{ISOLATION}/brokers/{{broker}}", LOOK)
def isolated_broker(client: Client, broker: str) -> dict[str, object]:
    """The policies that a broker is set apart by: none."""
    return {"brokerName": broker, "namespaceRegex": [], "primary": False}


for _name, _value in OF_TOPIC.items():
    _of_topic(f"{TOPIC}/{_name}", _name, _value)
for _name, _value in OF_NAMESPACE.items():
    _of_namespace(f"{NAMESPACE}/{_name}", _name, _value)
for _name, _value in OF_CLUSTER.items():
    _of_cluster(_name, _value)
for _methods, _path, _reason in REFUSED:
    _of_nothing(_methods, _path, _reason)


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


@endpoint("GET", f"{NAMESPACE}/property/{{name}}", LOOK)
@endpoint("DELETE", f"{NAMESPACE}/property/{{name}}", ADMIN)
def no_property(client: Client, namespace: str, name: str) -> None:
    """Nothing: a namespace has no properties."""


@endpoint("GET", f"{NAMESPACE}/antiAffinity", LOOK)
@endpoint("DELETE", f"{NAMESPACE}/antiAffinity", ADMIN)
def no_group(client: Client, namespace: str) -> None:
    """Nothing: there is one broker, and no groups that avoid each other."""


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
    """Nothing is to be done for the one cluster; any other is refused."""
    if body != [CLUSTER]:
        raise NotAllowed(_ONE_CLUSTER)


@endpoint("DELETE", f"{TOPIC}/replication", ADMIN)
def inherit_clusters(client: Client, topic: TopicName) -> None:
    """Nothing is to be done: there is one cluster."""
    client.describe_topic(topic.full)


@endpoint("GET", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", LOOK)
def replicated(client: Client, topic: TopicName, subscription: str) -> dict[str, bool]:
    """Whether a subscription is replicated to other clusters: never."""
    client.subscription(topic.full, subscription).describe()
    return {full(topic): False}


@endpoint("POST", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", ADMIN)
def set_replicated(client: Client, topic: TopicName, subscription: str, body: object) -> None:
    """Nothing is to be done to switch it off; on is refused."""
    client.subscription(topic.full, subscription).describe()
    if body is not False:
        raise NotAllowed(_ONE_CLUSTER)


@endpoint("PUT", f"{TOPIC}/backlogSize", LOOK)
def backlog_size(client: Client, topic: TopicName, body: object = None) -> None:
    """Refused: bytes behind a message are not counted."""
    raise NotAllowed("bytes behind a message are not counted", hint="stats has backlogSize")
