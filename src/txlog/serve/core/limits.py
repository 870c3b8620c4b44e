"""Owns the limits of a server: what clients may use at most, and the counters that see to it.

A client that asks for more than its share of bytes is not refused: nothing more is read from it
until there is room, so TCP holds it back. One that asks for more connections, producers or
consumers is refused with 509 (Pulsar's TooManyRequests, HTTP's 429).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Final

from txlog.errors import InvalidArgument, LimitExceeded, TryAgain
from txlog.ranges import parse_duration, parse_size
from txlog.settings import GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS
from txlog.suggest import suggestion

# A frame of a client that has not said who it is: CONNECT, and no more.
FIRST_FRAME_BYTES_MAX: Final = 64 * KIB
# A frame may take this much longer for each byte: slower is no client but an attack.
FRAME_BYTES_PER_SECOND_MIN: Final = 256 * KIB
SMALL_BYTES_MAX: Final = 64 * KIB
_COUNT_MAX: Final = 1_000_000
_TOO_MANY: Final = 509


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may use at most; 0 lifts a rate.

    connections, connections_per_address: open at once
    producers, consumers:     of one connection
    commands:                 of one connection that wait for an answer
    memory_bytes:             what all clients have sent and is not stored or answered yet
    connection_bytes:         the same of one client; also what it was sent and has not read
    bytes_per_second, commands_per_second: read from one connection
    connect_timeout_ms:       until a client has said who it is, or has sent the head of a request
    frame_timeout_ms:         until a frame or body that has begun is whole, if it is small
    idle_timeout_ms:          a client that is silent for so long is asked, and then dropped
    """

    connections: int = 2_000
    connections_per_address: int = 1_000
    producers: int = 5_000
    consumers: int = 5_000
    commands: int = 10_000
    memory_bytes: int = 256 * MIB
    connection_bytes: int = 32 * MIB
    bytes_per_second: int = 0
    commands_per_second: int = 0
    connect_timeout_ms: int = 10 * SECOND_MS
    frame_timeout_ms: int = 10 * SECOND_MS
    idle_timeout_ms: int = 30 * SECOND_MS

    @classmethod
    def parse(cls, option: str, given: Iterable[str]) -> Limits:
        """The limits with those of an option, each written NAME=VALUE; raises InvalidArgument."""
        known = {one.name: one.default for one in fields(cls)}
        found = dict[str, int]()
        for text in given:
            name, _, value = text.partition("=")
            if name not in known:
                raise InvalidArgument(
                    f"{option} {text[:80]!r}: no such limit",
                    hint=suggestion(name, known, f"there are {', '.join(known)}"),
                )
            found[name] = _value(option, name, value)
        return cls(**found)

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return asdict(self)


_Turn = tuple[int, "asyncio.Future[None]"]
# name of a unit -> (smallest, largest)
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "memory_bytes": (8 * MIB, 1_024 * GIB),
    "connection_bytes": (MIB, 64 * GIB),
    "bytes_per_second": (0, 1_024 * GIB),
    "commands_per_second": (0, 100 * _COUNT_MAX),
    "connect_timeout_ms": (100, HOUR_MS),
    "frame_timeout_ms": (100, HOUR_MS),
    "idle_timeout_ms": (100, 60 * MINUTE_MS),
}


def _value(option: str, name: str, text: str) -> int:
    if name.endswith("_ms"):
        value = parse_duration(text)
    elif "bytes" in name:
        value = parse_size(text)
    elif text.isascii() and text.isdecimal() and len(text) < 16:
        value = int(text)
    else:
        raise InvalidArgument(f"{option} {name}={text[:40]}: it is not a number")
    smallest, largest = _BOUNDS.get(name, (1, _COUNT_MAX))
    if not smallest <= value <= largest:
        raise LimitExceeded(
            f"{option} {name}={text[:40]}: it is {smallest} to {largest}",
            setting=name,
            limit=largest,
            value=value,
        )
    return value


def too_many(what: str, limit: int) -> TryAgain:
    """The error of a client that asks for one more."""
    return TryAgain(f"there are {limit} {what} already, the most allowed", code=_TOO_MANY)


def host_of(peer: object) -> str:
    """The address of a peer, without its port; empty for one of this machine's file system."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


class Seats:
    """Who is connected: how many in all, and from each address."""

    __slots__ = ("_limits", "_of", "count")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of = Counter[str]()
        self.count = 0

    def take(self, address: str) -> None:
        """One more from an address; raises TryAgain (509)."""
        if self.count >= self._limits.connections:
            raise too_many("connections", self._limits.connections)
        if self._of[address] >= self._limits.connections_per_address:
            most = self._limits.connections_per_address
            raise too_many("connections from this address", most)
        self.count += 1
        self._of[address] += 1

    def leave(self, address: str) -> None:
        """One less; an address without any is forgotten."""
        self.count -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]


class Budget:
    """Bytes that all clients together may have in the process.

    Large frames wait for one another in order, and never take the last eighth: small ones, nearly
    all there are, find room there whatever others do. A quarter more is for what is read from those
    who send much before it has room (`ahead`); from others only little is.
    """

    __slots__ = ("_large", "_small", "ahead", "bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = self.peak = self.ahead = 0
        self._small, self._large = deque[_Turn](), deque[_Turn]()

    def read_ahead(self, size: int) -> bool:
        """Count bytes that may be read before they have room; False: there are too many.

        A size below 0 gives them back.
        """
        if size > 0 and self.ahead + size > self.bytes_max // 4:
            return False
        self.ahead += size
        assert self.ahead >= 0
        return True

    def take(self, size: int) -> None:
        """Count bytes that are here already."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def give(self, size: int) -> None:
        """Count them no more; who waits first and now has room goes on."""
        self.used -= size
        assert self.used >= 0
        for queue in (self._small, self._large):
            while queue:
                wanted, turn = queue[0]
                if not turn.done() and not self._fits(wanted):
                    break
                queue.popleft()
                if not turn.done():  # else it was given up
                    self.take(wanted)
                    turn.set_result(None)

    async def reserve(self, size: int) -> None:
        """Wait until there is room for bytes that will come, and count them."""
        queue = self._small if size <= SMALL_BYTES_MAX else self._large
        if not queue and self._fits(size):
            self.take(size)
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was its turn at that moment
                self.give(size)
            else:
                turn.cancel()
                self.give(0)
            raise

    def _fits(self, size: int) -> bool:
        """With nothing else here anything fits: a frame may be larger than the budget."""
        most = self.bytes_max if size <= SMALL_BYTES_MAX else self.bytes_max - self.bytes_max // 8
        return self.used == 0 or self.used + size <= most


class Backlog:
    """Bytes that were sent to clients who do not take them, in the process."""

    __slots__ = ("bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = self.peak = 0

    def add(self, size: int) -> None:
        """Count more, or with a size below 0 less."""
        self.used += size
        self.peak = max(self.peak, self.used)
        assert self.used >= 0

    @property
    def is_large(self) -> bool:
        """True while whoever is behind gets nothing more."""
        return self.used > self.bytes_max


class Share:
    """What one client has of the budget; it gives back all of it when it ends."""

    __slots__ = ("_budget", "_is_closed", "_room", "bytes_max", "held")

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self._budget, self.bytes_max = budget, bytes_max
        self.held = 0
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    def take(self, size: int) -> None:
        """Count bytes that came or are to be sent."""
        self.held += size
        self._budget.take(size)

    def give(self, size: int) -> None:
        """Count them no more; after close they are counted no more anyway."""
        if self._is_closed:
            return
        self.held -= size
        assert self.held >= 0
        self._budget.give(size)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def reserve(self, size: int = 0) -> None:
        """Wait until this client and all together have room for so many bytes, and count them.

        With 0 it only waits until there is any room. One task at a time.
        """
        while self.held and self.held + size > self.bytes_max:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        await self._budget.reserve(size)
        self.held += size

    def close(self) -> None:
        """Give back what is left."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.give(self.held)
            self.held = 0


class Pace:
    """How much may be read in a second: a bucket that fills with time, and holds one second."""

    __slots__ = ("_clock", "_debt", "_per_second", "_seen")

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        """clock: seconds, of the event loop"""
        self._per_second, self._clock = per_second, clock
        self._debt, self._seen = 0.0, clock()

    def spend(self, amount: int) -> float:
        """Count what was read; returns how many seconds to read nothing."""
        if not self._per_second:
            return 0.0
        now = self._clock()
        self._debt = max(0.0, self._debt - (now - self._seen) * self._per_second) + amount
        self._seen = now
        return max(0.0, self._debt / self._per_second - 1.0)
