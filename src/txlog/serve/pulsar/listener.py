"""Owns PulsarListener: an address for Pulsar's binary protocol, and the connections there."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Final

from txlog.errors import AlreadyClosed, TryAgain
from txlog.ranges import Bound
from txlog.serve.core.address import Address
from txlog.serve.core.census import Census, follow
from txlog.serve.core.limits import host_of
from txlog.serve.core.service import Publisher, Service
from txlog.serve.pulsar import watches
from txlog.serve.pulsar.commands import handlers
from txlog.serve.pulsar.connection import Connection
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.groups import Groups
from txlog.serve.pulsar.producers import publishers
from txlog.serve.pulsar.wire import encoded

BUFFER_BYTES: Final = 1 << 13  # twice as much is taken from a socket before anybody asks for it
BACKLOG: Final = 1_024
FENCED_MAX: Final = 1_000


class PulsarListener:
    """The protocol at one address.

    url:         where clients are sent by a lookup
    connections: those that are open
    wanted:      what they want of the store in the moment; sends: what they send
    sought:      where readers were sent that are to come again: topic, name, partition
    names:       (topic, name) of the producers that are connected here
    fenced:      (topic, name, partition) of those that shall not come again; see producers.APART
    """

    def __init__(self, service: Service, address: Address) -> None:
        self.service = service
        self.url = ""
        self.connections: set[Connection] = set()
        self._address = address
        self.wanted = Groups(service)
        self.sends = self.wanted.sends
        self.names: set[tuple[str, str]] = set()
        self.fenced: deque[tuple[str, str, int]] = deque(maxlen=FENCED_MAX)
        self.sought: dict[tuple[str, str, int], Bound] = {}
        self._stem = service.store._store.disk.random_bytes(6).hex()
        self._named = count()
        self._handlers = handlers()
        self._listening = list[asyncio.Server]()
        self._running: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._is_stopping = False
        service.publishers = self._publishers

    def _publishers(self) -> list[Publisher]:
        return [one for each in self.connections for one in publishers(each)]

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""
        tls, limits = self.service.options.tls, self.service.limits
        sockets = self.service.sockets("pulsar", self._address)
        for one in sockets:
            listening = await asyncio.start_server(
                self._accepted,
                sock=one,
                limit=BUFFER_BYTES,
                backlog=BACKLOG,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=None if tls is None else limits.connect_timeout_ms / 1_000,
            )
            self._listening.append(listening)
        bound = Address(self._address.host, sockets[0].getsockname()[1])
        self.url = f"{'pulsar' if tls is None else 'pulsar+ssl'}://{bound}"
        self.service.urls["pulsar"] = self.url
        return self.url

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        address = host_of(writer.get_extra_info("peername"))
        try:
            self.service.seats.take(address)
        except TryAgain as error:
            self.service.tell("refused", {"peer": address, "reason": error.message})
            number = error_of(error)
            writer.write(encoded("error", request_id=0, error=number, message=text_of(error)))
            writer.close()
            return
        if self._following is None:  # from the first client on
            self._following = asyncio.create_task(follow(self.service, self._changed))
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        self._running.add(task)
        try:
            await connection.run(self._handlers)
        finally:
            self.service.seats.leave(address)
            self.connections.discard(connection)
            self._running.discard(task)

    async def _changed(self, census: Census) -> None:
        """There are other topics or subscriptions: tell clients whom that concerns."""
        for connection in list(self.connections):
            connection.begin(_told(connection, census))

    def check_open(self) -> None:
        """Raises AlreadyClosed once it is to stop."""
        if self._is_stopping:
            raise AlreadyClosed("the server stops")

    def judge_again(self) -> None:
        """The rules have changed: connections that they do not allow end."""
        for connection in list(self.connections):
            connection.judge_again()

    def broker(self) -> dict[str, str]:
        """Where topics are served, in the fields of a lookup."""
        is_plain = self.service.options.tls is None
        return {"brokerServiceUrl" if is_plain else "brokerServiceUrlTls": self.url}

    async def room(self) -> None:
        """Wait until there is room for more of what clients send."""
        await self.sends.room()

    def new_name(self) -> str:
        """A name for a producer that has none; nobody has it."""
        return f"txlog-{self._stem}-{next(self._named)}"

    async def drain(self) -> None:
        """Take nothing new, close what clients have open, wait until what they sent is answered.

        Clients that are told go elsewhere, or come again, at once.
        """
        self._is_stopping = True
        for listening in self._listening:
            listening.close()
        open_ones = [room for one in list(self.connections) for room in one.occupied]
        await asyncio.gather(*(room.follow(None) for room in open_ones))
        await asyncio.gather(*(one.idle() for one in list(self.connections)))
        await self.wanted.settled()

    async def close(self) -> None:
        """End all connections; returns once all they had is given back."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        if self._running:
            await asyncio.wait(self._running)


async def _told(connection: Connection, census: Census) -> None:
    """Tell one client; of topics first, so that it does not open again what is gone."""
    await watches.tell(connection, census)
    for room in connection.occupied:
        await room.follow(census)
