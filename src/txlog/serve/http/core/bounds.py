"""Owns the limits for HTTP clients: connections, time, memory, and the host names they may use.

uvicorn's own protocols answer requests. These subclasses count connections and their memory, and
end slow connections: the head of a request has `connect_timeout_ms`, a body or a WebSocket message
the time for its bytes. The timers stop while the server reads nothing because other clients hold
the memory. An answer goes out in pieces; a client has `idle_timeout_ms`, and the time for its
bytes, to read a piece.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from typing import Final

import h11
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from txlog.errors import NotAllowed
from txlog.serve.core.acceptor import cut
from txlog.serve.core.service import BrokerService
from txlog.serve.http.core.answers import BODY_MAX, response_of
from txlog.serve.limits.budget import MemoryShare, Reservation
from txlog.serve.limits.limits import FRAME_BYTES_PER_SECOND_MIN, ConnectionSlot, host_of

PIECE_BYTES: Final = 1 << 18  # of an answer, written together
READ_BYTES: Final = 1 << 15  # in one read: a body is not counted before its head has arrived
FRAGMENT_BYTES: Final = 64  # the memory of a piece of a message besides its bytes


class WriteTimeout:
    """A protocol that drops clients which do not read the server's answers."""

    service: BrokerService
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread_timer: asyncio.TimerHandle | None = None

    def notify_when_unread(self, transport: asyncio.Transport) -> None:
        """Get notified of all bytes that the client has not read.

        The limit is not 0: asyncio's TLS pauses at that size and more, so it would pause with
        nothing left to send, and would never resume.
        """
        transport.set_write_buffer_limits(high=1, low=0)

    def pause_writing(self) -> None:
        """The client has not read everything: start its timer."""
        super().pause_writing()  # type: ignore[misc]
        size = self.transport.get_write_buffer_size()
        seconds = self.service.limits.idle_timeout_ms / 1_000 + size / FRAME_BYTES_PER_SECOND_MIN
        self._unread_timer = self.loop.call_later(seconds, self._drop_unread)

    def resume_writing(self) -> None:
        """The client has read everything."""
        self.stop_timer()
        super().resume_writing()  # type: ignore[misc]

    def stop_timer(self) -> None:
        """Stop the timer."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _drop_unread(self) -> None:
        peer = self.transport.get_extra_info("peername")
        reason = "it did not read its answer"
        self.service.tell("dropped", {"peer": host_of(peer), "reason": reason})
        cut(self.transport)


class LimitedHttp(WriteTimeout, H11Protocol):
    """A connection with a slot, a share of the memory, and a time limit for each request."""

    slot: ConnectionSlot
    share: MemoryShare
    socket: LimitedWebSocket | None = None
    _address = ""
    _has_ended = False
    _timer: asyncio.TimerHandle | None = None
    _waits_for: object = None
    _waits_since: float | None = None
    _waited = 0.0  # seconds that it waited for memory, since the timer began

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the head of a request."""
        super().connection_made(transport)
        self.notify_when_unread(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        ssl_object = transport.get_extra_info("ssl_object")
        self.app_state = {
            **self.app_state,
            "ssl_object": ssl_object,
            "slot": self.slot,
            "bounded": self,
        }
        self._address = "" if self.client is None else self.client[0]
        self.share = self.service.budget.share(
            self.slot.network, self.service.limits.connection_bytes
        )
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Process data, and check whether a head or a body is complete."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the slot."""
        self.leave()
        super().connection_lost(exc)

    async def reserve(self, hold: Reservation, size: int, whole: int) -> None:
        """Wait until there is room for bytes of a body that arrived; the timer stops meanwhile."""
        self._waits_since = self.loop.time()
        try:
            await hold.reserve(size, whole)
        finally:
            self._waited += self.loop.time() - self._waits_since
            self._waits_since = None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to a LimitedWebSocket, which frees the slot when it ends."""
        self._stop()
        self.stop_timer()
        super().handle_websocket_upgrade(event)

    def _watch(self) -> None:
        """Start the timer for a head or a body, unless it already runs."""
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
        if waited:  # it waited for memory: that time does not count
            self._timer = self.loop.call_later(waited, self._late)
            return
        self.service.tell(
            "dropped", {"peer": self._address, "reason": "a request was not completed in time"}
        )
        self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waited = 0.0

    def leave(self) -> None:
        """The connection has ended: free its slot and its memory."""
        self._has_ended = True
        self._stop()
        self.stop_timer()
        self.share.close()
        self.slot.leave()


class LimitedWebSocket(WriteTimeout, WebSocketsSansIOProtocol):
    """A WebSocket whose messages count in the share of its connection while they arrive.

    A message counts until the application asks for the next message.
    """

    incoming: Reservation
    _bounded: LimitedHttp
    _queued = 0  # bytes of the message that the application has, or gets next
    _timer: asyncio.TimerHandle | None = None
    _resting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection that asked for a WebSocket."""
        super().connection_made(transport)
        self._bounded = self.app_state["bounded"]
        self._bounded.socket = self
        self.service = self._bounded.service
        self.incoming = self._bounded.share.hold()

    def data_received(self, data: bytes) -> None:
        """Count the bytes; if there is no room for more, read nothing until there is."""
        super().data_received(data)
        self._recount()
        if self._resting is None and not self.incoming.has_room():
            self.transport.pause_reading()
            self._resting = self.loop.create_task(self._rest())

    def send_receive_event_to_app(self) -> None:
        """A message is complete."""
        self._queued += sum(map(len, self.frames))
        self._stop()
        super().send_receive_event_to_app()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; the one before it no longer counts."""
        self._queued = 0 if self.queue.empty() else self._queued
        self._recount()
        return await super().receive()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the slot."""
        self._stop()
        self._bounded.leave()
        self.stop_timer()
        super().connection_lost(exc)

    def _recount(self) -> None:
        begun = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        begun += len(self.frames) * FRAGMENT_BYTES
        size = begun + self._queued
        if size > self.incoming.held:
            self.incoming.take(size - self.incoming.held)
        else:
            self.incoming.release(self.incoming.held - size)
        if begun and self._timer is None:
            seconds = self.service.limits.frame_timeout_ms / 1_000
            seconds += self.config.ws_max_size / FRAME_BYTES_PER_SECOND_MIN
            self._timer = self.loop.call_later(seconds, self._late)

    async def _rest(self) -> None:
        begun = self.loop.time()
        try:
            await self.incoming.reserve(0)
        except ConnectionResetError:
            return
        self._resting = None
        if self._timer is not None:  # it waited for memory: that time does not count
            seconds = self._timer.when() - begun
            self._stop()
            self._timer = self.loop.call_later(seconds, self._late)
        if not self.read_paused:
            self.transport.resume_reading()

    def _late(self) -> None:
        if self._resting is None:
            reason = "a message was not completed in time"
            self.service.tell("dropped", {"peer": host_of(self.client), "reason": reason})
            self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def until_written(connection: HTTPConnection) -> None:
    """Wait until the client of a WebSocket has read everything that it was sent."""
    bounded: LimitedHttp | None = getattr(connection.state, "bounded", None)
    if bounded is not None and bounded.socket is not None:
        await bounded.socket.writable.wait()


class LimitsMiddleware:
    """Middleware of an application: it reads bodies only with room, and refuses foreign host names.

    A page of another site can let its own name resolve to this server (DNS rebinding). Then the
    browser treats answers from here as the page's own. A server without rules refuses such names,
    unless it was started with --insecure.
    """

    def __init__(self, app: ASGIApp, service: BrokerService, host: str) -> None:
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
            refused = NotAllowed("the request is for another host name")
            await response_of(refused, 421)(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        size = _size_of(headers)
        bounded: LimitedHttp = scope["state"]["bounded"]
        body = scope["state"]["body"] = bounded.share.hold()
        is_answered = False

        async def came() -> Message:
            message = await receive()
            if message["type"] == "http.request" and size and not is_answered:
                try:
                    await bounded.reserve(body, len(message["body"]), size)
                except ConnectionResetError:
                    return {"type": "http.disconnect"}
            return message

        async def answered(message: Message) -> None:
            nonlocal is_answered
            # the application reads no more of the body
            if message["type"] == "http.response.start":
                is_answered = True
                body.close()
            for piece in _pieces(message):
                await send(piece)

        with body:
            await self._app(scope, came, answered)


def _pieces(message: Message) -> Iterator[Message]:
    """A message, or the pieces of a large body: uvicorn waits until the client has read each."""
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        yield message
        return
    view = memoryview(body)
    for at in range(0, len(view), PIECE_BYTES):
        is_last = at + PIECE_BYTES >= len(view)
        more = message.get("more_body", False) or not is_last
        yield {**message, "body": bytes(view[at : at + PIECE_BYTES]), "more_body": more}


def _size_of(headers: Headers) -> int:
    """The largest size that a body may have, in bytes."""
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and len(length) < 16:
        return min(int(length), BODY_MAX)
    return BODY_MAX if "transfer-encoding" in headers else 0


def _is_ours(host_header: str, host: str) -> bool:
    """Whether a host is an address, localhost, or the name that the server was given."""
    name = (
        host_header.rpartition(":")[0]
        if not host_header.endswith("]") and ":" in host_header
        else host_header
    )
    name = name.removeprefix("[").removesuffix("]").rstrip(".").lower()
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
