"""Owns topics: Pulsar's names for the store's topics, lookup, topics by namespace or pattern,
watchers.

    persistent://tenant/namespace/name               the topic tenant/namespace/name
    persistent://tenant/namespace/name-partition-2   its partition 2
    name                                             public/default/name
    persistent://tenant/cluster/namespace/name       the topic tenant/cluster~namespace/name

The last is a name of Pulsar 1: topics that differ to their clients stay different topics.

    pulsar/system/transaction_coordinator_assign     no topic: where clients look for coordinators

To clients, a topic with one partition is not partitioned: they ask for it by its plain name. The
first producer or consumer creates a missing topic, unless the server was started with
--no-topic-creation. The setting default_num_partitions is its number of partitions.

RE2 matches patterns, as in Pulsar: its time grows with the number of names, for any pattern. The
factor is the pattern's size with its repetitions written out, up to 1 ms for each name, so a match
also ends after a time limit.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.engine.door.catalog import Topic
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.store import View
from txlog.errors import InvalidArgument, NotAllowed, NotFound, TopicNotFound, TxlogError
from txlog.serve.auth import ADMIN, CONSUME, PRODUCE
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.limits.limits import too_many_error
from txlog.serve.limits.shares import check_topic_share
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import lookup_error_of, text_of
from txlog.serve.pulsar.messages import Proto

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from txlog.client.client import Client

PATTERN_MAX: Final = 1_000  # characters
MATCH_SECONDS: Final = 0.1  # in the store's thread, for one command
# names matched between two reads of the clock; 0.1 s with the worst pattern
SLICE_NAMES: Final = 128
_SCHEME = re.compile(r"(?:non-)?persistent://")


class TopicPattern:
    """A regular expression that the whole of `tenant/namespace/name` has to match."""

    def __init__(self, text: str) -> None:
        """Raises InvalidArgument: RE2 cannot read the pattern; NotAllowed: it is too long."""
        if not isinstance(text, str):  # protobuf returns bytes if a text is not UTF-8
            raise InvalidArgument("the pattern of topics is not UTF-8")
        if len(text) > PATTERN_MAX:
            raise NotAllowed(f"a pattern of {len(text)} characters, the most is {PATTERN_MAX}")
        bare = _SCHEME.sub("", text, count=1)
        _matches([""], bare)  # `a)|(b` is not a pattern, although it is one within brackets
        self._whole = f"^(?:{bare})$"
        _matches([""], self._whole)

    def matching(
        self, names: Sequence[str], limit_s: float = MATCH_SECONDS
    ) -> tuple[list[str], int]:
        """The names that match, and how many were tried; fewer than all if the time ran out."""
        ends_at = time.monotonic() + limit_s
        matches: list[str] = []
        tried = 0
        while tried < len(names):
            piece = names[tried : tried + SLICE_NAMES]
            flags = _matches(piece, self._whole)
            matches += [name for name, fits in zip(piece, flags, strict=True) if fits]
            tried += len(piece)
            if time.monotonic() > ends_at:
                break
        return matches, tried


def _matches(names: Sequence[str], pattern: str) -> list[bool]:
    try:
        fits = pc.match_substring_regex(pa.array(names, pa.string()), pattern)
    except pa.ArrowInvalid as error:
        raise InvalidArgument("the pattern of topics cannot be read") from error
    flags: list[bool] = fits.to_pylist()
    return flags


def hash_of(topics: Iterable[str]) -> str:
    """A hash of topics, as in Pulsar."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


COORDINATOR_TOPIC: Final = TopicName("pulsar", "system", "transaction_coordinator_assign")
SCHEME: Final = "persistent://"
COORDINATORS: Final = 1  # the number that clients see; see transactions
_PATTERN: Final = frozenset("*?[(|^$\\")  # characters of regular expressions that no name has
# a value of CommandGetTopicsOfNamespace.Mode; every topic here is persistent
_NON_PERSISTENT: Final = 1
_CONNECT, _FAILED = 1, 2  # values of CommandLookupTopicResponse.LookupType


def name_of(text: str) -> TopicName:
    """The topic or partition that a client names. Raises InvalidArgument (202)."""
    parts = text.removeprefix(SCHEME).split("/")
    if text.startswith(SCHEME) and len(parts) == 4 and not parts[3].isdecimal():
        tenant, cluster, namespace, name = parts
        text = f"{tenant}/{namespace_in(cluster, namespace)}/{name}"
    return TopicName.parse(text, allow_partition=True)


def namespace_in(cluster: str, namespace: str) -> str:
    """The namespace in the store for a namespace of a cluster."""
    return f"{cluster}~{namespace}"


def url_of(full: str, partition: int | None = None) -> str:
    """A topic, or a partition of it, as clients name it."""
    suffix = "" if partition is None else f"-partition-{partition}"
    return f"persistent://{full}{suffix}"


def urls_of(full: str, count: int) -> list[str]:
    """A topic as clients name it: if it has several partitions, as these."""
    return [url_of(full, at if count > 1 else None) for at in range(count)]


def get_topic(client: Client, name: TopicName) -> Topic:
    """A topic of the store. Raises TopicNotFound."""
    return client.store.read(lambda view: find_topic(view, name.topic))


def get_or_create_topic(client: Client, name: TopicName, creates: bool) -> Topic:
    """A topic, created if it is missing and may be created. Raises TopicNotFound."""
    try:
        return get_topic(client, name)
    except TopicNotFound:
        if not creates or name.partition is not None:
            raise
    check_topic_share(client)
    count = client.settings.default_num_partitions
    client.create_topic(name.full, count, if_not_exists=True)
    return get_topic(client, name)


def check_partition(topic: Topic, name: TopicName) -> int:
    """The partition of a name; 0 for the whole of a topic with one.

    raises: TopicNotFound
    """
    index = name.partition or 0
    if index >= topic.partitions:
        raise TopicNotFound(f"{name.topic} has {topic.partitions} partitions, there is no {index}")
    return index


def check_any_action(connection: Connection, name: TopicName) -> None:
    """Raises NotAllowed unless the client may do anything with a topic."""
    if name == COORDINATOR_TOPIC:  # rights are checked for each topic of a transaction
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
    """How many partitions clients see: 0 for a topic that is not partitioned, or for a single
    partition.

    creates: create a missing topic if it gets several partitions; PRODUCER or SUBSCRIBE creates one
             with a single partition
    asks:    the client only asks whether the topic exists, so create nothing (PIP-344). Java 4 asks
             so for SUBSCRIPTION-RETRY and -DLQ, as old clients named these topics. Without
             TopicNotFound it uses them, and topics with the same subscription name share retries
    raises:  TopicNotFound, if `asks`
    """
    if name.topic == COORDINATOR_TOPIC:
        return COORDINATORS if name.partition is None else 0
    try:
        topic = get_topic(client, name)
    except TopicNotFound:
        default = client.settings.default_num_partitions
        if asks:
            raise
        if not creates or name.partition is not None or default == 1:
            return 0
        topic = get_or_create_topic(client, name, creates=True)
    if asks:
        check_partition(topic, name)
    return 0 if topic.partitions == 1 or name.partition is not None else topic.partitions


async def partitions(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """PARTITIONED_METADATA: how many partitions a topic has; 0: it is not partitioned."""
    creates, asks = (
        connection.service.options.creates_topics,
        not body.metadata_auto_creation_enabled,
    )

    try:
        name = name_of(body.topic)
        check_any_action(connection, name.topic)
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


def lookup(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """LOOKUP: this server serves every topic, at the address that the client already uses.

    Java also looks up a pattern, to get a connection on which it asks for topics.
    """
    is_pattern = body.topic.startswith("persistent://") and not _PATTERN.isdisjoint(body.topic)
    try:
        if not is_pattern:
            check_any_action(connection, name_of(body.topic).topic)
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


async def of_namespace(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """GET_TOPICS_OF_NAMESPACE: its topics by name, partitioned ones as their partitions.

    filtered: the topics match the client's pattern. If it is false the client matches them itself,
              as with a broker of Pulsar and a long pattern. This server does so for a pattern that
              RE2 cannot read (Java's `(?!...)`) or that takes too long
    changed:  false, without topics, if the client sent the hash of this answer
    """
    start, pattern = f"{body.namespace}/", None
    if body.HasField("topics_pattern"):
        with suppress(InvalidArgument, NotAllowed):
            pattern = TopicPattern(body.topics_pattern)

    def look(view: View) -> dict[str, int]:
        all_topics = view.catalog.topics.values()
        return {
            topic.name: topic.partitions for topic in all_topics if topic.name.startswith(start)
        }

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
                check_any_action(connection, TopicName.parse(name))
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


WATCHERS: Final = "watches"


class TopicListWatcher:
    """A client's watch for topics that match a pattern.

    known:   the topics that the client knows
    numbers: the matching topics, by their numbers in the store
    next:    the first number that was not tried; numbers are never reused, so a topic is tried
             once, however often other topics change, and again after a rename
    renames: how many topics had been renamed by then
    """

    def __init__(self, namespace: str, pattern: str) -> None:
        """Raises InvalidArgument, NotAllowed: from TopicPattern."""
        self.pattern = TopicPattern(pattern)
        self.start = f"{namespace}/"
        self.known = set[str]()
        self.numbers = set[int]()
        self.next = self.renames = 0

    def look(self, connection: Connection, snapshot: CatalogSnapshot) -> set[str] | None:
        """The matching topics that the client may see, partitioned ones as their partitions.

        None: the time limit of a match was reached; the next call continues there.
        """
        topics = snapshot.topics
        if snapshot.renames != self.renames:
            self.renames, self.next, self.numbers = snapshot.renames, 0, set()
        new = sorted(number for number in topics if number >= self.next)
        names = {topics[at][0]: at for at in new if topics[at][0].startswith(self.start)}
        matching, tried = self.pattern.matching(list(names))
        self.numbers.update(names[name] for name in matching)
        if tried < len(names):
            self.next = [*names.values()][tried]
            return None
        self.next = max(self.next, snapshot.stamp[0])
        self.numbers = {at for at in self.numbers if at in topics or at >= snapshot.stamp[0]}
        urls = set[str]()
        for name, partitions in (topics[number] for number in self.numbers & topics.keys()):
            try:
                check_any_action(connection, TopicName.parse(name))
            except TxlogError:
                continue
            urls.update(urls_of(name, partitions))
        return urls


async def watch_topics(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """WATCH_TOPIC_LIST: send the topics that match a pattern, and from now on the changes.

    raises: NotAllowed for a pattern that would take too long: a client then polls for topics, and
            matches them itself
    """
    watches: dict[int, TopicListWatcher] = connection.state.setdefault(WATCHERS, {})
    most = connection.service.limits.consumers
    if len(watches) >= most:
        raise too_many_error("watches on this connection", most)
    watcher = watches[body.watcher_id] = TopicListWatcher(body.namespace, body.topics_pattern)

    def look(client: Client) -> set[str] | None:
        return watcher.look(connection, client.store.read(CatalogSnapshot.of))

    topics = await connection.client.run(look)
    if topics is None:
        if watches.get(body.watcher_id) is watcher:
            del watches[body.watcher_id]
        raise NotAllowed("the pattern of topics takes too long to match")
    watcher.known = topics
    connection.send(
        "watchTopicListSuccess",
        request_id=body.request_id,
        watcher_id=body.watcher_id,
        topic=sorted(topics),
        topics_hash=hash_of(topics),
    )


async def notify_watchers(connection: Connection, snapshot: CatalogSnapshot) -> None:
    """Send a client the changes of the topics that it watches."""
    for number, watcher in list(connection.state.get(WATCHERS, {}).items()):
        topics = None
        while topics is None:  # other calls of the store run in between
            topics = await connection.client.run(partial(_look, watcher, connection, snapshot))
        came, went = topics - watcher.known, watcher.known - topics
        watcher.known = topics
        if came or went:
            connection.send(
                "watchTopicUpdate",
                watcher_id=number,
                new_topics=sorted(came),
                deleted_topics=sorted(went),
                topics_hash=hash_of(topics),
            )


def _look(
    watcher: TopicListWatcher, connection: Connection, snapshot: CatalogSnapshot, _: object
) -> set[str] | None:
    return watcher.look(connection, snapshot)


def close_watcher(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """WATCH_TOPIC_LIST_CLOSE: send no more changes."""
    if connection.state.get(WATCHERS, {}).pop(body.watcher_id, None) is None:
        raise NotFound(f"there is no watch {body.watcher_id} on this connection")
    connection.send("success", request_id=body.request_id)


HANDLERS: Final[Mapping[str, Handler]] = {
    "PARTITIONED_METADATA": partitions,
    "LOOKUP": lookup,
    "GET_TOPICS_OF_NAMESPACE": of_namespace,
    "WATCH_TOPIC_LIST": watch_topics,
    "WATCH_TOPIC_LIST_CLOSE": close_watcher,
}
