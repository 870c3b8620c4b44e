"""Owns Connection: one client of the protocol, from its first byte to its last.

    connect     CONNECT comes first; then any command
    command     a plain function handles it at once, a coroutine in a task of its own
    ping        the server pings a silent client, and drops it if it stays silent
    limits      memory is reserved for bytes; without room the server reads nothing
    expiry      the server asks a client for a new token, and drops it without one
    end         the client's leases go back, its producers and consumers close

Frames that cannot be read end the connection: the bytes after them cannot be trusted. A message
with a wrong checksum does not end it; only that message is refused.
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
from txlog.serve.auth import Caller
from txlog.serve.auth.access import Credentials
from txlog.serve.core.acceptor import cut
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.core.service import BrokerService
from txlog.serve.limits.budget import Reservation
from txlog.serve.limits.limits import (
    FIRST_FRAME_BYTES_MAX,
    FRAME_BYTES_PER_SECOND_MIN,
    ConnectionSlot,
    RateLimiter,
    too_many_error,
)
from txlog.serve.pulsar.failure import FILE_ERRORS, error_of, text_of
from txlog.serve.pulsar.group_commit import SendQueues
from txlog.serve.pulsar.messages import COMMANDS, AuthData, Proto
from txlog.serve.pulsar.wire import (
    ROOM_BYTES,
    Frame,
    FrameDecoder,
    check,
    decode_frame,
    decoded_size,
    encode_command,
)

if TYPE_CHECKING:
    from txlog.serve.limits.budget import Reservation
    from txlog.serve.pulsar.batches import ChunkedMessage
    from txlog.serve.pulsar.group_commit import GroupCommit

# Bytes in one read, from a busy client and from others: they have no reservation before they
# arrive.
AHEAD_BYTES: Final = 1 << 18
READ_BYTES: Final = 1 << 14
# The server asks a client for a new token this long before the old one expires.
CHALLENGE_SECONDS: Final = 30.0
REFRESH: Final = b"PulsarAuthRefresh"  # as Pulsar's clients know it
CLOSE_SECONDS: Final = 5.0  # for the last answers to a client that does not read
COMMAND_BYTES: Final = 256  # the memory of a command besides its payload
# Bytes that a client has not read. Beyond the first limit they are counted; beyond the second the
# server delivers nothing more to the client.
BEHIND_BYTES: Final = 128 << 10
UNSENT_BYTES_MAX: Final = 2 << 20
TOGETHER_BYTES_MAX: Final = 1 << 16  # answers that wait to be written together
_SEND: Final = COMMANDS["SEND"]
# Commands that keep their order: a long one finishes before the next one begins.
_IN_ORDER: Final = frozenset([_SEND, COMMANDS["ACK"]])
TURN: Final = 500  # commands, or equal work, in one turn of the event loop: a few ms
PROTOCOL_VERSION: Final = 19  # acknowledgements with receipts, transactions
Handler: TypeAlias = Callable[["Connection", Proto, memoryview], Coroutine[Any, Any, None] | None]


class OpenHandles(Protocol):
    """The producers, or the consumers, that a client has open."""

    async def follow(self, snapshot: CatalogSnapshot | None) -> None:
        """Close those whose topic was deleted, and notify the client; None: close all."""


class ConnectionHost(Protocol):
    """The parts of a listener that a connection uses."""

    service: BrokerService
    connections: set[Connection]
    group_commit: GroupCommit
    sends: SendQueues
    fenced: deque[tuple[int, str, int]]
    shared_state: dict[str, Any]

    def check_open(self) -> None:
        """Raises AlreadyClosed once the server is stopping."""

    def new_name(self) -> str:
        """A unique name for a producer without one."""

    def broker(self) -> dict[str, str]:
        """The address of the broker, in the fields of a lookup."""


class Connection:
    """One client.

    slot:         its slot among all connections
    caller:       its identity, once it has authenticated
    state:        the state that each module keeps of it, by the name of the module
    on_close:     coroutine functions to run when it ends, the last first
    open_handles: its producers and consumers, which close if their topic is deleted or the server
                  stops
    is_full:      the server delivers nothing more until the client has read its messages
    has_room:     set while it is not full
    """

    def __init__(
        self,
        listener: ConnectionHost,
        slot: ConnectionSlot,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.listener, self.slot = listener, slot
        self.service = listener.service
        self.client = listener.service.client
        self.caller: Caller | None = None
        self._login = Credentials()
        self.refreshes = False  # the client can renew its token
        self.version = ""  # the version of the client
        self.protocol = 0
        self.has_coordinator = False  # its client asked for the transaction coordinator
        self.state: dict[str, Any] = {}
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        self.open_handles: list[OpenHandles] = []
        self.peer = _text_of(writer.get_extra_info("peername"))
        self._reader, self._writer = reader, writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = 0  # unanswered commands that have no task of their own
        self._limits = limits = self.service.limits
        self._frames = FrameDecoder(FIRST_FRAME_BYTES_MAX)
        self._share = self.service.budget.share(
            slot.network, max(limits.connection_bytes, 2 * self.frame_bytes_max)
        )
        self._incoming = self._share.hold()  # bytes of an incomplete frame
        self._chunk_share = self._share.sibling(
            slot.network, max(limits.connection_bytes, limits.memory_bytes // 4)
        )
        self._chunked = list["ChunkedMessage"]()  # chunked messages that wait for room
        self._ahead = 0  # bytes counted for reading ahead
        writer.transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # asyncio's own limit
        self._unsent: list[bytes] = []  # frames to write together
        self._unsent_bytes = 0
        self.is_full = False
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._behind = 0  # bytes that the client has not read, as last counted
        self._catching_up: asyncio.Task[None] | None = None
        self._granted = set[tuple[str, TopicName | None]]()
        self._expiry: asyncio.TimerHandle | None = None
        self._spent = 0  # work done in this turn of the event loop
        # the task that the next command waits for
        self._working: asyncio.Future[None] | None = None
        self._is_connected = False
        self._is_closing = False

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the client may send, in bytes."""
        return self.service.store.store.settings.max_message_bytes

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame, in bytes."""
        return self.message_bytes_max + ROOM_BYTES

    @property
    def role(self) -> str | None:
        """The role of the client; None without rules."""
        return None if self.caller is None else self.caller.role

    @property
    def uid(self) -> int:
        """The uid by which the store knows the client now."""
        owner = None if self.caller is None else self.caller.owner
        return (owner or self.service.store.store.disk.owner())[0]

    @property
    def holder(self) -> str:
        """The holder of its shares: its role, or without rules the connection."""
        return f"this connection from {self.peer}" if self.role is None else f"role {self.role}"

    def login(self, method: str, data: bytes) -> Credentials:
        """The credentials that the client presents."""
        return Credentials(method, data, self._writer.get_extra_info("ssl_object"))

    # --- reading -----------------------------------------------------------------------------

    async def run(self, handlers: dict[int, Handler]) -> None:
        """Serve the client until the connection ends; returns once all its resources are freed."""
        try:
            await self._read(handlers)
        except ConnectionError:
            pass
        except TimeoutError as error:
            self._tell("dropped", str(error) or "it did not answer")
        except (InvalidMessage, LimitExceeded, TryAgain) as error:
            self._tell("dropped", error.message)
            self.send("error", request_id=0, error=error_of(error), message=text_of(error))
        except Exception as error:  # a bug: it ends only this connection
            self.service.failed(error)
        finally:
            await self._end()

    async def _read(self, handlers: dict[int, Handler]) -> None:
        """Read and handle frames until the connection is over."""
        now = asyncio.get_running_loop().time
        limits = self._limits
        idle_seconds = limits.idle_timeout_ms / 1_000
        connected_by, whole_by = now() + limits.connect_timeout_ms / 1_000, math.inf
        paces = (
            RateLimiter(limits.bytes_per_second, now),
            RateLimiter(limits.commands_per_second, now),
        )
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
            frame_size = self._frames.wanted
            if not frame_size:
                whole_by = math.inf
            elif count or whole_by == math.inf:
                seconds = limits.frame_timeout_ms / 1_000 + frame_size / FRAME_BYTES_PER_SECOND_MIN
                whole_by = now() + seconds
            last = whole_by if self._is_connected else min(whole_by, connected_by)
            _check_time(now(), last)  # a client that sends a byte now and then is never silent
            pause, came = max(paces[0].spend(len(data)), paces[1].spend(count)), len(data)
            del data  # free the bytes while it waits for room
            begun = now()
            await self._rest(pause, frame_size, is_same=not count)
            waited = now() - begun  # that time does not count
            connected_by, whole_by = connected_by + waited, whole_by + waited
            self._read_ahead(is_busy=came >= READ_BYTES)

    def is_over(self) -> bool:
        """Whether the connection ends: no more commands run."""
        return self._is_closing

    def _read_ahead(self, *, is_busy: bool) -> None:
        """Read much at once from a busy client if there is room, else only little."""
        # These bytes may wait for room while as many again arrive.
        size = 2 * AHEAD_BYTES if is_busy else 0
        if size != self._ahead and self.service.budget.read_ahead(size - self._ahead):
            self._ahead = size
            transport: Any = self._writer.transport
            transport.max_size = AHEAD_BYTES if is_busy else READ_BYTES

    async def _rest(self, seconds: float, frame_size: int, *, is_same: bool) -> None:
        """Pause reading: for the rate limits, for unread answers, and for memory.

        frame_size: of the incomplete frame, in bytes
        is_same:    that frame was already incomplete the last time
        """
        if seconds:
            await asyncio.sleep(seconds)
        await self.listener.sends.room()
        async with asyncio.timeout(2 * self._limits.idle_timeout_ms / 1_000):
            await self._writer.drain()
        while self._chunked:
            await self._chunked.pop().room()
        if not is_same:
            self._incoming.close()
        await self._incoming.reserve(self._frames.pending - self._incoming.held, frame_size)

    async def _take(self, handlers: dict[int, Handler], data: memoryview) -> None:
        """Handle a frame; its decoded form gets room before it is made."""
        bytes_more = decoded_size(data)
        if bytes_more:
            await self._in_order(self._decode(handlers, data, bytes_more))
        else:
            work = self._handle(handlers, decode_frame(data))
            if work is not None:
                await self._in_order(work)
        self.spend(1)
        if self._spent >= TURN:
            self._spent = 0
            await asyncio.sleep(0)
            await self.listener.sends.room()

    async def _decode(
        self, handlers: dict[int, Handler], data: memoryview, bytes_more: int
    ) -> None:
        """Handle the frame of a long command, once there is room for it."""
        with await self.room_for(bytes_more):
            work = self._handle(handlers, decode_frame(data))
            if work is not None:
                await work

    async def room_for(self, size: int) -> Reservation:
        """Reserve memory for a decoded object; the caller closes the reservation when the object is
        freed.

        It counts at most half of the share: the rest may never be free.
        """
        hold = self._share.hold()
        await hold.reserve(min(size, self._share.bytes_max // 2))
        return hold

    async def _in_order(self, work: Coroutine[Any, Any, None]) -> None:
        """Finish a long command before this client's next one; other clients go on meanwhile."""
        self._incoming.close()  # otherwise waiters could wait for one another
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
        """Start a command; returns the coroutine that must finish before the next command."""
        kind, body, trailer = frame
        if self._is_connected == (kind == COMMANDS["CONNECT"]):
            raise InvalidMessage(
                "CONNECT came twice" if self._is_connected else "the first command is not CONNECT"
            )
        handler = handlers.get(kind)
        if handler is None:
            error = NotAllowed(f"commands of type {kind} are not supported")
            self._refuse(body, error)
            return None
        try:
            if kind != _SEND:  # its producer answers in the order of its SENDs
                check(body)
            task = handler(self, body, trailer)
        except TxlogError as error:
            self._refuse(body, error)
            return None
        if kind in _IN_ORDER:
            return task
        if task is not None:
            size = COMMAND_BYTES + len(trailer)
            self.hold(size)
            answered = self.begin(self._answer(task, body))
            answered.add_done_callback(lambda _: self.release(size))
            answered.add_done_callback(lambda _: task.close())  # if it never started
        if len(self._tasks) + self._pending > self._limits.commands:
            raise too_many_error("commands without an answer", self._limits.commands)
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
        """Answer ERROR; a command without a request id ends the connection instead."""
        if isinstance(error, FILE_ERRORS):  # the client must not see the name of the file
            self.service.tell("failed", {"class": type(error).__name__, "reason": str(error)})
        if _has_number(body):
            number = body.request_id
            self.send("error", request_id=number, error=error_of(error), message=text_of(error))
        elif isinstance(error, InvalidMessage | LimitExceeded):
            raise error

    # --- for the handlers of commands --------------------------------------------------------

    def connected(self, login: Credentials, caller: Caller, version: str, protocol: int) -> None:
        """The client has authenticated; from now on its other commands are accepted."""
        self._login, self.caller = login, caller
        self.version, self.protocol = version, protocol
        if caller.role is not None:
            self._share.join(f"role {caller.role}")
        self.service.authority.become(caller)
        self._frames.allow(self.frame_bytes_max)
        self._is_connected = True
        self._watch()

    def renewed(self, login: Credentials, caller: Caller) -> None:
        """The client has authenticated again; raises NotAllowed for another role."""
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

    def recheck_access(self) -> None:
        """End it if the client would be refused now, or has lost a right that it used."""
        if self.caller is None:
            return
        try:
            self.service.recheck_access(self._login, self.caller)
            for action, topic in self._granted:
                self.service.authority.check(self.caller, action, topic)
        except NotAllowed as error:
            self._tell("dropped", error.message)
            self.close()

    def add_pending(self) -> None:
        """Count a command that is answered later, without a task of its own."""
        self._pending += 1
        self.hold(COMMAND_BYTES)

    def remove_pending(self) -> None:
        """A command that `add_pending` counted is answered."""
        self._pending -= 1
        self.release(COMMAND_BYTES)

    def hold(self, size: int) -> None:
        """Count bytes of the client that are not stored yet: without room the client waits."""
        self._share.take(size)

    def release(self, size: int) -> None:
        """Stop counting bytes of `hold`: they are stored, or refused."""
        self._share.release(size)

    def hold_for_chunks(self) -> Reservation:
        """A reservation for a chunked message, in a share of its own."""
        return self._chunk_share.hold()

    def wait_for(self, chunks: ChunkedMessage) -> None:
        """Read nothing more before there is room for the chunks that have arrived."""
        if chunks not in self._chunked:
            self._chunked.append(chunks)

    def _watch(self) -> None:
        """Start the timer that renews the client's token, or ends the connection with it."""
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
        challenge = AuthData(auth_method_name="token", auth_data=REFRESH)
        self.send("authChallenge", challenge=challenge, protocol_version=self.protocol)
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(CHALLENGE_SECONDS, self._expired)

    def _expired(self) -> None:
        self._tell("dropped", "its token has expired")
        self.close()

    def _tell(self, event: str, reason: str) -> None:
        self.service.tell(event, {"peer": self.peer, "role": self.role, "reason": reason})

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task of this connection, which cancels the task when it ends.

        If the task fails, the connection ends: otherwise its client would wait for ever.
        """
        running = self.service.tasks.begin(task, self.close)
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)
        return running

    def send(self, name: str, /, **fields: object) -> None:
        """Send a command; `wire.encode_command` describes the arguments."""
        self.write([encode_command(name, **fields)])

    def write(self, frames: list[bytes]) -> None:
        """Send frames, or parts of frames in order; frames of one loop turn go out together."""
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
        """Count unread bytes; too many, of this client or of all, and it is full."""
        backlog = self.service.backlog
        backlog.add(size - self._behind)
        self._behind = size
        if size > UNSENT_BYTES_MAX or backlog.is_large:
            self.is_full = True
            self.has_room.clear()
        if self._catching_up is None:
            self._catching_up = self.service.tasks.begin(self._caught_up(), self.close)

    async def _caught_up(self) -> None:
        """Wait until the client has read nearly all of it."""
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
        """End the connection; pending answers still go out."""
        self._is_closing = True
        self._reader.set_exception(ConnectionAbortedError())
        if self._working is not None:
            self._working.cancel()

    async def idle(self) -> None:
        """Wait until the commands with a task are answered; others are in the group commit."""
        waiting = [task for task in self._tasks if task is not asyncio.current_task()]
        if waiting:
            await asyncio.wait(waiting)

    async def _end(self) -> None:
        """Cancel the tasks, run `on_close`, free the memory, and close the socket."""
        self._is_closing = True
        # drop an incomplete frame: the last answers may take a while
        self._frames = FrameDecoder(0)
        with suppress(RuntimeError):  # the connection has ended already
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
        for farewell in reversed(self.on_close):
            try:
                await farewell()
            except Exception as error:  # the others have resources to free, too
                self.service.failed(error)
        self._share.close()
        self._send_off()
        with suppress(ConnectionError, OSError, TimeoutError):
            self._writer.close()
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        cut(self._writer.transport)  # for a client that does not read its last answers


def _has_number(body: Proto) -> bool:
    """Whether a command has a request id; an acknowledgement may have none."""
    field = body.DESCRIPTOR.fields_by_name.get("request_id")
    return field is not None and bool(body.HasField("request_id"))


def _check_time(now: float, last: float) -> None:
    if now >= last:
        raise TimeoutError("a frame was not completed in time")


def _text_of(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else str(peer or "")
