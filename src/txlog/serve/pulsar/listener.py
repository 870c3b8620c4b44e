"""Owns PulsarListener: an address for Pulsar's binary protocol, and the connections there."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import count
from typing import Any, Final

from txlog.errors import AlreadyClosed
from txlog.serve.core.acceptor import Acceptor
from txlog.serve.core.address import Address
from txlog.serve.core.census import Census, follow
from txlog.serve.core.limits import Seat
from txlog.serve.core.service import Publisher, Service, Subscriber
from txlog.serve.pulsar import watches
from txlog.serve.pulsar.commands import handlers
from txlog.serve.pulsar.connection import Connection
from txlog.serve.pulsar.consumers import subscribers
from txlog.serve.pulsar.groups import Groups
from txlog.serve.pulsar.producers import publishers

BUFFER_BYTES: Final = 1 << 13  # twice as much is taken from a socket before anybody asks for it
FENCED_MAX: Final = 1_000
JUDGED_TOGETHER: Final = 50


class PulsarListener:
    """The protocol at one address.

    url:         where clients are sent by a lookup
    connections: those that are open
    wanted:      what they want of the store in the moment; sends: what they send
    halls:       what the rooms of all connections have in common, by the name of the room
    fenced:      (topic, name, partition) of those that shall not come again; see producers.APART
    """

    def __init__(self, service: Service, address: Address) -> None:
        self.service = service
        self.url = ""
        self.connections: set[Connection] = set()
        self._address = address
        self.wanted = Groups(service)
        self.sends = self.wanted.sends
        self.halls: dict[str, Any] = {}
        self.fenced: deque[tuple[str, str, int]] = deque(maxlen=FENCED_MAX)
        self._stem = service.store.store.disk.random_bytes(6).hex()
        self._named = count()
        self._handlers = handlers()
        self._acceptor: Acceptor | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self._is_stopping = False
        service.publishers, service.subscribers = self._publishers, self._subscribers

    def _publishers(self) -> list[Publisher]:
        return [one for each in self.connections for one in publishers(each)]

    def _subscribers(self) -> list[Subscriber]:
        return [one for each in self.connections for one in subscribers(each)]

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

    def _protocol(self, seat: Seat) -> asyncio.StreamReaderProtocol:
        """The protocol of one connection, as asyncio's own servers make it."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(BUFFER_BYTES, loop)
        return asyncio.StreamReaderProtocol(reader, partial(self._accepted, seat), loop)

    def _accepted(
        self, seat: Seat, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Somebody connects; asyncio's own task for it would be nobody's."""
        task = self.service.tasks.begin(self._served(seat, reader, writer), writer.transport.abort)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _served(
        self, seat: Seat, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._following is None:  # from the first client on
            self._following = self.service.tasks.begin(
                follow(self.service, self._changed), self._is_blind
            )
        connection = Connection(self, seat, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run(self._handlers)
        finally:
            seat.leave()
            self.connections.discard(connection)

    def _is_blind(self) -> None:
        """It does not see changes any more: clients come again, and the first begins a new look."""
        self._following = None
        self._close_all()

    def _close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()

    async def _changed(self, census: Census) -> None:
        """There are other topics or subscriptions: tell clients whom that concerns."""
        for connection in list(self.connections):
            connection.begin(_told(connection, census))

    def check_open(self) -> None:
        """Raises AlreadyClosed once it is to stop."""
        if self._is_stopping:
            raise AlreadyClosed("the server stops")

    def judge_again(self) -> None:
        """End the connections that rules, keys and authorities of the moment do not allow.

        A signature takes 0.1 ms to check, so other work goes on between some of them.
        """
        if self._judging is not None:
            self._judging.cancel()
        self._judging = self.service.tasks.begin(self._judge_all(), self._close_all)

    async def _judge_all(self) -> None:
        for number, connection in enumerate(list(self.connections), 1):
            connection.judge_again()
            if number % JUDGED_TOGETHER == 0:
                await asyncio.sleep(0)

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
        if self._acceptor is not None:
            self._acceptor.close()
        open_ones = [room for one in list(self.connections) for room in one.occupied]
        await asyncio.gather(*(room.follow(None) for room in open_ones))
        await asyncio.gather(*(one.idle() for one in list(self.connections)))
        await self.wanted.settled()

    async def close(self) -> None:
        """End all connections; returns once all they had is given back."""
        if self._acceptor is not None:
            self._acceptor.close()
        for task in (self._following, self._judging):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        if self._running:
            await asyncio.wait(self._running)


async def _told(connection: Connection, census: Census) -> None:
    """Tell one client; of topics first, so that it does not open again what is gone."""
    await watches.tell(connection, census)
    for room in connection.occupied:
        await room.follow(census)
