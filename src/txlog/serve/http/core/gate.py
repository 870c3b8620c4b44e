"""Owns Serving: what all handlers of an application share, and the gate that each request passes.

A *gate* is asked once for each request, with what it wants to do; it returns, or raises what the
answer will say. The one here lets everybody in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from txlog.aio import Client
from txlog.clock import Clock, SystemClock
from txlog.errors import TopicNotFound
from txlog.ids import TopicName
from txlog.serve.http.core.declared import Action, topic_in
from txlog.serve.http.core.rates import Rates

Gate = Callable[[HTTPConnection, Action], Awaitable[object]]


async def everybody(connection: HTTPConnection, action: Action) -> None:
    """The gate that is always open."""


@dataclass
class Serving:
    """What the handlers of an application share.

    addresses: what lookup tells clients: brokerUrl, httpUrl, nativeUrl, and with TLS …UrlTls
    creates_topics: a topic that a client sends to or consumes, and that is missing, is made
    failed:    told of an error that is a bug
    stopped:   set when the server stops: what never ends by itself ends then
    """

    client: Client
    gate: Gate = everybody
    addresses: Mapping[str, str] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    clock: Clock = field(default_factory=SystemClock)
    creates_topics: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    failed: Callable[[Exception], object] = repr

    def now_ms(self) -> int:
        """The wall clock."""
        return self.clock.now().wall_ms

    async def let_in(
        self, connection: HTTPConnection, operation: str, name: str
    ) -> TopicName | None:
        """Pass the gate with the topic of the path, if it has one; returns that.

        raises: what the gate raises, InvalidArgument
        """
        path = connection.path_params
        topic = topic_in(path) if "topic" in path else None
        resource = "" if topic is None else topic.full
        await self.gate(connection, Action(operation, resource, name))
        return topic

    async def need(self, topic: TopicName) -> None:
        """Make a topic that is missing, if that is wanted."""
        if self.creates_topics and topic.partition is None:
            try:
                await self.client.describe_topic(topic.full)
            except TopicNotFound:
                await self.client.create_topic(topic.full, if_not_exists=True)

    async def until_stopped(
        self, pieces: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a response that never ends, until the server stops."""
        stop = asyncio.ensure_future(self.stopped.wait())
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
