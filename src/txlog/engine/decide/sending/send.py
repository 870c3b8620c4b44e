"""Sending and deduplication: to the partition, or in a transaction to its sidecar.

    plain send                  scope (partition, producer name), as long as the settings keep it
    send in a transaction       scope (transaction, producer name, partition)

A sequence that is stored in its scope is a repetition: the call succeeds and stores nothing. If the
repetition is of the producer's newest message, the answer has the original id (`dedup`). A batch is
one frame and gets one answer per row. Batches of several producers can share a frame. Large
messages are in `large`.
Source: PIP-31 "Produce in a transaction", PIP-6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.base.settings import TXN_MESSAGES_MAX, Settings
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending import dedup, producers
from txlog.engine.decide.sending.dedup import DedupResult
from txlog.engine.decide.sending.deliver_at import DeliveryTimes, delays_of
from txlog.engine.decide.transactions import enter
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model.ops import (
    NO_TIME,
    Appended,
    BufferAppended,
    BufferSequencesStored,
    Deduplicated,
    PartitionAdded,
    SchemaMismatched,
    SequencesStored,
)
from txlog.engine.model.schema import OneRow
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.records import ENFORCE, typing_of, unchecked
from txlog.engine.plan.route import PartitionSlice, Routed, as_batch
from txlog.engine.view import View
from txlog.errors import (
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    PartitionUnavailable,
    ProducerBusy,
    ProducerFenced,
    TopicNotFound,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.engine.decide.sending.dedup import Rows
    from txlog.engine.decide.sending.producers import NamedProducer
    from txlog.engine.decide.transactions.enter import Use
    from txlog.engine.folds.coordinator import Txn
    from txlog.engine.model.sequences import Sequences

_NO_TIME = pa.scalar(NO_TIME, pa.int64())


class SliceReceipt(msgspec.Struct, frozen=True, gc=False):
    """The result of one slice of a routed batch.

    repeats:    rows of the slice that were stored before; `original` is the (row, id) whose id is
                known. In a transaction only its index counts
    beyond_ttl: marks the stored rows that will expire before they are due
    """

    partition: int
    row_start: int
    rows: int
    repeats: Sequence[Rows]
    original: tuple[int, MessageId] | None
    ledger: int
    first_entry: int
    first_index: int
    beyond_ttl: pa.Array | None = None

    @property
    def duplicates(self) -> int:
        """How many rows were stored before."""
        return dedup.repeated(self.repeats)

    def places(self) -> list[int | None]:
        """For each row its place among the stored rows; None: it is a repetition."""
        out: list[int | None] = []
        next_place = 0
        for start, stop in [*self.repeats, (self.rows, self.rows)]:
            stored = start - len(out)
            out += range(next_place, next_place + stored)
            out += [None] * (stop - start)
            next_place += stored
        return out


class OutgoingBatch(NamedTuple):
    """Routed rows of one producer, and the topic they go to."""

    topic: Topic
    routed: Routed
    named: NamedProducer | None


Batch: TypeAlias = Callable[[View], OutgoingBatch]
# Errors that refuse the rows of one producer and do not affect the other producers. NotAllowed is
# absent: a call made inside this one, from `__del__` or a signal handler, is refused with it.
REFUSALS = (
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    PartitionUnavailable,
    ProducerBusy,
    ProducerFenced,
    TopicNotFound,
)


def send(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    routed: Routed,
    sender: NamedProducer | None,
) -> Decision[list[SliceReceipt]]:
    """Decide a plain send; durable before answered. Returns SliceReceipts.

    raises: ProducerFenced, PartitionUnavailable, InvalidMessage (also: a delay above the maximum)
    """
    draft = Draft(view, settings, now.wall_ms)
    sent = send_into(draft, now, OutgoingBatch(topic, routed, sender), 0)
    if isinstance(sent, Decision):
        return sent
    # even a duplicate is answered only once its original is durable
    return Decision(draft.ops, sent.rows, True, sent.stored)


def send_together(
    view: View, settings: Settings, now: Instant, batches: Sequence[Batch]
) -> Decision[list[list[SliceReceipt] | TxlogError]]:
    """Decide plain sends of several producers, to any topics, as one frame; durable.

    Returns for each batch its SliceReceipts, or the error that refused it. A refused batch stores
    nothing; the others are stored. Each producer may have one batch. The delays of a refused batch
    are counted only if it has one message: the sender of more repeats them one by one.
    raises: errors that concern all of them, such as Corruption
    """
    draft = Draft(view, settings, now.wall_ms)
    answers: list[list[SliceReceipt] | TxlogError] = []
    pieces: list[pa.RecordBatch] = []
    at = 0
    for batch in batches:
        mark = draft.mark()
        try:
            outgoing = batch(view)
            sent = send_into(draft, now, outgoing, at)
        except REFUSALS as error:
            draft.back_to(mark)
            answers.append(error)
            continue
        if isinstance(sent, Decision):
            draft.back_to(mark)
            if outgoing.routed.rows.num_rows == 1:
                draft.ops += sent.ops
            assert sent.error is not None
            answers.append(sent.error)
            continue
        answers.append(sent.stored)
        if sent.rows is not None:
            pieces.append(as_batch(sent.rows))
            at += sent.rows.num_rows
    return Decision(draft.ops, _concatenated(pieces), True, answers)


class SendResult(NamedTuple):
    """The receipt of each slice, and the rows to store."""

    stored: list[SliceReceipt]
    rows: pa.RecordBatch | OneRow | None


def send_into(
    draft: Draft, now: Instant, outgoing: OutgoingBatch, row_start: int
) -> SendResult | Decision[Any]:
    """Decide a plain send whose rows begin at a row of the frame; or the decision to refuse it."""
    topic, routed, sender = outgoing
    view = draft.view
    producer = _checked(view, topic, sender)
    delays = delays_of(view, draft.settings, topic, routed, now.wall_ms)
    if delays is not None:
        routed = delays.resolved(routed)
    series = None if producer is None else dedup.series_of(routed)
    stored: list[SliceReceipt] = []
    pieces: list[pa.RecordBatch | OneRow] = []
    at = 0
    for piece in routed.slices:
        number = number_of(topic, piece.partition)
        check_available(view, topic, number)
        sent = None
        if producer is not None:
            sent = producers.last_sent(draft, now, number, producer)
            if sent is None:
                producers.make_room(draft, number, producer)
        fresh = _fresh(routed, piece, producer, sent, series)
        original = None
        if fresh.original is not None and sent is not None:
            where = MessageId(sent.ledger, sent.entry, sent.index)
            original = (fresh.original, where)
        stored_rows = piece.rows
        if fresh.repeats:
            stored_rows -= _count_repeats(draft, number, fresh)
        ledger = first = 0
        beyond = None
        if stored_rows:
            ledger, first = draft.take_entries(number, "p", stored_rows)
            rows = fresh.rows
            size = piece.payload_bytes if not fresh.repeats else as_batch(rows).nbytes
            position = (number, ledger, first, row_start + at, stored_rows, size)
            times = times_of(as_batch(rows)) if routed.has_times else None
            draft.ops.append(Appended(*position, producer, fresh.last_sequence, times))
            if fresh.runs:
                assert producer is not None
                draft.ops.append(SequencesStored(number, producer, fresh.runs, fresh.row))
            pieces.append(rows)
            at += stored_rows
            beyond = None if delays is None else delays.check(number, as_batch(rows))
            if topic.schemas:
                typed = dedup.as_kept(rows, piece, stored_rows)
                count_mismatched(draft, topic, number, typed)
        where_from = (piece.partition, piece.row_start, piece.rows, fresh.repeats, original)
        stored.append(SliceReceipt(*where_from, ledger, first, 0, beyond))
    refusal = _refused(draft, delays)
    if refusal is not None:
        return refusal
    return SendResult(stored, _joined(routed, pieces, at))


def send_in_txn(
    view: View,
    settings: Settings,
    now: Instant,
    uid: int,
    topic: Topic,
    routed: Routed,
    sender: NamedProducer | None,
    use: Use,
) -> Decision[tuple[TxnId, list[SliceReceipt]]]:
    """Decide a send in a transaction; written, not flushed: the commit carries it.

    returns: (its TxnId, SliceReceipts with first_index)
    raises:  TransactionNotFound, NotAllowed, InvalidTxnStatus and the like, PartitionUnavailable,
             ProducerFenced, LimitExceeded, InvalidMessage
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter.enter(draft, now, uid, use)
    if isinstance(txn, Decision):
        return txn
    producer = _checked(view, topic, sender)
    for piece in routed.slices:
        check_available(view, topic, number_of(topic, piece.partition))
    delays = delays_of(view, settings, topic, routed, now.wall_ms)
    if delays is not None:
        routed = delays.resolved(routed)
    check_room(view, txn, routed.rows.num_rows)
    pair = (txn.coordinator, txn.sequence)
    series = None if producer is None else dedup.series_of(routed)
    stored: list[SliceReceipt] = []
    pieces: list[pa.RecordBatch | OneRow] = []
    at = 0
    for piece in routed.slices:
        number = number_of(topic, piece.partition)
        buffered = buffers.find_held(view.buffer(number), *pair)
        sent = None if buffered is None or producer is None else buffered.producers.get(producer)
        fresh = _fresh(routed, piece, producer, sent, series)
        original = None
        if fresh.original is not None and sent is not None:
            original = (fresh.original, MessageId(0, 0, sent.index))
        stored_rows = piece.rows
        if fresh.repeats:
            stored_rows -= _count_repeats(draft, number, fresh)
        index = 1 + (0 if buffered is None else buffered.count)
        ledger = first = 0
        beyond = None
        if stored_rows:
            if number not in txn.partitions:
                draft.ops.append(PartitionAdded(*pair, number))
            ledger, first = draft.take_entries(number, "s", stored_rows)
            rows = fresh.rows
            size = piece.payload_bytes if not fresh.repeats else as_batch(rows).nbytes
            position = (number, ledger, first, at, stored_rows, size)
            times = times_of(as_batch(rows)) if routed.has_times else None
            last = fresh.last_sequence
            draft.ops.append(BufferAppended(*position, *pair, index, producer, last, times))
            if fresh.runs:
                assert producer is not None
                noted = (number, *pair, producer, fresh.runs, fresh.row)
                draft.ops.append(BufferSequencesStored(*noted))
            pieces.append(rows)
            at += stored_rows
            beyond = None if delays is None else delays.check(number, as_batch(rows))
            if topic.schemas:
                typed = dedup.as_kept(rows, piece, stored_rows)
                count_mismatched(draft, topic, number, typed)
        where_from = (piece.partition, piece.row_start, piece.rows, fresh.repeats, original)
        stored.append(SliceReceipt(*where_from, ledger, first, index, beyond))
    refusal = _refused(draft, delays)
    if refusal is not None:
        return refusal
    answer = (TxnId(*pair), stored)
    return Decision(draft.ops, _joined(routed, pieces, at), draft.sync, answer)


def _refused(draft: Draft, delays: DeliveryTimes | None) -> Decision[Any] | None:
    """The decision that refuses all rows for their delays; None: adds the warnings about delays."""
    if delays is None:
        return None
    refusal = delays.refusal()
    if refusal is None:
        draft.ops += delays.warnings()
    return refusal


def _checked(view: View, topic: Topic, sender: NamedProducer | None) -> str | None:
    """The producer's name, None without one; raises ProducerFenced."""
    if sender is None:
        return None
    producers.check_producer(view, topic, sender)
    return sender.name


def _fresh(
    routed: Routed,
    piece: PartitionSlice,
    producer: str | None,
    sent: Sequences | None,
    series: list[int] | None,
) -> DedupResult:
    """Which rows of a slice are stored; all of them without a producer's name."""
    if producer is not None:
        return dedup.fresh_rows(routed, piece, producer, sent, series)
    if routed.has_times:
        return DedupResult(routed.batch.slice(piece.row_start, piece.rows))
    return DedupResult(routed.rows)  # the whole batch: no caller looks at single rows


def times_of(rows: pa.RecordBatch) -> bytes | None:
    """The deliver_at of rows as an op has them; None when none has one."""
    at = rows.schema.get_field_index("deliver_at")
    if at < 0:
        return None
    column = rows.column(at)
    if column.null_count == len(column):
        return None
    times = column.view(pa.int64())  # a cast would cost 15 us
    if times.null_count:
        times = pc.fill_null(times, _NO_TIME)
    size = times.type.byte_width
    data = times.buffers()[1]
    assert data is not None
    encoded: bytes = data.slice(times.offset * size, len(times) * size).to_pybytes()
    return encoded


def count_mismatched(
    draft: Draft,
    topic: Topic,
    partition: int,
    rows: pa.RecordBatch | pa.Table,
    *,
    is_moved: bool = False,
) -> None:
    """Count the rows whose values do not fit the schema of a topic that has one.

    is_moved: the rows come from another topic and are stored in any case
    raises:   InvalidMessage where the policy refuses such rows
    """
    typing = typing_of(draft.view, draft.settings, topic)
    if typing is None or not (count := unchecked(rows)):
        return
    if typing.mode == ENFORCE and not is_moved:
        raise InvalidMessage(
            f"{count} messages were not checked against the schema that topic {typing.topic} has",
            hint="send them again",
            topic=typing.topic,
        )
    draft.ops.append(SchemaMismatched(partition, count))


def count_large(draft: Draft, topic: Topic, partition: int | None) -> None:
    """Count a message in chunks, which is never checked; partition: None, it is not stored yet.

    raises: InvalidMessage where each value must fit a schema
    """
    typing = typing_of(draft.view, draft.settings, topic) if topic.schemas else None
    if typing is None:
        return
    if typing.mode == ENFORCE:
        raise InvalidMessage(
            f"a message in chunks cannot be checked against the schema of {typing.topic}",
            hint="raise max_message_bytes so that it is sent whole, or store it unchecked: "
            "txlog policy schema set --validation record",
            topic=typing.topic,
        )
    if partition is not None:
        draft.ops.append(SchemaMismatched(partition, 1))


def _count_repeats(draft: Draft, partition: int, fresh: DedupResult) -> int:
    """Count the repetitions of a slice; returns how many rows they are."""
    duplicates = dedup.repeated(fresh.repeats)
    missing = duplicates - (fresh.original is not None)
    draft.ops.append(Deduplicated(partition, duplicates, missing))
    return duplicates


def _joined(
    routed: Routed, pieces: list[pa.RecordBatch | OneRow], rows: int
) -> pa.RecordBatch | OneRow | None:
    """The rows of the frame; the routed batch itself when nothing was left out or added."""
    if not rows:
        return None
    if pieces[0] is routed.rows:
        return pieces[0]
    if (
        rows == routed.batch.num_rows
        and as_batch(pieces[0]).num_columns == routed.batch.num_columns
    ):
        return routed.batch
    if len(pieces) == 1:
        return pieces[0]
    return (
        pa.Table.from_batches([as_batch(piece) for piece in pieces])
        .combine_chunks()
        .to_batches()[0]
    )


def _concatenated(pieces: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The rows of several producers in one batch.

    A column that a producer lacks is null in its rows.
    """
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    tables = [pa.Table.from_batches([piece]) for piece in pieces]
    joined = pa.concat_tables(tables, promote_options="default").combine_chunks()
    batch: pa.RecordBatch = joined.to_batches()[0]
    return batch


def check_room(view: View, txn: Txn, messages: int) -> None:
    """A transaction holds at most TXN_MESSAGES_MAX messages, so that its end stays one frame."""
    messages_held = 0
    for partition in txn.partitions:
        buffered = buffers.find_held(view.buffer(partition), txn.coordinator, txn.sequence)
        messages_held += 0 if buffered is None else buffered.count
    if messages_held + messages > TXN_MESSAGES_MAX:
        raise LimitExceeded(
            f"transaction {txn.coordinator}:{txn.sequence} would hold "
            f"{messages_held + messages} messages, the most is {TXN_MESSAGES_MAX}",
            hint="commit and begin another",
            setting="txn_messages_max",
            limit=TXN_MESSAGES_MAX,
            value=messages_held + messages,
        )
