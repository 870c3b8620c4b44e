"""Owns Rates: how fast counters grow, from when they were last looked at.

It is memory of this process alone: after a restart the first look has no rate yet.


Owns Works: calls of the store that may take long, in threads of their own.

What clients send is stored in threads of its own, too (pulsar/groups), and short calls have the
thread of the client. So an offload to a disk that hangs holds up nobody. Each kind of call has a
few places. One holder never has all of them, and whoever finds none is refused with 509 (429).


Owns Serving: what all handlers of an application share, and the gate that each request passes.

A *gate* is asked once for each request, with what it wants to do; it returns, or raises what the
answer will say. The one here lets everybody in. For what never ends by itself (a tail, a
WebSocket) it returns a Right, by which it ends once a token or a rule does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from starlette.requests import HTTPConnection

from txlog.base.ids import TopicName
from txlog.client.aio import Client
from txlog.client.client import Client as Store
from txlog.clock import Clock, SystemClock
from txlog.errors import NotAllowed, TopicNotFound
from txlog.serve.core.producer_names import ProducerNames
from txlog.serve.core.service import ConsumerStats, ProducerStats, Supervisor
from txlog.serve.core.sockets import is_wildcard
from txlog.serve.http.core.declared import CONSUME, PRODUCE, Action, topic_in
from txlog.serve.limits.budget import MemoryBudget, MemoryShare, Reservation
from txlog.serve.limits.limits import ConnectionSlot, Limits, Quota
from txlog.serve.limits.shares import check_topic_share

SPAN_MS: Final = 1000  # between two looks, for a rate that means something
KEPT_MS: Final = 60_000  # an older look says nothing of now


class Rates:
    """Counters by name, and what they were at two earlier looks."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, int]]] = {}

    def of(self, name: str, value: int, now_ms: int) -> float:
        """How much it grows in a second; 0 at the first look, or when it was set back.

        name: of the counter; value: what it is now
        """
        looks = [one for one in self._known.get(name, ()) if 0 <= now_ms - one[0] <= KEPT_MS]
        old = next((one for one in reversed(looks) if now_ms - one[0] >= SPAN_MS), None)
        if not looks or now_ms - looks[-1][0] >= SPAN_MS:
            looks.append((now_ms, value))
        self._known[name] = looks[-3:]
        if old is None or value < old[1]:
            return 0.0
        return (value - old[1]) * 1000 / (now_ms - old[0])

    def forget(self, names: set[str]) -> None:
        """Keep only these counters."""
        for gone in self._known.keys() - names:
            del self._known[gone]


T = TypeVar("T")
SLOW_CALLS_MAX: Final = 8  # of one kind


class SlowCalls:
    """The long calls of a server, by their kind: an operation such as admin or look."""

    def __init__(self) -> None:
        self._places = dict[str, Quota]()
        self._threads = dict[str, ThreadPoolExecutor]()

    async def run(self, kind: str, holder: str, act: Callable[[Store], T], client: Store) -> T:
        """Run a call.

        holder: whose it is, a role or an address
        raises: TryAgain (509): there are too many; what the call raises
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
        """Begin nothing more; what was begun ends by itself, or with the process."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


class StoreReader(Protocol):
    """What looks at a whole store, as Service does."""

    async def figures(self, act: Callable[[Store], T]) -> T:
        """Run a call that looks at the whole store."""


class Grant(NamedTuple):
    """By what a request was let in.

    check:   raises NotAllowed once it would be no more
    left_ms: how long its token holds; None: for ever
    sees:    whether its caller may see the name of a topic
    """

    check: Callable[[], object]
    left_ms: int | None
    sees: Callable[[TopicName], bool]


STORING_MAX: Final = 4  # requests whose messages the server stores at a time
READING_MAX: Final = 4  # clients for which the server reads at a time
Gate = Callable[[HTTPConnection, Action], Awaitable[Grant | None]]


async def allow_all(connection: HTTPConnection, action: Action) -> None:
    """The gate that is always open."""


class LongRequest:
    """Something that never ends by itself, and the event that ends it."""

    def __init__(self, right: Grant | None) -> None:
        self.ended = asyncio.Event()
        self._right = right
        self.timer: asyncio.TimerHandle | None = None
        if right is not None and right.left_ms is not None:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(right.left_ms / 1_000, self._expire)

    def judge(self) -> None:
        """End it if it would not be let in any more."""
        try:
            if self._right is not None:
                self._right.check()
        except NotAllowed:
            self.ended.set()

    def _expire(self) -> None:
        self.judge()
        self.ended.set()  # whatever the clock of the check says


@dataclass
class HttpContext:
    """What the handlers of an application share.

    addresses: what lookup tells clients: brokerUrl, httpUrl, nativeUrl, and with TLS …UrlTls
    places:    for offloads, by the names that the operator gave
    hides_names: errors have no hints that may name what a client must not see
    creates_topics: a topic that a client sends to or consumes, and that is missing, is made
    publishers: producers of stock clients, in the moment; subscribers: their consumers
    names:     who holds the name of a producer, by all protocols
    failed:    told of an error that is a bug
    tasks:     what runs in the background
    figures:   looks at the whole store without keeping clients waiting; None: client does
    stopped:   set when the server stops
    stays:     what never ends by itself
    budget:    how much memory clients have
    works:     calls that may take long
    """

    client: Client
    gate: Gate = allow_all
    addresses: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    clock: Clock = field(default_factory=SystemClock)
    creates_topics: bool = False
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
        """Run a call that stores many messages, beside the calls of others; a few at a time."""
        async with self._storing:
            return await self.client.run(act, blocking=True)

    async def work(self, connection: HTTPConnection, kind: str, act: Callable[[Store], T]) -> T:
        """Run a call that may take long; kind: the operation. Raises TryAgain: too many."""
        seat: ConnectionSlot | None = getattr(connection.state, "seat", None)
        holder = "" if seat is None else seat.holder or seat.network
        return await self.works.run(kind, holder, act, self.client._sync)

    async def look(self, act: Callable[[Store], T]) -> T:
        """Run a call that looks at the whole store."""
        if self.figures is None:
            return await self.client.run(act)
        return await self.figures.figures(act)

    def now_ms(self) -> int:
        """The wall clock."""
        return self.clock.now().wall_ms

    def addresses_for(self, host: str | None) -> dict[str, str]:
        """The addresses as a client reaches them that names this host.

        A server that listens at all addresses of its machine does not know by which name a client
        reaches it; the request says it.
        """
        found = dict(self.addresses)
        if not host:
            return found
        for name, url in self.addresses.items():
            scheme, _, place = url.partition("://")
            bound, _, port = place.rpartition(":")
            if is_wildcard(bound.strip("[]")):
                found[name] = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return found

    async def may_create(self, connection: HTTPConnection, action: Action) -> bool:
        """Whether a client may create a missing topic by asking for it, as one that uses it may."""
        for operation in (PRODUCE, CONSUME) if self.creates_topics else ():
            try:
                await self.gate(connection, action._replace(operation=operation))
            except NotAllowed:
                continue
            return True
        return False

    async def let_in(
        self, connection: HTTPConnection, operation: str, name: str
    ) -> TopicName | None:
        """Pass the gate with the topic of the path, if it has one; returns that.

        raises: what the gate raises, InvalidArgument
        """
        path = connection.path_params
        topic = topic_in(path) if "topic" in path else None
        resource = "" if topic is None else topic.full
        connection.state.right = await self.gate(connection, Action(operation, resource, name))
        return topic

    def hold(self, connection: HTTPConnection) -> Reservation:
        """A place in the memory for what a client is to be sent."""
        bounded = getattr(connection.state, "bounded", None)
        if bounded is None:  # it came by no listener
            return self.budget.share("", self.budget.bytes_max).hold()
        share: MemoryShare = bounded.share
        return share.hold()

    async def read(
        self, hold: Reservation, act: Callable[[], Awaitable[T]], size: Callable[[T], int]
    ) -> T:
        """Read something for a client once it has room, and count it.

        Nobody knows the size before: so a few read at a time, and nobody without any room.

        size:   bytes of what was read
        raises: what `act` raises; ConnectionResetError: the client has gone
        """
        while True:
            await hold.reserve(0)
            async with self._reading:
                if hold.has_room():  # others may have read meanwhile
                    answer = await act()
                    hold.take(size(answer))
                    return answer

    def stop(self) -> None:
        """End what never ends by itself."""
        self.stopped.set()
        for one in self.long_requests:
            one.ended.set()

    def judge_again(self) -> None:
        """End what the rules do not allow any more."""
        for one in self.long_requests:
            one.judge()

    @contextmanager
    def long_request(self, connection: HTTPConnection) -> Iterator[asyncio.Event]:
        """While something goes on that was let in: the event that is set when it has to end."""
        stay = LongRequest(connection.state.right)
        if self.stopped.is_set():
            stay.ended.set()
        self.long_requests.add(stay)
        try:
            yield stay.ended
        finally:
            self.long_requests.discard(stay)
            if stay.timer is not None:
                stay.timer.cancel()

    async def need(self, topic: TopicName) -> None:
        """Make a topic that is missing, if that is wanted."""
        if self.creates_topics and topic.partition is None:
            try:
                await self.client.describe_topic(topic.full)
            except TopicNotFound:
                await self.client.run(check_topic_share)
                await self.client.create_topic(topic.full, if_not_exists=True)

    async def until_ended(
        self, connection: HTTPConnection, pieces: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a response that never ends, until it has to."""
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
