"""Owns Sends: the queues of what all clients send, and how a group of it is stored.

    SEND ─► queue of its producer ─► turns ─► frames ─► one flush (groups) ─► receipts

1. While one group is written, the next one gathers. A group has turns: a turn is one frame. Of each
   producer it has one batch, or messages that came without one and are marked as such, so that the
   rows of a SEND can be told from those of the next (ids). All frames of a group share the flush.
2. A producer's messages are stored in the order they came. A receipt says that they are durable.
3. After a SEND that is refused nothing more of its producer is stored, not even what is queued:
   messages would change their order when the client sends it again. The server closes the producer;
   its client opens it again and goes on. Other producers notice nothing.
4. When the store fails, all of the group fail with it.


Owns Groups: what all clients want of the store in the moment, done together.

    NEW_TXN ─► begins                 ┐
    ADD_*   ─► registrations          │
    SEND    ─► queues of producers    ├─► a group: one lock, one look at the journal, one flush
    END_TXN ─► ends                   ┘

While one group is done, the next one gathers. The order in it is that of this drawing: of one
client's commands each is answered before the next one can depend on it.

1. Begins, registrations and ends share a frame; one that is refused is refused alone.
2. Ends are in the order of ids. Of transactions with one decision LSN the lower id is the first,
   wherever they are put in order (plan/participants), so that is their order in the frame.
3. SENDs and transaction commands in one group succeed or fail independently, and so does each of
   them. An exception that is no error of ours (a bug) fails the command that raised it alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.client.sending.producer import Producer
from txlog.client.transactions.end import unknown_end
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import send as produce
from txlog.engine.decide.sending.send import SliceReceipt
from txlog.engine.decide.transactions import end as end_txn
from txlog.engine.decide.transactions.register import Place, register
from txlog.engine.decide.transactions.sweep import Uses
from txlog.engine.storage.disk.protocol import ACTING
from txlog.engine.store.appender import Call
from txlog.engine.store.store import Store
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.engine.view.view import View
from txlog.errors import InternalError, OutcomeUnknown, ProducerBusy, TryAgain, TxlogError
from txlog.serve.limits.shares import OpenTransactions
from txlog.serve.pulsar.batches import SendColumns, rows_of_all

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.decide.sending.send import Outgoing
    from txlog.engine.decide.transactions.enter import NewTxn
    from txlog.engine.store.store import Store
    from txlog.serve.core.service import BrokerService

QUEUED_BYTES_MAX: Final = 32 << 20  # of all clients; beyond it none is read from
FRAMES_MAX: Final = 256
GROUP_BYTES_MAX: Final = 16 << 20
TOGETHER_MAX, TOGETHER_BYTES_MAX = 10_000, 4 << 20  # messages without a batch in one frame

# Why a SEND was not stored that came behind one that was refused.
BEHIND: Final = ProducerBusy("it came behind a message that was refused")  # not raised itself

# What became of a SEND: the id of its first message, or why it was refused.
OnStored = Callable[[MessageId | None, Exception | None], None]


class QueuedSend:
    """One SEND: its messages, where they go, and whom to tell.

    large: the value of a message that came in chunks, and what goes with it, instead of columns
    wrong: why it cannot be stored, instead of either: it is refused when it is its turn
    """

    __slots__ = (
        "acting",
        "columns",
        "large",
        "on_stored",
        "partition",
        "size",
        "txn",
        "wrong",
    )

    def __init__(
        self,
        columns: SendColumns | None,
        partition: int,
        size: int,
        on_stored: OnStored,
        txn: TxnId | None = None,
        large: dict[str, Any] | None = None,
        wrong: TxlogError | None = None,
    ) -> None:
        self.columns, self.partition, self.size, self.on_stored = (
            columns,
            partition,
            size,
            on_stored,
        )
        self.txn, self.large, self.wrong = txn, large, wrong
        self.acting = ACTING.get()  # whose it is: the task that stores it is nobody's

    @property
    def is_apart(self) -> bool:
        """It does not go with those of others: it has a transaction, or a file."""
        return self.txn is not None or self.large is not None

    @property
    def is_plain(self) -> bool:
        """It is a message without a batch, and may be one of many in a frame."""
        columns = self.columns
        return columns is not None and columns.is_alone and not self.is_apart


class SendQueue:
    """What one producer has queued.

    waiting:    queued, or being written; answered: how many were before those
    is_refused: one of its SENDs was, so nothing behind that is stored
    refused:    what of it this group refuses so far, if anything
    """

    __slots__ = (
        "_news",
        "answered",
        "is_refused",
        "producer",
        "queue",
        "refused",
        "waiting",
    )

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.queue: deque[QueuedSend] = deque()
        self.waiting = self.answered = 0
        self._news = asyncio.Event()
        self.is_refused = False
        self.refused: _ProducerRows | _TxnWrite | None = None

    async def settled(self) -> None:
        """Wait until all that is queued at this moment is answered."""
        end = self.answered + self.waiting
        while self.answered < end:
            self._news.clear()
            await self._news.wait()

    def answer(self, count: int) -> None:
        """So many were answered."""
        self.waiting -= count
        self.answered += count
        self._news.set()

    def next(self) -> list[QueuedSend]:
        """Take from the queue what goes into one frame: one SEND, or messages without a batch.

        Of the latter all but the first have no properties, as `rows_of_all` wants, and sequences
        rise in each partition.
        """
        queue = self.queue
        sends = [queue.popleft()]
        if not queue or not sends[0].is_plain or self.producer._shape.typing is not None:
            return sends
        last: dict[int, int] = {}
        size = 0
        send = sends[0]
        while True:
            assert send.columns is not None
            last[send.partition] = send.columns.sequences[0]
            size += send.size
            if not queue or len(sends) == TOGETHER_MAX or size > TOGETHER_BYTES_MAX:
                return sends
            send = queue[0]
            columns = send.columns
            if (
                columns is None
                or not send.is_plain
                or columns.properties[0] is not None
                or columns.sequences[0] <= last.get(send.partition, -1)
            ):
                return sends
            sends.append(queue.popleft())


class SendQueues:
    """The queues of all producers of a process."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: has what is queued stored: `turns`, `written`, `tell`"""
        self._wake = wake
        self._queues: dict[SendQueue, None] = {}  # those with something queued, in order
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def is_waiting(self) -> bool:
        """True if anything is queued."""
        return bool(self._queues)

    def put(self, queue: SendQueue, send: QueuedSend) -> None:
        """Queue a SEND."""
        queue.queue.append(send)
        queue.waiting += 1
        self._queues[queue] = None
        self._bytes += send.size
        if self._bytes > QUEUED_BYTES_MAX:
            self._has_room.clear()
        self._wake()

    async def room(self) -> None:
        """Wait until there is room for more; whoever comes first may leave none for the next."""
        while not self._has_room.is_set():
            await self._has_room.wait()

    def next_group(self) -> list[FrameSends]:
        """Take the next group from the queues."""
        frames: list[FrameSends] = []
        size = 0
        while self._queues and len(frames) < FRAMES_MAX and size < GROUP_BYTES_MAX:
            frame: FrameSends = []
            for queue in list(self._queues):
                sends = queue.next()
                if not queue.queue:
                    del self._queues[queue]
                frame.append((queue, sends))
                size += sum(send.size for send in sends)
            frames.append(frame)
        return frames

    def tell(
        self,
        frames: list[FrameSends],
        answers: list[SendResult] | Exception,
        call: Callable[[Callable[[], object]], None],
    ) -> None:
        """Answer a group: with what became of it, or all of it with what it failed with.

        call: calls each answer; one that fails does not keep the others from theirs
        """
        if isinstance(answers, Exception):
            error = answers
            answers = [
                (send, None, error) for frame in frames for _, sends in frame for send in sends
            ]
            for frame in frames:
                for queue, _ in frame:
                    queue.is_refused = True
        for send, first, refusal in sorted(answers, key=_rank):
            call(partial(send.on_stored, first, refusal))
            self._bytes -= send.size
        for frame in frames:
            for queue, sends in frame:
                queue.answer(len(sends))
        if self._bytes <= QUEUED_BYTES_MAX:
            self._has_room.set()


# What one frame has of each producer.
FrameSends: TypeAlias = "list[tuple[SendQueue, list[QueuedSend]]]"
SendResult = tuple[QueuedSend, MessageId | None, Exception | None]


def _rank(answer: SendResult) -> int:
    """Receipts before refusals: clients expect answers in the order of what they sent."""
    refusal = answer[2]
    return 0 if refusal is None else 2 if refusal is BEHIND else 1


def store_group(
    store: Store, frames: list[FrameSends], first: list[Call], last: list[Call]
) -> list[SendResult]:
    """Store a group, with calls before and after it that are done in any case.

    It is one call of the store, in the order that it came: one lock, one flush. Only what has a
    file is a call of its own. All is durable when it returns, but for what is in transactions:
    their ends do that.
    raises: what the store failed with
    """
    answers = list[SendResult]()
    calls, pending = list(first), list[tuple[_FrameWrite | _TxnWrite, Call]]()

    def submit() -> None:
        if calls:
            _submit(store, calls)
        for write, call in pending:
            answers.extend(_isolated(store, write, call))
        calls.clear()
        pending.clear()

    def add(write: _FrameWrite | _TxnWrite) -> None:
        pending.append((write, write.call()))
        calls.append(pending[-1][1])

    for frame in frames:
        for queue, [send, *_] in frame:
            if send.large is not None:
                submit()
                answers.append(_store_alone(queue, send))
            elif send.txn is not None and queue.is_refused:
                answers.append((send, None, BEHIND))
            elif send.txn is not None:
                try:
                    add(_TxnWrite(queue, send, send.txn))
                except Exception as error:  # its rows are wrong, or there is a bug
                    queue.is_refused = True
                    answers.append((send, None, error))
        for rows in _frames(frame, answers):
            add(_FrameWrite(store, rows))
    calls += last
    submit()
    return answers


def _submit(store: Store, calls: list[Call]) -> None:
    """Have calls done together, and those again alone that a bug in one of them kept from it."""
    store.submit(calls)
    for call in calls if len(calls) > 1 else ():
        if _is_bug(call.error):
            call.renew()
            store.submit([call])


def _isolated(store: Store, write: _FrameWrite | _TxnWrite, call: Call) -> Iterator[SendResult]:
    """What became of a frame; where it met a bug, what becomes of each producer's rows alone."""
    if not _is_bug(call.error) or isinstance(write, _TxnWrite) or len(write.rows) == 1:
        yield from write.answers(call)
        return
    for rows in write.rows:
        alone = _FrameWrite(store, [rows])
        call = alone.call()
        store.submit([call])
        yield from alone.answers(call)


def _is_bug(error: BaseException | None) -> bool:
    return isinstance(error, Exception) and not isinstance(error, TxlogError)


def _frames(frame: FrameSends, answers: list[SendResult]) -> Iterator[list[_ProducerRows]]:
    """The frames of a turn, one if nothing is wrong; to the answers: what is refused at once."""
    rows: list[_ProducerRows] = []
    for queue, sends in frame:
        if sends[0].is_apart:
            continue
        if queue.is_refused:
            answers += [(send, None, BEHIND) for send in sends]
            continue
        try:
            rows.append(_ProducerRows(queue, sends))
        except Exception as error:  # its rows are wrong, or there is a bug
            if len(sends) == 1:
                queue.is_refused = True
                answers.append((sends[0], None, error))
                continue
            # one of them is wrong: each for itself, in the order they came
            for send in sends:
                yield from _frames([(queue, [send])], answers)
    if rows:
        yield rows


class _ProducerRows:
    """The rows of one producer for a frame, and the SENDs that they came in.

    Nothing here refers to itself: megabytes would wait for a garbage collection.
    """

    __slots__ = ("_routing", "is_behind", "queue", "sends")

    def __init__(self, queue: SendQueue, sends: list[QueuedSend]) -> None:
        """Raises TxlogError, ArrowException."""
        self.queue, self.sends = queue, sends
        self.is_behind = False
        if sends[0].wrong is not None:
            raise sends[0].wrong
        producer = queue.producer
        producer._check_open()
        self._routing = producer._route(_rows_of(sends), producer._shape.version)

    def outgoing(self, view: View) -> Outgoing:
        """Where they go, said under the lock."""
        self.is_behind = self.queue.refused is not None and self.queue.refused is not self
        if self.is_behind:
            raise ProducerBusy(BEHIND.message)
        producer = self.queue.producer
        topic, routed = producer._routed(view, self._routing)
        return produce.Outgoing(topic, routed, producer._named)

    def decided(self, answer: object) -> None:
        """What a frame does with them, as far as is known: those of later frames look at it."""
        if isinstance(answer, TxlogError) and not self.is_behind:
            self.queue.refused = self
        elif self.queue.refused is self:  # the frame is decided once more, and stores them
            self.queue.refused = None

    def answers(self, answer: list[produce.SliceReceipt] | Exception) -> Iterator[SendResult]:
        """What became of each SEND."""
        sends = self.sends
        if isinstance(answer, Exception):
            self.queue.is_refused = True
            for send in sends:
                yield send, None, BEHIND if self.is_behind else answer
        elif len(sends) == 1:
            [piece] = answer
            yield sends[0], _id_of(piece, 0, piece.places()[0]), None
        else:
            for piece in answer:
                in_partition = [send for send in sends if send.partition == piece.partition]
                for row, (send, offset) in enumerate(
                    zip(in_partition, piece.places(), strict=True)
                ):
                    yield send, _id_of(piece, row, offset), None


def _rows_of(sends: list[QueuedSend]) -> pa.RecordBatch:
    listed = [columns_of.columns for columns_of in sends]
    return rows_of_all(
        [columns_of for columns_of in listed if columns_of is not None],
        [send.partition for send in sends],
    )


def _id_of(piece: produce.SliceReceipt, row: int, offset: int | None) -> MessageId | None:
    """The id of a row of a slice; None: of an older repetition nobody knows it."""
    if offset is not None:
        return MessageId(piece.ledger, piece.first_entry + offset)
    original = piece.original
    return original[1] if original is not None and original[0] == row else None


class _FrameWrite:
    """Rows of several producers that are stored as a frame."""

    __slots__ = ("_settings", "rows")

    def __init__(self, store: Store, rows: list[_ProducerRows]) -> None:
        self._settings, self.rows = store.settings, rows

    def call(self) -> Call:
        """What stores them."""
        return Call(self._decide)

    def _decide(self, view: View, now: Instant) -> Decision[list[list[SliceReceipt] | TxlogError]]:
        batches = [rows.outgoing for rows in self.rows]
        decision = produce.send_together(view, self._settings, now, batches)
        for rows, answer in zip(self.rows, decision.answered(), strict=True):
            rows.decided(answer)
        return decision

    def answers(self, call: Call) -> Iterator[SendResult]:
        """What became of each SEND. Raises what the store failed with."""
        if _is_bug(call.error):  # that of these rows
            assert isinstance(call.error, Exception)
            for rows in self.rows:
                yield from rows.answers(call.error)
            return
        if call.error is not None:
            raise call.error
        for rows, answer in zip(self.rows, call.answer, strict=True):
            yield from rows.answers(answer)


class _TxnWrite:
    """A SEND in a transaction."""

    __slots__ = ("_is_behind", "_queue", "_send", "_sending", "_txn_id")

    def __init__(self, queue: SendQueue, send: QueuedSend, txn_id: TxnId) -> None:
        """Raises TxlogError, ArrowException."""
        self._queue, self._send, self._txn_id = queue, send, txn_id
        self._is_behind = False
        producer = queue.producer
        previous = ACTING.set(send.acting)
        try:
            producer._check_open()
            self._sending = producer._in_txn(_rows_of([send]), producer._shape.version)
        finally:
            ACTING.reset(previous)

    def call(self) -> Call:
        """What stores it."""
        uses = self._sending.uses.in_txn(self._txn_id.coordinator, self._txn_id.sequence)
        return Call(self._decide, uses=uses, then=self._stored)

    def _decide(
        self, view: View, now: Instant
    ) -> Decision[tuple[TxnId, list[produce.SliceReceipt]] | None]:
        queue = self._queue
        self._is_behind = queue.refused is not None and queue.refused is not self
        if self._is_behind:
            raise ProducerBusy(BEHIND.message)
        queue.refused = self  # until it is stored
        return self._sending.decide(view, now, self._txn_id)

    def _stored(self, decision: Decision[Any]) -> None:
        if decision.answer is not None:  # else its transaction was overdue, and has been ended
            self._queue.refused = None

    def answers(self, call: Call) -> Iterator[SendResult]:
        """What became of it."""
        send, queue = self._send, self._queue
        if isinstance(call.error, Exception):
            queue.is_refused = True
            yield send, None, BEHIND if self._is_behind else call.error
        elif call.answer is None:
            yield _store_alone(queue, send)
        else:
            yield _sidecar_result(send, call.answer[1])


def _sidecar_result(send: QueuedSend, receipts: list[produce.SliceReceipt]) -> SendResult:
    """The place in the sidecar: the message gets its id when the transaction is committed."""
    [piece] = receipts
    is_stored = piece.duplicates < piece.rows
    return send, MessageId(piece.ledger, piece.first_entry) if is_stored else None, None


def _store_alone(queue: SendQueue, send: QueuedSend) -> SendResult:
    """A SEND in a transaction, or of a message that came in chunks."""
    if queue.is_refused:
        return send, None, BEHIND
    producer = queue.producer
    previous = ACTING.set(send.acting)
    try:
        if send.large is not None:
            receipt = producer._send_one(**send.large, txn=send.txn).receipts()[0]
            return send, receipt.message_id, None
        sent = producer.send_batch(_rows_of([send]), txn=send.txn)
    except Exception as error:  # its rows are wrong, or there is a bug
        queue.is_refused = True
        return send, None, error
    finally:
        ACTING.reset(previous)
    return _sidecar_result(send, sent._stored)


COMMANDS_MAX: Final = 1000  # of each kind
COORDINATOR: Final = 0  # the one that clients are told of

# What became of it: the transaction that was begun or asked for, or why it was refused.
TxnAnswer: TypeAlias = TxnId | Exception
OnTxnAnswer: TypeAlias = Callable[[TxnAnswer], None]
T = TypeVar("T")


class BeginTxn(NamedTuple):
    """A transaction to be begun."""

    new: NewTxn

    def call(self, store: Store) -> Call:
        """What does it."""
        new, settings = self.new, store.settings
        return Call(lambda view, now: end_txn.begin(view, settings, now, new), (COORDINATOR,))

    def answer(self, call: Call) -> TxnAnswer:
        """What became of it."""
        if isinstance(call.error, Exception):
            return call.error
        txn: TxnId = call.answer
        return txn


class EndTxn(NamedTuple):
    """An end, and who wants it."""

    txn_id: TxnId
    commits: bool
    uid: int

    def call(self, store: Store) -> Call:
        """What does it."""
        (txn_id, commits, uid), settings = self, store.settings
        return Call(
            lambda view, now: end_txn.end(view, settings, now, uid, txn_id, commit=commits),
            uses=_uses(txn_id),
        )

    def answer(self, call: Call) -> TxnAnswer:
        """What became of it."""
        if isinstance(call.error, OutcomeUnknown):
            return unknown_end(self.txn_id, call.error)
        return call.error if isinstance(call.error, Exception) else self.txn_id


class RegisterInTxn(NamedTuple):
    """What a client wants to use in a transaction, and who wants it."""

    txn_id: TxnId
    uid: int
    places: list[Place]

    def call(self, store: Store) -> Call:
        """What does it."""
        (txn_id, uid, places), settings = self, store.settings
        return Call(
            lambda view, now: register(view, settings, now, uid, txn_id, places),
            uses=_uses(txn_id),
        )

    def answer(self, call: Call) -> TxnAnswer:
        """What became of it."""
        return call.error if isinstance(call.error, Exception) else self.txn_id


class _Group(NamedTuple):
    """What is done at once."""

    begins: list[tuple[BeginTxn, OnTxnAnswer]]
    frames: list[FrameSends]
    ends: list[tuple[EndTxn, OnTxnAnswer]]
    registrations: list[tuple[RegisterInTxn, OnTxnAnswer]]


class _Outcome(NamedTuple):
    """What became of it; sends: or what they failed with."""

    begins: list[TxnAnswer]
    sends: list[SendResult] | Exception
    ends: list[TxnAnswer]
    registrations: list[TxnAnswer]


class GroupCommit:
    """What clients want, and the task that has it done.

    sends: what they send
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.sends = SendQueues(self._wake)
        self._begins: list[tuple[BeginTxn, OnTxnAnswer]] = []
        self._ends: list[tuple[EndTxn, OnTxnAnswer]] = []
        self._registrations: list[tuple[RegisterInTxn, OnTxnAnswer]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, command: BeginTxn, on_answer: OnTxnAnswer) -> None:
        """Have a transaction begun."""
        self._begins.append((command, on_answer))
        self._wake()

    def end(self, command: EndTxn, on_answer: OnTxnAnswer) -> None:
        """Have a transaction ended; told once that is durable."""
        self._ends.append((command, on_answer))
        self._wake()

    def register(self, command: RegisterInTxn, on_answer: OnTxnAnswer) -> None:
        """Have places registered in a transaction."""
        self._registrations.append((command, on_answer))
        self._wake()

    async def settled(self) -> None:
        """Wait until all that was wanted is answered."""
        while self._task is not None:
            await asyncio.shield(self._task)

    def _wake(self) -> None:
        if self._task is None:
            self._task = self._service.tasks.begin(self._run(), self._fail)

    async def _run(self) -> None:
        try:
            while self._begins or self._ends or self._registrations or self.sends.is_waiting:
                group = _Group(
                    _take_batch(self._begins),
                    self.sends.next_group(),
                    _take_batch(self._ends),
                    _take_batch(self._registrations),
                )
                self._tell(group, await self._outcome(group))
        finally:
            self._task = None

    def _fail(self) -> None:
        """The task has failed: what waits is refused, and what comes begins another one."""
        error = InternalError("a group of commands failed")
        waiting = [*self._begins, *self._ends, *self._registrations]
        for commands in (self._begins, self._ends, self._registrations):
            commands.clear()
        for _, on_answer in waiting:
            self._service.tasks.call(partial(on_answer, error))
        if self.sends.is_waiting:
            self._wake()

    async def _outcome(self, group: _Group) -> _Outcome:
        try:
            # a thread beside that of the client, in which nothing else of the server runs
            return await self._service.client.run(partial(_run_group, group), blocking=True)
        except Exception as error:  # the client is closed, or there is a bug
            return _Outcome(
                [error for _ in group.begins],
                error,
                [error for _ in group.ends],
                [error for _ in group.registrations],
            )

    def _tell(self, group: _Group, outcome: _Outcome) -> None:
        if group.frames:
            sends = outcome.sends
            if isinstance(sends, Exception):
                self._service.failed(sends)
            else:
                for bug in (
                    error for *_, error in sends if error and not isinstance(error, TxlogError)
                ):
                    self._service.failed(bug)
            self.sends.tell(group.frames, sends, self._service.tasks.call)
        for commands, answers in (
            (group.begins, outcome.begins),
            (group.ends, outcome.ends),
            (group.registrations, outcome.registrations),
        ):
            for (_, on_answer), answer in zip(commands, answers, strict=True):
                self._service.tasks.call(partial(on_answer, answer))


def _take_batch(waiting: list[T]) -> list[T]:
    """Take from those that wait what a group has of them."""
    batch = waiting[:COMMANDS_MAX]
    del waiting[:COMMANDS_MAX]
    return batch


def _run_group(group: _Group, client: Client) -> _Outcome:
    """Do a group; what is not in an open transaction is durable when it returns."""
    store = client._store
    begins = _allowed(store, [command for command, _ in group.begins])
    registrations = [(command, command.call(store)) for command, _ in group.registrations]
    ends = [(command, command.call(store)) for command, _ in group.ends]
    in_order = sorted(ends, key=_order_of)
    sends: list[SendResult] | Exception
    try:
        first = [call for _, call in begins if not call.done]
        first += [call for _, call in registrations]
        last = [call for _, call in in_order]
        sends = store_group(store, group.frames, first, last)
        tend_due(store)
    except Exception as error:  # a bug, too: each client of the group waits for its answer
        sends = error
        for _, call in [*begins, *registrations, *ends]:
            if not call.done:
                call.end(error)
    return _Outcome(
        [command.answer(call) for command, call in begins],
        sends,
        [command.answer(call) for command, call in ends],
        [command.answer(call) for command, call in registrations],
    )


def _allowed(store: Store, begins: list[BeginTxn]) -> list[tuple[BeginTxn, Call]]:
    """The calls of begins; those beyond the share of their role have ended with the refusal."""
    calls = [(begin, begin.call(store)) for begin in begins]
    open_txns = OpenTransactions(store, COORDINATOR, len(begins)) if begins else None
    for begin, call in calls:
        assert open_txns is not None
        try:
            open_txns.take(begin.new.owner)
        except TryAgain as error:
            call.end(error)
    return calls


def _order_of(end: tuple[EndTxn, Call]) -> TxnId:
    return end[0].txn_id


def _uses(txn_id: TxnId) -> Uses:
    return Uses(txn=(txn_id.coordinator, txn_id.sequence))
