"""Owns a minimal client of the protocol, which sends commands and returns the raw answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

import txlog
from txlog.serve.app import Server
from txlog.serve.core.service import ServerOptions
from txlog.serve.core.sockets import Address
from txlog.serve.pulsar.messages import FIELDS
from txlog.serve.pulsar.wire import Frame, FrameDecoder, encode_command


class Raw:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameDecoder(1 << 20)
        self._came: list[tuple[str, Any]] = []

    async def ask(self, name: str, /, **fields: object) -> tuple[str, Any]:
        """Send a command; returns the name and the body of the next command from the server."""
        self._writer.write(encode_command(name, **fields))
        return await self.next()

    def write(self, pieces: list[bytes]) -> None:
        """Send bytes as they are."""
        self._writer.writelines(pieces)

    async def next(self) -> tuple[str, Any]:
        """The next command; ("", None): the connection has ended."""
        while not self._came:
            data = await self._reader.read(1 << 16)
            if not data:
                return "", None
            self._came += [
                (FIELDS[command.kind], command.body) for command in self._frames.feed(data)
            ]
        return self._came.pop(0)

    async def frames(self) -> list[Frame]:
        """The next frames, as they are."""
        pending: list[Frame] = []
        while not pending:
            pending = list(self._frames.feed(await self._reader.read(1 << 16)))
        return pending

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()


class Story(Protocol):
    """The steps of some clients against a server."""

    def __call__(self, place: Place) -> Coroutine[Any, Any, None]: ...


class Place:
    """A server of a store, in this process."""

    def __init__(self, store: str, port: int) -> None:
        self.store, self.port = store, port
        self.clients: list[Raw] = []

    async def client(self) -> Raw:
        """A client that is connected."""
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(raw)
        name, _ = await raw.ask("connect", client_version="raw", protocol_version=19)
        assert name == "connected"
        return raw


def run_story(folder: Path, story: Story) -> None:
    """Serve a store, which is made if it is missing, while a story runs against the server."""
    asyncio.run(_run_story(str(folder / "store"), story))


async def _run_story(store: str, story: Story) -> None:
    if not Path(store).exists():
        txlog.init(store)
    server = Server(txlog.open(store), ServerOptions(pulsar=Address("127.0.0.1", 0)))
    (url,) = await server.start()
    place = Place(store, int(url.rpartition(":")[2]))
    try:
        await story(place)
    finally:
        for raw in place.clients:
            await raw.close()
        await server.close()
