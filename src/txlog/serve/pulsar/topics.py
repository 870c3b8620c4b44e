"""Owns topics: how Pulsar's names are those of the store, where topics are served, which there are.

    persistent://tenant/namespace/name               the topic tenant/namespace/name
    persistent://tenant/namespace/name-partition-2   its partition 2
    name                                             public/default/name
    persistent://tenant/cluster/namespace/name       the topic tenant/cluster~namespace/name

The last is a name of Pulsar 1: topics that differ to their clients stay different topics.

    pulsar/system/transaction_coordinator_assign     no topic: where clients look for coordinators

A topic with one partition is one that is not partitioned, to clients: they ask for it by its plain
name. One that is missing is made at its first use, by whoever produces or subscribes, unless the
server was told not to; the setting default_num_partitions says with how many partitions.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from txlog.base.ids import TopicName
from txlog.engine.door.catalog import Topic
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.store import View
from txlog.errors import InvalidArgument, NotAllowed, TopicNotFound, TxlogError
from txlog.serve.core.authority import ADMIN, CONSUME, PRODUCE
from txlog.serve.core.shares import check_topic
from txlog.serve.core.topic_patterns import TopicPattern, hash_of
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import lookup_error_of, text_of
from txlog.serve.pulsar.messages import Proto

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.client.client import Client

COORDINATOR_TOPIC: Final = TopicName("pulsar", "system", "transaction_coordinator_assign")
SCHEME: Final = "persistent://"
COORDINATORS: Final = 1  # that clients are told of; see transactions
_PATTERN: Final = frozenset("*?[(|^$\\")  # of regular expressions, and of no name
_NON_PERSISTENT: Final = 1  # of CommandGetTopicsOfNamespace.Mode; every topic here is persistent
_CONNECT, _FAILED = 1, 2  # of CommandLookupTopicResponse.LookupType


def name_of(text: str) -> TopicName:
    """The topic or partition that a client names. Raises InvalidArgument (202)."""
    parts = text.removeprefix(SCHEME).split("/")
    if text.startswith(SCHEME) and len(parts) == 4 and not parts[3].isdecimal():
        tenant, cluster, namespace, name = parts
        text = f"{tenant}/{namespace_in(cluster, namespace)}/{name}"
    return TopicName.parse(text, allow_partition=True)


def namespace_in(cluster: str, namespace: str) -> str:
    """The namespace of the store for one of a cluster."""
    return f"{cluster}~{namespace}"


def url_of(full: str, partition: int | None = None) -> str:
    """How clients name a topic, or a partition of it."""
    suffix = "" if partition is None else f"-partition-{partition}"
    return f"persistent://{full}{suffix}"


def urls_of(full: str, count: int) -> list[str]:
    """How clients name a topic: those with several partitions as these."""
    return [url_of(full, at if count > 1 else None) for at in range(count)]


def found(client: Client, name: TopicName) -> Topic:
    """A topic of the store. Raises TopicNotFound."""
    return client.store.read(lambda view: find_topic(view, name.topic))


def in_use(client: Client, name: TopicName, creates: bool) -> Topic:
    """A topic that is used, made if it is missing and may be. Raises TopicNotFound."""
    try:
        return found(client, name)
    except TopicNotFound:
        if not creates or name.partition is not None:
            raise
    check_topic(client)
    count = client.settings.default_num_partitions
    client.create_topic(name.full, count, if_not_exists=True)
    return found(client, name)


def check_partition(topic: Topic, name: TopicName) -> int:
    """The partition that a name means, 0 for the whole of a topic with one.

    raises: TopicNotFound
    """
    index = name.partition or 0
    if index >= topic.partitions:
        raise TopicNotFound(f"{name.topic} has {topic.partitions} partitions, there is no {index}")
    return index


def may_any(connection: Connection, name: TopicName) -> None:
    """Raises NotAllowed unless the client may do something with a topic."""
    if name == COORDINATOR_TOPIC:  # what a transaction may do is asked for each of its topics
        return
    last: TxlogError | None = None
    for action in (PRODUCE, CONSUME, ADMIN):
        try:
            connection.may(action, name)
        except TxlogError as error:
            last = error
        else:
            return
    assert last is not None
    raise last


def count_partitions(client: Client, name: TopicName, *, creates: bool, asks: bool) -> int:
    """How many partitions clients see: 0 for a topic that is not partitioned, or for one of them.

    creates: a missing topic with several partitions is made; one with a single partition is made
             by the PRODUCER or SUBSCRIBE that follows
    asks:    the client asks whether the topic exists, and nothing is made (PIP-344). Java 4 asks
             so for SUBSCRIPTION-RETRY and -DLQ, the names of old clients: without TopicNotFound it
             takes these, and topics with the same subscription name share retries
    raises:  TopicNotFound, if it asks
    """
    if name.topic == COORDINATOR_TOPIC:
        return COORDINATORS if name.partition is None else 0
    try:
        topic = found(client, name)
    except TopicNotFound:
        default = client.settings.default_num_partitions
        if asks:
            raise
        if not creates or name.partition is not None or default == 1:
            return 0
        topic = in_use(client, name, creates=True)
    if asks:
        check_partition(topic, name)
    return 0 if topic.partitions == 1 or name.partition is not None else topic.partitions


async def partitions(connection: Connection, body: Proto, rest: memoryview) -> None:
    """PARTITIONED_METADATA: how many partitions a topic has; 0: it is not partitioned."""
    creates, asks = (
        connection.service.options.creates_topics,
        not body.metadata_auto_creation_enabled,
    )

    try:
        name = name_of(body.topic)
        may_any(connection, name.topic)
        look = partial(count_partitions, name=name, creates=creates, asks=asks)
        count = await connection.client.run(look)
    except TxlogError as error:
        connection.send(
            "partitionMetadataResponse",
            request_id=body.request_id,
            response=1,
            error=lookup_error_of(error, connection.version),
            message=text_of(error),
        )
        return
    connection.send(
        "partitionMetadataResponse", request_id=body.request_id, response=0, partitions=count
    )


def lookup(connection: Connection, body: Proto, rest: memoryview) -> None:
    """LOOKUP: everything is served here, through the address that the client already has.

    Java looks up a pattern, too, for a connection to ask for topics.
    """
    is_pattern = body.topic.startswith("persistent://") and not _PATTERN.isdisjoint(body.topic)
    try:
        if not is_pattern:
            may_any(connection, name_of(body.topic).topic)
    except TxlogError as error:
        connection.send(
            "lookupTopicResponse",
            request_id=body.request_id,
            response=_FAILED,
            error=lookup_error_of(error, connection.version),
            message=text_of(error),
        )
        return
    connection.send(
        "lookupTopicResponse",
        request_id=body.request_id,
        response=_CONNECT,
        authoritative=True,
        proxy_through_service_url=True,
        **connection.listener.broker(),
    )


async def of_namespace(connection: Connection, body: Proto, rest: memoryview) -> None:
    """GET_TOPICS_OF_NAMESPACE: its topics by name, those with partitions as these.

    filtered: only those that match the client's pattern. Without it the client matches itself, as
              a broker of Pulsar lets it for a long pattern. So here for one that RE2 does not read
              (Java's `(?!...)`) or that takes too long
    changed:  false, without topics, if the client named the hash of this answer
    """
    start, pattern = f"{body.namespace}/", None
    if body.HasField("topics_pattern"):
        with suppress(InvalidArgument, NotAllowed):
            pattern = TopicPattern(body.topics_pattern)

    def look(view: View) -> dict[str, int]:
        every = view.catalog.topics.values()
        return {topic.name: topic.partitions for topic in every if topic.name.startswith(start)}

    def act(client: Client) -> tuple[list[str], bool]:
        partitions = client.store.read(look)
        names = sorted(partitions)
        is_filtered = False
        if pattern is not None:
            matching, tried = pattern.matching(names)
            is_filtered = tried == len(names)
            names = matching if is_filtered else names
        urls = []
        for name in names:
            try:
                may_any(connection, TopicName.parse(name))
            except TxlogError:
                continue
            urls += urls_of(name, partitions[name])
        return urls, is_filtered

    topics, is_filtered = list[str](), pattern is not None
    if body.mode != _NON_PERSISTENT:
        topics, is_filtered = await connection.client.run(act)
    stamp = hash_of(topics)
    is_changed = stamp != body.topics_hash
    connection.send(
        "getTopicsOfNamespaceResponse",
        request_id=body.request_id,
        topics=topics if is_changed else [],
        filtered=is_filtered,
        topics_hash=stamp,
        changed=is_changed,
    )


HANDLERS: Final[Mapping[str, Handler]] = {
    "PARTITIONED_METADATA": partitions,
    "LOOKUP": lookup,
    "GET_TOPICS_OF_NAMESPACE": of_namespace,
}
