"""Owns BrokerService: the store and the options that all listeners share; and background tasks.

A task that is never awaited must not fail unseen. `Supervisor` logs every exception of a task
except cancellation, and then closes the object that the task served. So its client reconnects
instead of waiting for a task that has stopped. Callbacks that answer clients run here too: one that
fails does not keep the others from their answers.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from txlog.client.aio.client import Client
from txlog.client.aio.worker import Worker
from txlog.client.client import Client as Synchronous
from txlog.client.open import open_store
from txlog.errors import NotAllowed, NotAuthenticated
from txlog.serve.auth import AccessControl, Caller
from txlog.serve.auth.access import Credentials
from txlog.serve.core.producer_names import ProducerNames
from txlog.serve.core.sockets import Address, bind_sockets
from txlog.serve.core.tls import TlsContext
from txlog.serve.limits.budget import MemoryBudget, OutboundBytes
from txlog.serve.limits.limits import ConnectionLimit, Limits, Quota

Close = Callable[[], object]


def nothing() -> None:
    """Close nothing: the task served no client, or starts again when it is needed."""


class Supervisor:
    """The background tasks of a server."""

    __slots__ = ("_failed", "_running")

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        """failed: logs an exception"""
        self._failed: Final = failed
        # asyncio itself keeps only weak references
        self._running: Final = set[asyncio.Task[None]]()

    def begin(
        self, work: Coroutine[Any, Any, None], close: Close, context: Context | None = None
    ) -> asyncio.Task[None]:
        """Run a coroutine in the background; close: closes the object it serves, if it fails."""
        task = asyncio.create_task(work, context=context)
        self._running.add(task)
        task.add_done_callback(partial(self._ended, close))
        return task

    def call(self, act: Callable[[], object], close: Close = nothing) -> None:
        """Call a function whose failure must not stop its caller."""
        try:
            act()
        except Exception as error:  # a bug: log it, and let the caller go on
            self._failed(error)
            if close is not nothing:
                self.call(close)

    def _ended(self, close: Close, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
            self.call(close)


T = TypeVar("T")
THREADS_MAX: Final = 2  # threads; more would only wait for the interpreter's lock
Tell = Callable[[str, Mapping[str, object]], object]


def ignore_event(event: str, facts: Mapping[str, object]) -> None:
    """Do nothing with an event."""


class ServerOptions(NamedTuple):
    """The listeners of a server, and its settings; a listener whose address is None does not run.

    creates_topics: the server creates a missing topic when a client names it
    allows_actions: the live page may publish, seek, redeliver and abort
    tls:            for all listeners
    places:         for offloads by HTTP, by their names: directories and addresses of S3
    is_insecure:    other machines may connect without TLS or authentication
    sockets:        sockets that already listen, by the name of the listener: pulsar, http
    tell:           gets each event, as a word and its facts; never a secret
    """

    pulsar: Address | None = None
    http: Address | None = None
    creates_topics: bool = True
    tls: TlsContext | None = None
    limits: Limits = Limits()
    places: Mapping[str, str] = {}
    is_insecure: bool = False
    sockets: Mapping[str, list[socket.socket]] = {}
    tell: Tell = ignore_event
    allows_actions: bool = False


class ProducerStats(NamedTuple):
    """A client's producer that is connected here, and how much it has sent since then.

    topic:     in full
    partition: of the topic
    number:    of the producer on its connection
    mode:      of access, as Pulsar writes it
    since_ms:  when it was opened
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


class ConsumerStats(NamedTuple):
    """A client's consumer that is connected here.

    topic:     in full
    partition: of the topic
    consumer:  its number in the store; None: its subscription is not durable
    name:      as its client gave it
    permits:   how many messages it still accepts
    unacked:   how many messages it has not acknowledged
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


class BrokerService:
    """The store of a server, and the state that its listeners share.

    client: the store, for the event loop; listeners share it, and so they share flushes
    store: the same for calls within `client.run`, and for values in memory
    authority: authentication and access rules
    connection_limit, budget: the use of the limits by all listeners together
    consumers: of all clients of Pulsar's protocol; each holds a lock file
    backlog: bytes sent to clients and not read; beyond a quarter of the budget it is large
    urls: the URL of each listener, by its name, once it listens
    publishers: the current producers of stock clients
    subscribers: the current consumers of stock clients
    tasks: the background tasks
    names: the names of connected producers
    """

    def __init__(
        self, store: Synchronous, options: ServerOptions, authority: AccessControl
    ) -> None:
        self.client = Client(store, Worker())
        self.store = store
        self.options = options
        self.authority = authority
        self.limits, self.tell = options.limits, options.tell
        self.urls = dict[str, str]()
        self.publishers: Callable[[], list[ProducerStats]] = list
        self.names = ProducerNames()
        self.subscribers: Callable[[], list[ConsumerStats]] = list
        self.connection_limit = ConnectionLimit(options.limits)
        self.budget = MemoryBudget(options.limits.memory_bytes)
        self.consumers = Quota("consumers", options.limits.consumers_in_all)
        self.backlog = OutboundBytes(options.limits.memory_bytes // 4)
        self.tasks = Supervisor(self.failed)
        self._threads = ThreadPoolExecutor(THREADS_MAX, "txlog-thread")
        self._figures: Client | None = None
        self._opening = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def log_in(self, login: Credentials) -> Caller:
        """The caller behind a client's credentials, by the current rules, keys and authorities.

        raises: NotAuthenticated
        """
        tls, certificate = self.options.tls, None
        if tls is not None:
            now_ms = self.store.store.clock.now().wall_ms
            certificate = tls.certificate_of(login.ssl_object, now_ms)
            if certificate is None and tls.needs_certificate:
                raise NotAuthenticated("no trusted authority has signed the client's certificate")
        return self.authority.authenticate(login.method, login.data, certificate)

    def recheck_access(self, login: Credentials, caller: Caller) -> None:
        """Raises NotAllowed unless these credentials would still authenticate the same caller."""
        if self.log_in(login).role != caller.role:
            raise NotAllowed(f"its login is not that of role {caller.role} any more")

    async def in_thread(self, act: Callable[[], T]) -> T:
        """Run a function that needs much processor time, and no store, in another thread."""
        return await self._loop.run_in_executor(self._threads, act)

    async def figures(self, act: Callable[[Synchronous], T]) -> T:
        """Run a call that reads the whole store, on a handle and in a thread of its own.

        Such a read takes a millisecond a topic. On the clients' handle it would block every client.

        raises: the errors of opening a store, and of the call
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
        """Call a function in the event loop, from any thread; nothing once the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.tasks.call, act)

    async def close(self) -> None:
        """Close the store, and end the threads; calls that have begun end by themselves, soon."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._figures is not None:
            await self._figures.close()
        await self.client.close()

    def failed(self, error: BaseException) -> None:
        """Report the class and position of a failure, not its text, which may contain data."""
        last = next(reversed(traceback.extract_tb(error.__traceback__)), None)
        position = None if last is None else f"{Path(last.filename).name}:{last.lineno}"
        self.tell("failed", {"class": type(error).__name__, "at": position})

    def sockets(self, name: str, address: Address) -> list[socket.socket]:
        """The sockets of a listener, new or from systemd, checked by `check_exposed`.

        raises: OSError; Usage if other machines could connect without TLS and authentication
        """
        sockets = self.options.sockets.get(name)
        return bind_sockets(
            f"--{name}",
            address,
            sockets,
            has_tls=self.options.tls is not None,
            has_auth=self.authority.guard is not None,
            is_insecure=self.options.is_insecure,
        )


class Listener(Protocol):
    """One protocol at one address."""

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""

    def recheck_access(self) -> None:
        """Rules, keys or authorities have changed: end the connections they no longer allow."""

    async def drain(self) -> None:
        """Accept no new connections, and wait until all running commands are answered."""

    async def close(self) -> None:
        """End all connections."""
