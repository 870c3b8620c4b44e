"""Owns Connection: one client of the protocol, from its first byte to its last.

    connect     CONNECT first; then anything
    command     a plain function answers at once, a coroutine beside what follows
    ping        a client that is silent for PING_SECONDS is asked; silent again, it is gone
    end         what it had in hand goes back, its producers and consumers close

Frames that cannot be read end the connection: nothing behind them can be trusted. A message whose
checksum is wrong does not; it is refused alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from txlog.errors import InvalidMessage, NotAllowed, TxlogError
from txlog.ids import TopicName
from txlog.ranges import Bound
from txlog.serve.core.service import Service
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.messages import COMMANDS, ERRORS, Proto
from txlog.serve.pulsar.sends import Sends
from txlog.serve.pulsar.wire import ROOM_BYTES, Frame, Frames, encoded

if TYPE_CHECKING:
    from txlog.serve.pulsar.ends import Ends

READ_BYTES: Final = 1 << 18
PING_SECONDS: Final = 30.0
# Answers that a client has not taken, beyond which nothing more is read from it.
UNSENT_BYTES_MAX: Final = 16 << 20
TASKS_MAX: Final = 10_000  # commands of one client that wait for something
PROTOCOL_VERSION: Final = 19  # acknowledgements with receipts, transactions
Handler: TypeAlias = Callable[["Connection", Proto, memoryview], Coroutine[Any, Any, None] | None]


class Host(Protocol):
    """What a connection needs of its listener."""

    service: Service
    ends: Ends
    sends: Sends
    names: set[tuple[str, str]]
    sought: dict[tuple[str, str, int], Bound]

    def new_name(self) -> str:
        """A name for a producer that has none; nobody has it."""

    async def room(self) -> None:
        """Wait until there is room for more of what clients send."""

    def broker(self) -> dict[str, str]:
        """Where topics are served, in the fields of a lookup."""


class Connection:
    """One client.

    role:      who it is; None: nobody in particular
    rooms:     what the rooms keep of it, by their names
    farewells: what to do when it ends, the last first
    """

    def __init__(
        self,
        listener: Host,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.listener = listener
        self.service = listener.service
        self.client = listener.service.client
        self.role: str | None = None
        self.version = ""  # of the client
        self.protocol = 0
        self.rooms: dict[str, Any] = {}
        self.farewells: list[Callable[[], Awaitable[None]]] = []
        self.peer = _text_of(writer.get_extra_info("peername"))
        self._reader, self._writer = reader, writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._frames = Frames(self.message_bytes_max + ROOM_BYTES)
        self._is_connected = False
        self._is_closing = False

    @property
    def message_bytes_max(self) -> int:
        """The largest message that it may send, in bytes."""
        return self.service.store.settings.max_message_bytes

    # --- reading -----------------------------------------------------------------------------

    async def run(self, handlers: dict[int, Handler]) -> None:
        """Serve it until it ends; returns once all it had is given back."""
        try:
            await self._read(handlers)
        except (ConnectionError, TimeoutError):
            pass
        except InvalidMessage as error:
            self.send("error", request_id=0, error=ERRORS["UnknownError"], message=text_of(error))
        finally:
            await self._end()

    async def _read(self, handlers: dict[int, Handler]) -> None:
        is_asked = False
        while not self._is_closing:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    data = await self._reader.read(READ_BYTES)
            except TimeoutError:
                if is_asked:
                    raise
                is_asked = True
                self.send("ping")
                continue
            is_asked = False
            if not data:
                return
            for frame in self._frames.feed(data):
                self._take(handlers, frame)
            await self.listener.room()
            await self._writer.drain()

    def _take(self, handlers: dict[int, Handler], frame: Frame) -> None:
        kind, body, rest = frame
        if not self._is_connected and kind != COMMANDS["CONNECT"]:
            raise InvalidMessage("the first command is not CONNECT")
        handler = handlers.get(kind)
        if handler is None:
            error = NotAllowed(f"commands of type {kind} are not known here")
            self._refuse(body, error)
            return
        try:
            task = handler(self, body, rest)
        except TxlogError as error:
            self._refuse(body, error)
            return
        if task is not None:
            if len(self._tasks) >= TASKS_MAX:
                task.close()
                raise InvalidMessage("too many commands wait for an answer")
            self.begin(self._answer(task, body))

    async def _answer(self, task: Coroutine[Any, Any, None], body: Proto) -> None:
        try:
            await task
        except asyncio.CancelledError:
            raise
        except TxlogError as error:
            self._refuse(body, error)
        except Exception as error:
            self.service.failed(error)
            self._refuse(body, error)

    def _refuse(self, body: Proto, error: Exception) -> None:
        """Answer ERROR, if the command has a number to answer to."""
        number = getattr(body, "request_id", None)
        if number is not None:
            self.send("error", request_id=number, error=error_of(error), message=text_of(error))

    # --- for the rooms -----------------------------------------------------------------------

    def connected(self, role: str | None, version: str, protocol: int) -> None:
        """It has said who it is; from now on its other commands are taken."""
        self.role, self.version, self.protocol = role, version, protocol
        self._is_connected = True

    def may(self, action: str, topic: TopicName | None = None) -> None:
        """Raises NotAllowed unless this client may do it."""
        self.service.authority.check(self.role, action, topic)

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the commands; it is cancelled when the connection ends."""
        made = asyncio.create_task(task)
        self._tasks.add(made)
        made.add_done_callback(self._tasks.discard)
        return made

    def send(self, name: str, /, **fields: object) -> None:
        """Send a command; `wire.encoded` says how."""
        self.write([encoded(name, **fields)])

    def write(self, frames: list[bytes]) -> None:
        """Send frames, or pieces of them in order."""
        if not self._writer.is_closing():
            self._writer.writelines(frames)

    @property
    def is_full(self) -> bool:
        """True while it does not take what was sent."""
        return self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX

    async def drained(self) -> None:
        """Wait until it has taken most of what was sent."""
        with suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        """End it; what was sent still goes out."""
        self._is_closing = True
        self._reader.feed_eof()

    async def idle(self) -> None:
        """Wait until its commands are answered."""
        waiting = [one for one in self._tasks if one is not asyncio.current_task()]
        if waiting:
            await asyncio.wait(waiting)

    async def _end(self) -> None:
        self._is_closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for farewell in reversed(self.farewells):
            try:
                await farewell()
            except TxlogError as error:
                self.service.failed(error)
        with suppress(ConnectionError, OSError):
            self._writer.close()
            await self._writer.wait_closed()


def _text_of(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else str(peer or "")
