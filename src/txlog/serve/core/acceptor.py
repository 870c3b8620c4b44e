"""Owns Acceptor: it accepts the connections of a listener, and counts each before its first byte.

asyncio's own servers create the protocol of a TLS connection only after the handshake. A client
that never begins its handshake would be counted nowhere.

    accept      takes a slot among unauthenticated connections (limits.ConnectionLimit)
    TLS         within connect_timeout_ms, with the current certificates
    protocol    gets the slot, and moves it to the authenticated ones when the client logs in
    drop        shuts the socket down; its reader sees an ordinary end. Never in GRACE_SECONDS, nor
                while bytes of the client wait in the socket: then the server is late, not it
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from txlog.engine.door.disk import descriptor_limit
from txlog.serve.core.service import BrokerService
from txlog.serve.limits.limits import ConnectionSlot, host_of, leaves_enough_for_store

BACKLOG: Final = 1_024
ACCEPTED_MAX: Final = 64  # connections accepted in one turn of the event loop
PAUSE_SECONDS: Final = 0.1  # after the system had no descriptor or memory for another connection
FULL_SECONDS: Final = 0.005  # until the server has read the connections that came together
GRACE_SECONDS: Final = 0.05  # for the answers of a client in a handshake
CLOSE_SECONDS: Final = 5.0  # for the TLS shutdown


class Acceptor:
    """Accepts the connections of some sockets."""

    def __init__(
        self,
        service: BrokerService,
        sockets: list[socket.socket],
        protocol: Callable[[ConnectionSlot], asyncio.BaseProtocol],
    ) -> None:
        """protocol: makes the protocol of a connection"""
        self._service, self._sockets, self._protocol = service, sockets, protocol
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._descriptors = descriptor_limit()
        self._is_closed = False

    def start(self) -> None:
        """Listen. Raises OSError."""
        for listening in self._sockets:
            listening.listen(BACKLOG)
            listening.setblocking(False)
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept no more connections, and abort TLS handshakes that have not finished."""
        if self._is_closed:
            return
        self._is_closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for task in self._beginning:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory
                self._drop_for_descriptor(error.strerror or str(error))
                self._pause(listening, PAUSE_SECONDS)
                return
            if not leaves_enough_for_store(accepted.fileno(), self._descriptors):
                accepted.close()
                self._drop_for_descriptor("the rest are reserved for files of the store")
                self._pause(listening, PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            drop = partial(self._drop, accepted, peer, self._loop.time())
            slot = self._service.connection_limit.arrive(host_of(peer), drop)
            task = self._service.tasks.begin(self._begin(accepted, slot), slot.leave)
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
            if self._service.connection_limit.is_full:
                self._pause(listening, FULL_SECONDS)
                return

    def _drop_for_descriptor(self, why: str) -> None:
        """Drop one unauthenticated connection to free its descriptor."""
        self._service.tell("refused", {"reason": f"there is no descriptor for it: {why}"})
        self._service.connection_limit.make_room()

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        """Accept nothing for a moment; new connections wait in the kernel."""
        self._loop.remove_reader(listening)
        self._loop.call_later(seconds, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _drop(self, accepted: socket.socket, peer: object, since: float) -> bool:
        if self._loop.time() - since < GRACE_SECONDS or _has_bytes(accepted):
            return False
        reason = "it has not authenticated, and other clients need its slot"
        self._service.tell("dropped", {"peer": host_of(peer), "reason": reason})
        with suppress(OSError):  # the connection has ended already
            accepted.shutdown(socket.SHUT_RDWR)
        return True

    async def _begin(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        """Make the connection. Its protocol frees the slot; this method does so if TLS fails."""
        tls, limits = self._service.options.tls, self._service.limits
        is_tls = tls is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(slot),
                accepted,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=limits.connect_timeout_ms / 1_000 if is_tls else None,
                ssl_shutdown_timeout=CLOSE_SECONDS if is_tls else None,
            )
        except OSError:  # the handshake failed
            slot.leave()
            accepted.close()
        except asyncio.CancelledError:
            slot.leave()
            accepted.close()
            raise


def cut(transport: asyncio.BaseTransport) -> None:
    """End a connection and discard the bytes that its client has not read.

    Otherwise the kernel would keep these bytes, megabytes for each connection, for minutes.
    """
    accepted: socket.socket | None = transport.get_extra_info("socket")
    if accepted is not None:
        with suppress(OSError):  # it has ended already
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert isinstance(transport, asyncio.WriteTransport)
    transport.abort()


def _has_bytes(accepted: socket.socket) -> bool:
    """Whether the client has sent bytes that the server has not read yet."""
    try:
        return bool(accepted.recv(1, socket.MSG_PEEK))
    except OSError:  # no bytes, or the connection has ended
        return False
