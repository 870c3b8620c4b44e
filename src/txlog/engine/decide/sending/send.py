"""Sending: repeated messages are left out, delays become instants, the rest is stored.

    plain send                  scope (partition, producer name), as long as the settings keep it
    send in a transaction       scope (transaction, producer name, partition)

A row is a repetition if its sequence is stored under its producer's name, in the scope of the send
(model/sequences): the call succeeds and does not store the row. If it repeats the producer's newest
message, the answer has the original id. The other rows are stored, whichever sequences came before
them. A slice with a sequence that the store has forgotten is refused as a whole, because the row
may be stored or not.

Rows that a key or the turn sent to several partitions have one numbering. If their batch has each
number between its lowest and its highest, every partition of it takes the whole range as stored: a
number that is missing there is in another partition of the same frame, and leaves no gap. Rows that
name their partition may have a numbering for each, so a partition counts only its own rows there.

A batch is one frame and gets one answer per row. Batches of several producers can share a frame.
Large messages are in `large`.

The instant of delivery is set under the lock:

    deliver_at T             T, even if it has passed: then the message is delivered at once
    deliver_after D          the time of the frame that appends it, plus D
    nothing                  null: at once
    fixed_delivery_delay_ms  the time of the frame plus this; the requested time is ignored

The time is the frame's, never the sender's own, so a delay means the same from producers whose
clocks differ (apache/pulsar #13567). A refused message is counted, and nothing of its batch is
stored. A message that will expire before it is due is stored, and its sender gets a warning
(#21898).
Source: PIP-31 "Produce in a transaction", PIP-6; spec/transactions 7, spec/delayed 2, 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from txlog.base.ids import SEQUENCE_STOP, MessageId, TopicName, TxnId
from txlog.base.settings import INSTANT_MS_MAX, TXN_MESSAGES_MAX, Settings
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending import producers
from txlog.engine.decide.transactions import transaction
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model import sequences
from txlog.engine.model.ops import (
    NO_TIME,
    Appended,
    BufferAppended,
    BufferSequencesStored,
    Deduplicated,
    DelaysCounted,
    PartitionAdded,
    SchemaMismatched,
    SequencesStored,
)
from txlog.engine.model.schema import INSTANT, OneRow
from txlog.engine.model.sequences import GAPS_MAX, Sequences
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import MAX_DELAY, delay_policy, retention_policy
from txlog.engine.plan.records import ENFORCE, typing_of, unchecked
from txlog.engine.plan.route import FEW_ROWS, PartitionSlice, Routed, as_batch
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
    from txlog.engine.decide.sending.producers import NamedProducer
    from txlog.engine.decide.transactions.transaction import Use
    from txlog.engine.folds.coordinator import Txn

# --- times of delivery ----------------------------------------------------------------------------

AFTER, AT = "deliver_after", "deliver_at"


class DeliveryTimes:
    """Sets the delivery times of one send to a topic; counts refused and expiring messages."""

    __slots__ = (
        "_beyond",
        "_fixed_ms",
        "_latest_ms",
        "_max_ms",
        "_refused",
        "_time_ms",
        "_topic",
        "_ttl_latest_ms",
        "_view",
        "_worst_ms",
    )

    def __init__(self, view: View, settings: Settings, topic: Topic, time_ms: int) -> None:
        policy = delay_policy(view, settings, topic)
        self._view, self._topic, self._time_ms = view, topic, time_ms
        self._fixed_ms = policy.fixed_delivery_delay_ms if policy.active else 0
        self._max_ms = policy.max_delivery_delay_ms if policy.active and not self._fixed_ms else 0
        self._latest_ms = time_ms + self._max_ms if self._max_ms else None
        ttl_ms = retention_policy(view, settings, topic).ttl_ms
        self._ttl_latest_ms = None
        if ttl_ms is not None and policy.active and not policy.is_ttl_from_deliver_at:
            self._ttl_latest_ms = time_ms + ttl_ms
        self._refused: dict[int, int] = {}
        self._beyond: dict[int, int] = {}
        self._worst_ms = 0

    # --- what is stored ----------------------------------------------------------------------

    def resolved(self, routed: Routed) -> Routed:
        """The rows with the instants to store; the same rows if none has a time of delivery."""
        if not self._fixed_ms and not routed.has_times:
            return routed
        batch = routed.batch
        delay_at = batch.schema.get_field_index(AFTER)
        if self._fixed_ms:
            batch = batch if delay_at < 0 else batch.remove_column(delay_at)
            column = pa.repeat(self._scalar(self._later(self._fixed_ms)), batch.num_rows)
            batch = _with_instants(batch, column.cast(INSTANT))
        elif delay_at >= 0:
            column = self._instants(batch.column(delay_at))
            batch = batch.remove_column(delay_at)
            at = batch.schema.get_field_index(AT)
            if at >= 0:
                column = pc.coalesce(batch.column(at), column)
            batch = _with_instants(batch, column)
        if batch is routed.batch:
            return routed
        return msgspec.structs.replace(routed, rows=batch, has_times=True)

    def _instants(self, delays: pa.Array) -> pa.Array:
        """The instants of delays; a row without one stays without."""
        if len(delays) <= FEW_ROWS:  # three kernels take 60 us whatever their size
            values = delays.to_pylist()
            return pa.array(
                [None if value is None else self._later(value) for value in values], INSTANT
            )
        most = self._scalar(INSTANT_MS_MAX - self._time_ms)
        within = pc.min_element_wise(delays, most, skip_nulls=False)
        return pc.add(within, self._scalar(self._time_ms)).view(INSTANT)

    def resolved_one(self, deliver_at: int | None, deliver_after: int | None) -> int | None:
        """The instant of one message, as `resolved`; None: at once."""
        if self._fixed_ms:
            return self._later(self._fixed_ms)
        return deliver_at if deliver_after is None else self._later(deliver_after)

    def _later(self, delay_ms: int) -> int:
        return min(self._time_ms + delay_ms, INSTANT_MS_MAX)

    def _scalar(self, value: int) -> pa.Scalar:
        return pa.scalar(value, pa.int64())

    # --- refusals and warnings --------------------------------------------------------------

    def check(self, number: int, rows: pa.RecordBatch) -> pa.Array | None:
        """Check resolved rows for a partition; returns a mask of rows that will expire before
        they are due, None if there is no such row.
        """
        if self._latest_ms is None and self._ttl_latest_ms is None:
            return None
        at = rows.schema.get_field_index(AT)
        if at < 0:
            return None
        return self._checked(number, rows.column(at).view(pa.int64()))

    def check_times(self, number: int, times: pa.Array) -> None:
        """Check rows by their instants, NO_TIME for none."""
        if self._latest_ms is not None or self._ttl_latest_ms is not None:
            self._checked(number, times)

    def check_one(self, number: int, deliver_at: int | None) -> bool:
        """Check one message for a partition; returns whether it will expire before it is due."""
        return self._checked(number, pa.array([deliver_at], pa.int64())) is not None

    def _checked(self, number: int, times: pa.Array) -> pa.Array | None:
        last = pc.max(times).as_py()
        if last is None:
            return None
        if self._latest_ms is not None and last > self._latest_ms:
            late = pc.sum(pc.greater(times, self._scalar(self._latest_ms))).as_py()
            self._refused[number] = self._refused.get(number, 0) + late
            self._worst_ms = max(self._worst_ms, last - self._time_ms)
        if self._ttl_latest_ms is None or last <= self._ttl_latest_ms:
            return None
        beyond = pc.fill_null(pc.greater(times, self._scalar(self._ttl_latest_ms)), False)
        self._beyond[number] = self._beyond.get(number, 0) + beyond.true_count
        return beyond

    def refusal(self) -> Decision[Any] | None:
        """The decision that refuses everything and counts it; None: nothing is refused."""
        if not self._refused:
            return None
        name = TopicName.parse(self._topic.name).short
        error = InvalidMessage(
            f"a message for {name} is to be delivered in {self._worst_ms} ms, {MAX_DELAY} is "
            f"{self._max_ms}",
            hint="deliver it earlier, or change the policy of the topic",
            setting=MAX_DELAY,
            limit=self._max_ms,
            value=self._worst_ms,
            topic=name,
        )
        # a topic that this same frame would create cannot count it
        is_known = self._topic.number in self._view.catalog.topics
        counts = self._refused if is_known else {}
        return Decision(
            [DelaysCounted(number, refused=count) for number, count in counts.items()],
            error=error,
        )

    def warnings(self) -> list[DelaysCounted]:
        """The ops that count messages which will expire before they are due; for the same frame."""
        return [DelaysCounted(number, beyond_ttl=count) for number, count in self._beyond.items()]


def delays_of(
    view: View, settings: Settings, topic: Topic, routed: Routed, time_ms: int
) -> DeliveryTimes | None:
    """The delivery times of routed rows; None: all are delivered at once, and no policy applies."""
    if not routed.has_times:
        policy = delay_policy(view, settings, topic)
        if not (policy.active and policy.fixed_delivery_delay_ms):
            return None
    return DeliveryTimes(view, settings, topic, time_ms)


def _with_instants(batch: pa.RecordBatch, column: pa.Array) -> pa.RecordBatch:
    at = batch.schema.get_field_index(AT)
    return batch.append_column(AT, column) if at < 0 else batch.set_column(at, AT, column)


# --- sending --------------------------------------------------------------------------------------

_NO_TIME = pa.scalar(NO_TIME, pa.int64())


# Rows of a slice, from the first up to the one before the second.
Rows = tuple[int, int]


class DedupResult(NamedTuple):
    """Which rows of a slice the decision stores.

    rows:          the rows to store; `repeats`: the rows of the slice that are left out
    original:      the row of the slice that repeats the message whose position the fold knows
    last_sequence: for the op that appends the rows; -1: none, or `runs` has it
    runs, row:     for an op about the sequences, as it has them; None: none is needed
    """

    rows: pa.RecordBatch | OneRow
    repeats: Sequence[Rows] = ()
    original: int | None = None
    last_sequence: int = -1
    runs: list[int] | None = None
    row: int = -1


class SliceReceipt(msgspec.Struct, frozen=True, gc=False):
    """The result of one slice of a routed batch.

    partition:  its index in the topic
    row_start:  the slice's first row in the routed batch; rows: how many it has
    repeats:    rows of the slice that were stored before
    original:   the repeated (row, id) whose id is known; in a transaction only its index counts
    ledger, first_entry, first_index: of its first stored row; the index only in a transaction
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
        return repeated(self.repeats)

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
# absent: it refuses a call from `__del__` or a signal handler inside another call.
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
    """Decide a plain send; durable; answers a SliceReceipt for each slice.

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

    Answers for each batch its SliceReceipts, or the error that refused it. A refused batch stores
    nothing; the others are stored. Each producer may have one batch. Delays that refuse a batch are
    counted only if it has one message: its sender repeats the messages of a larger one singly.
    raises: errors of the store, such as Corruption
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
    draft: Draft, now: Instant, outgoing: OutgoingBatch, row_start: int, *, copies: bool = False
) -> SendResult | Decision[Any]:
    """Add a plain send to a frame whose earlier rows end at row_start; returns its result, or the
    decision that refuses it for its delays. copies: as in Adoption. Raises as `send`.
    """
    topic, routed, sender = outgoing
    view = draft.view
    producer = _checked(view, topic, sender)
    delays = delays_of(view, draft.settings, topic, routed, now.wall_ms)
    if delays is not None:
        routed = delays.resolved(routed)
    series = None if producer is None else series_of(routed)
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
                typed = as_kept(rows, piece, stored_rows)
                count_mismatched(draft, topic, number, typed, is_moved=copies)
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
    """Decide a send in a transaction; written, not flushed: the commit flushes it.

    answers: (its TxnId, SliceReceipts with first_index)
    raises:  TransactionNotFound, NotAllowed, InvalidTxnStatus and the like, PartitionUnavailable,
             ProducerFenced, LimitExceeded, InvalidMessage
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = transaction.enter(draft, now, uid, use)
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
    series = None if producer is None else series_of(routed)
    stored: list[SliceReceipt] = []
    pieces: list[pa.RecordBatch | OneRow] = []
    at = 0
    has_repeats = False
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
            has_repeats = True
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
                typed = as_kept(rows, piece, stored_rows)
                count_mismatched(draft, topic, number, typed)
        where_from = (piece.partition, piece.row_start, piece.rows, fresh.repeats, original)
        stored.append(SliceReceipt(*where_from, ledger, first, index, beyond))
    refusal = _refused(draft, delays)
    if refusal is not None:
        return refusal
    answer = (TxnId(*pair), stored)
    batch = _joined(routed, pieces, at)
    # only its counts of other messages may rest on frames that are still being flushed
    return Decision(draft.ops, batch, draft.sync, answer, waits=has_repeats)


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
    """Which rows of a slice are stored; without a producer's name every row."""
    if producer is not None:
        return fresh_rows(routed, piece, producer, sent, series)
    if routed.has_times:
        return DedupResult(routed.batch.slice(piece.row_start, piece.rows))
    return DedupResult(routed.rows)  # the whole batch: no caller looks at single rows


def times_of(rows: pa.RecordBatch) -> bytes | None:
    """The deliver_at of rows as an op has them; None when no row has one."""
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
    """Count the rows whose values do not fit the topic's schema, if it has one.

    is_moved: the rows come from another topic, and are never refused
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
    """Count a message in chunks as one that does not fit the topic's schema, if it has one.

    partition: None: it is not stored yet, so only check
    raises:    InvalidMessage where the policy refuses such messages
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
    duplicates = repeated(fresh.repeats)
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
    """Raise LimitExceeded above TXN_MESSAGES_MAX: the end of a transaction must fit one frame."""
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


# --- deduplication -----------------------------------------------------------------------------


def fresh_rows(
    routed: Routed,
    piece: PartitionSlice,
    producer: str,
    sent: Sequences | None,
    series: list[int] | None,
) -> DedupResult:
    """Which rows of a slice to store.

    sent:   the sequences that the producer has stored in the scope; None: none
    series: from `series_of`
    raises: InvalidMessage, LimitExceeded (a sequence that was forgotten)
    """
    rows = routed.batch.slice(piece.row_start, piece.rows)
    at = rows.schema.get_field_index("sequence_id")
    if at < 0:
        first = next_sequence(producer, sent, piece.rows)
        numbers = pa.arange(first, first + piece.rows)
        stop = first + piece.rows - 1
        return DedupResult(rows.append_column("sequence_id", numbers), last_sequence=stop)
    runs = _runs_of(rows.column(at), piece.partition)
    check_known(producer, sent, runs[0])
    new = sequences.fresh(sent, runs)
    if not new:
        return DedupResult(
            rows.slice(piece.rows), [(0, piece.rows)], row_of(runs, sequences.placed(sent))
        )
    repeats = () if new == runs else tuple(_repeats(runs, new))
    stored, row = new, -1
    if series is not None:
        low = series[0] if sent is None else max(series[0], sent.unknown + 1)
        stored = sequences.fresh(sent, [low, series[1]])
        row = -1 if stored[-1] == new[-1] else new[-1]
    stored_rows = _without(rows, repeats)
    original = row_of(runs, sequences.placed(sent)) if repeats else None
    if row < 0 and sequences.is_next(sent, stored):
        return DedupResult(stored_rows, repeats, original, stored[-1])
    return DedupResult(stored_rows, repeats, original, -1, stored, row)


def next_sequence(producer: str, sent: Sequences | None, count: int) -> int:
    """The first of `count` sequences after the stored ones. Raises LimitExceeded."""
    first = 0 if sent is None else sent.sequence + 1
    if first + count > SEQUENCE_STOP:
        raise LimitExceeded(
            f"producer {producer} has no sequence above {SEQUENCE_STOP - 1}",
            hint="send under another producer name",
            limit=SEQUENCE_STOP - 1,
            value=first + count - 1,
        )
    return first


def check_known(producer: str, sent: Sequences | None, lowest: int) -> None:
    """Raise LimitExceeded for a sequence so old that the store forgot whether it has it."""
    if sent is not None and lowest <= sent.unknown:
        raise LimitExceeded(
            f"sequence {lowest} of producer {producer} may be stored or not: the producer left out "
            f"more than {GAPS_MAX} sequences, and those up to {sent.unknown} are forgotten",
            hint=f"go on above {sent.unknown}, or send under another producer name",
            limit=GAPS_MAX,
            value=lowest,
        )


def series_of(routed: Routed) -> list[int] | None:
    """[lowest, highest] sequence of rows spread over partitions, if none between is missing."""
    if not routed.is_spread:
        return None
    rows = routed.batch
    at = rows.schema.get_field_index("sequence_id")
    if at < 0 or rows.column(at).null_count:
        return None
    column = rows.column(at)
    bounds = pc.min_max(column).as_py()
    is_whole = bounds["max"] - bounds["min"] + 1 == rows.num_rows
    if not is_whole or pc.count_distinct(column).as_py() != rows.num_rows:
        return None
    return [bounds["min"], bounds["max"]]


def row_of(runs: list[int], sequence: int) -> int | None:
    """The row that has this sequence, among rows with these sequences."""
    row = 0
    for at in range(0, len(runs), 2):
        if runs[at] <= sequence <= runs[at + 1]:
            return row + sequence - runs[at]
        row += runs[at + 1] - runs[at] + 1
    return None


def repeated(repeats: Sequence[Rows]) -> int:
    """How many rows are repetitions."""
    return sum([stop - start for start, stop in repeats])


def _runs_of(column: pa.Array, partition: int) -> list[int]:
    """The sequences of rows as runs; raises InvalidMessage if one is missing or does not rise."""
    if column.null_count or (pc.min(column).as_py() or 0) < 0:
        raise InvalidMessage("a sequence id is missing or negative", hint="number every message")
    first, last, count = column[0].as_py(), column[-1].as_py(), len(column)
    if count == 1:
        return [first, first]
    step = pc.subtract(column.slice(1), column.slice(0, count - 1))
    if (pc.min(step).as_py() or 0) <= 0:
        raise InvalidMessage(
            f"the sequence ids for partition {partition} do not rise within the batch"
        )
    if last - first + 1 == count:
        return [first, last]
    ends = pc.indices_nonzero(pc.greater(step, pa.scalar(1, pa.int64())))
    stops = column.take(ends).to_pylist()
    starts = column.slice(1).take(ends).to_pylist()
    runs = [first]
    for stop, start in zip(stops, starts, strict=True):
        runs += (stop, start)
    return [*runs, last]


def _repeats(runs: list[int], new: list[int]) -> list[Rows]:
    """The rows whose sequence is in `runs` and not in `new`, which is a part of `runs`."""
    out: list[Rows] = []

    def add(start: int, stop: int) -> None:
        if out and out[-1][1] == start:
            start = out.pop()[0]
        out.append((start, stop))

    row = at_new = 0
    for at in range(0, len(runs), 2):
        low, high = runs[at], runs[at + 1]
        pending = low  # the first sequence of the run that no range covers so far
        while at_new < len(new) and new[at_new] <= high:
            if new[at_new] > pending:
                add(row + pending - low, row + new[at_new] - low)
            pending = new[at_new + 1] + 1
            at_new += 2
        if pending <= high:
            add(row + pending - low, row + high + 1 - low)
        row += high - low + 1
    return out


def _without(rows: pa.RecordBatch, repeats: Sequence[Rows]) -> pa.RecordBatch:
    """The rows without the repeats."""
    if not repeats:
        return rows
    stops = [start for start, _ in repeats] + [rows.num_rows]
    starts = [0] + [stop for _, stop in repeats]
    slices = [
        rows.slice(start, stop - start)
        for start, stop in zip(starts, stops, strict=True)
        if stop > start
    ]
    if len(slices) == 1:
        return slices[0]
    joined: pa.RecordBatch = pa.Table.from_batches(slices).combine_chunks().to_batches()[0]
    return joined


def as_kept(rows: pa.RecordBatch | OneRow, piece: PartitionSlice, count: int) -> pa.RecordBatch:
    """The stored rows of a slice; `rows` may be its whole batch."""
    batch = as_batch(rows)
    return batch if batch.num_rows == count else batch.slice(piece.row_start, count)
