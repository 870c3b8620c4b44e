"""Owns PulsarListener: an address for Pulsar's binary protocol, and the connections there."""

from __future__ import annotations

import asyncio
from itertools import count

from txlog.ranges import Bound
from txlog.serve.core.address import Address
from txlog.serve.core.service import Service
from txlog.serve.pulsar.commands import handlers
from txlog.serve.pulsar.connection import READ_BYTES, Connection
from txlog.serve.pulsar.ends import Ends
from txlog.serve.pulsar.sends import Sends


class PulsarListener:
    """The protocol at one address.

    url:         where clients are sent by a lookup
    connections: those that are open
    sends:       what they send, stored together
    sought:      where readers were sent that are to come again: topic, name, partition
    names:       (topic, name) of the producers that are connected here
    """

    def __init__(self, service: Service, address: Address) -> None:
        self.service = service
        self.url = ""
        self.connections: set[Connection] = set()
        self._address = address
        self.ends = Ends(service)
        self.sends = Sends(service)
        self.names: set[tuple[str, str]] = set()
        self.sought: dict[tuple[str, str, int], Bound] = {}
        self._stem = service.store._store.disk.random_bytes(6).hex()
        self._named = count()
        self._handlers = handlers()
        self._listening: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""
        host, port = self._address
        self._listening = await asyncio.start_server(self._accepted, host, port, limit=READ_BYTES)
        bound = Address(host, self._listening.sockets[0].getsockname()[1])
        self.url = f"pulsar://{bound}"
        return self.url

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(connection)
        self._running.add(task)
        try:
            await connection.run(self._handlers)
        finally:
            self.connections.discard(connection)
            self._running.discard(task)

    def broker(self) -> dict[str, str]:
        """Where topics are served, in the fields of a lookup."""
        return {"brokerServiceUrl": self.url}

    async def room(self) -> None:
        """Wait until there is room for more of what clients send."""
        await self.sends.room()

    def new_name(self) -> str:
        """A name for a producer that has none; nobody has it."""
        return f"txlog-{self._stem}-{next(self._named)}"

    async def drain(self) -> None:
        """Take no new connections, and wait until the commands that came are answered."""
        if self._listening is not None:
            self._listening.close()
        await asyncio.gather(*(one.idle() for one in list(self.connections)))
        await self.sends.settled()

    async def close(self) -> None:
        """End all connections; returns once all they had is given back."""
        for connection in list(self.connections):
            connection.close()
        if self._running:
            await asyncio.wait(self._running)
