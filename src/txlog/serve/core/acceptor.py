"""Owns Acceptor: it takes the connections of a listener, and counts each before its first byte.

asyncio's own servers make the protocol of a TLS connection only when its handshake is over, so
that a client which never begins one is counted by nobody.

    accept      a seat among those that have not said who they are (limits.Seats)
    TLS         within connect_timeout_ms, with the certificates of the moment
    protocol    gets the seat, and takes it once the client has said who it is
    drop        the kernel ends the connection; whatever reads it sees the end, as of any client.
                Not while bytes of the client wait to be read: then it is the server that is late
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
from txlog.serve.core.descriptors import is_for_clients
from txlog.serve.core.limits import Seat, host_of
from txlog.serve.core.service import Service

BACKLOG: Final = 1_024
TOGETHER_MAX: Final = 64  # connections that are accepted in one turn of the loop
PAUSE_SECONDS: Final = 0.1  # after the system had no descriptor or memory for one more
FULL_SECONDS: Final = 0.005  # until those that came at once have been read
GRACE_SECONDS: Final = 0.05  # for the answers of a client in a handshake
CLOSE_SECONDS: Final = 5.0  # for the last words of TLS


class Acceptor:
    """Connections of some sockets."""

    def __init__(
        self,
        service: Service,
        sockets: list[socket.socket],
        protocol: Callable[[Seat], asyncio.BaseProtocol],
    ) -> None:
        """protocol: makes the one of a connection"""
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
        """Take no more connections, and give up those that have not finished TLS."""
        if self._is_closed:
            return
        self._is_closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for task in self._beginning:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(TOGETHER_MAX):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory
                self._lack(error.strerror or str(error))
                self._pause(listening, PAUSE_SECONDS)
                return
            if not is_for_clients(accepted.fileno(), self._descriptors):
                accepted.close()
                self._lack("the others are for files of the store")
                self._pause(listening, PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            drop = partial(self._drop, accepted, peer, self._loop.time())
            seat = self._service.seats.arrive(host_of(peer), drop)
            task = self._service.tasks.begin(self._begin(accepted, seat), seat.leave)
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
            if self._service.seats.is_full:
                self._pause(listening, FULL_SECONDS)
                return

    def _lack(self, why: str) -> None:
        """Let one go that has not said who it is, for its descriptor."""
        self._service.tell("refused", {"reason": f"there is no descriptor for it: {why}"})
        self._service.seats.make_room()

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        """Accept nothing for a moment; the kernel keeps those who come."""
        self._loop.remove_reader(listening)
        self._loop.call_later(seconds, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _drop(self, accepted: socket.socket, peer: object, since: float) -> bool:
        if self._loop.time() - since < GRACE_SECONDS or _has_bytes(accepted):
            return False
        reason = "it has not said who it is, and others need the room"
        self._service.tell("dropped", {"peer": host_of(peer), "reason": reason})
        with suppress(OSError):  # it has ended already
            accepted.shutdown(socket.SHUT_RDWR)
        return True

    async def _begin(self, accepted: socket.socket, seat: Seat) -> None:
        """Make the connection; whoever serves it leaves the seat, unless TLS fails."""
        tls, limits = self._service.options.tls, self._service.limits
        is_tls = tls is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(seat),
                accepted,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=limits.connect_timeout_ms / 1_000 if is_tls else None,
                ssl_shutdown_timeout=CLOSE_SECONDS if is_tls else None,
            )
        except OSError:  # of the handshake
            seat.leave()
            accepted.close()
        except asyncio.CancelledError:
            seat.leave()
            accepted.close()
            raise


def cut(transport: asyncio.BaseTransport) -> None:
    """End a connection and give up what its client has not taken.

    Without this the kernel would keep it, megabytes for each connection, for minutes.
    """
    accepted: socket.socket | None = transport.get_extra_info("socket")
    if accepted is not None:
        with suppress(OSError):  # it has ended already
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert isinstance(transport, asyncio.WriteTransport)
    transport.abort()


def _has_bytes(accepted: socket.socket) -> bool:
    """Whether a client has sent bytes that nobody has read yet."""
    try:
        return bool(accepted.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing has come, or it has ended
        return False
