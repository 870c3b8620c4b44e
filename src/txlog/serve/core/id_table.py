"""Owns IdTable: the producer ids, or the consumer ids, of one connection, and the state of each.

    free ── open ──► opening ── done ──► open ── close ──► closing ── done ──► free
              ▲         └─ failed, or a CLOSE came ─► free    └─ refused ──► open

1. The state changes before the first `await` of a command, so two commands never own one id.
2. An open command for an id that is already open with the same request succeeds at once, as in
   Pulsar. While the id is opening or closing, the command waits for the end of that.
3. A CLOSE cancels the opening, and refuses every open command that came before it.
4. An entry whose closing was cancelled stays in the table: the end of the connection closes it.

Source: Pulsar's ServerCnx, where the map from ids to futures has this task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Generic, TypeVar

from txlog.errors import AlreadyClosed, NotFound, TxlogError

T = TypeVar("T")
DISMISSED_MAX: Final = 1_000


class IdState(Enum):
    """The state of an id."""

    FREE = "free"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


_MOVING: Final = (IdState.OPENING, IdState.CLOSING)


class _Entry(Generic[T]):
    """The state of one id.

    wanted:  the options with which the client opened the id
    task:    the command that opens it
    closes:  how many CLOSE commands have come; a waiting open command compares the count
    waiting: how many commands wait for the end of its opening or closing
    refusal: why the opening was cancelled; None: it was not
    """

    __slots__ = ("closes", "refusal", "settled", "state", "task", "value", "waiting", "wanted")

    def __init__(self) -> None:
        self.state = IdState.FREE
        self.wanted: object = None
        self.value: T | None = None
        self.task: asyncio.Task[object] | None = None
        self.closes = self.waiting = 0
        self.refusal: TxlogError | None = None
        self.settled = asyncio.Event()
        self.settled.set()

    def begin(self, request: object) -> asyncio.Task[object]:
        """Mark the id as opening by the current command; returns the task of that command."""
        task = asyncio.current_task()
        assert task is not None
        self.wanted, self.refusal, self.task = request, None, task
        self.become(IdState.OPENING)
        return task

    def become(self, state: IdState) -> None:
        """Change the state, and wake the commands that wait for the end of the old one."""
        self.state = state
        if state in _MOVING:
            self.settled.clear()
        else:
            self.settled.set()

    def opened(self) -> T:
        """The open object."""
        assert self.value is not None
        return self.value

    def refuse(self, error: TxlogError) -> None:
        """Cancel its opening; the command that opens it raises this error."""
        if self.state is IdState.OPENING and self.refusal is None:
            assert self.task is not None
            self.refusal = error
            self.task.cancel()


class IdTable(Generic[T]):
    """The ids of one kind on one connection; T is the object behind an id."""

    def __init__(self, noun: str, busy: Callable[[str], TxlogError]) -> None:
        """noun: producer, consumer; busy: the error for an id that is in use for another request"""
        self._noun, self._busy = noun, busy
        self._entries: dict[int, _Entry[T]] = {}
        # The ids that the server closed last. Their clients may be closing them as well, and
        # commands that they sent before they knew are still coming.
        self._dismissed: OrderedDict[int, object] = OrderedDict()  # id -> its client's request

    def __len__(self) -> int:
        """How many ids are open, opening or closing."""
        return sum(entry.state is not IdState.FREE for entry in self._entries.values())

    def get(self, number: int) -> T | None:
        """The open object of an id; None if the id is not open."""
        entry = self._entries.get(number)
        return entry.value if entry is not None and entry.state is IdState.OPEN else None

    def find(self, number: int) -> T:
        """As `get`, but raises NotFound."""
        value = self.get(number)
        if value is None:
            raise self.unknown(number)
        return value

    def unknown(self, number: int) -> NotFound:
        """The error for an id that is not open."""
        return NotFound(f"there is no {self._noun} {number} on this connection")

    def items(self) -> list[tuple[int, T]]:
        """All open objects by id."""
        return [
            (number, entry.opened())
            for number, entry in self._entries.items()
            if entry.state is IdState.OPEN
        ]

    def values(self) -> list[T]:
        """All open objects."""
        return [value for _, value in self.items()]

    def is_opening(self, number: int) -> bool:
        """Whether a command is opening an id."""
        entry = self._entries.get(number)
        return entry is not None and entry.state is IdState.OPENING

    def dismissed(self, number: int) -> bool:
        """Whether the server, not the client, closed this id."""
        return number in self._dismissed

    def wanted_by_client(self, number: int) -> object:
        """The client's request for an id that the server closed; None: it did not close it."""
        return self._dismissed.get(number)

    # --- opening -----------------------------------------------------------------------------

    async def open(
        self, number: int, request: object, act: Callable[[], Awaitable[T]]
    ) -> tuple[T, bool]:
        """Open an id by calling `act`; returns the open object, and whether it was open already.

        act:    leaves nothing behind if it fails or is cancelled
        raises: the error of `act`; the error of `refuse`, AlreadyClosed after a CLOSE; the error of
                `busy` if the id is open and its client requested something else with it
        """
        entry = self._entries.setdefault(number, _Entry())
        closes = entry.closes
        await self._settled(number, entry)
        if entry.closes != closes:
            raise self.closed(number)
        self._entries[number] = entry
        if entry.state is IdState.OPEN:
            if entry.wanted != request:
                raise self._busy(
                    f"{self._noun} {number} of this connection is in use for another request"
                )
            return entry.opened(), True
        task = entry.begin(request)
        try:
            entry.value = await act()
        except asyncio.CancelledError:
            if entry.refusal is None or task.uncancel():
                raise  # the connection ends
            raise entry.refusal from None
        else:
            entry.become(IdState.OPEN)
        finally:
            entry.task = None
            if entry.state is IdState.OPENING:
                self._free(number, entry)
        return entry.opened(), False

    def refuse(self, number: int, error: TxlogError) -> None:
        """Cancel the opening of an id, if it still runs; its command raises this error."""
        if number in self._entries:
            self._entries[number].refuse(error)

    def refuse_opening(self, error: TxlogError) -> None:
        """Cancel all openings; their commands raise this error."""
        for entry in self._entries.values():
            entry.refuse(error)

    # --- closing -----------------------------------------------------------------------------

    async def close(
        self, number: int, act: Callable[[T], Awaitable[None]], *, by_server: bool = False
    ) -> bool:
        """Close an id, whatever its state; returns once it is free.

        act:       closes the object; may run again after it was cancelled
        by_server: the client does not know yet
        returns:   whether there was anything to close
        raises:    the error of `act`; the id is free all the same
        """
        entry = self._entries.get(number)
        if entry is None:
            return False
        if by_server:
            self._dismiss(number, entry)
        entry.closes += 1
        entry.refuse(self.closed(number))
        await self._settled(number, entry)
        if entry.state is not IdState.OPEN:
            return True
        entry.become(IdState.CLOSING)
        try:
            await act(entry.opened())
        except Exception:  # refused, or a bug: the id must be free; after a cancel see rule 4
            self._free(number, entry)
            raise
        self._free(number, entry)
        return True

    async def try_close(self, number: int, act: Callable[[T], Awaitable[None]]) -> None:
        """Close an open id by calling `act`; if `act` fails, the id stays open.

        raises: NotFound, the error of `act`
        """
        entry = self._entries.get(number)
        if entry is None or entry.state is not IdState.OPEN:
            raise self.unknown(number)
        entry.become(IdState.CLOSING)
        try:
            await act(entry.opened())
        except Exception:  # refused, or a bug: the object is open; after a cancel see rule 4
            entry.become(IdState.OPEN)
            raise
        self._dismiss(number, entry)
        self._free(number, entry)

    async def close_all(
        self, act: Callable[[T], Awaitable[None]], failed: Callable[[Exception], None]
    ) -> None:
        """Close everything, after the commands of the connection have ended.

        failed: gets the error of each object that cannot be closed; the others are closed all the
                same
        """
        for number, entry in list(self._entries.items()):
            if entry.value is not None:
                try:
                    await act(entry.value)
                except Exception as error:  # also a bug: the others hold locks and leases
                    failed(error)
            self._free(number, entry)

    async def _settled(self, number: int, entry: _Entry[T]) -> None:
        """Wait until an id is free or open."""
        entry.waiting += 1
        try:
            while entry.state in _MOVING:
                await entry.settled.wait()
        finally:
            entry.waiting -= 1
            self._forget(number, entry)

    def _dismiss(self, number: int, entry: _Entry[T]) -> None:
        self._dismissed[number] = entry.wanted
        self._dismissed.move_to_end(number)
        if len(self._dismissed) > DISMISSED_MAX:
            self._dismissed.popitem(last=False)

    def _free(self, number: int, entry: _Entry[T]) -> None:
        entry.value = None
        entry.become(IdState.FREE)
        self._forget(number, entry)

    def _forget(self, number: int, entry: _Entry[T]) -> None:
        """Drop a free id, unless a command waits for it."""
        is_kept = entry.waiting or entry.state is not IdState.FREE
        if not is_kept and self._entries.get(number) is entry:
            del self._entries[number]

    def closed(self, number: int) -> AlreadyClosed:
        """The error for an id that was closed while it was opening."""
        return AlreadyClosed(f"{self._noun} {number} was closed before it was open")
