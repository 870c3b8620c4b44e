"""Owns Connection: one client of the protocol, from its first byte to its last.

    connect     CONNECT first; then anything
    command     a plain function answers at once, a coroutine beside what follows
    ping        a client that is silent is asked; silent again, it is gone
    limits      what it sends is counted before it comes; without room nothing is read
    expiry      a client whose token ends is asked for another, and gone without one
    end         what it had in hand goes back, its producers and consumers close

Frames that cannot be read end the connection: nothing behind them can be trusted. A message whose
checksum is wrong does not; it is refused alone.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from txlog.base.ids import TopicName
from txlog.errors import InvalidMessage, LimitExceeded, NotAllowed, TryAgain, TxlogError
from txlog.serve.auth.guard import Login
from txlog.serve.core.acceptor import cut
from txlog.serve.core.authority import Caller
from txlog.serve.core.budget import Hold
from txlog.serve.core.census import Census
from txlog.serve.core.limits import (
    FIRST_FRAME_BYTES_MAX,
    FRAME_BYTES_PER_SECOND_MIN,
    Pace,
    Seat,
    too_many,
)
from txlog.serve.core.service import Service
from txlog.serve.pulsar.failure import FILE_ERRORS, error_of, text_of
from txlog.serve.pulsar.fields import check
from txlog.serve.pulsar.messages import COMMANDS, AuthData, Proto
from txlog.serve.pulsar.sends import Sends
from txlog.serve.pulsar.wire import ROOM_BYTES, Frame, Frames, encoded, parsed, price

if TYPE_CHECKING:
    from txlog.serve.core.budget import Hold
    from txlog.serve.pulsar.chunks import Chunks
    from txlog.serve.pulsar.groups import Groups

# Read at once from one that sends much, and from others: it is not counted before it is here.
AHEAD_BYTES: Final = 1 << 18
READ_BYTES: Final = 1 << 14
# Before its token ends a client is asked for a new one.
CHALLENGE_SECONDS: Final = 30.0
REFRESH: Final = b"PulsarAuthRefresh"  # as Pulsar's clients know it
CLOSE_SECONDS: Final = 5.0  # for the last answers of one that does not read
COMMAND_BYTES: Final = 256  # what a command costs beside its payload
# What a client has not taken: beyond the first it is counted, beyond the second nothing more is
# delivered to it.
BEHIND_BYTES: Final = 128 << 10
UNSENT_BYTES_MAX: Final = 2 << 20
TOGETHER_BYTES_MAX: Final = 1 << 16  # answers that wait for others to be written with
_SEND: Final = COMMANDS["SEND"]
# The commands of which a long one is done before the next is taken: what it says is in order.
_IN_ORDER: Final = frozenset([_SEND, COMMANDS["ACK"]])
TURN: Final = 500  # commands, or as much work, in one turn of the event loop: a few ms
PROTOCOL_VERSION: Final = 19  # acknowledgements with receipts, transactions
Handler: TypeAlias = Callable[["Connection", Proto, memoryview], Coroutine[Any, Any, None] | None]


class Occupied(Protocol):
    """What a client has open: producers, or consumers."""

    async def follow(self, census: Census | None) -> None:
        """Close what has no topic any more, and tell the client; all of it if that is None."""


class Host(Protocol):
    """What a connection needs of its listener."""

    service: Service
    connections: set[Connection]
    wanted: Groups
    sends: Sends
    fenced: deque[tuple[str, str, int]]
    halls: dict[str, Any]

    def check_open(self) -> None:
        """Raises AlreadyClosed if nothing more is to be opened here."""

    def new_name(self) -> str:
        """A name for a producer that has none; nobody has it."""

    async def room(self) -> None:
        """Wait until there is room for more of what clients send."""

    def broker(self) -> dict[str, str]:
        """Where topics are served, in the fields of a lookup."""


class Connection:
    """One client.

    seat:      its place among all connections
    caller:    who it is, once it has said so
    rooms:     what the rooms keep of it, by their names
    farewells: what to do when it ends, the last first
    occupied:  what it has open, to be closed if its topic goes, or the server stops
    is_full:   nothing more is delivered to it until it has taken what was sent
    has_room:  it is not full
    """

    def __init__(
        self,
        listener: Host,
        seat: Seat,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.listener, self.seat = listener, seat
        self.service = listener.service
        self.client = listener.service.client
        self.caller: Caller | None = None
        self._login = Login()
        self.refreshes = False  # it can be asked for another token
        self.version = ""  # of the client
        self.protocol = 0
        self.has_coordinator = False  # its client asked for the coordinator of transactions
        self.rooms: dict[str, Any] = {}
        self.farewells: list[Callable[[], Awaitable[None]]] = []
        self.occupied: list[Occupied] = []
        self.peer = _text_of(writer.get_extra_info("peername"))
        self._reader, self._writer = reader, writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._owed = 0  # commands without an answer that are no tasks
        self._limits = limits = self.service.limits
        self._frames = Frames(FIRST_FRAME_BYTES_MAX)
        self._share = self.service.budget.share(
            seat.network,
            max(limits.connection_bytes, 2 * self.frame_bytes_max),
        )
        self._incoming = self._share.hold()  # what has come of a frame that is not whole
        self._chunk_share = self._share.beside(
            seat.network, max(limits.connection_bytes, limits.memory_bytes // 4)
        )
        self._chunked = list["Chunks"]()  # messages in chunks for which it waits for room
        self._ahead = 0  # bytes counted for what may be read ahead
        writer.transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # asyncio's own limit
        self._unsent: list[bytes] = []  # frames, written together
        self._unsent_bytes = 0
        self.is_full = False
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._behind = 0  # bytes that it is behind with
        self._catching_up: asyncio.Task[None] | None = None
        self._granted = set[tuple[str, TopicName | None]]()
        self._expiry: asyncio.TimerHandle | None = None
        self._spent = 0  # work of this turn of the event loop
        self._working: asyncio.Future[None] | None = None  # what is done before the next command
        self._is_connected = False
        self._is_closing = False

    @property
    def message_bytes_max(self) -> int:
        """The largest message that it may send, in bytes."""
        return self.service.store.settings.max_message_bytes

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame, in bytes."""
        return self.message_bytes_max + ROOM_BYTES

    @property
    def role(self) -> str | None:
        """The name of who it is; None: nobody in particular."""
        return None if self.caller is None else self.caller.role

    @property
    def uid(self) -> int:
        """Who it is to the store at this moment."""
        owner = None if self.caller is None else self.caller.owner
        return (owner or self.service.store.store.disk.owner())[0]

    @property
    def holder(self) -> str:
        """Whose share it takes: that of its role, or its own without rules."""
        return f"this connection from {self.peer}" if self.role is None else f"role {self.role}"

    def login(self, method: str, data: bytes) -> Login:
        """What it shows to say who it is."""
        return Login(method, data, self._writer.get_extra_info("ssl_object"))

    # --- reading -----------------------------------------------------------------------------

    async def run(self, handlers: dict[int, Handler]) -> None:
        """Serve it until it ends; returns once all it had is given back."""
        try:
            await self._read(handlers)
        except ConnectionError:
            pass
        except TimeoutError as error:
            self._tell("dropped", str(error) or "it did not answer")
        except (InvalidMessage, LimitExceeded, TryAgain) as error:
            self._tell("dropped", error.message)
            self.send("error", request_id=0, error=error_of(error), message=text_of(error))
        except Exception as error:  # a bug: it ends this connection and no other
            self.service.failed(error)
        finally:
            await self._end()

    async def _read(self, handlers: dict[int, Handler]) -> None:
        now = asyncio.get_running_loop().time
        limits = self._limits
        idle_seconds = limits.idle_timeout_ms / 1_000
        connected_by, whole_by = now() + limits.connect_timeout_ms / 1_000, math.inf
        paces = Pace(limits.bytes_per_second, now), Pace(limits.commands_per_second, now)
        is_asked = False
        while not self.is_over():
            last = whole_by if self._is_connected else min(whole_by, connected_by)
            try:
                async with asyncio.timeout_at(min(now() + idle_seconds, last)):
                    data = await self._reader.read(AHEAD_BYTES)
            except TimeoutError:
                _check_time(now(), last)
                if is_asked:
                    raise
                is_asked = True
                self.send("ping")
                continue
            is_asked = False
            if not data:
                return
            count = 0
            for frame in self._frames.whole(data):
                count += 1
                await self._take(handlers, frame)
                if self.is_over():
                    return
            wanted = self._frames.wanted
            if not wanted:
                whole_by = math.inf
            elif count or whole_by == math.inf:
                seconds = limits.frame_timeout_ms / 1_000 + wanted / FRAME_BYTES_PER_SECOND_MIN
                whole_by = now() + seconds
            last = whole_by if self._is_connected else min(whole_by, connected_by)
            _check_time(now(), last)  # one that sends a byte from time to time is never silent
            pause, came = max(paces[0].spend(len(data)), paces[1].spend(count)), len(data)
            del data  # it is not held while there is no room
            begun = now()
            await self._rest(pause, wanted, is_same=not count)
            waited = now() - begun  # for others: its own time stands still
            connected_by, whole_by = connected_by + waited, whole_by + waited
            self._read_ahead(is_busy=came >= READ_BYTES)

    def is_over(self) -> bool:
        """Whether it ends: nothing more of its client is done."""
        return self._is_closing

    def _read_ahead(self, *, is_busy: bool) -> None:
        """From now on read much at once if it sends much and there is room, or only little."""
        # What was read may wait for room, while as much again comes.
        size = 2 * AHEAD_BYTES if is_busy else 0
        if size != self._ahead and self.service.budget.read_ahead(size - self._ahead):
            self._ahead = size
            transport: Any = self._writer.transport
            transport.max_size = AHEAD_BYTES if is_busy else READ_BYTES

    async def _rest(self, seconds: float, wanted: int, *, is_same: bool) -> None:
        """Read nothing while it is too fast, does not take its answers, or there is no room.

        wanted:  bytes that the frame will have that is not whole
        is_same: that frame had begun the last time
        """
        if seconds:
            await asyncio.sleep(seconds)
        await self.listener.room()
        async with asyncio.timeout(2 * self._limits.idle_timeout_ms / 1_000):
            await self._writer.drain()
        while self._chunked:
            await self._chunked.pop().room()
        if not is_same:
            self._incoming.close()
        await self._incoming.reserve(self._frames.pending - self._incoming.held, wanted)

    async def _take(self, handlers: dict[int, Handler], data: memoryview) -> None:
        """Handle a frame; what it becomes has room before it is made."""
        bytes_more = price(data)
        if bytes_more:
            await self._in_order(self._decode(handlers, data, bytes_more))
        else:
            work = self._handle(handlers, parsed(data))
            if work is not None:
                await self._in_order(work)
        self.spend(1)
        if self._spent >= TURN:
            self._spent = 0
            await asyncio.sleep(0)
            await self.listener.room()

    async def _decode(
        self, handlers: dict[int, Handler], data: memoryview, bytes_more: int
    ) -> None:
        """Handle the frame of a long command, once there is room for it."""
        with await self.room_for(bytes_more):
            work = self._handle(handlers, parsed(data))
            if work is not None:
                await work

    async def room_for(self, size: int) -> Hold:
        """Wait until there is room for what something becomes; close the hold when that is gone.

        Half of the share is the most that is counted: the rest of it may never be free.
        """
        hold = self._share.hold()
        await hold.reserve(min(size, self._share.bytes_max // 2))
        return hold

    async def _in_order(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something long before the next command of this client; others go on meanwhile."""
        self._incoming.close()  # else those who wait for room would wait for one another
        self._working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([self._working])
            if not self._working.cancelled():
                self._working.result()
        finally:
            self._working.cancel()
            self._working = None

    def spend(self, work: int) -> None:
        """Count work of this turn of the event loop, in commands; after TURN others are served."""
        self._spent += work

    def _handle(
        self, handlers: dict[int, Handler], frame: Frame
    ) -> Coroutine[Any, Any, None] | None:
        """Begin to answer a command; returns what is to be done before the next one."""
        kind, body, rest = frame
        if self._is_connected == (kind == COMMANDS["CONNECT"]):
            raise InvalidMessage(
                "CONNECT came twice" if self._is_connected else "the first command is not CONNECT"
            )
        handler = handlers.get(kind)
        if handler is None:
            error = NotAllowed(f"commands of type {kind} are not known here")
            self._refuse(body, error)
            return None
        try:
            if kind != _SEND:  # its producer answers in the order of what it sent
                check(body)
            task = handler(self, body, rest)
        except TxlogError as error:
            self._refuse(body, error)
            return None
        if kind in _IN_ORDER:
            return task
        if task is not None:
            size = COMMAND_BYTES + len(rest)
            self.hold(size)
            answered = self.begin(self._answer(task, body))
            answered.add_done_callback(lambda _: self.release(size))
            answered.add_done_callback(lambda _: task.close())  # if it never began
        if len(self._tasks) + self._owed > self._limits.commands:
            raise too_many("commands without an answer", self._limits.commands)
        return None

    async def _answer(self, task: Coroutine[Any, Any, None], body: Proto) -> None:
        try:
            await task
        except asyncio.CancelledError:
            raise
        except TxlogError as error:
            self._refuse(body, error)
        except Exception as error:  # a bug: the client waits for an answer
            if not _has_number(body):
                raise
            self.service.failed(error)
            self._refuse(body, error)

    def _refuse(self, body: Proto, error: Exception) -> None:
        """Answer ERROR; a command without a number ends the connection: no answer can name it."""
        if isinstance(error, FILE_ERRORS):  # the client is not told which file
            self.service.tell("failed", {"class": type(error).__name__, "reason": str(error)})
        if _has_number(body):
            number = body.request_id
            self.send("error", request_id=number, error=error_of(error), message=text_of(error))
        elif isinstance(error, InvalidMessage | LimitExceeded):
            raise error

    # --- for the rooms -----------------------------------------------------------------------

    def connected(self, login: Login, caller: Caller, version: str, protocol: int) -> None:
        """It has said who it is; from now on its other commands are taken."""
        self._login, self.caller = login, caller
        self.version, self.protocol = version, protocol
        if caller.role is not None:
            self._share.join(f"role {caller.role}")
        self.service.authority.become(caller)
        self._frames.allow(self.frame_bytes_max)
        self._is_connected = True
        self._watch()

    def renewed(self, login: Login, caller: Caller) -> None:
        """It has said anew who it is; raises NotAllowed if that is somebody else."""
        if self.caller is None or caller.role != self.caller.role:
            raise NotAllowed("another role needs another connection")
        self._login, self.caller = login, caller
        self._watch()

    def may(self, action: str, topic: TopicName | None = None) -> None:
        """Raises NotAllowed unless this client may do it."""
        self.service.authority.check(self.caller, action, topic)
        if self.service.authority.guard is not None:
            self._granted.add((action, topic))

    def may_any(self) -> None:
        """Raises NotAllowed unless this client may produce or consume somewhere."""
        if self.caller is not None:
            self.caller.check_any()

    def judge_again(self) -> None:
        """End it if it would not be let in again, or may not do what it has been doing."""
        if self.caller is None:
            return
        try:
            self.service.judge_again(self._login, self.caller)
            for action, topic in self._granted:
                self.service.authority.check(self.caller, action, topic)
        except NotAllowed as error:
            self._tell("dropped", error.message)
            self.close()

    def owe(self) -> None:
        """A command is answered later, by no task of its own."""
        self._owed += 1
        self.hold(COMMAND_BYTES)

    def settle(self) -> None:
        """It is answered."""
        self._owed -= 1
        self.release(COMMAND_BYTES)

    def hold(self, size: int) -> None:
        """Count bytes that it sent and that are not stored yet: without room it waits."""
        self._share.take(size)

    def release(self, size: int) -> None:
        """They are stored, or refused."""
        self._share.release(size)

    def hold_for_chunks(self) -> Hold:
        """A place for a message in chunks, beside the share of the connection."""
        return self._chunk_share.hold()

    def wait_for(self, chunks: Chunks) -> None:
        """Read nothing more before there is room for what came of a message."""
        if chunks not in self._chunked:
            self._chunked.append(chunks)

    def _watch(self) -> None:
        """See to it that it is gone when its token ends, or has given another by then."""
        if self._expiry is not None:
            self._expiry.cancel()
        left_ms = None if self.caller is None else self.caller.left_ms
        if left_ms is None:
            return
        loop, seconds = asyncio.get_running_loop(), left_ms / 1_000
        if self.refreshes and seconds > CHALLENGE_SECONDS:
            self._expiry = loop.call_later(seconds - CHALLENGE_SECONDS, self._challenge)
        else:
            self._expiry = loop.call_later(seconds, self._expired)

    def _challenge(self) -> None:
        asked = AuthData(auth_method_name="token", auth_data=REFRESH)
        self.send("authChallenge", challenge=asked, protocol_version=self.protocol)
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(CHALLENGE_SECONDS, self._expired)

    def _expired(self) -> None:
        self._tell("dropped", "its token has expired")
        self.close()

    def _tell(self, event: str, reason: str) -> None:
        self.service.tell(event, {"peer": self.peer, "role": self.role, "reason": reason})

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the commands; the end of the connection cancels it.

        If it fails, the connection ends: its client must not wait for what will not come.
        """
        made = self.service.tasks.begin(task, self.close)
        self._tasks.add(made)
        made.add_done_callback(self._tasks.discard)
        return made

    def send(self, name: str, /, **fields: object) -> None:
        """Send a command; `wire.encoded` says how."""
        self.write([encoded(name, **fields)])

    def write(self, frames: list[bytes]) -> None:
        """Send frames, or pieces of them in order; those of one turn of the loop go together."""
        if self._writer.is_closing():
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_off)
        self._unsent += frames
        self._unsent_bytes += sum(map(len, frames))
        if self._unsent_bytes > TOGETHER_BYTES_MAX:
            self._send_off()

    def _send_off(self) -> None:
        frames, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if frames and not self._writer.is_closing():
            self._writer.writelines(frames)
            size = self._writer.transport.get_write_buffer_size()
            if size > BEHIND_BYTES:
                self._fall_behind(size)

    def _fall_behind(self, size: int) -> None:
        """Count what it does not take; too much, or too much of all clients: it is full."""
        backlog = self.service.backlog
        backlog.add(size - self._behind)
        self._behind = size
        if size > UNSENT_BYTES_MAX or backlog.is_large:
            self.is_full = True
            self.has_room.clear()
        if self._catching_up is None:
            self._catching_up = self.service.tasks.begin(self._caught_up(), self.close)

    async def _caught_up(self) -> None:
        """Wait until it has taken nearly all of it."""
        try:
            with suppress(ConnectionError):
                await self._writer.drain()
        finally:
            self.service.backlog.add(-self._behind)
            self._behind = 0
            self._catching_up = None
            self.is_full = False
            self.has_room.set()

    def close(self) -> None:
        """End it; what was sent still goes out."""
        self._is_closing = True
        self._reader.set_exception(ConnectionAbortedError())
        if self._working is not None:
            self._working.cancel()

    async def idle(self) -> None:
        """Wait until its commands are answered."""
        waiting = [one for one in self._tasks if one is not asyncio.current_task()]
        if waiting:
            await asyncio.wait(waiting)

    async def _end(self) -> None:
        self._is_closing = True
        self._frames = Frames(0)  # what it had begun: its last answers may take a while
        with suppress(RuntimeError):  # it is gone
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        self._read_ahead(is_busy=False)
        tasks = list(self._tasks)
        if self._catching_up is not None:
            tasks.append(self._catching_up)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._expiry is not None:
            self._expiry.cancel()
        for farewell in reversed(self.farewells):
            try:
                await farewell()
            except Exception as error:  # the others have something to give back, too
                self.service.failed(error)
        self._share.close()
        self._send_off()
        with suppress(ConnectionError, OSError, TimeoutError):
            self._writer.close()
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        cut(self._writer.transport)  # of one that does not read its last answers


def _has_number(body: Proto) -> bool:
    """Whether a command has a number to answer to; in an acknowledgement it may be missing."""
    field = body.DESCRIPTOR.fields_by_name.get("request_id")
    return field is not None and bool(body.HasField("request_id"))


def _check_time(now: float, last: float) -> None:
    if now >= last:
        raise TimeoutError("what it began to send did not come")


def _text_of(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else str(peer or "")
