"""Owns the simulated network: connections of bytes between event loops of simulated processes.

Bytes arrive in order, in pieces, and after a delay that the seed draws. A fault of the scenario
meets the next write: it cuts the connection after some of the bytes, closes one direction, delays
everything, or lets everything vanish without a sign.

A socket is both the socket and the transport of asyncio, since nothing else has the bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.disk.memory import Killed
from tests.simulation.loop import SimulatedLoop
from tests.simulation.machine import SimulatedProcess, World
from tests.simulation.scheduler import SECOND

CONNECT_S = 0.001
ROOM_BYTES = 64 << 10  # that the network takes from a writer before somebody reads them
SMALL_BYTES = 200


class Network:
    """The connections of a run.

    faults: those that meet the next writes
    mark:   a number for the present moment, which the bytes that are written then keep
    """

    def __init__(self, world: World, seed: int) -> None:
        self.scheduler = world.scheduler
        self.random = Random(f"{seed} network")
        self.listening: dict[tuple[str, int], ListeningSocket] = {}
        self.faults: deque[dict[str, Any]] = deque()
        self.mark: Callable[[], int] = lambda: 0
        self._ports = 40_000

    async def connect(self, loop: SimulatedLoop, address: tuple[str, int]) -> Socket:
        """The client's end of a new connection; raises ConnectionRefusedError."""
        await asyncio.sleep(CONNECT_S * self.random.random())
        listening = self.listening.get(address)
        if listening is None or not listening.process.is_alive:
            raise ConnectionRefusedError(f"nobody listens at {address[0]}:{address[1]}")
        self._ports += 1
        link = Link(self, loop.process, listening.process, self._ports)
        listening.arrive(link.server)
        return link.client

    def delay_ns(self) -> int:
        """How long a piece travels."""
        random = self.random
        share = random.random()
        most = 0.0002 if share < 0.8 else 0.01 if share < 0.98 else 0.4
        return int(random.random() * most * SECOND)


class Link:
    """A connection: two sockets.

    is_silent: what is written vanishes
    on_broken: called when a fault meets it
    """

    def __init__(
        self, network: Network, client: SimulatedProcess, server: SimulatedProcess, port: int
    ) -> None:
        self.network = network
        self.client = Socket(self, client, f"{client.name}.sim", port)
        self.server = Socket(self, server, f"{server.name}.sim", 6650)
        self.client.peer, self.server.peer = self.server, self.client
        self.is_silent = False
        self.on_broken: list[Callable[[], object]] = []


class ListeningSocket:
    """A socket that accepts connections."""

    def __init__(self, process: SimulatedProcess, address: tuple[str, int]) -> None:
        self.process, self._address = process, address
        self._network: Network = process.world.network
        self._arrived: deque[Socket] = deque()
        self._loop: SimulatedLoop | None = None

    def ready_at(self, now_ns: int) -> int | None:
        return now_ns if self._arrived else None

    def arrive(self, accepted: Socket) -> None:
        """A client connects."""
        self._arrived.append(accepted)
        if self._loop is not None:
            self._loop.wake()

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._address[1]

    def listen(self, backlog: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        self._network.listening[self._address] = self

    def setblocking(self, flag: bool) -> None:
        pass

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self._arrived:
            raise BlockingIOError
        accepted = self._arrived.popleft()
        return accepted, (accepted.peer.host, accepted.peer.port)

    def close(self) -> None:
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]
        for accepted in self._arrived:
            accepted.abort()


class Socket(asyncio.Transport):
    """One end of a connection, and its transport."""

    peer: Socket
    max_size = 1 << 18

    def __init__(self, link: Link, process: SimulatedProcess, host: str, port: int) -> None:
        super().__init__()
        self.link, self.process, self.host, self.port = link, process, host, port
        self._network = link.network
        self._arriving: deque[tuple[int, bytes | ConnectionError, int]] = deque()
        self.mark = 0  # of the bytes that came last
        self._loop: SimulatedLoop | None = None
        self._protocol: Any = None
        self._is_paused = self._is_closing = self._is_lost = self._has_ended = False
        self._is_full = self._is_mute = False
        self._late_ns = self._last_ns = 0
        self.on_lost: list[Callable[[], object]] = []
        process.sockets.append(self)

    # --- the socket, as the acceptor uses it --------------------------------------------------

    def fileno(self) -> int:
        return 64

    def setblocking(self, flag: bool) -> None:
        pass

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = self._arriving[0][1] if self._arriving else None
        if not isinstance(data, bytes) or self._arriving[0][0] > self._network.scheduler.now_ns:
            raise BlockingIOError
        return data[:size]

    def shutdown(self, how: int) -> None:
        self.abort()

    def serve(self, loop: SimulatedLoop, protocol: Any) -> Socket:
        """Be the transport of a protocol from now on."""
        self._loop, self._protocol = loop, protocol
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._watch)
        return self

    # --- arriving -----------------------------------------------------------------------------

    def ready_at(self, now_ns: int) -> int | None:
        return self._arriving[0][0] if self._arriving else None

    def _watch(self) -> None:
        if self._loop is not None and not (self._is_paused or self._is_lost or self._has_ended):
            self._loop.add_reader(self, self._read)

    def _read(self) -> None:
        if self._is_lost or self._is_paused or not self._arriving:
            return
        moment, data, self.mark = self._arriving[0]
        if moment > self._network.scheduler.now_ns:
            return
        self._arriving.popleft()
        if isinstance(data, ConnectionError):
            self._lose(data)
            return
        if len(data) > self.max_size:
            self._arriving.appendleft((moment, data[self.max_size :], self.mark))
            data = data[: self.max_size]
        self.peer.has_room()
        if data:
            self._protocol.data_received(data)
            return
        assert self._loop is not None
        self._has_ended = True
        self._loop.remove_reader(self)
        if not self._protocol.eof_received():
            self.close()

    def unread(self) -> int:
        """How many bytes of the peer have not been read."""
        return sum(len(data) for _, data, _ in self._arriving if isinstance(data, bytes))

    def take(self, moment: int, data: bytes | ConnectionError) -> None:
        """Bytes arrive then, or the end of them (no bytes), or an error."""
        self._last_ns = moment = max(moment, self._last_ns)
        self._arriving.append((moment, data, self._network.mark()))
        if self._loop is not None:
            self._loop.wake()

    # --- writing ------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        data = bytes(data)
        if not data or self._is_closing or not self.process.is_alive:
            return
        network, now = self._network, self._network.scheduler.now_ns
        if self.peer.is_gone() and not self.link.is_silent:
            self.take(now + network.delay_ns(), ConnectionResetError("the peer is gone"))
            return
        if network.faults:
            data = self._meet(network.faults.popleft(), data)
        if self.link.is_silent or self._is_mute:
            return
        random = network.random
        while data:
            size = len(data)
            if size > 1 and random.random() < (0.05 if size < SMALL_BYTES else 0.3):
                size = random.randrange(1, size)
            self.peer.take(now + self._late_ns + network.delay_ns(), data[:size])
            data = data[size:]
        if self.peer.unread() > ROOM_BYTES and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def has_room(self) -> None:
        """The peer has read bytes."""
        if self._is_full and self.peer.unread() <= ROOM_BYTES // 4 and self._loop is not None:
            self._is_full = False
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if not self._is_lost:
            self._protocol.resume_writing()

    def _meet(self, fault: dict[str, Any], data: bytes) -> bytes:
        """A fault meets a write; returns the bytes that still arrive."""
        kind, network = fault["kind"], self._network
        if kind == "net_late":
            self._late_ns = round(fault["seconds"] * SECOND)
            return data
        if kind == "net_stop":
            network.scheduler.stop(self.process, fault["seconds"])
            return data
        arrives = data[: round(fault["byte"] * len(data))]
        now = network.scheduler.now_ns
        if arrives:
            self.peer.take(now + self._late_ns + network.delay_ns(), arrives)
        for act in self.link.on_broken:
            act()
        if kind == "net_kill":
            death = Killed()
            self.process.end(death)
            self.process.world.on_death(self.process)
            raise death
        if kind == "net_silent":
            self.link.is_silent = True
        elif kind == "net_half":  # the peer sees an end; what it still writes arrives
            self.peer.take(now + network.delay_ns(), b"")
            self._is_mute = True
        else:
            self.cut()
        return b""

    def cut(self) -> None:
        """Break the connection for both ends."""
        now, network = self._network.scheduler.now_ns, self._network
        for end in (self, self.peer):
            end.take(now + network.delay_ns(), ConnectionResetError("the network broke"))
        self.link.is_silent = True

    def is_gone(self) -> bool:
        """Whether this end takes nothing any more."""
        return self._is_lost or not self.process.is_alive

    # --- ending -------------------------------------------------------------------------------

    def close(self) -> None:
        if self._is_lost:
            return
        if not (self._is_closing or self._is_mute or self.link.is_silent):
            self.peer.take(self._network.scheduler.now_ns + self._network.delay_ns(), b"")
        self._lose(None)

    def abort(self) -> None:
        if self._is_lost:
            return
        if not self.link.is_silent:
            moment = self._network.scheduler.now_ns + self._network.delay_ns()
            self.peer.take(moment, ConnectionResetError("the peer aborted"))
        self._lose(None)

    def _lose(self, error: ConnectionError | None) -> None:
        self._is_closing = self._is_lost = True
        self._forget()
        if self._loop is not None:
            self._loop.remove_reader(self)
            if self._protocol is not None:
                self._loop.call_soon(self._protocol.connection_lost, error)

    def end_of_process(self) -> None:
        """The process has died: the kernel closes the socket."""
        if not self._is_lost:
            self._is_closing = self._is_lost = True
            if not self.link.is_silent:
                moment = self._network.scheduler.now_ns + self._network.delay_ns()
                self.peer.take(moment, ConnectionResetError("the peer died"))
        self._forget()

    def _forget(self) -> None:
        if self in self.process.sockets:
            self.process.sockets.remove(self)
        for act in self.on_lost:
            act()
        self.on_lost.clear()

    # --- the rest of a transport --------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer.host, self.peer.port) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return max(0, self.peer.unread() - ROOM_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.peer.take(self._network.scheduler.now_ns + self._network.delay_ns(), b"")

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._loop is not None:
            self._loop.remove_reader(self)

    def resume_reading(self) -> None:
        self._is_paused = False
        self._watch()

    def is_reading(self) -> bool:
        return not self._is_paused

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol
