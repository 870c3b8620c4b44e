"""Owns Serving: what all handlers of an application share, and the gate that each request passes.

A *gate* is asked once for each request, with what it wants to do; it returns, or raises what the
answer will say. The one here lets everybody in. For what never ends by itself (a tail, a
WebSocket) it returns a Right, by which it ends once a token or a rule does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from starlette.requests import HTTPConnection

from txlog.base.ids import TopicName
from txlog.client.aio import Client
from txlog.client.client import Client as Store
from txlog.clock import Clock, SystemClock
from txlog.errors import NotAllowed, TopicNotFound
from txlog.serve.core.budget import Hold, MemoryBudget, Share
from txlog.serve.core.exposure import is_every_address
from txlog.serve.core.limits import Limits, Seat
from txlog.serve.core.producer_names import ProducerNames
from txlog.serve.core.service import Publisher, Subscriber
from txlog.serve.core.shares import check_topic
from txlog.serve.core.tasks import Supervisor
from txlog.serve.http.core.declared import CONSUME, PRODUCE, Action, topic_in
from txlog.serve.http.core.rates import Rates
from txlog.serve.http.core.works import Works

T = TypeVar("T")


class Figures(Protocol):
    """What looks at a whole store, as Service does."""

    async def figures(self, act: Callable[[Store], T]) -> T:
        """Run a call that looks at the whole store."""


class Right(NamedTuple):
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
Gate = Callable[[HTTPConnection, Action], Awaitable[Right | None]]


async def everybody(connection: HTTPConnection, action: Action) -> None:
    """The gate that is always open."""


class Stay:
    """Something that never ends by itself, and the event that ends it."""

    def __init__(self, right: Right | None) -> None:
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
class Serving:
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
    gate: Gate = everybody
    addresses: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    clock: Clock = field(default_factory=SystemClock)
    creates_topics: bool = False
    hides_names: bool = False
    publishers: Callable[[], list[Publisher]] = list
    subscribers: Callable[[], list[Subscriber]] = list
    names: ProducerNames = field(default_factory=ProducerNames)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    stays: set[Stay] = field(default_factory=set)
    failed: Callable[[BaseException], object] = repr
    tasks: Supervisor = field(default_factory=lambda: Supervisor(repr))
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(Limits().memory_bytes))
    figures: Figures | None = None
    works: Works = field(default_factory=Works)
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READING_MAX))
    _storing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STORING_MAX))

    async def store(self, act: Callable[[Store], T]) -> T:
        """Run a call that stores many messages, beside the calls of others; a few at a time."""
        async with self._storing:
            return await self.client.run(act, blocking=True)

    async def work(self, connection: HTTPConnection, kind: str, act: Callable[[Store], T]) -> T:
        """Run a call that may take long; kind: the operation. Raises TryAgain: too many."""
        seat: Seat | None = getattr(connection.state, "seat", None)
        holder = "" if seat is None else seat.holder or seat.network
        return await self.works.run(kind, holder, act, self.client.sync)

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
            if is_every_address(bound.strip("[]")):
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

    def hold(self, connection: HTTPConnection) -> Hold:
        """A place in the memory for what a client is to be sent."""
        bounded = getattr(connection.state, "bounded", None)
        if bounded is None:  # it came by no listener
            return self.budget.share("", self.budget.bytes_max).hold()
        share: Share = bounded.share
        return share.hold()

    async def read(
        self, hold: Hold, act: Callable[[], Awaitable[T]], size: Callable[[T], int]
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
        for one in self.stays:
            one.ended.set()

    def judge_again(self) -> None:
        """End what the rules do not allow any more."""
        for one in self.stays:
            one.judge()

    @contextmanager
    def staying(self, connection: HTTPConnection) -> Iterator[asyncio.Event]:
        """While something goes on that was let in: the event that is set when it has to end."""
        stay = Stay(connection.state.right)
        if self.stopped.is_set():
            stay.ended.set()
        self.stays.add(stay)
        try:
            yield stay.ended
        finally:
            self.stays.discard(stay)
            if stay.timer is not None:
                stay.timer.cancel()

    async def need(self, topic: TopicName) -> None:
        """Make a topic that is missing, if that is wanted."""
        if self.creates_topics and topic.partition is None:
            try:
                await self.client.describe_topic(topic.full)
            except TopicNotFound:
                await self.client.run(check_topic)
                await self.client.create_topic(topic.full, if_not_exists=True)

    async def until_ended(
        self, connection: HTTPConnection, pieces: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a response that never ends, until it has to."""
        with self.staying(connection) as ended:
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
