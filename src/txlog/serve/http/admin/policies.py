"""Owns the endpoints of policies and schemas, by Pulsar's names and units.

A policy of Pulsar is one or several policies of the store. Each has three endpoints for a namespace
and three for a topic, all made from its line in `POLICIES`. A topic without a policy of its own
answers with nothing, unless the client asks for the effective policy. Versions of schemas are the
store's numbers, from 1 up, as in the binary protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from txlog.base.ids import TopicName
from txlog.base.rows.topics import Policies, SchemaRow
from txlog.base.schemas.schema import Schema
from txlog.base.settings import MINUTE_MS, UNLIMITED
from txlog.client.client import Client
from txlog.errors import IncompatibleSchema, InvalidArgument, NotAllowed, NotFound
from txlog.serve.http.admin.store import BUNDLE, CLUSTER, NAMESPACE
from txlog.serve.http.admin.topics import TOPIC
from txlog.serve.http.core.declared import ADMIN, LOOK, PRODUCE, EndpointList, integer, members
from txlog.serve.pulsar.schemas import KEY_VALUE, add, key_value_as_text, key_value_of, named_schema

MIB: Final = 1 << 20
Values = dict[str, Any]
endpoint = EndpointList()


class Policy(NamedTuple):
    """A policy of Pulsar, and the policies of the store behind it.

    family:  of the store's policies, as in Admin.set_{family}_policies
    names:   the policies of that family
    read:    converts the store's values to Pulsar's
    write:   converts Pulsar's value to the store's
    method:  the method that sets it
    is_flag: a topic always answers with the effective value, as clients expect true or false
    """

    name: str
    family: str
    names: tuple[str, ...]
    read: Callable[[Values], object]
    write: Callable[[object], Values]
    method: str = "POST"
    is_flag: bool = False


# --- values of the store as Pulsar's, and back ------------------------------------------------


def _retention(values: Values) -> object:
    if values["retention_acked"]:
        return {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    ms, size = values["retention_ms"], values["retention_bytes"]
    return {
        "retentionTimeInMinutes": -1 if ms is None else ms // MINUTE_MS,
        "retentionSizeInMB": -1 if size is None else size // MIB,
    }


def _retained(body: object) -> Values:
    fields = members(body)
    minutes = _at_least(-1, "retentionTimeInMinutes", fields.get("retentionTimeInMinutes", -1))
    size = _at_least(-1, "retentionSizeInMB", fields.get("retentionSizeInMB", -1))
    if (minutes == 0) != (size == 0):
        raise InvalidArgument("time and size are both 0, or neither: 0 keeps nothing")
    if minutes == 0:
        forever = {"retention_ms": UNLIMITED, "retention_bytes": UNLIMITED}
        return {"retention_acked": True, **forever}
    return {
        "retention_acked": False,
        "retention_ms": UNLIMITED if minutes < 0 else minutes * MINUTE_MS,
        "retention_bytes": UNLIMITED if size < 0 else size * MIB,
    }


def _ttl(values: Values) -> object:
    return 0 if values["ttl_ms"] is None else values["ttl_ms"] // 1000


def _of_ttl(body: object) -> Values:
    seconds = _at_least(0, "messageTTL", body)
    return {"ttl_ms": seconds * 1000 or UNLIMITED}


def _delayed(values: Values) -> object:
    return {
        "tickTime": values["tick_time_ms"],
        "active": bool(values["active"]),
        "maxDeliveryDelayInMillis": values["max_delivery_delay_ms"],
    }


def _of_delayed(body: object) -> Values:
    fields = members(body)
    return {
        "tick_time_ms": fields.get("tickTime"),
        "active": fields.get("active"),
        "max_delivery_delay_ms": fields.get("maxDeliveryDelayInMillis"),
    }


def _compaction(values: Values) -> object:
    return values["compaction_threshold_bytes"] or 0


def _of_compaction(body: object) -> Values:
    size = _at_least(0, "compactionThreshold", body)
    return {"compaction_threshold_bytes": size or UNLIMITED}


def _compatibility(values: Values) -> object:
    word = str(values["compatibility"]).upper()
    return "ALWAYS_COMPATIBLE" if word == "NONE" else word


def _of_compatibility(body: object) -> Values:
    word = str(body).lower()
    return {"compatibility": "none" if word == "always_compatible" else word}


def _validation(values: Values) -> object:
    return values["validation"] == "enforce"


def _of_validation(body: object) -> Values:
    return {"validation": "enforce" if _flag(body) else "record"}


def _at_least(least: int, name: str, value: object) -> int:
    """A number of a policy. Raises InvalidArgument for a lower one: it would mean "for ever"."""
    number = integer(value)
    if number < least:
        raise InvalidArgument(f"{name} is {number}, the least is {least}", code=203)
    return number


def _flag(body: object) -> bool:
    if isinstance(body, bool):
        return body
    raise InvalidArgument(f"the body has to be true or false, it is {body!r}")


POLICIES: Final = (
    Policy(
        "retention",
        "retention",
        ("retention_ms", "retention_bytes", "retention_acked"),
        _retention,
        _retained,
    ),
    Policy("messageTTL", "retention", ("ttl_ms",), _ttl, _of_ttl),
    Policy(
        "delayedDelivery",
        "delayed",
        ("active", "tick_time_ms", "max_delivery_delay_ms"),
        _delayed,
        _of_delayed,
    ),
    Policy(
        "compactionThreshold",
        "retention",
        ("compaction_threshold_bytes",),
        _compaction,
        _of_compaction,
        "PUT",
    ),
    Policy(
        "schemaCompatibilityStrategy",
        "schema",
        ("compatibility",),
        _compatibility,
        _of_compatibility,
        "PUT",
    ),
    Policy(
        "schemaValidationEnforced",
        "schema",
        ("validation",),
        _validation,
        _of_validation,
        is_flag=True,
    ),
)


# Pulsar's older names of the schema compatibility strategies.
AUTO_UPDATES: Final = {
    "BACKWARD": "Backward",
    "FORWARD": "Forward",
    "FULL": "Full",
    "BACKWARD_TRANSITIVE": "BackwardTransitive",
    "FORWARD_TRANSITIVE": "ForwardTransitive",
    "FULL_TRANSITIVE": "FullTransitive",
    "ALWAYS_COMPATIBLE": "AlwaysCompatible",
}


# --- the endpoints of each policy --------------------------------------------------------------


def _get(client: Client, policy: Policy, scope: Mapping[str, str]) -> Policies:
    policies: Policies = getattr(client.admin, f"get_{policy.family}_policies")(**scope)
    return policies


def _is_own(policies: Policies, policy: Policy, where: str) -> bool:
    return any(policies["origins"][name] == where for name in policy.names)


def _set(client: Client, policy: Policy, scope: Mapping[str, str], body: object) -> None:
    getattr(client.admin, f"set_{policy.family}_policies")(**scope, **policy.write(body))


def _remove(client: Client, policy: Policy, scope: Mapping[str, str]) -> None:
    getattr(client.admin, f"remove_{policy.family}_policies")(policy.names, **scope)


def _declare(policy: Policy) -> None:
    """Declare the endpoints of a policy: get, set and remove, of a namespace and of a topic."""

    def of_namespace(client: Client, namespace: str) -> object:
        return policy.read(_get(client, policy, {"namespace": namespace})["policies"])

    def set_of_namespace(client: Client, namespace: str, body: object) -> None:
        _set(client, policy, {"namespace": namespace}, body)

    def remove_of_namespace(client: Client, namespace: str) -> None:
        _remove(client, policy, {"namespace": namespace})

    def of_topic(client: Client, topic: TopicName, applied: bool = False) -> object:
        policies = _get(client, policy, {"topic": topic.full})
        is_said = applied or policy.is_flag or _is_own(policies, policy, "topic")
        return policy.read(policies["policies"]) if is_said else None

    def set_of_topic(
        client: Client, topic: TopicName, body: object = None, messageTTL: int | None = None
    ) -> None:
        _set(client, policy, {"topic": topic.full}, body if messageTTL is None else messageTTL)

    def remove_of_topic(client: Client, topic: TopicName) -> None:
        _remove(client, policy, {"topic": topic.full})

    for act, method, base, summary in (
        (of_namespace, "GET", NAMESPACE, "The effective policy of a namespace"),
        (set_of_namespace, policy.method, NAMESPACE, "Set the policy of a namespace"),
        (remove_of_namespace, "DELETE", NAMESPACE, "Remove the policy of a namespace"),
        (of_topic, "GET", TOPIC, "The policy of a topic itself"),
        (set_of_topic, "POST", TOPIC, "Set the policy of a topic"),
        (remove_of_topic, "DELETE", TOPIC, "Remove the policy of a topic"),
    ):
        act.__name__ = f"{policy.name}_{act.__name__}"
        act.__doc__ = f"{summary}: {policy.name}."
        operation = LOOK if method == "GET" else ADMIN
        endpoint(method, f"{base}/{policy.name}", operation)(act)
        if method == policy.method == "PUT":
            endpoint("POST", f"{base}/{policy.name}", operation)(act)
        if act is set_of_topic and policy.method == "PUT":
            endpoint("PUT", f"{base}/{policy.name}", operation)(act)


for one in POLICIES:
    _declare(one)


# --- policies together; fixed policies ----------------------------------------------------------


@endpoint("GET", NAMESPACE, LOOK)
def namespace_policies(client: Client, namespace: str) -> dict[str, object]:
    """The policies of a namespace, together."""
    values = {
        policy.name: policy.read(_get(client, policy, {"namespace": namespace})["policies"])
        for policy in POLICIES
    }
    return {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "replication_clusters": [CLUSTER],
        "bundles": {"boundaries": BUNDLE.split("_"), "numBundles": 1},
        "deduplicationEnabled": True,
        "message_ttl_in_seconds": values["messageTTL"],
        "retention_policies": values["retention"],
        "delayed_delivery_policies": values["delayedDelivery"],
        "compaction_threshold": values["compactionThreshold"],
        "schema_compatibility_strategy": values["schemaCompatibilityStrategy"],
        "schema_validation_enforced": values["schemaValidationEnforced"],
        "deleted": False,
    }


@endpoint("GET", f"{NAMESPACE}/deduplication", LOOK)
def deduplication(client: Client, namespace: str) -> bool:
    """Whether producers with a name and sequence ids store each message once: always."""
    return True


@endpoint("POST", f"{NAMESPACE}/deduplication", ADMIN)
@endpoint("POST", f"{NAMESPACE}/deduplicationEnabled", ADMIN)
def set_deduplication(client: Client, namespace: str, body: object) -> None:
    """It is always on; turning it off is refused."""
    _deduplicated(body)


@endpoint("GET", f"{TOPIC}/deduplicationEnabled", LOOK)
def deduplication_of_topic(client: Client, topic: TopicName, applied: bool = False) -> bool:
    """Whether producers with a name and sequence ids store each message once: always."""
    return True


@endpoint("POST", f"{TOPIC}/deduplicationEnabled", ADMIN)
def set_deduplication_of_topic(client: Client, topic: TopicName, body: object) -> None:
    """It is always on; turning it off is refused."""
    _deduplicated(body)


def _deduplicated(body: object) -> None:
    if not _flag(body):
        raise NotAllowed("deduplication is always on", hint="producers without a name have none")


@endpoint("DELETE", f"{NAMESPACE}/deduplication", ADMIN)
def inherit_deduplication(client: Client, namespace: str) -> None:
    """Do nothing: it is always on."""


@endpoint("DELETE", f"{TOPIC}/deduplicationEnabled", ADMIN)
def inherit_deduplication_of_topic(client: Client, topic: TopicName) -> None:
    """Do nothing: it is always on."""
    client.describe_topic(topic.full)


@endpoint("GET", f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", LOOK)
def auto_update_strategy(client: Client, namespace: str) -> str:
    """The schema compatibility strategy, by its older names."""
    policies = client.admin.get_schema_policies(namespace=namespace)["policies"]
    return AUTO_UPDATES[str(_compatibility(policies))]


@endpoint("PUT", f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", ADMIN)
def set_auto_update_strategy(client: Client, namespace: str, body: object) -> None:
    """Set the schema compatibility strategy, by its older names."""
    word = next((ours for ours, theirs in AUTO_UPDATES.items() if theirs == body), None)
    if word is None:
        raise NotAllowed("this strategy is not one of a store", strategy=str(body)[:80])
    client.admin.set_schema_policies(namespace=namespace, **_of_compatibility(word))


@endpoint("GET", f"{NAMESPACE}/permissions", LOOK)
def permissions(client: Client, namespace: str) -> dict[str, list[str]]:
    """The roles of a namespace: they come with tokens, none are stored."""
    return {}


# --- schemas --------------------------------------------------------------------------------------


SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


@endpoint("GET", f"{SCHEMAS}/schema", LOOK)
def schema(client: Client, topic: TopicName) -> dict[str, object]:
    """The newest schema."""
    rows = _rows(client, topic)
    if not rows:
        raise NotFound(f"topic {topic.short} has no schema", topic=topic.short)
    return _written(rows[-1])


@endpoint("GET", f"{SCHEMAS}/schema/{{version}}", LOOK)
def schema_of_version(client: Client, topic: TopicName, version: int) -> dict[str, object]:
    """A version of the schema; they count from 1."""
    for row in _rows(client, topic):
        if row["version"] == version:
            return _written(row)
    raise NotFound(f"topic {topic.short} has no schema {version}", topic=topic.short)


@endpoint("GET", f"{SCHEMAS}/schemas", LOOK)
def schemas(client: Client, topic: TopicName) -> dict[str, object]:
    """All versions, oldest first."""
    return {"getSchemaResponses": [_written(row) for row in _rows(client, topic)]}


@endpoint("GET", f"{SCHEMAS}/metadata", LOOK)
def schema_metadata(client: Client, topic: TopicName) -> dict[str, object]:
    """The existing versions; a store keeps them in no separate ledger."""
    index = [
        {"ledgerId": -1, "entryId": -1, "version": row["version"]} for row in _rows(client, topic)
    ]
    if not index:
        raise NotFound(f"topic {topic.short} has no schema", topic=topic.short)
    return {"info": index[-1], "index": index}


@endpoint("POST", f"{SCHEMAS}/schema", PRODUCE)
def upload_schema(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """Add a version: {type, schema, properties}."""
    version = add(client, topic.full, _given(body))
    return {"version": {"version": version}}


@endpoint("DELETE", f"{SCHEMAS}/schema", ADMIN)
def delete_schema(client: Client, topic: TopicName, force: bool = False) -> dict[str, object]:
    """Delete all versions; the answer says how many there were."""
    return {"version": client.topic(topic.full).schemas.delete()}


@endpoint("POST", f"{SCHEMAS}/compatibility", LOOK)
def test_schema(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """Check whether a schema would be accepted."""
    schema_to_test = _given(body)
    policies = client.admin.get_schema_policies(topic.full)["policies"]
    try:
        client.topic(topic.full).schemas.test(schema_to_test)
        is_fit = True
    except IncompatibleSchema:
        is_fit = False
    strategy = str(policies["compatibility"]).upper()
    return {"compatibility": is_fit, "schemaCompatibilityStrategy": strategy}


@endpoint("POST", f"{SCHEMAS}/version", LOOK)
def version_of_schema(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """The version of a schema that the topic has."""
    schema_to_find = _given(body)
    for row in _rows(client, topic):
        if Schema(row["type"], row["definition"]) == schema_to_find:
            return {"version": row["version"]}
    raise NotFound(f"topic {topic.short} has no such schema", topic=topic.short)


def _rows(client: Client, topic: TopicName) -> list[SchemaRow]:
    return client.topic(topic.full).schemas.list()


def _written(row: SchemaRow) -> dict[str, object]:
    kind, data, properties = Schema(row["type"], row["definition"]).declaration
    return {
        "version": row["version"],
        "type": kind.upper(),
        "timestamp": row["created_time"],
        "data": key_value_as_text(data) if kind == KEY_VALUE else data.decode(errors="replace"),
        "properties": properties,
    }


def _given(body: object) -> Schema:
    fields: dict[str, Any] = members(body)
    kind, text = fields.get("type"), fields.get("schema", "")
    properties = fields.get("properties") or {}
    if not isinstance(kind, str) or not isinstance(text, str):
        raise InvalidArgument('a schema is written {"type": "AVRO", "schema": "..."}')
    if not isinstance(properties, dict) or not all(
        isinstance(item, str) for item in properties.values()
    ):
        raise InvalidArgument("the properties of a schema are texts")
    kind = kind.lower()
    data = key_value_of(text) if kind == KEY_VALUE else text.encode(errors="surrogatepass")
    parsed = named_schema(kind, data, properties)
    if parsed is None:
        raise InvalidArgument(f"a schema of type {kind} needs a definition")
    return parsed
