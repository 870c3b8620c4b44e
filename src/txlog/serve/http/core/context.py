"""Owns HttpContext: the state that all handlers share, the gate, slow calls, rates.

The application calls a *gate* once for each request, with the action that the request wants. The
gate returns a Grant, or None, or raises the error to answer with. The default gate allows
everything. A response without an end (a tail, a WebSocket) ends once the token of its Grant expires
or a rule forbids it.

Slow calls of the store run in threads of their own. Clients' messages are stored in another thread
(pulsar/group_commit), and short calls run in the thread of the client. So an offload to a disk that
hangs blocks no other client. Each kind of call has a limited number of places. A single holder
never gets all places. A call without a place is refused with TryAgain (509, HTTP 429).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from starlette.background import BackgroundTask
from starlette.requests import HTTPConnection
from starlette.responses import Response

from txlog.base.ids import TopicName
from txlog.client.aio import Client
from txlog.client.client import Client as Store
from txlog.clock import Clock, SystemClock
from txlog.errors import InvalidArgument, NotAllowed, TopicNotFound
from txlog.serve.core.producer_names import ProducerNames
from txlog.serve.core.service import (
    ConsumerStats,
    ProducerStats,
    Supervisor,
    Tell,
    ignore_event,
)
from txlog.serve.core.sockets import is_wildcard
from txlog.serve.http.core.declared import CONSUME, LOOK, PRODUCE, Action, topic_in
from txlog.serve.limits.budget import MemoryBudget, MemoryShare, Reservation
from txlog.serve.limits.limits import ConnectionSlot, Limits, Quota
from txlog.serve.limits.shares import check_topic_share

SAMPLE_GAP_MS: Final = 1000  # between two samples, so that a rate means something
SAMPLE_AGE_MAX_MS: Final = 60_000  # an older sample says nothing about the current rate


class Rates:
    """How fast counters grow, from the current value and an earlier sample of each.

    Samples exist in this process only: after a restart the first sample has no rate yet. It drops a
    counter that no call has read for SAMPLE_AGE_MAX_MS: the names of producers have the addresses
    of their clients, so each reconnect would add counters.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, int]]] = {}  # the one asked for last is last

    def __len__(self) -> int:
        """How many counters have samples."""
        return len(self._known)

    def of(self, name: str, value: int, now_ms: int) -> float:
        """How much a counter grows in a second; 0 at the first sample, or after it was reset.

        name:  of the counter
        value: its current value
        """
        samples = [
            sample
            for sample in self._known.get(name, ())
            if 0 <= now_ms - sample[0] <= SAMPLE_AGE_MAX_MS
        ]
        old = next(
            (sample for sample in reversed(samples) if now_ms - sample[0] >= SAMPLE_GAP_MS), None
        )
        if not samples or now_ms - samples[-1][0] >= SAMPLE_GAP_MS:
            samples.append((now_ms, value))
        self._known.pop(name, None)
        self._known[name] = samples[-3:]
        self._drop_old(now_ms)
        if old is None or value < old[1]:
            return 0.0
        return (value - old[1]) * 1000 / (now_ms - old[0])

    def _drop_old(self, now_ms: int) -> None:
        while now_ms - self._known[oldest := next(iter(self._known))][-1][0] > SAMPLE_AGE_MAX_MS:
            del self._known[oldest]


T = TypeVar("T")
SLOW_CALLS_MAX: Final = 8  # of each kind


class SlowCalls:
    """The slow calls of a server, by their kind: an operation such as admin or look."""

    def __init__(self) -> None:
        self._places = dict[str, Quota]()
        self._threads = dict[str, ThreadPoolExecutor]()

    async def run(self, kind: str, holder: str, act: Callable[[Store], T], client: Store) -> T:
        """Run a call.

        holder: the role or address that has a share of the places
        raises: TryAgain (509): there are too many; the error of the call
        """
        places = self._places.setdefault(kind, Quota(f"long {kind} calls", SLOW_CALLS_MAX))
        places.take(holder)
        if kind not in self._threads:
            self._threads[kind] = ThreadPoolExecutor(SLOW_CALLS_MAX, f"txlog-{kind}")
        call = self._threads[kind].submit(copy_context().run, act, client)
        waiting = asyncio.wrap_future(call)
        waiting.add_done_callback(lambda _: places.give(holder))
        return await asyncio.shield(waiting)

    def close(self) -> None:
        """Start no more calls; running calls end by themselves, or with the process."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


class StoreReader(Protocol):
    """Runs calls that read a whole store, as BrokerService does."""

    async def figures(self, act: Callable[[Store], T]) -> T:
        """Run a call that reads the whole store."""


class Grant(NamedTuple):
    """The permission that let a request in.

    check:   raises NotAllowed once the request would be refused
    left_ms: how long its token is valid; None: it does not expire
    may:     whether its caller may do an operation at a topic
    """

    check: Callable[[], object]
    left_ms: int | None
    may: Callable[[str, TopicName], bool]

    def sees(self, topic: TopicName) -> bool:
        """Whether its caller may see the name of a topic."""
        return self.may(LOOK, topic)


STORING_MAX: Final = 4  # requests whose messages the server stores at the same time
READING_MAX: Final = 4  # clients for which the server reads at the same time
Gate = Callable[[HTTPConnection, Action], Awaitable[Grant | None]]


async def allow_all(connection: HTTPConnection, action: Action) -> None:
    """The gate that allows everything."""


class LongRequest:
    """A request that never ends by itself, and the event that ends it."""

    def __init__(self, connection: HTTPConnection, since_ms: int) -> None:
        self.ended = asyncio.Event()
        self._connection, self._since_ms = connection, since_ms
        self._right: Grant | None = connection.state.right
        right = self._right
        self.timer: asyncio.TimerHandle | None = None
        if right is not None and right.left_ms is not None:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(right.left_ms / 1_000, self._expire)

    def described(self) -> tuple[str, str, str, int]:
        """The address of its client, the client's role, its path, and when it began."""
        client, path = self._connection.client, self._connection.url.path
        role = getattr(getattr(self._connection.state, "slot", None), "holder", None)
        return ("" if client is None else client.host, role or "", path, self._since_ms)

    def judge(self) -> None:
        """End it if it would be refused now."""
        try:
            if self._right is not None:
                self._right.check()
        except NotAllowed:
            self.ended.set()

    def _expire(self) -> None:
        self.judge()
        self.ended.set()  # even if the clock of the check differs


@dataclass
class HttpContext:
    """The state that the handlers of an application share.

    addresses:      the addresses in lookup answers: brokerUrl, httpUrl, nativeUrl, and with TLS
                    …UrlTls
    places:         for offloads, by the operator's names
    hides_names:    errors have no hints that may name what a client must not see
    creates_topics: the server creates a missing topic when a client sends to it or consumes it
    allows_actions: the live page may publish, seek, redeliver and abort
    tell:           gets each action, as a word and its facts
    publishers:     the current producers of stock clients
    subscribers:    the current consumers of stock clients
    names:          the names of connected producers, of all protocols
    failed:         gets each error that is a bug
    tasks:          the background tasks
    figures:        reads the whole store without blocking clients; None: `client` does
    stopped:        set when the server stops
    long_requests:  the requests that never end by themselves
    budget:         the memory budget of clients
    works:          the slow calls
    """

    client: Client
    gate: Gate = allow_all
    addresses: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    clock: Clock = field(default_factory=SystemClock)
    creates_topics: bool = False
    allows_actions: bool = False
    tell: Tell = ignore_event
    hides_names: bool = False
    publishers: Callable[[], list[ProducerStats]] = list
    subscribers: Callable[[], list[ConsumerStats]] = list
    names: ProducerNames = field(default_factory=ProducerNames)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    long_requests: set[LongRequest] = field(default_factory=set)
    failed: Callable[[BaseException], object] = repr
    tasks: Supervisor = field(default_factory=lambda: Supervisor(repr))
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(Limits().memory_bytes))
    figures: StoreReader | None = None
    works: SlowCalls = field(default_factory=SlowCalls)
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READING_MAX))
    _storing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STORING_MAX))

    async def store(self, act: Callable[[Store], T]) -> T:
        """Run a call that stores many messages, in a separate thread; a few at the same time."""
        async with self._storing:
            return await self.client.run(act, blocking=True)

    async def work(self, connection: HTTPConnection, kind: str, act: Callable[[Store], T]) -> T:
        """Run a slow call; kind: the operation. Raises TryAgain: too many are running."""
        slot: ConnectionSlot | None = getattr(connection.state, "slot", None)
        holder = "" if slot is None else slot.holder or slot.network
        return await self.works.run(kind, holder, act, self.client.sync)

    async def look(self, act: Callable[[Store], T]) -> T:
        """Run a call that reads the whole store."""
        if self.figures is None:
            return await self.client.run(act)
        return await self.figures.figures(act)

    def now_ms(self) -> int:
        """The wall clock."""
        return self.clock.now().wall_ms

    def addresses_for(self, host: str | None) -> dict[str, str]:
        """The addresses for a client that reached the server by this host name.

        A server that listens at all addresses of its machine does not know by which name a client
        reaches it. The request contains the name. Other addresses stay as they are.
        """
        addresses = dict(self.addresses)
        if not host:
            return addresses
        for name, url in self.addresses.items():
            scheme, _, authority = url.partition("://")
            bound, _, port = authority.rpartition(":")
            if is_wildcard(bound.strip("[]")):
                addresses[name] = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return addresses

    async def may_create(self, connection: HTTPConnection, action: Action) -> bool:
        """Whether a request creates a missing topic: its client may produce or consume there."""
        for operation in (PRODUCE, CONSUME) if self.creates_topics else ():
            try:
                await self.gate(connection, action._replace(operation=operation))
            except NotAllowed:
                continue
            return True
        return False

    async def authorize(
        self, connection: HTTPConnection, operation: str, name: str
    ) -> TopicName | None:
        """Pass the gate with the topic of the path, if it has one; returns the topic.

        raises: the errors of the gate, InvalidArgument
        """
        path = connection.path_params
        topic = topic_in(path) if "topic" in path else None
        resource = "" if topic is None else topic.full
        connection.state.right = await self.gate(connection, Action(operation, resource, name))
        return topic

    def hold(self, connection: HTTPConnection) -> Reservation:
        """A reservation for an answer to a client."""
        bounded = getattr(connection.state, "bounded", None)
        if bounded is None:  # a test without a listener
            return self.budget.share("", self.budget.bytes_max).hold()
        share: MemoryShare = bounded.share
        return share.hold()

    async def read(
        self, hold: Reservation, act: Callable[[], Awaitable[T]], size: Callable[[T], int]
    ) -> T:
        """Read data for a client once it has room, and count the data.

        The size is unknown before the read. So only a few clients read at the same time, and a
        client without any room waits.

        size:   returns the size of the result in bytes
        raises: the errors of `act`; ConnectionResetError: the client has disconnected
        """
        while True:
            await hold.reserve(0)
            async with self._reading:
                if hold.has_room():  # other clients may have used the room meanwhile
                    answer = await act()
                    hold.take(size(answer))
                    return answer

    async def answer(
        self,
        connection: HTTPConnection,
        read: Callable[[], Awaitable[Response]],
        *,
        is_slow: bool = False,
    ) -> Response:
        """Read an answer when there is room, and hold its bytes until the client has read them.

        is_slow: it may take hours, and does not keep other clients from reading
        """
        hold = self.hold(connection)
        try:
            if is_slow:
                await hold.reserve(0)
                answer = await read()
                hold.take(len(answer.body))
            else:
                answer = await self.read(hold, read, lambda answer: len(answer.body))
        except ConnectionResetError:
            raise InvalidArgument("the client has disconnected") from None
        except BaseException:  # no answer is sent
            hold.close()
            raise
        answer.background = BackgroundTask(hold.close)
        return answer

    def stop(self) -> None:
        """End the requests that never end by themselves."""
        self.stopped.set()
        for request in self.long_requests:
            request.ended.set()

    def recheck_access(self) -> None:
        """End the long requests that the rules no longer allow."""
        for request in self.long_requests:
            request.judge()

    @contextmanager
    def long_request(self, connection: HTTPConnection) -> Iterator[asyncio.Event]:
        """Register a long request while it runs; yields the event that ends it."""
        stay = LongRequest(connection, self.now_ms())
        if self.stopped.is_set():
            stay.ended.set()
        self.long_requests.add(stay)
        try:
            yield stay.ended
        finally:
            self.long_requests.discard(stay)
            if stay.timer is not None:
                stay.timer.cancel()

    async def create_if_missing(self, topic: TopicName) -> None:
        """Create a missing topic, if `creates_topics`; never for the name of a partition."""
        if self.creates_topics and topic.partition is None:
            try:
                await self.client.describe_topic(topic.full)
            except TopicNotFound:
                await self.client.run(check_topic_share)
                await self.client.create_topic(topic.full, if_not_exists=True)

    async def until_ended(
        self, connection: HTTPConnection, pieces: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a response that never ends, until the request has to end."""
        with self.long_request(connection) as ended:
            stop = asyncio.ensure_future(ended.wait())
            following: asyncio.Future[bytes] | None = None
            try:
                while True:
                    following = asyncio.ensure_future(anext(pieces))
                    await asyncio.wait([following, stop], return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        return
                    try:
                        piece = following.result()
                    except StopAsyncIteration:
                        return
                    yield piece
            finally:
                stop.cancel()
                if following is not None and not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                await pieces.aclose()
