"""Owns what holds HTTP clients to the limits: connections, time, memory, and the name they ask for.

uvicorn's own protocol answers requests; this one counts connections and their memory, and ends
those that do not get on: the head of a request within `connect_timeout_ms`, a body in the time for
its bytes. The time stands still while the server reads nothing, because others have the memory.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any, Final

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from txlog.errors import NotAllowed
from txlog.serve.core.budget import Hold, Share
from txlog.serve.core.limits import FRAME_BYTES_PER_SECOND_MIN, Seat
from txlog.serve.core.service import Service
from txlog.serve.http.core.answers import BODY_MAX, response_of

READ_BYTES: Final = 1 << 15  # at once: a body is not counted before its head is here


class Bounded(H11Protocol):
    """A connection that has a seat, a share of the memory, and a time for what it begins."""

    service: Service
    seat: Seat
    share: Share
    _address = ""
    _has_ended = False
    _timer: asyncio.TimerHandle | None = None
    _waits_for: object = None
    _waits_since: float | None = None
    _waited = 0.0  # seconds for others, since the timer began

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of a request."""
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        ssl_object = transport.get_extra_info("ssl_object")
        self.app_state = {
            **self.app_state,
            "ssl_object": ssl_object,
            "seat": self.seat,
            "bounded": self,
        }
        self._address = "" if self.client is None else self.client[0]
        self.share = self.service.budget.share(
            self.seat.network, self.service.limits.connection_bytes
        )
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what comes, and see whether it is the end of a head or a body."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the seat."""
        self._leave()
        super().connection_lost(exc)

    async def reserve(self, hold: Hold, size: int, whole: int) -> None:
        """Wait until there is room for bytes of a body that came; the timer stands still."""
        self._waits_since = self.loop.time()
        try:
            await hold.reserve(size, whole)
        finally:
            self._waited += self.loop.time() - self._waits_since
            self._waits_since = None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on another protocol has the connection; the seat is left when that ends."""
        self._stop()
        super().handle_websocket_upgrade(event)
        following: Any = self.transport.get_protocol()
        if following is self:
            return
        lost = following.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            self._leave()
            lost(exc)

        following.connection_lost = connection_lost

    def _watch(self) -> None:
        """Begin to wait for a head or a body, unless it is waited for already."""
        state = self.conn.their_state
        is_over = self._has_ended or self.transport.get_protocol() is not self
        if state is self._waits_for or is_over:
            return
        self._stop()
        self._waits_for = state
        limits = self.service.limits
        if state is h11.IDLE:
            self._timer = self.loop.call_later(limits.connect_timeout_ms / 1_000, self._late)
        elif state is h11.SEND_BODY:
            size = _size_of(Headers(raw=list(self.headers)))
            seconds = limits.frame_timeout_ms / 1_000 + size / FRAME_BYTES_PER_SECOND_MIN
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        waited, self._waited = self._waited, 0.0
        if self._waits_since is not None:
            waited += self.loop.time() - self._waits_since
            self._waits_since = self.loop.time()
        if waited:  # for others: its own time stood still
            self._timer = self.loop.call_later(waited, self._late)
            return
        self.service.tell("dropped", {"peer": self._address, "reason": "a request did not come"})
        self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waited = 0.0

    def _leave(self) -> None:
        self._has_ended = True
        self._stop()
        self.share.close()
        self.seat.leave()


class Bounds:
    """Around an application: bodies are read while there is room, and names are those of here.

    A page of another site can make its own name lead here (DNS rebinding); then the browser takes
    what it reads here for its own. Without authentication such names are refused.
    """

    def __init__(self, app: ASGIApp, service: Service, host: str) -> None:
        self._app, self._service = app, service
        is_open = service.authority.guard is None and not service.options.is_insecure
        self._host = host if is_open else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._host is not None and not _is_ours(headers.get("host", ""), self._host):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            refused = NotAllowed("this server is not known by the name that was asked for")
            await response_of(refused, 421)(scope, receive, send)
            return
        size = _size_of(headers) if scope["type"] == "http" else 0
        if not size:
            await self._app(scope, receive, send)
            return
        bounded: Bounded = scope["state"]["bounded"]
        body = bounded.share.hold()
        is_answered = False

        async def came() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not is_answered:
                try:
                    await bounded.reserve(body, len(message["body"]), size)
                except ConnectionResetError:
                    return {"type": "http.disconnect"}
            return message

        async def answered(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":  # what is not read by now never will be
                is_answered = True
                body.close()
            await send(message)

        with body:
            await self._app(scope, came, answered)


def _size_of(headers: Headers) -> int:
    """The most that a body may have, in bytes."""
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and len(length) < 16:
        return min(int(length), BODY_MAX)
    return BODY_MAX if "transfer-encoding" in headers else 0


def _is_ours(named: str, host: str) -> bool:
    """True for an address, localhost, and the name that the server was given."""
    name = named.rpartition(":")[0] if not named.endswith("]") and ":" in named else named
    name = name.removeprefix("[").removesuffix("]").rstrip(".").lower()
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
