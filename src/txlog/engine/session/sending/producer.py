"""Owns ProducerSession: one producer of one topic, from opening it to closing it.

    check     the producer is open, and messages that were sent without waiting are stored first
    encode    a value becomes bytes: records by the topic's schema, text as UTF-8
    route     rows become slices, one for each partition
    decide    under the lock; if the topic has more partitions by now, the rows are routed again
    store     alone, in a transaction, or with the messages of other producers (`outbox`)

A session keeps the access of its producer, its routing turn, the shape of the topic as it last saw
it, its queues, and the event times that it has in open transactions. Its calls come from many
threads.

The store, a transaction and the outbox call back into a session, to route and to decide. The store
needs the current partitions under its lock; the other two join messages that came one by one, and
can route them only as a batch.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

import msgspec
import pyarrow as pa

from txlog.base.ids import TopicName, TxnId, check_name
from txlog.base.schemas import classes, values
from txlog.base.settings import KEY_BYTES_MAX, PROPERTIES_MAX
from txlog.base.startup import compute as pc
from txlog.base.times import NO_TIMES
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import producers, watermark
from txlog.engine.decide.sending import send as storing
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.folds import coordinator
from txlog.engine.folds.catalog import SchemaVersion, Topic, numbers, schema_of
from txlog.engine.model.ops import UNNAMED
from txlog.engine.model.schema import OneRow
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.policies import policy
from txlog.engine.plan.records import ValueSchema, schema_in, stamped, typing_of
from txlog.engine.plan.route import Routed, route, with_ordering_key
from txlog.engine.session.sending import lanes, large, outbox
from txlog.engine.session.sending.access import Access, topic_in_use
from txlog.engine.session.sending.message import (
    INT64,
    BatchReceipt,
    BufferedReceipt,
    SharedReceipts,
    as_bytes,
    attributes_of,
    check_sequences,
    new_receipt,
    row_of,
    rows_of,
)
from txlog.engine.session.sending.router import Choose, Router
from txlog.engine.session.transactions import buffer, transaction
from txlog.engine.store.store import Store
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, InvalidArgument, InvalidMessage, NotAllowed

if TYPE_CHECKING:
    from txlog.base.schemas.classes import Record
    from txlog.engine.decide.sending.large import LargeTarget
    from txlog.engine.decide.sending.producers import NamedProducer
    from txlog.engine.decide.sending.send import SliceReceipt
    from txlog.engine.decide.sending.watermark import WatermarkPlaced
    from txlog.engine.decide.transactions.transaction import Use
    from txlog.engine.session.sending.lanes import Fields
    from txlog.engine.session.sending.large import Value
    from txlog.engine.session.sending.message import Item, LargeReceipt, SendReceipt
    from txlog.engine.session.sending.outbox import (
        Outbox,
        ProducerOptions,
        ProducerQueue,
        SendFuture,
    )
    from txlog.engine.session.transactions.buffer import DecideIn
    from txlog.engine.session.transactions.transaction import Later, Transaction

T = TypeVar("T")
Rows: TypeAlias = "pa.Table | pa.RecordBatch | OneRow"
Txn: TypeAlias = "Transaction | TxnId"
# The policy watermark_open_transaction_check.
COUNT, REFUSE, OFF = 0, 1, 2
NOTED_MIN: Final = 64  # noted transactions before the session looks for ended ones
_unnamed = itertools.count()


# --- rows ---------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """The properties of a topic that its rows depend on, and that may change.

    written: the schema that encodes records; typing: the schema that every value is checked against
    version: the schema version that this producer writes, None for the newest one. A producer has
             one when it was opened with it (is_stated), or once it has sent records as Avro, whose
             bytes do not name their schema
    """

    partitions: int
    written: SchemaVersion | None = None
    typing: ValueSchema | None = None
    version: int | None = None
    is_stated: bool = False


class RoutedRows:
    """Rows with their partitions, routed again when the topic has another shape under the lock."""

    __slots__ = ("_bytes_max", "_data", "_is_spread", "_turn", "routed", "shape")

    def __init__(
        self, data: Rows, shape: Shape, turn: int, bytes_max: int, *, is_spread: bool = True
    ) -> None:
        """is_spread: False: messages sent one by one, which have no numbering in common"""
        self._data, self._turn, self._bytes_max = data, turn, bytes_max
        self._is_spread = is_spread
        self.shape = shape
        self.routed = self._route()

    def _route(self) -> Routed:
        routed = route(self._data, self.shape.partitions, self._turn, self._bytes_max)
        if routed.is_spread and not self._is_spread:
            routed = msgspec.structs.replace(routed, is_spread=False)
        return stamped(routed, self.shape.typing)

    def over(self, shape: Shape) -> Routed:
        """The rows for a topic of this shape."""
        if shape is not self.shape and shape != self.shape:
            self.shape = shape
            self.routed = self._route()
        return self.routed


class RowsInTxn(NamedTuple):
    """Rows to be stored in a transaction: the decision, and the scope of the sweep before it."""

    rows: RoutedRows
    decide: DecideIn[list[SliceReceipt]]
    uses: CallScope

    def receipt(self, answer: list[SliceReceipt]) -> BatchReceipt:
        """The receipt for the answer of the decision."""
        return BatchReceipt(self.rows.routed, answer, in_txn=True)


# --- watermarks --------------------------------------------------------------------------------


class WatermarkAheadWarning(UserWarning):
    """A watermark is ahead of messages that its producer has in an open transaction."""


class ProducerWatermarks:
    """The watermarks of one producer, and the least event time in each of its open transactions.

    Those messages become visible later, so they would be late behind a higher watermark.
    Source: spec/watermarks 2, rule 2.

    ahead: watermarks that were ahead of a message in an open transaction of this producer
    """

    __slots__ = (
        "_access",
        "_least_times",
        "_producer",
        "_short",
        "_store",
        "_sweep_size",
        "_warned",
        "ahead",
        "name",
    )

    def __init__(
        self,
        store: Store,
        access: Access,
        short: str,
        name: str | None,
        producer: NamedProducer | None,
    ) -> None:
        self._store, self._access, self._short, self._producer = store, access, short, producer
        self.name = name or UNNAMED
        self._least_times: dict[Txn, int] = {}
        self._sweep_size = NOTED_MIN
        self._warned = False
        self.ahead = 0

    def note_batch(self, txn: Txn, batch: pa.RecordBatch | OneRow) -> None:
        """Note the least event time of rows that are sent in a transaction."""
        if isinstance(batch, OneRow):
            self.note(txn, batch.event_time)
            return
        column = batch.schema.get_field_index("event_time")
        if column >= 0:
            self.note(txn, pc.min(batch.column(column).cast(pa.int64())).as_py())

    def note(self, txn: Txn, event_time: int | None) -> None:
        """Note the event time of a message that is sent in a transaction."""
        if event_time is None:
            return
        if txn not in self._least_times and len(self._least_times) >= self._sweep_size:
            self._forget_ended()
        self._least_times[txn] = min(event_time, self._least_times.get(txn, event_time))

    def _forget_ended(self) -> None:
        """Forget ended transactions; twice as many make the next call, so its cost is amortised."""
        self._least_times = {
            txn: time for txn, time in self._least_times.items() if self._may_become_visible(txn)
        }
        self._sweep_size = max(NOTED_MIN, 2 * len(self._least_times))

    def _may_become_visible(self, txn: Txn) -> bool:
        """False once the messages of a transaction are visible or discarded."""
        if isinstance(txn, transaction.Transaction) and txn.state in (
            "COMMITTED",
            "ABORTING",
            "ABORTED",
        ):
            return False
        txn_id = _id_of(txn)
        if txn_id is None:
            return True  # all its operations are deferred

        def look(view: View) -> bool:
            entry = view.coordinator(txn_id.coordinator).unfinished.get(txn_id.sequence)
            return entry is not None and entry.status != coordinator.ABORTING

        return self._store.read(look)

    def send(self, event_time: int | None, txn: Txn | None) -> WatermarkPlaced:
        """Assert a time, or with None that the producer is idle.

        raises: NotAllowed with the policy `refuse`, if the time is ahead of an open transaction
        """
        if event_time is not None:
            watermark.check_event_time(event_time)
            self._check(event_time, txn)
        store, access, producer = self._store, self._access, self._producer
        assertion = watermark.Assertion(self.name, event_time)
        if txn is None:
            return store.write(
                lambda view, now: watermark.assert_watermark(
                    view, store.settings, now, access.topic(view), assertion, producer
                )
            )
        uid = store.disk.owner()[0]

        def decide(view: View, now: Instant, use: Use) -> Decision[tuple[TxnId, WatermarkPlaced]]:
            return watermark.assert_in_txn(
                view, store.settings, now, uid, access.topic(view), assertion, producer, use
            )

        return transaction.in_transaction(store, txn, decide, CallScope())

    def _check(self, event_time: int, within: Txn | None) -> None:
        """Compare a time with the messages that will become visible after the watermark."""
        if not self._least_times:
            return
        self._forget_ended()
        id_within = None if within is None else _id_of(within)
        for txn, least_time in self._least_times.items():
            txn_id = _id_of(txn)
            is_same = txn is within or (txn_id is not None and txn_id == id_within)
            if not is_same and event_time > least_time:
                self._report_ahead(event_time, txn, least_time)
                return

    def _report_ahead(self, event_time: int, txn: Txn, least_time: int) -> None:
        store = self._store

        def look(view: View) -> int | None:
            topic = live_topic(view, self._access.number, self._short)
            return policy(view, store.settings, topic, "watermark_open_transaction_check")

        check = store.read(look, fresh=False)
        if check == OFF:
            return
        txn_id = _id_of(txn)
        text = (
            f"watermark {event_time} of {self.name} in {self._short}: transaction "
            f"{'' if txn_id is None else f'{txn_id} '}is open and has a message of {least_time}"
        )
        if check == REFUSE:
            raise NotAllowed(
                text,
                hint="end the transaction first, or send the watermark in it",
                topic=self._short,
                txn=txn_id,
                least_event_time=least_time,
                event_time=event_time,
            )
        self.ahead += 1
        store.tally.ahead[self._access.number] += 1
        if not self._warned:
            self._warned = True
            # The caller's line: this, _check, send, WatermarkBuilder.send and its wrapper are ours.
            warnings.warn(f"{text}: it will be late", WatermarkAheadWarning, stacklevel=6)


def _id_of(txn: Txn) -> TxnId | None:
    """The id of a transaction; None until its first operation is written."""
    use = txn.use if isinstance(txn, transaction.Transaction) else txn
    return use if isinstance(use, TxnId) else None


# --- the session -------------------------------------------------------------------------------


class ProducerSession:
    """The state of one producer between calls.

    topic:         as its caller named it, perhaps one partition
    name:          the store deduplicates the sends of a name by sequence id; None: no deduplication
    chunking:      a message may be larger than max_message_bytes, and come from a file
    access:        its right to send to the topic
    watermarks:    the watermarks that it asserts
    idle_on_close: closing it asserts that it is idle
    """

    __slots__ = (
        "_is_closed",
        "_lanes",
        "_named",
        "_outbox",
        "_queues",
        "_router",
        "_shape",
        "access",
        "chunking",
        "idle_on_close",
        "name",
        "store",
        "topic",
        "watermarks",
    )

    def __init__(
        self,
        store: Store,
        topic: str,
        name: str | None,
        make_outbox: Callable[[], Outbox],
        options: ProducerOptions,
        router: tuple[Choose | None, str],
        access_mode: str,
        *,
        chunking: bool = False,
    ) -> None:
        """Open a producer on a topic; with a name it fences older producers of that name.

        make_outbox: returns the outbox that the producers of a client share
        options:     for messages that are sent without waiting
        router:      a function or None, and the mode
        raises:      TopicNotFound, ProducerBusy, InvalidArgument, LimitExceeded
        """
        seed = name or f"{store.disk.pid()}-{next(_unnamed)}"
        self._router = Router(*router, topic, seed)
        # Without options the queue takes the defaults: a program that only waits needs no outbox.
        self._outbox = make_outbox, outbox.batching_of(options) if options else None
        self._queues: dict[int | None, ProducerQueue] = {}  # by schema version, as in Shape
        self._is_closed = False
        self.store, self.chunking, self.idle_on_close = store, chunking, False
        self.topic = TopicName.parse(topic, allow_partition=True)
        self.name = None if name is None else check_name("producer", name)
        number, short = topic_in_use(store, self.topic).number, self.topic.topic.short
        self._shape = Shape(0)
        self._shape = store.read(
            lambda view: self._shape_of(view, live_topic(view, number, short), self._shape),
            fresh=False,
        )
        self.access = Access(store, number, short, access_mode)
        try:
            self._named = self._fence()
        except BaseException:  # nothing else can free the topic
            self.access.close()
            raise
        is_fenced = self._named is not None or self.access.epoch > 0
        self._lanes: lanes.Lanes[Shape] = lanes.Lanes(is_fenced=is_fenced)
        if self.name is not None:
            lanes.follow(store, (number, self.name), self._lanes)
        self.watermarks = ProducerWatermarks(store, self.access, short, self.name, self._named)

    def _fence(self) -> NamedProducer | None:
        """Fence older producers of the name. A read-only store has none: it takes no messages."""
        store, name = self.store, self.name
        if name is None or store.disk.read_only:
            return None
        lanes.write_older(store, (self.access.number, name))
        return store.write(
            lambda view, now: producers.open_producer(
                view, store.settings, now, self._live_topic(view), name
            )
        )

    @property
    def has_schema(self) -> bool:
        """True when the topic has a schema, as far as this session has seen."""
        return self._shape.written is not None

    @property
    def checks_values(self) -> bool:
        """True when the topic checks values against a schema: an invalid one refuses its batch."""
        return self._shape.typing is not None

    def last_sequence_id(self) -> int:
        """The highest sequence id stored under its name in any partition; -1: none."""
        self.check_open()
        name = self.name
        if name is None:
            return -1

        def look(view: View) -> int:
            states = [
                view.topic(number).producers.get(name) for number in numbers(self._live_topic(view))
            ]
            return max(-1 if state is None else state.sequence for state in states)

        return self.store.read(look)

    def check_open(self) -> None:
        """Raises AlreadyClosed."""
        if self._is_closed:
            raise AlreadyClosed("the producer is closed")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be copied or pickled: open it again instead")

    # --- sending a message -----------------------------------------------------------------------

    def send(
        self,
        value: Value | str | Record | None,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
        txn: Txn | None = None,
    ) -> BatchReceipt | LargeReceipt:
        """Send one message; returns the receipt of a batch of one."""
        self.check_open()
        if txn is None:
            self.settle()
        version = self._shape.version
        content: Any = value
        if type(value) is not bytes:
            content, version = self._encoded(value)
        key = as_bytes(key)
        if ordering_key is not None:
            properties = with_ordering_key(properties, as_bytes(ordering_key))
        if sequence_id is None and partition is None and deliver_at is deliver_after is None:
            row = self._plain_row(content, key, properties, event_time)
            if row is not None:
                return self._send_rows(row, txn, version)
        attributes = attributes_of(key, properties, event_time, deliver_at, deliver_after)
        if self.chunking and content is not None:
            content = large.body_of(content, key, properties, self.store.settings)
            if isinstance(content, large.Body):
                return self._send_large(content, attributes, sequence_id, partition, txn)
        return self._send_rows(row_of(content, attributes, sequence_id, partition), txn, version)

    def _send_large(
        self,
        body: large.Body,
        attributes: dict[str, Any],
        sequence_id: int | None,
        partition: int | None,
        txn: Txn | None,
    ) -> LargeReceipt:
        """Send a message in chunks; written when it returns, also in a transaction."""
        event_time = attributes.get("event_time")
        properties = dict(attributes.get("properties", ())) or None
        fields = (attributes.get("key"), properties, event_time, attributes.get("deliver_at"))
        target = self._target_of(partition, *fields, sequence_id)
        receipt = large.send(self.store, self.access.target, target, attributes, body, txn)
        if txn is not None:
            self.watermarks.note(txn, event_time)
        return receipt

    def _plain_row(
        self,
        value: object,
        key: object,
        properties: Mapping[str, str] | None,
        event_time: int | None,
    ) -> OneRow | None:
        """The row of a message that needs no Arrow; None if it needs Arrow, or is invalid."""
        if type(value) is not bytes or len(value) > KEY_BYTES_MAX:
            return None
        if not (key is None or (type(key) is bytes and len(key) <= KEY_BYTES_MAX)):
            return None
        if event_time is not None and not (type(event_time) is int and event_time in INT64):
            return None
        if self.topic.partition is not None or self._router.has_function or self._named is not None:
            return None
        if self.checks_values or (properties and len(properties) > PROPERTIES_MAX):
            return None
        try:
            row = OneRow(value, key, properties, event_time)
        except (TypeError, AttributeError, UnicodeEncodeError):
            return None  # no texts: pyarrow's error says which
        size = row.payload_bytes + row.property_bytes
        return row if size <= self.store.settings.max_message_bytes else None

    def _target_of(
        self,
        partition: int | None,
        key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
        deliver_at: int | None,
        sequence_id: int | None,
    ) -> LargeTarget:
        """The partition of a large message."""
        if self.topic.partition is not None:
            partition = self.topic.partition
        shape = self._shape = self._refreshed(self._shape)
        if partition is None and self._router.has_function:
            partition = self._router.partition_of(
                shape.partitions, None, key, properties, event_time, deliver_at, sequence_id
            )
        turn = self._router.next_turn()
        return large.address(shape.partitions, turn, key, partition, self._named, sequence_id)

    def send_async(
        self,
        value: bytes | str | Record | None,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
        txn: Transaction | None = None,
    ) -> SendFuture | Later[SendReceipt]:
        """Queue one message, or buffer it in a transaction; returns a future, or the later answer.

        raises: InvalidArgument, InvalidMessage, AlreadyClosed, ReadOnlyStore, ProducerQueueIsFull.
                An error that refuses the message later comes with the answer
        """
        version, is_checked = self._shape.version, False
        if type(value) is not bytes:
            is_checked = not isinstance(value, str)
            value, version = self._encoded_whole(value)
        if ordering_key is not None:
            properties = with_ordering_key(properties, as_bytes(ordering_key))
        key = as_bytes(key)
        times = (event_time, deliver_at, deliver_after)
        if txn is not None:
            message = value, key, properties, times, sequence_id, partition
            receipt = self._buffered(txn, version, message, is_checked=is_checked)
            return transaction.Later(receipt.is_filled, receipt.filled)
        if self._router.has_function and partition is None and self.topic.partition is None:
            partition = self._router.partition_of(
                self._shape.partitions, value, key, properties, event_time, deliver_at, sequence_id
            )
        self.check_open()
        queue = self._queues.get(version) or self._make_queue(version)
        return queue.put(value, key, properties, times, sequence_id, partition)

    # --- messages that wait in a transaction -----------------------------------------------------

    def send_buffered(
        self,
        value: Value | str | Record | None,
        key: bytes | str | None,
        ordering_key: bytes | str | None,
        properties: Mapping[str, str] | None,
        times: tuple[int | None, int | None, int | None],
        sequence_id: int | None,
        partition: int | None,
        txn: Transaction,
    ) -> SendReceipt:
        """Send one message in a transaction, which writes it later; a large one is written now.

        times:  event_time, deliver_at, deliver_after
        raises: the refusals that need no store; InvalidTxnStatus (it has ended)
        """
        lanes = self._lanes
        if (
            lanes.plain_for is self._shape
            and type(value) is bytes
            and (ordering_key is properties is sequence_id is partition is None)  # type: ignore[comparison-overlap]
            and times is NO_TIMES
            and (key is None or type(key) is bytes)
        ):
            size = len(value) if key is None else len(value) + len(key)
            if size <= KEY_BYTES_MAX and size <= self.store.settings.max_message_bytes:
                if self._is_closed:
                    self.check_open()
                self.store.need_writable()
                item = (None, value, key, None, None, None, None, None, None)
                if txn is not lanes.newest:
                    lanes.note(txn)
                receipt = new_receipt(BufferedReceipt)
                receipt._at = (txn.buffer or txn).put(lanes.plain, item, size, None)
                return receipt
        version, is_checked = self._shape.version, False
        content: Any = value
        if type(value) is not bytes:
            content, version = self._encoded(value)
            is_checked = content is not value and not isinstance(value, str)
        if type(key) is str:
            key = key.encode()
        if ordering_key is not None:
            properties = with_ordering_key(properties, as_bytes(ordering_key))
        if self.chunking and content is not None:
            self.check_open()
            content = large.body_of(content, cast(Any, key), properties, self.store.settings)
            if isinstance(content, large.Body):
                columns = attributes_of(cast(Any, key), properties, *times)
                large_receipt = self._send_large(content, columns, sequence_id, partition, txn)
                return large_receipt.receipts()[0]
        message = content, key, properties, times, sequence_id, partition
        return self._buffered(txn, version, message, is_checked=is_checked)

    def _buffered(
        self, txn: Transaction, version: int | None, message: Fields, *, is_checked: bool
    ) -> BufferedReceipt:
        """Put a message into the buffer of a transaction; returns its receipt.

        is_checked: the value was encoded by the schema that it would be checked against
        """
        if self._is_closed:
            self.check_open()
        self.store.need_writable()
        value, key, properties, times, sequence_id, partition = message
        if partition is None and self._router.has_function and self.topic.partition is None:
            partition = self._router.partition_of(
                self._shape.partitions, value, key, properties, times[0], times[1], sequence_id
            )
        size = -1
        pairs = list(properties.items()) if type(properties) is dict else None
        if is_checked or self._shape.typing is None:
            partitions = 0 if self.topic.partition is not None else self._shape.partitions
            fields = value, key, pairs, times, sequence_id, partition
            size = lanes.plain_size(fields, partitions, self.store.settings.max_message_bytes)
        if size < 0 or (properties and pairs is None):
            message = value, key, properties, times, sequence_id, partition
            size, item = self._checked_item(message, version)
        else:
            item = (None, value, key, pairs or None, *times, sequence_id, partition)
        if times[0] is not None:
            self.watermarks.note(txn, item[4])
        self._lanes.note(txn)
        sequence = None if self._named is None else item[7]
        kind = (item[8] is not None) + 2 * (sequence is not None)
        lane = self._lanes.get((version, kind))
        if lane is None:
            short, shape = self.topic.topic.short, self._shape
            lane = buffer.Lane(partial(self._together, version), self.access.number, short)
            is_plain = not (kind or self.chunking or self._router.has_function)
            is_plain = is_plain and shape.typing is None and shape.version == version
            lane = self._lanes.add((version, kind), lane, shape if is_plain else None)
        return BufferedReceipt.of(txn.put(lane, item, size, sequence))

    def _checked_item(self, message: Fields, version: int | None) -> tuple[int, Item]:
        """The size and the row of a message, after routing it alone. Raises as `_route`."""
        value, key, properties, times, sequence_id, partition = message
        attributes = attributes_of(key, properties, *times)
        rows = self._route(row_of(value, attributes, sequence_id, partition), version)
        size = rows.routed.payload_bytes
        pairs = list(properties.items()) if properties else None
        if pairs:
            size += sum([len(name.encode()) + len(text.encode()) for name, text in pairs])
        numbers = (
            None if number is None else operator.index(number)
            for number in (*times, sequence_id, partition)
        )
        copies = (None if part is None else bytes(part) for part in (value, key))
        return size, (None, *copies, pairs, *numbers)

    def _together(self, version: int | None, items: list[Item]) -> buffer.Together:
        """Messages that were sent one by one in a transaction, as one batch."""
        rows = rows_of(items) if len(items) > 1 else self._single(items[0])
        in_txn = self._in_txn(rows, version, is_spread=False)

        def receipts(answer: list[SliceReceipt]) -> SharedReceipts:
            return SharedReceipts(answer, in_txn.rows.routed.order, in_txn=True)

        return buffer.Together(in_txn.decide, in_txn.uses, receipts)

    def _single(self, item: Item) -> Rows:
        """The rows of a run of one message."""
        _, value, key, pairs, event_time, *others = item
        row = None
        if others.count(None) == len(others):
            row = self._plain_row(value, key, dict(pairs) if pairs else None, event_time)
        return rows_of([item]) if row is None else row

    # --- sending rows ----------------------------------------------------------------------------

    def send_batch(self, data: pa.Table | pa.RecordBatch, txn: Txn | None = None) -> BatchReceipt:
        """Send rows in one frame: it stores all or none."""
        self.check_open()
        if txn is None and self._queues:
            self.settle()
        return self._send_rows(data, txn, self._shape.version)

    def _send_rows(self, data: Rows, txn: Txn | None, version: int | None) -> BatchReceipt:
        store = self.store
        if txn is not None:
            in_txn = self._in_txn(data, version)
            placed = transaction.in_transaction(store, txn, in_txn.decide, in_txn.uses)
            self.watermarks.note_batch(txn, in_txn.rows.routed.rows)
            return in_txn.receipt(placed)
        rows = self._route(data, version)

        def decide(view: View, now: Instant) -> Decision[list[SliceReceipt]]:
            outgoing = self.outgoing(view, rows)
            return storing.send(view, store.settings, now, *outgoing)

        answer = store.write(decide)
        tend_due(store)
        return BatchReceipt(rows.routed, answer, in_txn=False)

    def send_batch_async(
        self, data: pa.Table | pa.RecordBatch, txn: Transaction
    ) -> Later[BatchReceipt]:
        """Defer rows in a transaction; rows that cannot be routed raise here."""
        self.check_open()
        in_txn = self._in_txn(data, self._shape.version)
        self.watermarks.note_batch(txn, in_txn.rows.routed.rows)
        return txn.defer(in_txn.decide, in_txn.uses, in_txn.receipt)

    def rows_in_txn(self, data: pa.RecordBatch) -> RowsInTxn:
        """Route rows, to be stored in a transaction with a decision of their own."""
        return self._in_txn(data, self._shape.version)

    def _in_txn(self, data: Rows, version: int | None, *, is_spread: bool = True) -> RowsInTxn:
        rows, store = self._route(data, version, is_spread=is_spread), self.store
        uid = store.disk.owner()[0]

        def decide(
            view: View, now: Instant, use: Use
        ) -> Decision[tuple[TxnId, list[SliceReceipt]]]:
            outgoing = self.outgoing(view, rows)
            return storing.send_in_txn(view, store.settings, now, uid, *outgoing, use)

        return RowsInTxn(rows, decide, CallScope(sends=(self.access.number, rows.routed.slices)))

    # --- routing ---------------------------------------------------------------------------------

    def route(self, data: pa.RecordBatch) -> RoutedRows:
        """Route rows before the lock. Raises InvalidMessage, InvalidArgument, LimitExceeded."""
        return self._route(data, self._shape.version)

    def _route(self, data: Rows, version: int | None, *, is_spread: bool = True) -> RoutedRows:
        """Route rows over the partitions seen last; the decision routes again if there are more.

        version: of the schema that encoded the values, as in Shape. The rows keep it, since another
                 thread may encode by another version meanwhile
        is_spread: as of RoutedRows
        raises:  InvalidMessage, also where that schema was deleted
        """
        shape = self._shape
        if shape.version != version:
            shape = self._refreshed(shape._replace(version=version))
        if isinstance(data, OneRow):
            pass  # `_plain_row` makes none for a fixed partition or a routing function
        elif self.topic.partition is not None:
            fixed = pa.repeat(pa.scalar(self.topic.partition, pa.int64()), data.num_rows)
            data = data.append_column("partition", fixed)
        elif self._router.has_function:
            data = self._router.with_partitions(data, shape.partitions)
        bytes_max, turn = self.store.settings.max_message_bytes, self._router.next_turn()
        try:
            rows = RoutedRows(data, shape, turn, bytes_max, is_spread=is_spread)
        except (InvalidArgument, InvalidMessage):  # perhaps a partition or a schema was added
            refreshed = self._refreshed(shape)
            if refreshed == shape:
                raise
            rows = RoutedRows(data, refreshed, turn, bytes_max, is_spread=is_spread)
        if self._named is None and not isinstance(data, OneRow):  # else the decision checks them
            check_sequences(rows.routed.batch)
        return rows

    def outgoing(self, view: View, rows: RoutedRows) -> storing.OutgoingBatch:
        """The rows over the partitions that the topic has under the lock, so a key stays in one.

        raises: TopicNotFound when it was deleted; ProducerFenced, ProducerBusy
        """
        topic = self.access.topic(view)
        shape = self._shape_of(view, topic, rows.shape)
        if shape.version == self._shape.version:
            self._shape = shape
        return storing.OutgoingBatch(topic, rows.over(shape), self._named)

    def _live_topic(self, view: View) -> Topic:
        return live_topic(view, self.access.number, self.topic.topic.short)

    def _refreshed(self, shape: Shape) -> Shape:
        """A shape as the topic is now; the session takes it over if it writes this version."""
        refreshed = self.store.read(
            lambda view: self._shape_of(view, self._live_topic(view), shape)
        )
        if refreshed.version == self._shape.version:
            self._shape = refreshed
        return refreshed

    def _shape_of(self, view: View, topic: Topic, shape: Shape) -> Shape:
        """The current shape of the topic, for values that were encoded by the version of `shape`.

        raises: InvalidMessage: that schema was deleted, and the topic has another
        """
        if not topic.schemas:
            is_same = shape.written is None and shape.partitions == topic.partitions
            return shape if is_same else Shape(topic.partitions)
        version, written = shape.version, schema_of(topic)
        if version is not None and written is not None:
            written = topic.schemas[version - 1]
            if written.deleted:
                if not shape.is_stated and self._shape.version == version:
                    self._shape = Shape(topic.partitions)  # the newest encodes the next record
                short = self.topic.topic.short
                raise InvalidMessage(
                    f"schema {version} of topic {short}, which this was written by, was deleted",
                    hint="open the producer again" if shape.is_stated else "send it again",
                    topic=short,
                )
        typing = typing_of(view, self.store.settings, topic, version)
        return Shape(topic.partitions, written, typing, version, shape.is_stated)

    # --- encoding --------------------------------------------------------------------------------

    def write_by(self, version: int) -> None:
        """From now on encode records by this version of the topic's schema, not by the newest."""
        self._shape = self._shape._replace(version=version, is_stated=True)
        self._shape = self._refreshed(self._shape)

    def _encoded(self, value: Any) -> tuple[Any, int | None]:
        """A value as bytes, or as it is, and the schema version that goes with it, as in Shape.

        raises: InvalidArgument, InvalidMessage
        """
        shape = self._shape
        if isinstance(value, str):
            try:
                return value.encode(), shape.version
            except UnicodeEncodeError as error:
                raise InvalidArgument("value cannot be written as UTF-8") from error
        if not classes.is_record(value):
            return value, shape.version
        if shape.written is not None:
            try:
                return self._encoded_by(shape, shape.written, value)
            except InvalidMessage:  # perhaps the topic has another schema by now
                if shape.is_stated:
                    raise
        self.settle()  # the queued messages are of the schema so far
        shape = self._refreshed(shape if shape.is_stated else shape._replace(version=None))
        if shape.written is None:
            return value, shape.version
        return self._encoded_by(shape, shape.written, value)

    def _encoded_whole(self, value: Any) -> tuple[bytes | None, int | None]:
        """As `_encoded`, for a value that cannot be large: a file is refused."""
        content, version = self._encoded(value)
        if content is not None and not isinstance(content, bytes | bytearray | memoryview):
            raise InvalidArgument(f"value is {type(content).__name__}, it must be bytes")
        return cast(Any, content), version

    def _encoded_by(
        self, shape: Shape, schema: SchemaVersion, value: Record
    ) -> tuple[bytes, int | None]:
        """Encode a record. From the first Avro record on, the session keeps the schema version."""
        content = values.encode_one(schema_in(schema), value)
        if schema.kind != "avro" or shape.version is not None:
            return content, shape.version
        self._shape = shape._replace(version=schema.version)
        return content, schema.version

    # --- queues, and the end ---------------------------------------------------------------------

    def _make_queue(self, version: int | None) -> ProducerQueue:
        """The queue for messages of one schema version; the first such message makes it."""

        def route(data: pa.RecordBatch) -> storing.Batch:
            rows = self._route(data, version)
            return lambda view: self.outgoing(view, rows)

        make_outbox, batching = self._outbox
        shared = make_outbox()
        queue = shared.queue(batching or outbox.Batching(), route)
        with shared.lock:
            return self._queues.setdefault(version, queue)  # another thread may have been faster

    def settle(self) -> None:
        """Wait until every queued message is stored or refused: later calls come after them."""
        for queue in list(self._queues.values()):
            queue.settle()

    def flush(self) -> None:
        """Settle, and raise the first error that no caller has seen; else flush the store."""
        self.check_open()
        self._flush_queues()
        self.store.flush()

    def _flush_queues(self) -> None:
        self.settle()
        for queue in list(self._queues.values()):
            queue.flush()

    def close(self) -> None:
        """Leave the topic, once every queued message is stored or refused; raises as `flush`.

        In `__del__` or a signal handler that interrupted a call on the store, it runs after that
        call.
        """
        if self._is_closed:
            return
        has_pending = any(queue.has_pending for queue in list(self._queues.values()))
        has_pending = has_pending or self._lanes.has_waiting
        must_write = self.idle_on_close or has_pending or self.access.epoch
        if must_write and self.store.put_off(self.close):
            return
        try:
            self._flush_queues()
            self._lanes.write()
            if self.idle_on_close:
                self.idle_on_close = False
                self.watermarks.send(None, None)
        finally:
            self._is_closed = True
            self.access.close()
