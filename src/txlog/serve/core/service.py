"""Owns Service: the store and the options that all listeners share, and what a listener is."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from txlog.client.aio.client import Client
from txlog.client.aio.worker import Worker
from txlog.client.client import Client as Synchronous
from txlog.client.open import open_store
from txlog.errors import NotAllowed, NotAuthenticated
from txlog.serve.auth import Caller
from txlog.serve.auth.guard import Login
from txlog.serve.core.address import Address
from txlog.serve.core.authority import Authority
from txlog.serve.core.budget import Backlog, MemoryBudget
from txlog.serve.core.exposure import listening
from txlog.serve.core.limits import Limits, Pool, Seats
from txlog.serve.core.producer_names import ProducerNames
from txlog.serve.core.tasks import Supervisor
from txlog.serve.core.tls import Tls

T = TypeVar("T")
BESIDE_MAX: Final = 2  # threads; more would only wait for the interpreter
Tell = Callable[[str, Mapping[str, object]], object]


def silent(event: str, facts: Mapping[str, object]) -> None:
    """Tell nobody."""


class Options(NamedTuple):
    """What to serve, and how; an address that is None is not served.

    creates_topics: a topic that a client names and that is missing is made
    tls:            for all listeners
    places:         for offloads by HTTP, by their names: directories and addresses of S3
    is_insecure:    other machines may connect without TLS or authentication
    sockets:        that listen already, by the name of the listener: pulsar, http
    tell:           is told what happens, in a word and its facts; never a secret
    """

    pulsar: Address | None = None
    http: Address | None = None
    creates_topics: bool = True
    tls: Tls | None = None
    limits: Limits = Limits()
    places: Mapping[str, str] = {}
    is_insecure: bool = False
    sockets: Mapping[str, list[socket.socket]] = {}
    tell: Tell = silent


class Publisher(NamedTuple):
    """A producer of a client that is connected here, and what it has sent since then.

    topic:    in full; partition: of it
    number:   of the producer on its connection
    mode:     of access, as Pulsar writes it
    since_ms: when it was opened
    """

    topic: str
    partition: int
    number: int
    name: str
    peer: str
    version: str
    mode: str
    since_ms: int
    messages: int
    payload_bytes: int
    metadata: Mapping[str, str] = {}


class Subscriber(NamedTuple):
    """A consumer of a client that is connected here.

    topic:     in full; partition: of it
    consumer:  its number in the store; None: its subscription is not durable
    name:      as its client gave it
    permits:   messages that it takes; unacked: that it has
    """

    topic: str
    partition: int
    subscription: str
    consumer: int | None
    name: str
    peer: str
    version: str
    since_ms: int
    permits: int
    unacked: int
    metadata: Mapping[str, str]


class Service:
    """What is served.

    client:    the store, for the event loop; listeners share it, and with it flushes
    store:     the same for calls within `client.run`, and for what is in memory
    authority: who may do what
    seats, budget: what clients have of the limits, all listeners together
    consumers: of all clients of Pulsar's protocol; each holds a lock file
    backlog:   what was sent to clients who do not take it: at most a quarter of the budget
    urls:      where each listener listens, by its name, once it does
    publishers: those of stock clients, in the moment; subscribers: the same
    tasks:     what runs in the background
    names:     who holds the name of a producer
    """

    def __init__(self, store: Synchronous, options: Options, authority: Authority) -> None:
        self.client = Client(store, Worker())
        self.store = store
        self.options = options
        self.authority = authority
        self.limits, self.tell = options.limits, options.tell
        self.urls = dict[str, str]()
        self.publishers: Callable[[], list[Publisher]] = list
        self.names = ProducerNames()
        self.subscribers: Callable[[], list[Subscriber]] = list
        self.seats = Seats(options.limits)
        self.budget = MemoryBudget(options.limits.memory_bytes)
        self.consumers = Pool("consumers", options.limits.consumers_in_all)
        self.backlog = Backlog(options.limits.memory_bytes // 4)
        self.tasks = Supervisor(self.failed)
        self._beside = ThreadPoolExecutor(BESIDE_MAX, "txlog-beside")
        self._figures: Client | None = None
        self._opening = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def log_in(self, login: Login) -> Caller:
        """Who a client is, by the rules, keys and authorities of the moment.

        raises: NotAuthenticated
        """
        tls, certificate = self.options.tls, None
        if tls is not None:
            now_ms = self.store.store.clock.now().wall_ms
            certificate = tls.certificate_of(login.ssl_object, now_ms)
            if certificate is None and tls.needs_certificate:
                raise NotAuthenticated("no authority that is known here vouches for this client")
        return self.authority.authenticate(login.method, login.data, certificate)

    def judge_again(self, login: Login, caller: Caller) -> None:
        """Raises NotAllowed unless the same login would let the same caller in now."""
        if self.log_in(login).role != caller.role:
            raise NotAllowed(f"its login is not that of role {caller.role} any more")

    async def beside(self, act: Callable[[], T]) -> T:
        """Do what takes a processor for a while, and needs no store, beside the event loop."""
        return await self._loop.run_in_executor(self._beside, act)

    async def figures(self, act: Callable[[Synchronous], T]) -> T:
        """Run a call that looks at the whole store, on a handle and in a thread of its own.

        Such a look takes a millisecond a topic. On the handle of the clients, all of them would
        wait until it is over.
        raises: what opening a store raises, and what the call raises
        """
        async with self._opening:
            if self._figures is None:
                store = await asyncio.to_thread(self._opened)
                self._figures = Client(store, Worker())
        return await self._figures.run(act)

    def _opened(self) -> Synchronous:
        clock = self.store.store.clock
        return open_store(self.store.path, read_only=self.store.store.disk.read_only, clock=clock)

    def in_loop(self, act: Callable[[], object]) -> None:
        """Call something in the event loop, from any thread; nothing, once it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.tasks.call, act)

    async def close(self) -> None:
        """Close the store, and end the threads; what they have begun ends by itself, soon."""
        self._beside.shutdown(wait=False, cancel_futures=True)
        if self._figures is not None:
            await self._figures.close()
        await self.client.close()

    def failed(self, error: BaseException) -> None:
        """Tell of a failure that is no client's, and where it was; its text may have data."""
        last = next(reversed(traceback.extract_tb(error.__traceback__)), None)
        place = None if last is None else f"{Path(last.filename).name}:{last.lineno}"
        self.tell("failed", {"class": type(error).__name__, "at": place})

    def sockets(self, name: str, address: Address) -> list[socket.socket]:
        """The sockets of a listener, bound and allowed.

        raises: OSError; Usage where others could connect who must not
        """
        given = self.options.sockets.get(name)
        return listening(
            f"--{name}",
            address,
            given,
            has_tls=self.options.tls is not None,
            has_auth=self.authority.guard is not None,
            is_insecure=self.options.is_insecure,
        )


class Listener(Protocol):
    """One protocol at one address."""

    async def start(self) -> str:
        """Listen; returns what is served where, as a URL. Raises OSError."""

    def judge_again(self) -> None:
        """Rules, keys or authorities have changed: end the connections that they do not allow."""

    async def drain(self) -> None:
        """Take no new connections, and wait until what was begun is answered."""

    async def close(self) -> None:
        """End all connections."""
