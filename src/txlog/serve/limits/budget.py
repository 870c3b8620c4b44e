"""Owns the memory budget: the bytes that clients have in the process, and the queues of clients
that wait for room.

    MemoryBudget         all clients             `memory_bytes`
      owner              a role or an address    three quarters of that
        MemoryShare      one connection          `connection_bytes`
          Reservation    one frame, body or answer, from its first byte until it is no longer used

A Reservation counts bytes that exist, never bytes that a client only announced. When a pool is
full, `reserve` waits, the server stops reading from the client, and TCP slows the client down.
Waiters proceed in order.

Reservations that each wait for the rest of their bytes could block one another for ever. So the
oldest waiter that already has bytes becomes the *guest*: its bytes no longer count in any pool, and
it proceeds until it ends. There is one guest at a time; a frame that brings its next bytes does not
count either. The process holds at most `memory_bytes` and one guest.

The budget has no clock. The code that reads from or writes to a client ends it if it stops while it
has room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from txlog.base.settings import KIB

SMALL_BYTES_MAX: Final = 64 * KIB


def _client_gone() -> ConnectionResetError:
    return ConnectionResetError("the client has disconnected")


class _Waiter(NamedTuple):
    """A waiter of a pool: how many bytes it needs, and the future that wakes it.

    is_own: it waits in the share of its client, perhaps only for other bytes of that client
    """

    size: int
    granted: asyncio.Future[None]
    is_own: bool


class _BytePool:
    """Bytes that some clients may have together, as a part of a larger pool.

    Large reservations wait for one another in order, and never take the last eighth. Small ones,
    which are nearly all, find room there whatever the large ones do.
    """

    __slots__ = (
        "__weakref__",
        "_large",
        "_parent",
        "_small",
        "_waiting_above",
        "bytes_max",
        "held",
        "peak",
    )

    def __init__(self, bytes_max: int, parent: _BytePool | None = None) -> None:
        self.bytes_max = bytes_max
        self.held = self.peak = 0
        self._parent = parent
        self._waiting_above = 0  # bytes that count here and wait for room in the parent
        self._small, self._large = deque[_Waiter](), deque[_Waiter]()

    def take(self, size: int) -> None:
        """Count bytes that exist already, even without room."""
        self._count(size)
        if self._parent is not None:
            self._parent.take(size)

    def release(self, size: int) -> None:
        """Stop counting bytes; the first waiters that now have room proceed."""
        if self._parent is not None:
            self._parent.release(size)
        self._uncount(size)

    async def reserve(self, size: int, whole: int, hold: Reservation) -> None:
        """Wait until this pool and its parents have room, and count the bytes.

        whole: the size of the whole frame or body that these bytes are part of
        hold:  the reservation they are for; a guest counts in no pool and does not wait
        """
        await self._enter(size, whole, hold)
        if self._parent is None or hold.is_guest():
            return
        self._waiting_above += size
        try:
            await self._parent.reserve(size, whole, hold)
        except BaseException:  # cancelled, or the client has disconnected
            self._uncount(size)
            raise
        finally:
            self._waiting_above -= size
        if hold.is_guest():  # it became the guest while it waited in the parent
            self._uncount(size)

    async def _enter(self, size: int, whole: int, hold: Reservation) -> None:
        is_large = whole > SMALL_BYTES_MAX
        queue = self._large if is_large else self._small
        if not queue and self._fits(size, is_large=is_large):
            self._count(size)
            return
        turn = _Waiter(size, asyncio.get_running_loop().create_future(), self is hold.share)
        if not hold.start_waiting(turn):
            return
        queue.append(turn)
        try:
            await turn.granted
        except BaseException:  # cancelled, or the client has disconnected
            if not turn.granted.done() or turn.granted.cancelled() or turn.granted.exception():
                turn.granted.cancel()
                self._wake()
            elif not hold.is_guest():  # the pool had granted the bytes at that moment
                self._uncount(size)
            raise
        finally:
            hold.stop_waiting()

    def has_room(self) -> bool:
        """Whether neither this pool nor a parent is full."""
        is_full = self.held > self.bytes_max
        return not is_full and (self._parent is None or self._parent.has_room())

    def _count(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)

    def _uncount(self, size: int) -> None:
        self.held -= size
        assert self.held >= 0
        self._wake()

    def _wake(self) -> None:
        for queue, is_large in ((self._small, False), (self._large, True)):
            while queue:
                turn = queue[0]
                if not turn.granted.done():
                    if not self._fits(turn.size, is_large=is_large):
                        break
                    self._count(turn.size)
                    turn.granted.set_result(None)
                queue.popleft()

    def _fits(self, size: int, *, is_large: bool) -> bool:
        """Whether bytes fit. In an empty pool anything fits: a frame may exceed the budget."""
        most = self.bytes_max
        if is_large:
            most -= most // 8
        return self.held == 0 or self.held + size <= most


class MemoryBudget(_BytePool):
    """The bytes that all clients together may have in the process.

    guest: the Reservation whose bytes count in no pool, or None

    The server may read ahead a quarter more (`ahead`) from busy clients, before it knows a frame's
    size. From other clients it reads only little at once.
    """

    __slots__ = ("_owners", "_waiting", "ahead", "guest")

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.ahead = 0
        self.guest: Reservation | None = None
        self._waiting: dict[Reservation, _Waiter] = {}
        self._owners = WeakValueDictionary[str, _BytePool]()

    def share(self, owner: str, bytes_max: int) -> MemoryShare:
        """The share of a new client; owner: its role, or its address while it has no role."""
        return MemoryShare(self, owner, bytes_max)

    def read_ahead(self, size: int) -> bool:
        """Count bytes that may be read before they have room; False: the limit is reached.

        A negative size gives bytes back.
        """
        if size > 0 and self.ahead + size > self.bytes_max // 4:
            return False
        self.ahead += size
        assert self.ahead >= 0
        return True

    def _owner_pool(self, owner: str) -> _BytePool:
        pool = self._owners.get(owner)
        if pool is None:
            pool = self._owners[owner] = _BytePool(self.bytes_max - self.bytes_max // 4, self)
        return pool

    def _choose_guest(self) -> None:
        """Make the oldest waiter that has bytes the guest, unless there already is one."""
        if self.guest is not None:
            return
        for hold, turn in self._waiting.items():
            has_bytes = hold.held or (not turn.is_own and hold.share.has_sibling_bytes())
            if has_bytes and not turn.granted.done():
                self.guest = hold
                hold.become_guest()
                turn.granted.set_result(None)
                hold.share.release(hold.held)
                return

    def _end_guest(self) -> None:
        """The guest has ended: choose another one."""
        self.guest = None
        self._choose_guest()

    def _fail_waiters(self, share: MemoryShare) -> None:
        """Wake the waiters of a client that has disconnected, with an error."""
        for hold, turn in self._waiting.items():
            if hold.share is share and not turn.granted.done():
                turn.granted.set_exception(_client_gone())


class MemoryShare(_BytePool):
    """A client's part of the budget; the client returns all bytes when it ends."""

    __slots__ = ("_main", "_siblings", "budget", "is_closed")

    def __init__(self, budget: MemoryBudget, owner: str, bytes_max: int) -> None:
        super().__init__(bytes_max, budget._owner_pool(owner))
        self.budget = budget
        self.is_closed = False
        self._main, self._siblings = self, list[MemoryShare]()

    def join(self, owner: str) -> None:
        """The client has authenticated: its bytes now count for this role."""
        for share in self._siblings:
            share.join(owner)
        pool = self.budget._owner_pool(owner)
        if pool is not self._parent and self._parent is not None:
            pool.take(self.held)
            self._parent.release(self.held)
            self._parent = pool

    def sibling(self, owner: str, bytes_max: int) -> MemoryShare:
        """Another share of the same client, for bytes that it keeps while it sends more."""
        share = MemoryShare(self.budget, owner, bytes_max)
        share._main = self
        self._siblings.append(share)
        return share

    def has_sibling_bytes(self) -> bool:
        """Whether the client has bytes in another share."""
        return any(share.held for share in self._siblings)

    def is_same_client(self, other: MemoryShare) -> bool:
        """Whether both shares belong to one client."""
        return self._main is other._main

    def check_open(self) -> None:
        """Raises ConnectionResetError once it is closed."""
        if self.is_closed:
            raise _client_gone()

    def hold(self) -> Reservation:
        """An empty reservation for one frame, body or answer."""
        return Reservation(self)

    def release(self, size: int) -> None:
        """Stop counting bytes; after `close` they are not counted anyway."""
        if not self.is_closed:
            super().release(size)

    def close(self) -> None:
        """Give back all bytes; tasks that wait for room get ConnectionResetError."""
        for share in self._siblings:
            share.close()
        self.budget._fail_waiters(self)
        self.release(self.held - self._waiting_above)
        self.is_closed = True
        guest = self.budget.guest
        if guest is not None and guest.share is self:
            self.budget._end_guest()


class Reservation:
    """The bytes of one frame, body or answer; it may grow while they arrive.

    held: its current size in bytes
    """

    __slots__ = ("_is_guest", "held", "share")

    def __init__(self, share: MemoryShare) -> None:
        self.share = share
        self.held = 0
        self._is_guest = False

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def is_guest(self) -> bool:
        """Whether its bytes count in no pool."""
        return self._is_guest

    def has_room(self) -> bool:
        """Whether a reservation of zero bytes would not wait."""
        return self._is_guest or self.share.has_room()

    async def reserve(self, size: int, whole: int = 0) -> None:
        """Wait until there is room for this many bytes more, and count them; one task at a time.

        whole:  the final size of the reservation, if these bytes are a part; it decides whether
                they count as large
        raises: ConnectionResetError, once the share is closed
        """
        share = self.share
        share.check_open()
        if not self.is_guest():
            await share.reserve(size, max(size, whole), self)
        if share.is_closed:  # closed at the moment in which it got room
            if not self.is_guest():
                _BytePool.release(share, size)
            raise _client_gone()
        self.held += size

    def take(self, size: int) -> None:
        """Count bytes that exist already, even without room."""
        self.held += size
        if not self.is_guest():
            self.share.take(size)

    def release(self, size: int) -> None:
        """Stop counting some of the bytes."""
        self.held -= size
        assert self.held >= 0
        if not self.is_guest():
            self.share.release(size)
        elif not self.held:
            self.close()

    def close(self) -> None:
        """Stop counting all of its bytes; the reservation can be used again."""
        size, self.held = self.held, 0
        if self._is_guest:
            self._is_guest = False
            if self.share.budget.guest is self:
                self.share.budget._end_guest()
        else:
            self.share.release(size)

    # --- for the pools ---------------------------------------------------------------------------

    def become_guest(self) -> None:
        """Become the guest."""
        self._is_guest = True

    def start_waiting(self, turn: _Waiter) -> bool:
        """Register as a waiter; False: it is the guest now, and need not wait."""
        budget = self.share.budget
        guest = budget.guest
        if guest is not None and guest.share.is_same_client(self.share) and not turn.is_own:
            self.become_guest()  # this frame brings the bytes that the guest lacks
            self.share.release(self.held)
            return False
        budget._waiting[self] = turn
        budget._choose_guest()
        if self.is_guest():
            del budget._waiting[self]
        return not self.is_guest()

    def stop_waiting(self) -> None:
        """Unregister as a waiter."""
        self.share.budget._waiting.pop(self, None)


class OutboundBytes:
    """Bytes that the server has sent, that clients have not read, and that are still in the
    process.
    """

    __slots__ = ("bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = self.peak = 0

    def add(self, size: int) -> None:
        """Count more bytes, or fewer with a negative size."""
        self.used += size
        self.peak = max(self.peak, self.used)
        assert self.used >= 0

    @property
    def is_large(self) -> bool:
        """Whether the server now delivers nothing more to slow clients."""
        return self.used > self.bytes_max
