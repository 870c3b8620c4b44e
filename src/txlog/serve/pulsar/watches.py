"""Owns watches: clients that asked for topics by a pattern, and are told what comes and goes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from txlog.base.ids import TopicName
from txlog.errors import NotAllowed, NotFound, TxlogError
from txlog.serve.core.census import Census
from txlog.serve.core.limits import too_many
from txlog.serve.core.topic_patterns import TopicPattern, hash_of
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.topics import may_any, urls_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.client.client import Client

ROOM: Final = "watches"


class Watch:
    """One watch of a client.

    known:   the topics that the client was told of
    numbers: the topics that match, by their numbers in the store
    next:    from this number on no topic was tried; numbers are not used again, so a topic is
             tried once, however often others come and go
    """

    def __init__(self, namespace: str, pattern: str) -> None:
        """Raises InvalidArgument, NotAllowed: of TopicPattern."""
        self.pattern = TopicPattern(pattern)
        self.start = f"{namespace}/"
        self.known = set[str]()
        self.numbers = set[int]()
        self.next = 0

    def look(self, connection: Connection, census: Census) -> set[str] | None:
        """The matching topics that the client may see, those with partitions as these.

        None: the time for a match ran out; the next look goes on from there.
        """
        topics = census.topics
        new = sorted(number for number in topics if number >= self.next)
        names = {topics[at][0]: at for at in new if topics[at][0].startswith(self.start)}
        matching, tried = self.pattern.matching(list(names))
        self.numbers.update(names[name] for name in matching)
        if tried < len(names):
            self.next = [*names.values()][tried]
            return None
        self.next = max(self.next, census.stamp[0])
        self.numbers = {number for number in self.numbers if not census.lacks_topic(number)}
        urls = set[str]()
        for name, partitions in (topics[number] for number in self.numbers & topics.keys()):
            try:
                may_any(connection, TopicName.parse(name))
            except TxlogError:
                continue
            urls.update(urls_of(name, partitions))
        return urls


async def watch(connection: Connection, body: Proto, rest: memoryview) -> None:
    """WATCH_TOPIC_LIST: tell which topics match a pattern, and from now on what changes.

    raises: NotAllowed for a pattern that would take too long: a client then asks for topics again
            and again, and matches them itself
    """
    watches: dict[int, Watch] = connection.rooms.setdefault(ROOM, {})
    most = connection.service.limits.consumers
    if len(watches) >= most:
        raise too_many("watches on this connection", most)
    watch = watches[body.watcher_id] = Watch(body.namespace, body.topics_pattern)

    def look(client: Client) -> set[str] | None:
        return watch.look(connection, client.store.read(Census.of))

    topics = await connection.client.run(look)
    if topics is None:
        if watches.get(body.watcher_id) is watch:
            del watches[body.watcher_id]
        raise NotAllowed("the pattern of topics takes too long to match")
    watch.known = topics
    connection.send(
        "watchTopicListSuccess",
        request_id=body.request_id,
        watcher_id=body.watcher_id,
        topic=sorted(topics),
        topics_hash=hash_of(topics),
    )


async def tell(connection: Connection, census: Census) -> None:
    """Tell a client what has come and gone of what it watches."""
    for number, watch in list(connection.rooms.get(ROOM, {}).items()):
        topics = None
        while topics is None:  # other calls of the store run between two looks
            topics = await connection.client.run(partial(_look, watch, connection, census))
        came, went = topics - watch.known, watch.known - topics
        watch.known = topics
        if came or went:
            connection.send(
                "watchTopicUpdate",
                watcher_id=number,
                new_topics=sorted(came),
                deleted_topics=sorted(went),
                topics_hash=hash_of(topics),
            )


def _look(watch: Watch, connection: Connection, census: Census, _: object) -> set[str] | None:
    return watch.look(connection, census)


def close(connection: Connection, body: Proto, rest: memoryview) -> None:
    """WATCH_TOPIC_LIST_CLOSE: tell nothing more."""
    if connection.rooms.get(ROOM, {}).pop(body.watcher_id, None) is None:
        raise NotFound(f"there is no watch {body.watcher_id} on this connection")
    connection.send("success", request_id=body.request_id)


HANDLERS: Final[Mapping[str, Handler]] = {
    "WATCH_TOPIC_LIST": watch,
    "WATCH_TOPIC_LIST_CLOSE": close,
}
