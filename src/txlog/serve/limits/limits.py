"""Owns the limits of a server: the most that clients may use, and the counters that enforce it.

A client that sends more bytes than there is room for has to wait (`budget`). A client that wants
more connections, producers or consumers than allowed is refused with 509 (Pulsar's TooManyRequests,
HTTP's 429).

A connection is one descriptor, and so is a consumer, which holds a lock file. Without a descriptor
the store cannot open its journal, so the server reserves some for the store's files.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from typing import Final, NamedTuple

from txlog.base.ranges import parse_size
from txlog.base.settings import GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS
from txlog.base.suggest import suggestion
from txlog.base.times import parse_duration
from txlog.engine.door.disk import descriptor_limit
from txlog.errors import InvalidArgument, LimitExceeded, TryAgain

# The first frame of a client, which is CONNECT; nothing else comes before authentication.
FIRST_FRAME_BYTES_MAX: Final = 64 * KIB
# The time limit of a frame grows with its size at this rate: a slower sender is an attack.
FRAME_BYTES_PER_SECOND_MIN: Final = 256 * KIB
DROPS_TRIED_MAX: Final = 8
# Of a shared resource one part in RESERVED_PART is reserved for holders with few. A holder with
# less than one part in FEW_PART of it has few.
RESERVED_PART: Final = 8
FEW_PART: Final = 512
_COUNT_MAX: Final = 1_000_000
_TOO_MANY: Final = 509


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that clients may use; 0 lifts a rate.

    connections, connections_per_address: open at once, authenticated
    connecting: open at once, not authenticated yet
    producers, consumers: of one connection
    consumers_in_all: of all connections; each holds a lock file
    commands: of one connection that wait for an answer
    memory_bytes: bytes that all clients have sent and that are not stored or answered yet
    connection_bytes: the same for one client; also bytes that it was sent and has not read
    bytes_per_second, commands_per_second: read from one connection
    connect_timeout_ms: until a client has authenticated, or has sent the head of a request
    frame_timeout_ms: until a small frame or body that has begun is complete
    idle_timeout_ms: after this silence the server pings a client, and then drops it
    stop_timeout_ms: from the signal that stops the server to its end, whatever clients do
    """

    connections: int = 2_000
    connections_per_address: int = 1_000
    connecting: int = 500
    producers: int = 5_000
    consumers: int = 5_000
    consumers_in_all: int = 20_000
    commands: int = 10_000
    memory_bytes: int = 256 * MIB
    connection_bytes: int = 32 * MIB
    bytes_per_second: int = 0
    commands_per_second: int = 0
    connect_timeout_ms: int = 10 * SECOND_MS
    frame_timeout_ms: int = 10 * SECOND_MS
    idle_timeout_ms: int = 30 * SECOND_MS
    stop_timeout_ms: int = 10 * SECOND_MS

    @classmethod
    def parse(cls, option: str, texts: Iterable[str]) -> Limits:
        """The limits with an option's values, each written NAME=VALUE; raises InvalidArgument."""
        defaults = {limit.name: limit.default for limit in fields(cls)}
        values = dict[str, int]()
        for text in texts:
            name, _, value = text.partition("=")
            if name not in defaults:
                raise InvalidArgument(
                    f"{option} {text[:80]!r}: no such limit",
                    hint=suggestion(name, defaults, f"there are {', '.join(defaults)}"),
                )
            values[name] = _value(option, name, value)
        return cls(**values)

    def as_dict(self) -> dict[str, int]:
        """All limits by name."""
        return asdict(self)


class SharedResource(NamedTuple):
    """A resource that all clients share.

    name:    of its limit, or in words if the store sets the bound
    bound:   how much there is in all
    counted: the kind of holder that has a share
    answer:  the server's answer to a holder that has used up its share
    """

    name: str
    bound: str
    counted: str
    answer: str


RESOURCES: Final = (
    SharedResource("connections", "2,000", "role", "509, HTTP 429; the connection ends"),
    SharedResource("connecting", "500", "address", "nothing: the oldest connection ends"),
    SharedResource("consumers_in_all", "20,000", "role, or connection without rules", "509"),
    SharedResource(
        "memory_bytes",
        "256 MiB",
        "role, or address without one: three quarters",
        "nothing: the server stops reading from it",
    ),
    SharedResource("open transactions", "`txn_active_max` of the store", "role", "509"),
    SharedResource("transaction keys", "100,000", "role", "509"),
    SharedResource("topics", "100,000", "all roles together: seven eighths", "509, HTTP 429"),
    SharedResource("long calls", "8 of each kind", "role, or address without one", "HTTP 429"),
)
# limit -> (smallest, largest); any other limit is 1 to _COUNT_MAX
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "memory_bytes": (8 * MIB, 1_024 * GIB),
    "connection_bytes": (MIB, 64 * GIB),
    "bytes_per_second": (0, 1_024 * GIB),
    "commands_per_second": (0, 100 * _COUNT_MAX),
    "connect_timeout_ms": (100, HOUR_MS),
    "frame_timeout_ms": (100, HOUR_MS),
    "idle_timeout_ms": (100, 60 * MINUTE_MS),
    "stop_timeout_ms": (100, HOUR_MS),
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


def too_many_error(noun: str, limit: int) -> TryAgain:
    """The error for a client that asks for one more than allowed."""
    return TryAgain(f"there are {limit} {noun} already, the most allowed", code=_TOO_MANY)


def host_of(peer: object) -> str:
    """The address of a peer, without its port; empty for a Unix socket."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def network_of(address: str) -> str:
    """The unit that counts as one address: an IPv4 address, or the /64 network of an IPv6 address.

    A host with an IPv6 address usually has all 2^64 addresses of its network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def has_fair_share(own_count: int, used: int, limit: int) -> bool:
    """Whether a holder may take one more of a resource that all holders share.

    A holder may have as many as are left of seven eighths: a single holder gets half of that, the
    next a quarter. The last eighth is for holders with few, at least one each. So even if many
    holders take all they can, something is left for the next one, and shares need no configuration.

    own_count: how many the holder has
    used:      how many all have
    limit:     how many there are
    """
    few = max(1, limit // FEW_PART)
    return own_count < limit - limit // RESERVED_PART - used or (own_count < few and used < limit)


class ConnectionSlot:
    """The slot of one open connection; `leave` may be called repeatedly.

    network: the network of its client (network_of)
    drop:    ends the connection; False: not yet, as the client may be about to authenticate
    """

    __slots__ = ("_connections", "drop", "holder", "is_taken", "network")

    def __init__(
        self, connections: ConnectionLimit, network: str, drop: Callable[[], bool]
    ) -> None:
        self._connections, self.network, self.drop = connections, network, drop
        self.holder: str | None = None
        self.is_taken = False

    def take(self, role: str | None, *, is_superuser: bool = False) -> None:
        """The client has authenticated: move its slot to the authenticated connections.

        role:   None without rules
        raises: TryAgain (509): there are too many, in all, of its address or of its role
        """
        if not self.is_taken:
            self._connections._take(self, role, is_bounded=role is not None and not is_superuser)

    def leave(self) -> None:
        """The connection has ended: free the slot."""
        self._connections._leave(self)


class ConnectionLimit:
    """The open connections: those that have authenticated, and those that have not yet.

    Unauthenticated ones count from their first moment, before TLS, and separately, so that they
    keep no client out. Without room the server drops the oldest one, because a real client
    authenticates within milliseconds. It drops one of the same address if that address has used up
    its share, else one of the address with most connections.

    count:   of authenticated connections
    waiting: of the other connections
    is_full: no connection could be dropped for the newest one: accept nothing for a moment
    """

    __slots__ = ("_by_network", "_by_role", "_limits", "_waiting", "count", "is_full", "waiting")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_network, self._by_role = Counter[str](), Counter[str]()
        self._waiting: dict[str, dict[ConnectionSlot, None]] = {}  # oldest first
        self.count = self.waiting = 0
        self.is_full = False

    def arrive(self, address: str, drop: Callable[[], bool]) -> ConnectionSlot:
        """Count a connection that was accepted; another one may be dropped for it.

        drop: as in ConnectionSlot
        """
        network, limit = network_of(address), self._limits.connecting
        own_count = len(self._waiting.get(network, ()))
        self.is_full = own_count > 0 and not has_fair_share(own_count, self.waiting, limit)
        if self.is_full:
            self.is_full = not self._drop(network)
        while self.waiting >= limit and not self.is_full:
            self.is_full = not self.make_room()
        slot = ConnectionSlot(self, network, drop)
        self._waiting.setdefault(network, {})[slot] = None
        self.waiting += 1
        return slot

    def make_room(self) -> bool:
        """Drop the oldest unauthenticated connection of the address with most; False: none."""
        if not self._waiting:
            return False
        return self._drop(max(self._waiting, key=lambda network: len(self._waiting[network])))

    def _drop(self, network: str) -> bool:
        """Drop one of the oldest of an address; False: it is too early for each."""
        for slot in list(islice(self._waiting[network], DROPS_TRIED_MAX)):
            if slot.drop():
                slot.leave()
                return True
        return False

    def _take(self, slot: ConnectionSlot, role: str | None, *, is_bounded: bool) -> None:
        limits, network = self._limits, slot.network
        if self.count >= limits.connections:
            raise too_many_error("connections", limits.connections)
        if self._by_network[network] >= limits.connections_per_address:
            raise too_many_error("connections from this address", limits.connections_per_address)
        if is_bounded:
            self._check_share(f"role {role}", network, str(role))
        if slot in self._waiting.get(network, ()):
            self._unwait(slot)
        slot.is_taken, slot.holder = True, role
        self.count += 1
        self._by_network[network] += 1
        if role is not None:
            self._by_role.update((role, f"{role} {network}"))

    def _check_share(self, holder: str, network: str, role: str) -> None:
        """Raises TryAgain if a role has used up its share, of all connections or of its address."""
        limits = self._limits
        for own_count, used, limit in (
            (self._by_role[role], self.count, limits.connections),
            (
                self._by_role[f"{role} {network}"],
                self._by_network[network],
                limits.connections_per_address,
            ),
        ):
            if not has_fair_share(own_count, used, limit):
                raise too_many_error(f"connections of {holder}", own_count)

    def _leave(self, slot: ConnectionSlot) -> None:
        network = slot.network
        if slot in self._waiting.get(network, ()):
            self._unwait(slot)
        if not slot.is_taken:
            return
        slot.is_taken = False
        self.count -= 1
        holders = [] if slot.holder is None else [slot.holder, f"{slot.holder} {network}"]
        for counter, names in ((self._by_network, [network]), (self._by_role, holders)):
            for name in names:
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]

    def _unwait(self, slot: ConnectionSlot) -> None:
        of_network = self._waiting[slot.network]
        del of_network[slot]
        self.waiting -= 1
        if not of_network:
            del self._waiting[slot.network]


class Quota:
    """The use of one resource, in all and by holder."""

    __slots__ = ("_of", "_resource", "limit", "used")

    def __init__(self, resource: str, limit: int) -> None:
        """resource: its name, in the plural"""
        self._resource, self.limit = resource, limit
        self._of = Counter[str]()
        self.used = 0

    def take(self, holder: str, *, is_bounded: bool = True) -> None:
        """Count one more.

        is_bounded: the holder is limited to its share
        raises:     TryAgain (509)
        """
        own_count = self._of[holder]
        if self.used >= self.limit:
            raise too_many_error(self._resource, self.limit)
        if is_bounded and not has_fair_share(own_count, self.used, self.limit):
            raise too_many_error(f"{self._resource} of {holder}", own_count)
        self._of[holder] += 1
        self.used += 1

    def give(self, holder: str) -> None:
        """Count one less; a holder without any is forgotten."""
        self.used -= 1
        self._of[holder] -= 1
        if not self._of[holder]:
            del self._of[holder]


class RateLimiter:
    """Limits how much is read in a second: a token bucket that holds one second."""

    __slots__ = ("_clock", "_debt", "_per_second", "_seen")

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        """clock: seconds, of the event loop"""
        self._per_second, self._clock = per_second, clock
        self._debt, self._seen = 0.0, clock()

    def spend(self, amount: int) -> float:
        """Count the amount that was read; returns for how many seconds to read nothing."""
        if not self._per_second:
            return 0.0
        now = self._clock()
        self._debt = max(0.0, self._debt - (now - self._seen) * self._per_second) + amount
        self._seen = now
        return max(0.0, self._debt / self._per_second - 1.0)


DESCRIPTORS_MAX: Final = 1 << 20
RESERVED_MAX: Final = 512  # for files of the store, and for other open files of the process
RESERVED_DESCRIPTORS_PART: Final = 3  # or a third of all descriptors, if that is less
CONNECTING_PART, CONSUMERS_PART = 8, 3  # parts of the rest, if it is too small for the limits


def raise_descriptor_limit() -> int:
    """Raise the process's limit of descriptors as far as possible; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def check_free_descriptors() -> None:
    """Raises TryAgain (509) if only the store's reserved descriptors are left.

    The kernel assigns the lowest free number, so the number of a new descriptor is at most the
    count of open descriptors.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        number = probe.fileno()
    if not leaves_enough_for_store(number, descriptor_limit()):
        raise too_many_error("open files", number)


def leaves_enough_for_store(number: int, descriptors: int) -> bool:
    """Whether a descriptor of this number leaves enough for the store's files."""
    return number < descriptors - min(RESERVED_MAX, descriptors // RESERVED_DESCRIPTORS_PART) // 2


def fit_limits(
    limits: Limits, descriptors: int, tell: Callable[[str, dict[str, object]], object]
) -> Limits:
    """The limits, lowered if the process has too few descriptors for them.

    tell: gets an event for each limit that was lowered, except connections_per_address
    """
    room = descriptors - min(RESERVED_MAX, descriptors // RESERVED_DESCRIPTORS_PART)
    connecting = min(limits.connecting, max(1, room // CONNECTING_PART))
    consumers = min(limits.consumers_in_all, max(1, room // CONSUMERS_PART))
    connections = min(limits.connections, max(1, room - connecting - consumers))
    consumers = min(limits.consumers_in_all, max(consumers, room - connecting - connections))
    lower = {
        "connecting": connecting,
        "connections": connections,
        "connections_per_address": min(limits.connections_per_address, connections),
        "consumers_in_all": consumers,
    }
    for name, value in lower.items():
        if value < getattr(limits, name) and name != "connections_per_address":
            reason = f"the process may open {descriptors} files"
            tell("lowered", {"limit": name, "to": value, "reason": reason})
    return replace(limits, **lower)
