"""Owns watches: clients that asked for topics by a pattern, and are told what comes and goes.

Patterns are matched by RE2, as in Pulsar, in time that grows with the names and not with what the
pattern is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.errors import InvalidArgument, NotAllowed, NotFound, TxlogError
from txlog.ids import TopicName
from txlog.serve.core.census import Census
from txlog.serve.core.limits import too_many
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.topics import may_any, urls_of
from txlog.startup import compute as pc
from txlog.startup.crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.api.client import Client

ROOM: Final = "watches"
PATTERN_MAX: Final = 1_000  # characters


class Watch:
    """One watch of a client: the topics that it was told of."""

    def __init__(self, namespace: str, pattern: str) -> None:
        """Raises InvalidArgument: the pattern cannot be read."""
        if not isinstance(pattern, str):  # protobuf gives bytes that are not UTF-8 as they are
            raise InvalidArgument("the pattern of topics is not UTF-8")
        self.namespace = namespace
        self.pattern = f"^(?:{pattern.replace('persistent://', '', 1)})$"
        self.known = set[str]()
        if len(pattern) > PATTERN_MAX:
            raise NotAllowed(f"a pattern of {len(pattern)} characters, the most is {PATTERN_MAX}")
        self._matching([""])

    def _matching(self, names: list[str]) -> list[str]:
        try:
            fits = pc.match_substring_regex(pa.array(names, pa.string()), self.pattern)
        except pa.ArrowInvalid as error:
            raise InvalidArgument("the pattern of topics cannot be read") from error
        return [name for name, one in zip(names, fits.to_pylist(), strict=True) if one]

    def found(self, connection: Connection, census: Census) -> set[str]:
        """The topics that it is about, those with partitions as these, that the client may see."""
        start = f"{self.namespace}/"
        partitions = {name: n for name, n in census.topics.values() if name.startswith(start)}
        urls = set[str]()
        for name in self._matching(list(partitions)):
            try:
                may_any(connection, TopicName.parse(name))
            except TxlogError:
                continue
            urls.update(urls_of(name, partitions[name]))
        return urls


def hash_of(topics: set[str]) -> str:
    """A hash of topics, as Pulsar makes it."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


async def watch(connection: Connection, body: Proto, rest: memoryview) -> None:
    """WATCH_TOPIC_LIST: tell what there is that a pattern fits, and from now on what changes."""
    watches: dict[int, Watch] = connection.rooms.setdefault(ROOM, {})
    most = connection.service.limits.consumers
    if len(watches) >= most:
        raise too_many("watches on this connection", most)
    made = watches[body.watcher_id] = Watch(body.namespace, body.topics_pattern)

    def look(client: Client) -> set[str]:
        return made.found(connection, client._store.read(Census.of))

    made.known = await connection.client.run(look)
    connection.send(
        "watchTopicListSuccess",
        request_id=body.request_id,
        watcher_id=body.watcher_id,
        topic=sorted(made.known),
        topics_hash=hash_of(made.known),
    )


async def tell(connection: Connection, census: Census) -> None:
    """Tell a client what has come and gone of what it watches."""
    for number, one in list(connection.rooms.get(ROOM, {}).items()):
        found = await connection.client.run(partial(_found, one, connection, census))
        came, went = found - one.known, one.known - found
        one.known = found
        if came or went:
            connection.send(
                "watchTopicUpdate",
                watcher_id=number,
                new_topics=sorted(came),
                deleted_topics=sorted(went),
                topics_hash=hash_of(found),
            )


def _found(one: Watch, connection: Connection, census: Census, _: object) -> set[str]:
    return one.found(connection, census)


def close(connection: Connection, body: Proto, rest: memoryview) -> None:
    """WATCH_TOPIC_LIST_CLOSE: tell nothing more."""
    if connection.rooms.get(ROOM, {}).pop(body.watcher_id, None) is None:
        raise NotFound(f"there is no watch {body.watcher_id} on this connection")
    connection.send("success", request_id=body.request_id)


HANDLERS: Final[Mapping[str, Handler]] = {
    "WATCH_TOPIC_LIST": watch,
    "WATCH_TOPIC_LIST_CLOSE": close,
}
