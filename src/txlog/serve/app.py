"""Owns the process: it opens the store by `txlog.aio`, listens, and stops.

    open      the listeners; what they serve is told once all of them listen
    serve     until SIGTERM, SIGINT or `stop`
    stop      no new connections; what was begun is answered (`drain`), at most DRAIN_SECONDS;
              then the connections end, and the store is closed
    killed    nothing is lost: what was answered is durable, and clients repeat the rest

A listener is one protocol at one address, and does not know the others.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txlog.api.client import Client
from txlog.errors import NoResources
from txlog.serve.core.authority import Authority
from txlog.serve.core.service import Listener, Options, Service
from txlog.serve.http.listener import HttpListener
from txlog.serve.pulsar.listener import PulsarListener

DRAIN_SECONDS: Final = 10.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Server:
    """A store and the listeners that offer it, in one event loop."""

    def __init__(self, store: Client, options: Options, authority: Authority | None = None) -> None:
        self.service = Service(store, options, authority or Authority())
        self.listeners: list[Listener] = []
        self._ended = asyncio.Event()

    def stop(self) -> None:
        """Begin to stop; a second call does nothing."""
        self._ended.set()

    async def start(self) -> list[str]:
        """Listen; returns the URL of each listener. Raises NoResources (an address is taken)."""
        options = self.service.options
        if options.pulsar is not None:
            self.listeners.append(PulsarListener(self.service, options.pulsar))
        if options.http is not None:
            self.listeners.append(HttpListener(self.service, options.http))
        places = []
        for listener in self.listeners:
            try:
                places.append(await listener.start())
            except OSError as error:
                await self.close()
                raise NoResources(f"cannot listen: {error.strerror or error}") from error
        return places

    async def wait(self) -> None:
        """Wait until it is told to stop."""
        await self._ended.wait()

    async def close(self) -> None:
        """Drain, end the connections, close the store."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.gather(*(one.drain() for one in self.listeners))
        for listener in self.listeners:
            await listener.close()
        await self.service.client.close()


def serve(
    store: Client,
    options: Options,
    told: Callable[[list[str]], None],
    authority: Authority | None = None,
) -> int:
    """Serve a store until a signal comes; returns its number. The store is closed then.

    told: gets the URLs once all listeners listen
    raises: NoResources, what closing a store raises
    """
    return asyncio.run(_serve(store, options, told, authority))


async def _serve(
    store: Client,
    options: Options,
    told: Callable[[list[str]], None],
    authority: Authority | None,
) -> int:
    server = Server(store, options, authority)
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def on_signal(number: int) -> None:
        came.append(number)
        server.stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    told(await server.start())
    try:
        await server.wait()
    finally:
        await server.close()
    return came[0] if came else 0
