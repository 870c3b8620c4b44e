"""Owns Service: the store and the options that all listeners share, and what a listener is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from txlog.aio.client import Client
from txlog.aio.worker import Worker
from txlog.api.client import Client as Synchronous
from txlog.serve.core.address import Address
from txlog.serve.core.authority import Authority


class Options(NamedTuple):
    """What to serve, and how; an address that is None is not served.

    creates_topics: a topic that a client names and that is missing is made
    """

    pulsar: Address | None = None
    http: Address | None = None
    creates_topics: bool = True


class Service:
    """What is served.

    client:    the store, for the event loop; listeners share it, and with it flushes
    store:     the same for calls within `client.run`, and for what is in memory
    authority: who may do what
    """

    def __init__(self, store: Synchronous, options: Options, authority: Authority) -> None:
        self.client = Client(store, Worker())
        self.store = store
        self.options = options
        self.authority = authority

    def failed(self, error: Exception) -> None:
        """Note what failed for a reason that no client can know."""
        self.store._store.note(f"serve: {type(error).__name__}: {error}")


class Listener(Protocol):
    """One protocol at one address."""

    async def start(self) -> str:
        """Listen; returns what is served where, as a URL. Raises OSError."""

    async def drain(self) -> None:
        """Take no new connections, and wait until what was begun is answered."""

    async def close(self) -> None:
        """End all connections."""
