"""Owns GroupCommit: it stores the SENDs and transaction commands of all clients together.

    NEW_TXN ─► begins                        ┐
    ADD_*   ─► registrations                 │
    SEND    ─► queues of producers ─► frames ├─► a group: one lock, one journal read, one flush
    END_TXN ─► ends                          ┘

While one group is stored, the next one gathers. A group stores its commands in the order of this
drawing: a client gets the answer of each command before it can send another one that depends on it.
Under its lock the store calls back into a group: each frame asks each producer's session for the
partitions of its rows. The topic may have more partitions by then.

1. A group has one or more frames of SENDs. A frame has one batch of each producer, or its messages
   that came without a batch. These are marked, so that `ids` can separate the rows of one SEND from
   the next. All frames of a group share the flush.
2. A producer's messages are stored in the order they came. A receipt means that they are durable.
3. After a refused SEND the server stores nothing more of its producer, not even queued messages:
   they would change their order when the client resends the refused one. The server closes the
   producer; its client opens it again. Other producers are not affected.
4. Begins, registrations and ends share a frame; the store refuses each one alone.
5. Ends are ordered by id. Of transactions with one decision LSN the lower id is the first, wherever
   they are ordered (plan/participants), so they have that order in the frame.
6. SENDs and transaction commands in one group succeed or fail independently. An exception that is
   not one of our errors (a bug) fails only the command that raised it. When the store fails, the
   whole group fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.clock import Instant
from txlog.engine.door import sending as produce
from txlog.engine.door import transactions as end_txn
from txlog.engine.door.delayed import tend_due
from txlog.engine.door.disk import ACTING
from txlog.engine.door.sending import SliceReceipt
from txlog.engine.door.store import Call, CallScope, Decision, Store, View
from txlog.engine.door.transactions import TxnPlace, register, unknown_end
from txlog.errors import InternalError, OutcomeUnknown, ProducerBusy, TryAgain, TxlogError
from txlog.serve.limits.shares import OpenTransactions
from txlog.serve.pulsar.batches import SendColumns, rows_of_all

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.door.sending import ProducerSession
    from txlog.engine.door.transactions import NewTxn
    from txlog.serve.core.service import BrokerService

QUEUED_BYTES_MAX: Final = 32 << 20  # of all clients; beyond it the server reads from none
FRAMES_MAX: Final = 256
GROUP_BYTES_MAX: Final = 16 << 20
TOGETHER_MAX, TOGETHER_BYTES_MAX = 10_000, 4 << 20  # messages without a batch in one frame

# The answer to a SEND that came after a refused one; the server never raises it.
BEHIND: Final = ProducerBusy("it came after a message that was refused")

# The outcome of a SEND: the id of its first message, or the reason for the refusal.
OnStored = Callable[[MessageId | None, Exception | None], None]


class QueuedSend:
    """One SEND: its messages, their destination, and the function to call with the outcome.

    large: the fields of a chunked message, instead of columns
    wrong: the refusal of an invalid SEND, instead of both; its client gets it in order
    """

    __slots__ = ("acting", "columns", "large", "on_stored", "partition", "size", "txn", "wrong")

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
        self.columns, self.partition, self.size = columns, partition, size
        self.on_stored = on_stored
        self.txn, self.large, self.wrong = txn, large, wrong
        self.acting = ACTING.get()  # its owner: the task that stores it has none

    @property
    def is_apart(self) -> bool:
        """Whether it shares no frame with others: it is in a transaction, or came in chunks."""
        return self.txn is not None or self.large is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is a message without a batch, which can share a frame with others."""
        columns = self.columns
        return columns is not None and columns.is_alone and not self.is_apart


class SendQueue:
    """The queued SENDs of one producer.

    waiting:    queued, or being written
    answered:   how many were answered before those
    is_refused: a SEND was refused, so no later one is stored
    refused:    rows of the current group that are refused, or in a transaction and not stored yet
    """

    __slots__ = ("_news", "answered", "is_refused", "queue", "refused", "session", "waiting")

    def __init__(self, session: ProducerSession) -> None:
        self.session = session
        self.queue: deque[QueuedSend] = deque()
        self.waiting = self.answered = 0
        self._news = asyncio.Event()
        self.is_refused = False
        self.refused: _ProducerRows | _TxnWrite | None = None

    async def settled(self) -> None:
        """Wait until all SENDs that are queued now are answered."""
        end = self.answered + self.waiting
        while self.answered < end:
            self._news.clear()
            await self._news.wait()

    def answer(self, count: int) -> None:
        """Count answered SENDs."""
        self.waiting -= count
        self.answered += count
        self._news.set()

    def next(self) -> list[QueuedSend]:
        """Take the SENDs for one frame from the queue: one SEND, or several messages without a
        batch.

        Of several messages only the first may have properties, as `rows_of_all` requires, and their
        sequences rise in each partition.
        """
        queue = self.queue
        sends = [queue.popleft()]
        if not queue or not sends[0].is_plain or self.session.checks_values:
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
        """wake: starts the task that stores queued SENDs"""
        self._wake = wake
        self._queues: dict[SendQueue, None] = {}  # the non-empty queues, in order
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def is_waiting(self) -> bool:
        """Whether any SEND is queued."""
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
        """Wait until there is room for more; the first waiter may use it up again."""
        while not self._has_room.is_set():
            await self._has_room.wait()

    def next_group(self) -> list[FrameSends]:
        """Take the SENDs of the next group from the queues."""
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
        """Answer the SENDs of a group with their results, or every SEND with the same error.

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


# The SENDs of each producer in one frame.
FrameSends: TypeAlias = "list[tuple[SendQueue, list[QueuedSend]]]"
SendResult = tuple[QueuedSend, MessageId | None, Exception | None]


def _rank(answer: SendResult) -> int:
    """Receipts before refusals: clients expect answers in the order of their SENDs."""
    refusal = answer[2]
    return 0 if refusal is None else 2 if refusal is BEHIND else 1


def store_group(
    store: Store, frames: list[FrameSends], first: list[Call], last: list[Call]
) -> list[SendResult]:
    """Store the SENDs of a group, with calls before and after them that run in any case.

    The group is one submission to the store, in the order in which it came: one lock, one flush.
    A chunked message, which has a file, divides it, and is stored alone. Everything is durable on
    return, except SENDs in transactions: the end of the transaction flushes them.

    raises: the error that the store failed with
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
                except Exception as error:  # its rows are invalid, or there is a bug
                    queue.is_refused = True
                    answers.append((send, None, error))
        for rows in _frames(frame, answers):
            add(_FrameWrite(store, rows))
    calls += last
    submit()
    return answers


def _submit(store: Store, calls: list[Call]) -> None:
    """Submit calls together; submit a call that a bug stopped again, alone."""
    store.submit(calls)
    for call in calls if len(calls) > 1 else ():
        if _is_bug(call.error):
            call.renew()
            store.submit([call])


def _isolated(store: Store, write: _FrameWrite | _TxnWrite, call: Call) -> Iterator[SendResult]:
    """The results of a frame; after a bug, each producer's rows are stored alone."""
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
    """The frames of a turn, one if all rows are valid; refusals are appended to `answers`."""
    rows: list[_ProducerRows] = []
    for queue, sends in frame:
        if sends[0].is_apart:
            continue
        if queue.is_refused:
            answers += [(send, None, BEHIND) for send in sends]
            continue
        try:
            rows.append(_ProducerRows(queue, sends))
        except Exception as error:  # its rows are invalid, or there is a bug
            if len(sends) == 1:
                queue.is_refused = True
                answers.append((sends[0], None, error))
                continue
            # a SEND is invalid: each goes alone, in the order they came
            for send in sends:
                yield from _frames([(queue, [send])], answers)
    if rows:
        yield rows


class _ProducerRows:
    """The rows of one producer for a frame, and the SENDs that they came in.

    No object here refers to itself: megabytes would wait for a garbage collection.
    """

    __slots__ = ("_rows", "is_behind", "queue", "sends")

    def __init__(self, queue: SendQueue, sends: list[QueuedSend]) -> None:
        """Raises TxlogError, ArrowException."""
        self.queue, self.sends = queue, sends
        self.is_behind = False
        if sends[0].wrong is not None:
            raise sends[0].wrong
        queue.session.check_open()
        self._rows = queue.session.route(_rows_of(sends))

    def outgoing(self, view: View) -> produce.OutgoingBatch:
        """The rows and their destination, decided under the store's lock."""
        self.is_behind = self.queue.refused is not None and self.queue.refused is not self
        if self.is_behind:
            raise ProducerBusy(BEHIND.message)
        return self.queue.session.outgoing(view, self._rows)

    def decided(self, answer: object) -> None:
        """Record the outcome in the frame, as far as known: later frames check it."""
        if isinstance(answer, TxlogError) and not self.is_behind:
            self.queue.refused = self
        elif self.queue.refused is self:  # the store decided the frame again, and stores them
            self.queue.refused = None

    def answers(self, answer: list[produce.SliceReceipt] | Exception) -> Iterator[SendResult]:
        """The result of each SEND."""
        sends = self.sends
        if isinstance(answer, Exception):
            self.queue.is_refused = True
            for send in sends:
                yield send, None, BEHIND if self.is_behind else answer
        elif len(sends) == 1:
            [piece] = answer
            # a client counts on from the one id, which holds only if all rows were stored together
            is_whole = piece.rows == 1 or not piece.duplicates
            yield sends[0], _id_of(piece, 0, piece.places()[0]) if is_whole else None, None
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
    """The id of a row of a slice; None: the id of an older duplicate is unknown."""
    if offset is not None:
        return MessageId(piece.ledger, piece.first_entry + offset)
    original = piece.original
    return original[1] if original is not None and original[0] == row else None


class _FrameWrite:
    """Writes rows of several producers as one frame."""

    __slots__ = ("_settings", "rows")

    def __init__(self, store: Store, rows: list[_ProducerRows]) -> None:
        self._settings, self.rows = store.settings, rows

    def call(self) -> Call:
        """The call that stores them."""
        return Call(self._decide)

    def _decide(self, view: View, now: Instant) -> Decision[list[list[SliceReceipt] | TxlogError]]:
        batches = [rows.outgoing for rows in self.rows]
        decision = produce.send_together(view, self._settings, now, batches)
        for rows, answer in zip(self.rows, decision.answered(), strict=True):
            rows.decided(answer)
        return decision

    def answers(self, call: Call) -> Iterator[SendResult]:
        """The result of each SEND. Raises the error that the store failed with."""
        if _is_bug(call.error):  # a bug with these rows
            assert isinstance(call.error, Exception)
            for rows in self.rows:
                yield from rows.answers(call.error)
            return
        if call.error is not None:
            raise call.error
        for rows, answer in zip(self.rows, call.answer, strict=True):
            yield from rows.answers(answer)


class _TxnWrite:
    """Writes a SEND in a transaction."""

    __slots__ = ("_is_behind", "_queue", "_rows", "_send", "_txn_id")

    def __init__(self, queue: SendQueue, send: QueuedSend, txn_id: TxnId) -> None:
        """Raises TxlogError, ArrowException."""
        self._queue, self._send, self._txn_id = queue, send, txn_id
        self._is_behind = False
        previous = ACTING.set(send.acting)
        try:
            queue.session.check_open()
            self._rows = queue.session.rows_in_txn(_rows_of([send]))
        finally:
            ACTING.reset(previous)

    def call(self) -> Call:
        """The call that stores it."""
        uses = self._rows.uses.in_txn(self._txn_id.coordinator, self._txn_id.sequence)
        return Call(self._decide, uses=uses, then=self._stored)

    def _decide(
        self, view: View, now: Instant
    ) -> Decision[tuple[TxnId, list[produce.SliceReceipt]] | None]:
        queue = self._queue
        self._is_behind = queue.refused is not None and queue.refused is not self
        if self._is_behind:
            raise ProducerBusy(BEHIND.message)
        queue.refused = self  # until it is stored
        return self._rows.decide(view, now, self._txn_id)

    def _stored(self, call: Call, decision: Decision[Any]) -> None:
        if decision.answer is not None:  # otherwise its transaction was overdue, and has been ended
            self._queue.refused = None

    def answers(self, call: Call) -> Iterator[SendResult]:
        """The result of the SEND."""
        send, queue = self._send, self._queue
        if isinstance(call.error, Exception):
            queue.is_refused = True
            yield send, None, BEHIND if self._is_behind else call.error
        elif call.answer is None:
            yield _store_alone(queue, send)
        else:
            yield _sidecar_result(send, call.answer[1])


def _sidecar_result(send: QueuedSend, receipts: list[produce.SliceReceipt]) -> SendResult:
    """The position in the sidecar: the commit gives the message its id."""
    [piece] = receipts
    is_whole = not piece.duplicates
    return send, MessageId(piece.ledger, piece.first_entry) if is_whole else None, None


def _store_alone(queue: SendQueue, send: QueuedSend) -> SendResult:
    """Store a SEND in a transaction, or a chunked message, with a call of its own."""
    if queue.is_refused:
        return send, None, BEHIND
    session = queue.session
    previous = ACTING.set(send.acting)
    try:
        if send.large is not None:
            receipt = session.send(**send.large, txn=send.txn).receipts()[0]
            return send, receipt.message_id, None
        sent = session.send_batch(_rows_of([send]), send.txn)
    except Exception as error:  # its rows are invalid, or there is a bug
        queue.is_refused = True
        return send, None, error
    finally:
        ACTING.reset(previous)
    return _sidecar_result(send, sent.stored)


COMMANDS_MAX: Final = 1000  # of each kind
COORDINATOR: Final = 0  # the coordinator that clients see

# The outcome of a command: its transaction, or the reason for the refusal.
TxnAnswer: TypeAlias = TxnId | Exception
OnTxnAnswer: TypeAlias = Callable[[TxnAnswer], None]
T = TypeVar("T")


class BeginTxn(NamedTuple):
    """The begin of a transaction."""

    new: NewTxn

    def call(self, store: Store) -> Call:
        """The call that begins it."""
        new, settings = self.new, store.settings
        return Call(lambda view, now: end_txn.begin(view, settings, now, new), (COORDINATOR,))

    def answer(self, call: Call) -> TxnAnswer:
        """The outcome of the call."""
        if isinstance(call.error, Exception):
            return call.error
        txn: TxnId = call.answer
        return txn


class EndTxn(NamedTuple):
    """The end of a transaction, and the uid that asks for it."""

    txn_id: TxnId
    commits: bool
    uid: int

    def call(self, store: Store) -> Call:
        """The call that ends it."""
        (txn_id, commits, uid), settings = self, store.settings
        return Call(
            lambda view, now: end_txn.end(view, settings, now, uid, txn_id, commit=commits),
            uses=_uses(txn_id),
        )

    def answer(self, call: Call) -> TxnAnswer:
        """The outcome of the call."""
        if isinstance(call.error, OutcomeUnknown):
            return unknown_end(self.txn_id, call.error)
        return call.error if isinstance(call.error, Exception) else self.txn_id


class RegisterInTxn(NamedTuple):
    """The resources that a client wants to use in a transaction, and its uid."""

    txn_id: TxnId
    uid: int
    places: list[TxnPlace]

    def call(self, store: Store) -> Call:
        """The call that registers them."""
        (txn_id, uid, places), settings = self, store.settings
        return Call(
            lambda view, now: register(view, settings, now, uid, txn_id, places), uses=_uses(txn_id)
        )

    def answer(self, call: Call) -> TxnAnswer:
        """The outcome of the call."""
        return call.error if isinstance(call.error, Exception) else self.txn_id


class _Group(NamedTuple):
    """The commands of one group."""

    begins: list[tuple[BeginTxn, OnTxnAnswer]]
    frames: list[FrameSends]
    ends: list[tuple[EndTxn, OnTxnAnswer]]
    registrations: list[tuple[RegisterInTxn, OnTxnAnswer]]


class _Outcome(NamedTuple):
    """The outcomes of a group; sends: their results, or the error that all failed with."""

    begins: list[TxnAnswer]
    sends: list[SendResult] | Exception
    ends: list[TxnAnswer]
    registrations: list[TxnAnswer]


class GroupCommit:
    """The waiting commands of all clients, and the task that stores them in groups.

    sends: the queues of SENDs
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.sends = SendQueues(self._wake)
        self._begins: list[tuple[BeginTxn, OnTxnAnswer]] = []
        self._ends: list[tuple[EndTxn, OnTxnAnswer]] = []
        self._registrations: list[tuple[RegisterInTxn, OnTxnAnswer]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, command: BeginTxn, on_answer: OnTxnAnswer) -> None:
        """Queue the begin of a transaction."""
        self._begins.append((command, on_answer))
        self._wake()

    def end(self, command: EndTxn, on_answer: OnTxnAnswer) -> None:
        """Queue the end of a transaction; `on_answer` runs once it is durable."""
        self._ends.append((command, on_answer))
        self._wake()

    def register(self, command: RegisterInTxn, on_answer: OnTxnAnswer) -> None:
        """Queue the registration of resources in a transaction."""
        self._registrations.append((command, on_answer))
        self._wake()

    async def settled(self) -> None:
        """Wait until all queued commands are answered."""
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
        """The task has failed: refuse the waiting commands; the next one starts another task."""
        error = InternalError("a group of commands failed")
        waiting = [*self._begins, *self._ends, *self._registrations]
        for commands in (self._begins, self._ends, self._registrations):
            commands.clear()
        for _, on_answer in waiting:
            self._service.tasks.call(partial(on_answer, error))
        if self.sends.is_waiting:
            self._wake()

    async def _outcome(self, group: _Group) -> _Outcome:
        client = self._service.client
        try:
            # a separate thread, in which nothing else of the server runs
            return await client.waits.run_own(partial(_run_group, group, client.sync))
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
    """Take the commands for one group from a queue."""
    batch = waiting[:COMMANDS_MAX]
    del waiting[:COMMANDS_MAX]
    return batch


def _run_group(group: _Group, client: Client) -> _Outcome:
    """Store a group; everything outside of an open transaction is durable on return."""
    store = client.store
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
    except Exception as error:  # also for a bug: each client of the group waits for its answer
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
    """The calls of begins; a begin beyond the share of its role has ended with the refusal."""
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


def _uses(txn_id: TxnId) -> CallScope:
    return CallScope(txn=(txn_id.coordinator, txn_id.sequence))
