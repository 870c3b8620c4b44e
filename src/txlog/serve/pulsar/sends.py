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
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.client.sending.producer import Producer
from txlog.clock import Instant
from txlog.engine.door import sending as produce
from txlog.engine.door.disk import ACTING
from txlog.engine.door.sending import SliceReceipt
from txlog.engine.door.store import Call, Decision, Store, View
from txlog.errors import ProducerBusy, TxlogError
from txlog.serve.pulsar.batches import Columns, rows_of_all

if TYPE_CHECKING:
    from txlog.engine.door.sending import Outgoing

QUEUED_BYTES_MAX: Final = 32 << 20  # of all clients; beyond it none is read from
TURNS_MAX: Final = 256
GROUP_BYTES_MAX: Final = 16 << 20
TOGETHER_MAX, TOGETHER_BYTES_MAX = 10_000, 4 << 20  # messages without a batch in one frame

# Why a SEND was not stored that came behind one that was refused.
BEHIND: Final = ProducerBusy("it came behind a message that was refused")  # not raised itself

# What became of a SEND: the id of its first message, or why it was refused.
Told = Callable[[MessageId | None, Exception | None], None]


class Item:
    """One SEND: its messages, where they go, and whom to tell.

    large: the value of a message that came in chunks, and what goes with it, instead of columns
    wrong: why it cannot be stored, instead of either: it is refused when it is its turn
    """

    __slots__ = (
        "acting",
        "columns",
        "large",
        "partition",
        "size",
        "told",
        "txn",
        "wrong",
    )

    def __init__(
        self,
        columns: Columns | None,
        partition: int,
        size: int,
        told: Told,
        txn: TxnId | None = None,
        large: dict[str, Any] | None = None,
        wrong: TxlogError | None = None,
    ) -> None:
        self.columns, self.partition, self.size, self.told = columns, partition, size, told
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


class Lane:
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
        self.queue: deque[Item] = deque()
        self.waiting = self.answered = 0
        self._news = asyncio.Event()
        self.is_refused = False
        self.refused: _Rows | _InTxn | None = None

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

    def next(self) -> list[Item]:
        """Take from the queue what goes into one frame: one SEND, or messages without a batch.

        Of the latter all but the first have no properties, as `rows_of_all` wants, and sequences
        rise in each partition.
        """
        queue = self.queue
        taken = [queue.popleft()]
        if not queue or not taken[0].is_plain or self.producer._shape.typing is not None:
            return taken
        last: dict[int, int] = {}
        size = 0
        one = taken[0]
        while True:
            assert one.columns is not None
            last[one.partition] = one.columns.sequences[0]
            size += one.size
            if not queue or len(taken) == TOGETHER_MAX or size > TOGETHER_BYTES_MAX:
                return taken
            one = queue[0]
            columns = one.columns
            if (
                columns is None
                or not one.is_plain
                or columns.properties[0] is not None
                or columns.sequences[0] <= last.get(one.partition, -1)
            ):
                return taken
            taken.append(queue.popleft())


class Sends:
    """The queues of all producers of a process."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: has what is queued stored: `turns`, `written`, `tell`"""
        self._wake = wake
        self._lanes: dict[Lane, None] = {}  # those with something queued, in order
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def is_waiting(self) -> bool:
        """True if anything is queued."""
        return bool(self._lanes)

    def put(self, lane: Lane, item: Item) -> None:
        """Queue a SEND."""
        lane.queue.append(item)
        lane.waiting += 1
        self._lanes[lane] = None
        self._bytes += item.size
        if self._bytes > QUEUED_BYTES_MAX:
            self._has_room.clear()
        self._wake()

    async def room(self) -> None:
        """Wait until there is room for more; whoever comes first may leave none for the next."""
        while not self._has_room.is_set():
            await self._has_room.wait()

    def turns(self) -> list[Turn]:
        """Take the next group from the queues."""
        turns: list[Turn] = []
        size = 0
        while self._lanes and len(turns) < TURNS_MAX and size < GROUP_BYTES_MAX:
            turn: Turn = []
            for lane in list(self._lanes):
                items = lane.next()
                if not lane.queue:
                    del self._lanes[lane]
                turn.append((lane, items))
                size += sum(item.size for item in items)
            turns.append(turn)
        return turns

    def tell(
        self,
        turns: list[Turn],
        answers: list[Stored] | Exception,
        call: Callable[[Callable[[], object]], None],
    ) -> None:
        """Answer a group: with what became of it, or all of it with what it failed with.

        call: calls each answer; one that fails does not keep the others from theirs
        """
        if isinstance(answers, Exception):
            error = answers
            answers = [(item, None, error) for turn in turns for _, its in turn for item in its]
            for turn in turns:
                for lane, _ in turn:
                    lane.is_refused = True
        for item, first, refusal in sorted(answers, key=_rank):
            call(partial(item.told, first, refusal))
            self._bytes -= item.size
        for turn in turns:
            for lane, items in turn:
                lane.answer(len(items))
        if self._bytes <= QUEUED_BYTES_MAX:
            self._has_room.set()


# What one frame has of each producer.
Turn: TypeAlias = "list[tuple[Lane, list[Item]]]"
Stored = tuple[Item, MessageId | None, Exception | None]


def _rank(answer: Stored) -> int:
    """Receipts before refusals: clients expect answers in the order of what they sent."""
    refusal = answer[2]
    return 0 if refusal is None else 2 if refusal is BEHIND else 1


def written(store: Store, turns: list[Turn], first: list[Call], last: list[Call]) -> list[Stored]:
    """Store a group, with calls before and after it that are done in any case.

    It is one call of the store, in the order that it came: one lock, one flush. Only what has a
    file is a call of its own. All is durable when it returns, but for what is in transactions:
    their ends do that.
    raises: what the store failed with
    """
    answers = list[Stored]()
    calls, pending = list(first), list[tuple[_Frame | _InTxn, Call]]()

    def submit() -> None:
        if calls:
            _submit(store, calls)
        for one, call in pending:
            answers.extend(_isolated(store, one, call))
        calls.clear()
        pending.clear()

    def add(one: _Frame | _InTxn) -> None:
        pending.append((one, one.call()))
        calls.append(pending[-1][1])

    for turn in turns:
        for lane, [item, *_] in turn:
            if item.large is not None:
                submit()
                answers.append(_singly(lane, item))
            elif item.txn is not None and lane.is_refused:
                answers.append((item, None, BEHIND))
            elif item.txn is not None:
                try:
                    add(_InTxn(lane, item, item.txn))
                except Exception as error:  # its rows are wrong, or there is a bug
                    lane.is_refused = True
                    answers.append((item, None, error))
        for sent in _frames(turn, answers):
            add(_Frame(store, sent))
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


def _isolated(store: Store, one: _Frame | _InTxn, call: Call) -> Iterator[Stored]:
    """What became of a frame; where it met a bug, what becomes of each producer's rows alone."""
    if not _is_bug(call.error) or isinstance(one, _InTxn) or len(one.sent) == 1:
        yield from one.answers(call)
        return
    for rows in one.sent:
        alone = _Frame(store, [rows])
        call = alone.call()
        store.submit([call])
        yield from alone.answers(call)


def _is_bug(error: BaseException | None) -> bool:
    return isinstance(error, Exception) and not isinstance(error, TxlogError)


def _frames(turn: Turn, answers: list[Stored]) -> Iterator[list[_Rows]]:
    """The frames of a turn, one if nothing is wrong; to the answers: what is refused at once."""
    sent: list[_Rows] = []
    for lane, items in turn:
        if items[0].is_apart:
            continue
        if lane.is_refused:
            answers += [(item, None, BEHIND) for item in items]
            continue
        try:
            sent.append(_Rows(lane, items))
        except Exception as error:  # its rows are wrong, or there is a bug
            if len(items) == 1:
                lane.is_refused = True
                answers.append((items[0], None, error))
                continue
            # one of them is wrong: each for itself, in the order they came
            for item in items:
                yield from _frames([(lane, [item])], answers)
    if sent:
        yield sent


class _Rows:
    """The rows of one producer for a frame, and the SENDs that they came in.

    Nothing here refers to itself: megabytes would wait for a garbage collection.
    """

    __slots__ = ("_routing", "is_behind", "items", "lane")

    def __init__(self, lane: Lane, items: list[Item]) -> None:
        """Raises TxlogError, ArrowException."""
        self.lane, self.items = lane, items
        self.is_behind = False
        if items[0].wrong is not None:
            raise items[0].wrong
        producer = lane.producer
        producer._check_open()
        self._routing = producer._route(_rows_of(items), producer._shape.version)

    def outgoing(self, view: View) -> Outgoing:
        """Where they go, said under the lock."""
        self.is_behind = self.lane.refused is not None and self.lane.refused is not self
        if self.is_behind:
            raise ProducerBusy(BEHIND.message)
        producer = self.lane.producer
        topic, routed = producer._routed(view, self._routing)
        return produce.Outgoing(topic, routed, producer._named)

    def decided(self, answer: object) -> None:
        """What a frame does with them, as far as is known: those of later frames look at it."""
        if isinstance(answer, TxlogError) and not self.is_behind:
            self.lane.refused = self
        elif self.lane.refused is self:  # the frame is decided once more, and stores them
            self.lane.refused = None

    def answers(self, answer: list[produce.SliceReceipt] | Exception) -> Iterator[Stored]:
        """What became of each SEND."""
        items = self.items
        if isinstance(answer, Exception):
            self.lane.is_refused = True
            for item in items:
                yield item, None, BEHIND if self.is_behind else answer
        elif len(items) == 1:
            [piece] = answer
            yield items[0], _id_of(piece, 0, piece.places()[0]), None
        else:
            for piece in answer:
                mine = [item for item in items if item.partition == piece.partition]
                for row, (item, place) in enumerate(zip(mine, piece.places(), strict=True)):
                    yield item, _id_of(piece, row, place), None


def _rows_of(items: list[Item]) -> pa.RecordBatch:
    columns = [one.columns for one in items]
    return rows_of_all([one for one in columns if one is not None], [it.partition for it in items])


def _id_of(piece: produce.SliceReceipt, row: int, place: int | None) -> MessageId | None:
    """The id of a row of a slice; None: of an older repetition nobody knows it."""
    if place is not None:
        return MessageId(piece.ledger, piece.first_entry + place)
    original = piece.original
    return original[1] if original is not None and original[0] == row else None


class _Frame:
    """Rows of several producers that are stored as a frame."""

    __slots__ = ("_settings", "sent")

    def __init__(self, store: Store, sent: list[_Rows]) -> None:
        self._settings, self.sent = store.settings, sent

    def call(self) -> Call:
        """What stores them."""
        return Call(self._decide)

    def _decide(self, view: View, now: Instant) -> Decision[list[list[SliceReceipt] | TxlogError]]:
        batches = [one.outgoing for one in self.sent]
        decision = produce.send_together(view, self._settings, now, batches)
        for one, answer in zip(self.sent, decision.answered(), strict=True):
            one.decided(answer)
        return decision

    def answers(self, call: Call) -> Iterator[Stored]:
        """What became of each SEND. Raises what the store failed with."""
        if _is_bug(call.error):  # that of these rows
            assert isinstance(call.error, Exception)
            for rows in self.sent:
                yield from rows.answers(call.error)
            return
        if call.error is not None:
            raise call.error
        for rows, answer in zip(self.sent, call.answer, strict=True):
            yield from rows.answers(answer)


class _InTxn:
    """A SEND in a transaction."""

    __slots__ = ("_is_behind", "_item", "_lane", "_sending", "_txn_id")

    def __init__(self, lane: Lane, item: Item, txn_id: TxnId) -> None:
        """Raises TxlogError, ArrowException."""
        self._lane, self._item, self._txn_id = lane, item, txn_id
        self._is_behind = False
        producer = lane.producer
        before = ACTING.set(item.acting)
        try:
            producer._check_open()
            self._sending = producer._in_txn(_rows_of([item]), producer._shape.version)
        finally:
            ACTING.reset(before)

    def call(self) -> Call:
        """What stores it."""
        uses = self._sending.uses.in_txn(self._txn_id.coordinator, self._txn_id.sequence)
        return Call(self._decide, uses=uses, then=self._stored)

    def _decide(
        self, view: View, now: Instant
    ) -> Decision[tuple[TxnId, list[produce.SliceReceipt]] | None]:
        lane = self._lane
        self._is_behind = lane.refused is not None and lane.refused is not self
        if self._is_behind:
            raise ProducerBusy(BEHIND.message)
        lane.refused = self  # until it is stored
        return self._sending.decide(view, now, self._txn_id)

    def _stored(self, decision: Decision[Any]) -> None:
        if decision.answer is not None:  # else its transaction was overdue, and has been ended
            self._lane.refused = None

    def answers(self, call: Call) -> Iterator[Stored]:
        """What became of it."""
        item, lane = self._item, self._lane
        if isinstance(call.error, Exception):
            lane.is_refused = True
            yield item, None, BEHIND if self._is_behind else call.error
        elif call.answer is None:
            yield _singly(lane, item)
        else:
            yield _placed(item, call.answer[1])


def _placed(item: Item, stored: list[produce.SliceReceipt]) -> Stored:
    """The place in the sidecar: the message gets its id when the transaction is committed."""
    [piece] = stored
    is_stored = piece.duplicates < piece.rows
    return item, MessageId(piece.ledger, piece.first_entry) if is_stored else None, None


def _singly(lane: Lane, item: Item) -> Stored:
    """A SEND in a transaction, or of a message that came in chunks."""
    if lane.is_refused:
        return item, None, BEHIND
    producer = lane.producer
    before = ACTING.set(item.acting)
    try:
        if item.large is not None:
            receipt = producer._send_one(**item.large, txn=item.txn).receipts()[0]
            return item, receipt.message_id, None
        sent = producer.send_batch(_rows_of([item]), txn=item.txn)
    except Exception as error:  # its rows are wrong, or there is a bug
        lane.is_refused = True
        return item, None, error
    finally:
        ACTING.reset(before)
    return _placed(item, sent._stored)
