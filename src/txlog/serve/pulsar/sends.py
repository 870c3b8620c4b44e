"""Owns Sends: what all clients send, stored together; one flush for everybody.

    SEND ─► queue of its producer ─► turns ─► frames ─► one flush ─► receipts

1. While one group is written, the next one gathers. A group has turns: a turn is one frame, with
   one SEND of each producer at most, so that the rows of a SEND can be told from those of the next
   (ids). All frames of a group share the flush.
2. A producer's messages are stored in the order they came. A receipt says that they are durable.
3. A SEND that is refused fails alone. When the store fails, all of the group fail with it, and
   those connections end: clients connect again and repeat, and the store knows what it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from txlog.api.sending.producer import Producer
from txlog.api.transactions.transaction import DecideIn
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import send as produce
from txlog.engine.storage.disk.protocol import ACTING
from txlog.engine.store.appender import Call, Decide
from txlog.engine.store.store import Store
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.engine.view.view import View
from txlog.errors import TxlogError
from txlog.ids import MessageId, TxnId

if TYPE_CHECKING:
    from txlog.api.client import Client
    from txlog.engine.decide.sending.send import Outgoing
    from txlog.serve.core.service import Service

QUEUED_BYTES_MAX: Final = 64 << 20  # of all clients; beyond it none is read from
TURNS_MAX: Final = 256
GROUP_BYTES_MAX: Final = 16 << 20

# What became of a SEND: the id of its first message, or why it was refused.
Told = Callable[[MessageId | None, Exception | None], None]


class Item:
    """One SEND: its rows, and whom to tell.

    large: the value of a message that came in chunks, and what goes with it, instead of rows
    """

    __slots__ = ("acting", "large", "rows", "size", "told", "txn")

    def __init__(
        self,
        rows: pa.RecordBatch | None,
        size: int,
        told: Told,
        txn: TxnId | None = None,
        large: dict[str, Any] | None = None,
    ) -> None:
        self.rows, self.size, self.told, self.txn, self.large = rows, size, told, txn, large
        self.acting = ACTING.get()  # whose it is: the task that stores it is nobody's

    @property
    def is_apart(self) -> bool:
        """It does not go with those of others: it has a transaction, or a file."""
        return self.txn is not None or self.large is not None


class Lane:
    """What one producer has queued."""

    __slots__ = ("producer", "queue", "waiting")

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.queue: deque[Item] = deque()
        self.waiting = 0  # queued, or being written


class Sends:
    """The queues of all producers of a process, and the task that stores what is in them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lanes: dict[Lane, None] = {}  # those with something queued, in order
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def put(self, lane: Lane, item: Item) -> None:
        """Queue a SEND."""
        lane.queue.append(item)
        lane.waiting += 1
        self._lanes[lane] = None
        self._bytes += item.size
        if self._bytes > QUEUED_BYTES_MAX:
            self._has_room.clear()
        if self._task is None:
            self._is_idle.clear()
            self._task = asyncio.create_task(self._run())

    async def room(self) -> None:
        """Wait until there is room for more."""
        await self._has_room.wait()

    async def settled(self) -> None:
        """Wait until all that was queued is answered."""
        await self._is_idle.wait()

    async def _run(self) -> None:
        try:
            while self._lanes:
                turns = self._turns()
                try:
                    act = partial(_written, turns)
                    answers = await self._service.client.run(act, blocking=True)
                except Exception as error:
                    self._service.failed(error)
                    answers = [(item, None, error) for turn in turns for _, item in turn]
                for item, first, refusal in answers:
                    item.told(first, refusal)
                for turn in turns:
                    for lane, item in turn:
                        lane.waiting -= 1
                        self._bytes -= item.size
                if self._bytes <= QUEUED_BYTES_MAX:
                    self._has_room.set()
        finally:
            self._task = None
            self._is_idle.set()

    def _turns(self) -> list[list[tuple[Lane, Item]]]:
        """Take the next group from the queues."""
        turns: list[list[tuple[Lane, Item]]] = []
        size = 0
        while self._lanes and len(turns) < TURNS_MAX and size < GROUP_BYTES_MAX:
            turn = []
            for lane in list(self._lanes):
                item = lane.queue.popleft()
                if not lane.queue:
                    del self._lanes[lane]
                turn.append((lane, item))
                size += item.size
            turns.append(turn)
        return turns


Stored = tuple[Item, MessageId | None, Exception | None]


def _written(turns: list[list[tuple[Lane, Item]]], client: Client) -> list[Stored]:
    """Store a group; durable when it returns."""
    store, answers = client._store, list[Stored]()
    calls: list[tuple[Call, list[Item]]] = []

    def submit() -> None:
        store.submit([call for call, _ in calls])
        for call, items in calls:
            if call.error is not None:
                raise call.error
            assert isinstance(call.answer, list)
            answers.extend(map(_answer, items, call.answer))
        calls.clear()

    for turn in turns:
        apart = [(lane, item) for lane, item in turn if item.is_apart]
        if apart and calls:
            submit()
        answers += _in_txns(store, [(one, it) for one, it in apart if it.large is None])
        answers += [_singly(one.producer, it) for one, it in apart if it.large is not None]
        batches: list[produce.Batch] = []
        items: list[Item] = []
        for lane, item in turn:
            if item.rows is None or item.is_apart:
                continue
            try:
                batches.append(_batch(lane.producer, item.rows))
            except (TxlogError, pa.ArrowException) as error:
                answers.append((item, None, error))
            else:
                items.append(item)
        if batches:
            calls.append((Call(_together(store, batches)), items))
    if calls:
        submit()
    tend_due(store)
    return answers


def _together(store: Store, batches: list[produce.Batch]) -> Decide:
    """What stores one SEND of several producers as a frame."""

    def decide(view: View, now: Instant) -> Decision:
        return produce.send_together(view, store.settings, now, batches)

    return decide


def _batch(producer: Producer, rows: pa.RecordBatch) -> produce.Batch:
    """Where the rows of a producer go, said under the lock."""
    producer._check_open()
    routing = producer._route(rows, producer._shape.version)

    def outgoing(view: View) -> Outgoing:
        return produce.Outgoing(*producer._routed(view, routing), producer._named)

    return outgoing


def _answer(item: Item, answer: list[produce.SliceReceipt] | TxlogError) -> Stored:
    if isinstance(answer, TxlogError):
        return item, None, answer
    [piece] = answer
    if piece.duplicates:
        return item, piece.originals[0], None
    return item, MessageId(piece.ledger, piece.first_entry), None


def _in_txns(store: Store, given: list[tuple[Lane, Item]]) -> list[Stored]:
    """SENDs in transactions, under one lock; the end of each makes its own durable."""
    answers: list[Stored] = []
    calls: list[tuple[Call, Lane, Item]] = []
    for lane, item in given:
        assert item.rows is not None and item.txn is not None
        before = ACTING.set(item.acting)
        try:
            lane.producer._check_open()
            sending = lane.producer._in_txn(item.rows, lane.producer._shape.version)
        except (TxlogError, pa.ArrowException) as error:
            answers.append((item, None, error))
            continue
        finally:
            ACTING.reset(before)
        uses = sending.uses.in_txn(item.txn.coordinator, item.txn.sequence)
        decide = _within(sending.decide, item.txn)
        calls.append((Call(decide, uses=uses), lane, item))
    if calls:
        store.submit([call for call, _, _ in calls])
    for call, lane, item in calls:
        if isinstance(call.error, Exception):
            answers.append((item, None, call.error))
        elif call.answer is None:  # what was overdue has been ended first
            answers.append(_singly(lane.producer, item))
        else:
            assert isinstance(call.answer, tuple)
            answers.append(_placed(item, call.answer[1]))
    return answers


def _within(decide: DecideIn, txn: TxnId) -> Decide:
    return lambda view, now: decide(view, now, txn)


def _placed(item: Item, stored: list[produce.SliceReceipt]) -> Stored:
    """The place in the sidecar: the message gets its id when the transaction is committed."""
    [piece] = stored
    return item, MessageId(piece.ledger, piece.first_entry), None


def _singly(producer: Producer, item: Item) -> Stored:
    """A SEND in a transaction, or of a message that came in chunks."""
    before = ACTING.set(item.acting)
    try:
        if item.large is not None:
            receipt = producer._send_one(**item.large, txn=item.txn).receipts()[0]
            return item, receipt.message_id, None
        assert item.rows is not None
        sent = producer.send_batch(item.rows, txn=item.txn)
    except (TxlogError, pa.ArrowException) as error:
        return item, None, error
    finally:
        ACTING.reset(before)
    return _placed(item, sent._stored)
