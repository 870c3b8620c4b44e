"""Owns PulsarListener: an address of Pulsar's binary protocol, its connections, the table of
commands; and the commands CONNECT, AUTH_RESPONSE, PING and PONG.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from txlog import __version__
from txlog.errors import AlreadyClosed, NotAllowed, TryAgain
from txlog.serve.auth import Caller
from txlog.serve.auth.access import Credentials
from txlog.serve.core.acceptor import Acceptor
from txlog.serve.core.catalog import CatalogSnapshot, watch_catalog
from txlog.serve.core.service import BrokerService, ConsumerStats, ProducerStats
from txlog.serve.core.sockets import Address
from txlog.serve.limits.limits import ConnectionSlot
from txlog.serve.pulsar import consumers, producers, schemas, topics, transactions
from txlog.serve.pulsar.connection import PROTOCOL_VERSION, Connection, Handler
from txlog.serve.pulsar.consumers import consumer_stats
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.group_commit import GroupCommit
from txlog.serve.pulsar.messages import COMMANDS, ERRORS, FeatureFlags, Proto
from txlog.serve.pulsar.producers import producer_stats

if TYPE_CHECKING:
    from collections.abc import Mapping


def connect(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """CONNECT: authenticate the client; every other command comes after it."""
    login = connection.login(body.auth_method_name, body.auth_data)
    caller = _caller(connection, login)
    if caller is None or not _take_slot(connection, caller):
        return
    connection.refreshes = body.feature_flags.supports_auth_refresh
    connection.connected(login, caller, body.client_version, body.protocol_version)
    connection.send(
        "connected",
        server_version=f"txlog-{__version__}",
        protocol_version=min(PROTOCOL_VERSION, body.protocol_version),
        max_message_size=connection.message_bytes_max,
        feature_flags=FeatureFlags(
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
    )


def auth_response(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """AUTH_RESPONSE: a new token, because the old one expires."""
    auth_data = body.response
    login = connection.login(auth_data.auth_method_name, auth_data.auth_data)
    caller = _caller(connection, login)
    if caller is not None:
        connection.renewed(login, caller)


def _caller(connection: Connection, login: Credentials) -> Caller | None:
    """The identity of the client; None: it is refused, and the connection ends."""
    service = connection.service
    try:
        return service.log_in(login)
    except NotAllowed as error:
        wrong = ERRORS["AuthenticationError"]
        connection.send("error", request_id=0, error=wrong, message=text_of(error))
        service.tell("refused", {"peer": connection.peer, "reason": error.message})
        connection.close()
        return None


def _take_slot(connection: Connection, caller: Caller) -> bool:
    """Count the connection as authenticated; False: the limit is reached, and it ends."""
    try:
        connection.slot.take(caller.role, is_superuser=caller.is_superuser)
    except TryAgain as error:
        wrong, message = error_of(error), text_of(error)
        connection.send("error", request_id=0, error=wrong, message=message)
        facts = {"peer": connection.peer, "role": caller.role, "reason": error.message}
        connection.service.tell("refused", facts)
        connection.close()
        return False
    return True


def ping(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """PING: answer that the server is alive."""
    connection.send("pong")


def pong(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """PONG: do nothing, because any bytes show that the client is alive."""


HANDLERS: Final[Mapping[str, Handler]] = {
    "CONNECT": connect,
    "AUTH_RESPONSE": auth_response,
    "PING": ping,
    "PONG": pong,
}
ROOMS: Final = (
    HANDLERS,
    topics.HANDLERS,
    producers.HANDLERS,
    consumers.HANDLERS,
    schemas.HANDLERS,
    transactions.HANDLERS,
)


def handlers() -> dict[int, Handler]:
    """The handler of each command, by its number."""
    return {COMMANDS[name]: handler for room in ROOMS for name, handler in room.items()}


# asyncio reads twice as much from a socket before the connection asks for it
BUFFER_BYTES: Final = 1 << 13
FENCED_MAX: Final = 1_000
RECHECKED_TOGETHER: Final = 50


class PulsarListener:
    """The protocol at one address.

    url:          the address of the broker in lookup answers
    connections:  the open connections
    group_commit: the group commit of all clients
    sends:        its queues of SENDs
    shared_state: the state that a module shares between all connections, by its name
    fenced:       (topic's number, name, partition) of producers whose next PRODUCER is refused; see
                  producers.APART
    """

    def __init__(self, service: BrokerService, address: Address) -> None:
        self.service = service
        self.url = ""
        self.connections: set[Connection] = set()
        self._address = address
        self.group_commit = GroupCommit(service)
        self.sends = self.group_commit.sends
        self.shared_state: dict[str, Any] = {}
        self.fenced: deque[tuple[int, str, int]] = deque(maxlen=FENCED_MAX)
        self._stem = service.store.store.disk.random_bytes(6).hex()
        self._named = count()
        self._handlers = handlers()
        self._acceptor: Acceptor | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self._is_stopping = False
        service.publishers, service.subscribers = self._publishers, self._subscribers

    def _publishers(self) -> list[ProducerStats]:
        return [stats for each in self.connections for stats in producer_stats(each)]

    def _subscribers(self) -> list[ConsumerStats]:
        return [stats for each in self.connections for stats in consumer_stats(each)]

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""
        tls = self.service.options.tls
        sockets = self.service.sockets("pulsar", self._address)
        self._acceptor = Acceptor(self.service, sockets, self._protocol)
        self._acceptor.start()
        bound = Address(self._address.host, sockets[0].getsockname()[1])
        self.url = f"{'pulsar' if tls is None else 'pulsar+ssl'}://{bound}"
        self.service.urls["pulsar"] = self.url
        return self.url

    def _protocol(self, slot: ConnectionSlot) -> asyncio.StreamReaderProtocol:
        """The protocol of one connection, as asyncio's own servers make it."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(BUFFER_BYTES, loop)
        return asyncio.StreamReaderProtocol(reader, partial(self._accepted, slot), loop)

    def _accepted(
        self, slot: ConnectionSlot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a new connection in a supervised task; asyncio's own task would be unsupervised."""
        task = self.service.tasks.begin(self._served(slot, reader, writer), writer.transport.abort)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _served(
        self, slot: ConnectionSlot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._following is None:  # started by the first client
            self._following = self.service.tasks.begin(
                watch_catalog(self.service, self._changed), self._watch_failed
            )
        connection = Connection(self, slot, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run(self._handlers)
        finally:
            slot.leave()
            self.connections.discard(connection)

    def _watch_failed(self) -> None:
        """The watch has failed: close the connections; the first client starts a new watch."""
        self._following = None
        self._close_all()

    def _close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()

    async def _changed(self, snapshot: CatalogSnapshot) -> None:
        """Topics or subscriptions have changed: notify the clients concerned."""
        for connection in list(self.connections):
            connection.begin(_notify(connection, snapshot))

    def check_open(self) -> None:
        """Raises AlreadyClosed once the server is stopping."""
        if self._is_stopping:
            raise AlreadyClosed("the server stops")

    def recheck_access(self) -> None:
        """End the connections that the current rules, keys and authorities no longer allow.

        Checking a signature takes 0.1 ms, so other work runs between some of the checks.
        """
        if self._rechecking is not None:
            self._rechecking.cancel()
        self._rechecking = self.service.tasks.begin(self._recheck_all(), self._close_all)

    async def _recheck_all(self) -> None:
        for number, connection in enumerate(list(self.connections), 1):
            connection.recheck_access()
            if number % RECHECKED_TOGETHER == 0:
                await asyncio.sleep(0)

    def broker(self) -> dict[str, str]:
        """The address of the broker, in the fields of a lookup."""
        is_plain = self.service.options.tls is None
        return {"brokerServiceUrl" if is_plain else "brokerServiceUrlTls": self.url}

    def new_name(self) -> str:
        """A unique name for a producer without one."""
        return f"txlog-{self._stem}-{next(self._named)}"

    async def drain(self) -> None:
        """Accept nothing new, close producers and consumers, wait until all commands are answered.

        Notified clients go to another server, or reconnect, at once.
        """
        self._is_stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
        open_ones = [
            room for connection in list(self.connections) for room in connection.open_handles
        ]
        await asyncio.gather(*(room.follow(None) for room in open_ones))
        await asyncio.gather(*(connection.idle() for connection in list(self.connections)))
        await self.group_commit.settled()

    async def close(self) -> None:
        """End all connections; returns once all their resources are freed."""
        if self._acceptor is not None:
            self._acceptor.close()
        for task in (self._following, self._rechecking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        if self._running:
            await asyncio.wait(self._running)


async def _notify(connection: Connection, snapshot: CatalogSnapshot) -> None:
    """Notify one client; of topics first, so that it does not reopen deleted ones."""
    await topics.notify_watchers(connection, snapshot)
    for room in connection.open_handles:
        await room.follow(snapshot)
