"""Sending a large message: an id for its file first, then one frame that names the file.

    1 reserve   checks the message without its value, and reserves a ledger id; durable (R10, R19)
    2 the file  is published under that id by the sender, chunk by chunk
    3 append    one frame: the message is the whole file; without a transaction the frame opens and
                commits one, so that to readers it looks like any other message

A sender that dies before step 3 leaves a file that nothing names. Each decision checks everything
again, because the store may change between step 1 and step 3.
Source: PIP-37, spec/transactions 7 "Large messages".
"""

from __future__ import annotations

from typing import Any

import msgspec

from txlog.base.ids import MessageId, TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.producers import (
    NamedProducer,
    check_producer,
    last_sent,
    make_room,
)
from txlog.engine.decide.sending.send import (
    DeliveryTimes,
    check_known,
    check_room,
    count_large,
    next_sequence,
)
from txlog.engine.decide.transactions.transaction import NewTxn, Use, enter, open_txn
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import Topic, numbers, topic_of
from txlog.engine.folds.coordinator import COMMITTED, Txn
from txlog.engine.model import sequences
from txlog.engine.model.ops import (
    BufferCommitted,
    ChunksAppended,
    CommitMarker,
    Deduplicated,
    DelaysCounted,
    LedgerReserved,
    Op,
    PartitionAdded,
    SequencesStored,
    TxnEnded,
    merged,
)
from txlog.engine.model.sequences import Sequences
from txlog.engine.plan.participants import check_available
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import View
from txlog.errors import InvalidMessage


class LargeTarget(msgspec.Struct, frozen=True, gc=False):
    """The partition (from 0), producer and sequence of a large message.

    named:                     the producer, None without deduplication
    deliver_at, deliver_after: when it is delivered; at most one of the two
    """

    partition: int
    named: NamedProducer | None = None
    sequence: int | None = None
    deliver_at: int | None = None
    deliver_after: int | None = None


class PublishedChunks(msgspec.Struct, frozen=True, gc=False):
    """A published file of chunks, and its sizes."""

    file: FileRef
    value_bytes: int
    payload_bytes: int
    crc: int


class LargeOutcome(msgspec.Struct, frozen=True, gc=False):
    """The result of sending a large message, or of its reservation.

    ledger:     reserved for its file; 0: the message is stored, before or by this call
    message_id: None in a transaction, or when the original's id is forgotten
    beyond_ttl: it will expire before it is due
    """

    ledger: int = 0
    message_id: MessageId | None = None
    index: int | None = None
    duplicate: bool = False
    beyond_ttl: bool = False


# --- without a transaction --------------------------------------------------------------------


def reserve(
    view: View, settings: Settings, now: Instant, topic: Topic, to: LargeTarget
) -> Decision[LargeOutcome]:
    """Decide the ledger for the file of a plainly sent message; answers LargeOutcome; durable.

    raises: ProducerFenced, PartitionUnavailable, InvalidMessage
    """
    draft = Draft(view, settings, now.wall_ms)
    number, _, stored, _ = _plain(draft, now, topic, to)
    if stored is not None:
        return draft.decision(stored, sync=True)
    refusal = _DeliveryTime(draft, topic, to, number).refusal()
    return refusal or draft.decision(_reserved(draft, topic, number), sync=True)


def append(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    to: LargeTarget,
    chunks: PublishedChunks,
    owner: tuple[int, str],
) -> Decision[LargeOutcome]:
    """Decide that the file is a message, in its own transaction; answers LargeOutcome; durable.

    raises: as reserve; LimitExceeded (unfinished transactions)
    """
    draft = Draft(view, settings, now.wall_ms)
    number, sequence, stored, sent = _plain(draft, now, topic, to)
    if stored is not None:
        return draft.decision(stored, sync=True)
    due = _DeliveryTime(draft, topic, to, number)
    refusal = due.refusal()
    if refusal is not None:
        return refusal
    producer = None if to.named is None else to.named.name
    if producer is not None and sent is None:
        make_room(draft, number, producer)
    txn = open_txn(draft, NewTxn(owner, now, settings.txn_timeout_default_ms))
    pair = (txn.coordinator, txn.sequence)
    draft.ops.append(PartitionAdded(*pair, number))
    _chunks(draft, number, chunks, pair, 1, producer, sequence, due.deliver_at, plain=True)
    side_ledger, side_entry = draft.take_entries(number, "s", 1)
    ledger, entry = draft.take_entries(number, "p", 1)
    markers = [(number, ledger, entry, 1)]
    runs = [sequence, sequence]
    noted: list[Op] = []
    if producer is not None and not sequences.is_next(sent, runs):
        noted.append(SequencesStored(number, producer, runs))
    draft.ops += [
        TxnEnded(*pair, COMMITTED, None, 1, 0, markers, []),
        CommitMarker(
            number,
            ledger,
            entry,
            *pair,
            1,
            chunks.payload_bytes,
            None if noted else producer,
            -1 if producer is None or noted else sequence,
            int(due.deliver_at is not None),
        ),
        *noted,
        BufferCommitted(number, *pair, side_ledger, side_entry, ledger, entry),
        *due.warnings(),
    ]
    draft.ops = merged(draft.ops)
    placed = LargeOutcome(message_id=MessageId(ledger, entry, 1), beyond_ttl=due.beyond_ttl)
    return draft.decision(placed, sync=True)


def _plain(
    draft: Draft, now: Instant, topic: Topic, to: LargeTarget
) -> tuple[int, int, LargeOutcome | None, Sequences | None]:
    """Of a plain send: (partition, sequence or -1, its outcome if it is a duplicate, stored
    sequences).
    """
    view, number = draft.view, numbers(topic)[to.partition]
    if to.named is not None:
        check_producer(view, topic, to.named)
    check_available(view, topic, number)
    if to.named is None:
        return number, -1 if to.sequence is None else to.sequence, None, None
    sent = last_sent(draft, now, number, to.named.name)
    sequence = _sequence(to, sent)
    if sent is None or sequences.fresh(sent, [sequence, sequence]):
        return number, sequence, None, sent
    original = None
    if sequence == sequences.placed(sent):
        original = MessageId(sent.ledger, sent.entry, sent.index)
    draft.ops.append(Deduplicated(number, 1, int(original is None)))
    return number, sequence, LargeOutcome(message_id=original, duplicate=True), sent


# --- in a transaction -------------------------------------------------------------------------


def reserve_in_txn(
    view: View, settings: Settings, now: Instant, uid: int, topic: Topic, to: LargeTarget, use: Use
) -> Decision[tuple[TxnId, LargeOutcome]]:
    """Decide the ledger for a message in a transaction; answers (its TxnId, LargeOutcome); durable.

    raises: TransactionNotFound, NotAllowed, InvalidTxnStatus and the like, PartitionUnavailable,
            ProducerFenced, LimitExceeded
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter(draft, now, uid, use)
    if isinstance(txn, Decision):
        return txn
    number, _, stored = _in_txn(draft, txn, topic, to)
    answer = TxnId(txn.coordinator, txn.sequence)
    if stored is not None:
        return draft.decision((answer, stored), sync=True)
    refusal = _DeliveryTime(draft, topic, to, number).refusal()
    if refusal is not None:
        return refusal
    return draft.decision((answer, _reserved(draft, topic, number)), sync=True)


def append_in_txn(
    view: View,
    settings: Settings,
    now: Instant,
    uid: int,
    topic: Topic,
    to: LargeTarget,
    chunks: PublishedChunks,
    use: Use,
) -> Decision[tuple[TxnId, LargeOutcome]]:
    """Decide that the file is a message of the transaction; answers (its TxnId, LargeOutcome).

    Written, not flushed, like every send in a transaction: the commit flushes it.
    raises: as reserve_in_txn
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter(draft, now, uid, use)
    if isinstance(txn, Decision):
        return txn
    number, sequence, outcome = _in_txn(draft, txn, topic, to)
    pair = (txn.coordinator, txn.sequence)
    if outcome is None:
        due = _DeliveryTime(draft, topic, to, number)
        refusal = due.refusal()
        if refusal is not None:
            return refusal
        if number not in txn.partitions:
            draft.ops.append(PartitionAdded(*pair, number))
        buffered = buffers.find_held(view.buffer(number), *pair)
        index = 1 + (0 if buffered is None else buffered.count)
        producer = None if to.named is None else to.named.name
        _chunks(draft, number, chunks, pair, index, producer, sequence, due.deliver_at, plain=False)
        draft.ops += due.warnings()
        outcome = LargeOutcome(index=index, beyond_ttl=due.beyond_ttl)
    return draft.decision((TxnId(*pair), outcome))


def _in_txn(
    draft: Draft, txn: Txn, topic: Topic, to: LargeTarget
) -> tuple[int, int, LargeOutcome | None]:
    """(partition, sequence or -1, its outcome if the transaction has it already)."""
    view, number = draft.view, numbers(topic)[to.partition]
    if to.named is not None:
        check_producer(view, topic, to.named)
    check_available(view, topic, number)
    check_room(view, txn, 1)
    if to.named is None:
        return number, -1 if to.sequence is None else to.sequence, None
    buffered = buffers.find_held(view.buffer(number), txn.coordinator, txn.sequence)
    sent = None if buffered is None else buffered.producers.get(to.named.name)
    sequence = _sequence(to, sent)
    if sent is None or sequences.fresh(sent, [sequence, sequence]):
        return number, sequence, None
    index = sent.index if sequence == sequences.placed(sent) else None
    draft.ops.append(Deduplicated(number, 1, int(index is None)))
    return number, sequence, LargeOutcome(index=index, duplicate=True)


# --- both -------------------------------------------------------------------------------------


def _sequence(to: LargeTarget, sent: Sequences | None) -> int:
    """The sequence of the message: its own, or the next; raises InvalidMessage, LimitExceeded."""
    assert to.named is not None
    if to.sequence is None:
        return next_sequence(to.named.name, sent, 1)
    if to.sequence < 0:
        raise InvalidMessage("a sequence id is missing or negative", hint="number every message")
    check_known(to.named.name, sent, to.sequence)
    return to.sequence


class _DeliveryTime:
    """When the message is delivered, by the clock of this decision."""

    __slots__ = ("_delays", "beyond_ttl", "deliver_at")

    def __init__(self, draft: Draft, topic: Topic, to: LargeTarget, number: int) -> None:
        self._delays = DeliveryTimes(draft.view, draft.settings, topic, draft.now_ms)
        self.deliver_at = self._delays.resolved_one(to.deliver_at, to.deliver_after)
        self.beyond_ttl = self._delays.check_one(number, self.deliver_at)

    def refusal(self) -> Decision[Any] | None:
        return self._delays.refusal()

    def warnings(self) -> list[DelaysCounted]:
        return self._delays.warnings()


def _reserved(draft: Draft, topic: Topic, number: int) -> LargeOutcome:
    count_large(draft, topic, None)  # before its chunks are written
    ledger = draft.new_ledger()
    draft.ops.append(LedgerReserved(number, "s", ledger))
    return LargeOutcome(ledger=ledger)


def _chunks(
    draft: Draft,
    number: int,
    chunks: PublishedChunks,
    pair: tuple[int, int],
    index: int,
    producer: str | None,
    sequence: int,
    deliver_at: int | None,
    *,
    plain: bool,
) -> None:
    """Add the message. Its ledger comes before the sidecar's open one; that is opened if needed."""
    count_large(draft, topic_of(draft.view.catalog, number), number)
    draft.take_entries(number, "s", 0)
    draft.ops.append(
        ChunksAppended(
            number,
            chunks.file,
            chunks.value_bytes,
            chunks.crc,
            chunks.payload_bytes,
            *pair,
            index,
            producer,
            sequence,
            plain,
            deliver_at,
        )
    )
