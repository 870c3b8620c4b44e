"""Owns Producer: sends messages, one by one or as Arrow batches, plain or in a transaction.

A single message becomes a row with the columns that were given for it; a batch stays a table. Both
then go the same way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, TypeVar, cast, overload

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import TopicName, TxnId, check_name
from txlog.base.schemas import classes, values
from txlog.base.settings import KEY_BYTES_MAX, PROPERTIES_MAX
from txlog.client.sending import message_builder
from txlog.client.sending.router import ROUND_ROBIN, Router
from txlog.client.sending.watermark_builder import Asserting, WatermarkBuilder
from txlog.clock import Instant
from txlog.engine.door import sending as large
from txlog.engine.door import sending as outbox
from txlog.engine.door import sending as produce
from txlog.engine.door import sending as producers
from txlog.engine.door import transactions as transaction
from txlog.engine.door.catalog import SchemaVersion, Topic, live_topic, numbers, schema_of
from txlog.engine.door.delayed import tend_due
from txlog.engine.door.facts import OneRow
from txlog.engine.door.sending import (
    AFTER,
    AT,
    COLUMNS,
    SHARED,
    Access,
    BatchReceipt,
    Routed,
    SliceReceipt,
    Stretch,
    check_numbers,
    route,
    topic_in_use,
    with_ordering_key,
)
from txlog.engine.door.store import CallScope, Decision, Store, View
from txlog.engine.door.topics import ValueSchema, schema_in, stamped, typing_of
from txlog.engine.door.transactions import Together
from txlog.errors import AlreadyClosed, InvalidArgument, InvalidMessage, TxlogError

if TYPE_CHECKING:
    from txlog.base.schemas.classes import Record
    from txlog.client.sending.message_builder import MessageBuilder
    from txlog.engine.door.sending import (
        Batching,
        Lane,
        LargeReceipt,
        NamedProducer,
        Outbox,
        SendFuture,
        SendReceipt,
        Value,
    )
    from txlog.engine.door.transactions import DecideIn, Later, Transaction, Use

T = TypeVar("T")
_INT64: Final = pa.int64()
_ENDS: Final = struct.Struct("=2i")
_NUMBER: Final = struct.Struct("=q")
_BYTES_MAX: Final = (1 << 31) - 1


# --- the row of a single message -------------------------------------------------------------


def as_bytes(given: T | str) -> T | bytes:
    """A value or a key as bytes; a text becomes its UTF-8, wherever bytes are taken."""
    return given.encode() if isinstance(given, str) else given


def one_row(
    value: Value | None, head: Mapping[str, object], sequence_id: int | None, partition: int | None
) -> pa.RecordBatch:
    """A message as rows; head: what goes with its value. Raises InvalidArgument."""
    given = {"value": value, **head}
    for name, item in (("sequence_id", sequence_id), ("partition", partition)):
        if item is not None:
            if type(item) is not int and not _is_integer(item):
                raise InvalidArgument(f"{name} is {item!r}, it must be an integer")
            given[name] = item
    try:
        columns = [_one_item(name, item) for name, item in given.items()]
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as exc:
        raise InvalidArgument(f"the message cannot be encoded: {exc}") from exc
    return pa.RecordBatch.from_arrays(columns, list(given))


def _one_item(name: str, item: object) -> pa.Array:
    """A column of one item; of bytes and instants by hand, in a third of the time."""
    kind = COLUMNS.get(name, _INT64)
    if type(item) is bytes and len(item) <= _BYTES_MAX and name in ("value", "key"):
        ends = pa.py_buffer(_ENDS.pack(0, len(item)))
        return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(item)])
    if type(item) is int and name in ("event_time", AT) and item in outbox.INT64:
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(_NUMBER.pack(item))])
    return pa.array([item], kind)


def _is_integer(value: object) -> bool:
    """True for integers of other libraries; pyarrow would cut off what a float has more."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def beside(
    key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time: int | None,
    deliver_at: int | None,
    deliver_after: int | None,
) -> dict[str, object]:
    """What goes with a value, as far as given; raises InvalidMessage, InvalidArgument."""
    asked = {"key": key, "event_time": event_time, AT: deliver_at, AFTER: deliver_after}
    given: dict[str, object] = {name: item for name, item in asked.items() if item is not None}
    for name, when in (("event_time", event_time), (AT, deliver_at), (AFTER, deliver_after)):
        if when is not None and type(when) is not int and not _is_integer(when):
            raise InvalidArgument(f"{name} is {when!r}, it must be an integer: milliseconds")
    if properties:
        if len(properties) > PROPERTIES_MAX:
            raise outbox.too_many(properties)
        given["properties"] = list(properties.items())
    return given


def _check_sequences(rows: pa.RecordBatch) -> None:
    """Refuse negative sequence ids, which no client of Pulsar could be sent."""
    at = rows.schema.get_field_index("sequence_id")
    if at >= 0:
        check_numbers("sequence_id", rows.column(at))


# --- the producer ----------------------------------------------------------------------------


class _Shape(NamedTuple):
    """What rows depend on that a topic may change.

    written: the schema of records that are sent; typing: what every value is checked against
    version: of the schema that the producer writes, as it was opened with it (is_stated) or has
             sent records as Avro, whose bytes do not say what they are; None: of the newest
    """

    partitions: int
    written: SchemaVersion | None = None
    typing: ValueSchema | None = None
    version: int | None = None
    is_stated: bool = False


class _Routing:
    """Rows and where they go; made again if the topic has another shape by then."""

    __slots__ = ("_data", "_most", "_turn", "routed", "shape")

    def __init__(
        self, data: pa.Table | pa.RecordBatch | OneRow, shape: _Shape, turn: int, most: int
    ) -> None:
        self._data, self._turn, self._most = data, turn, most
        self.shape = shape
        self.routed = self._made()

    def _made(self) -> Routed:
        routed = route(self._data, self.shape.partitions, self._turn, self._most)
        return stamped(routed, self.shape.typing)

    def over(self, shape: _Shape) -> Routed:
        """The rows for a topic of this shape."""
        if shape is not self.shape and shape != self.shape:
            self.shape = shape
            self.routed = self._made()
        return self.routed


class _Sending(NamedTuple):
    """Rows to be sent in a transaction: the decision, and what it uses."""

    routing: _Routing
    decide: DecideIn[list[SliceReceipt]]
    uses: CallScope

    def receipt(self, answer: list[SliceReceipt]) -> BatchReceipt:
        """The receipt of what the decision answered."""
        return BatchReceipt(self.routing.routed, answer, in_txn=True)


def _receipt(answer: tuple[Stretch, int]) -> SendReceipt:
    """The receipt of a message that was sent with others: the answer of those, and its row."""
    stretch, row = answer
    return stretch.receipt(row)


@checked
class Producer:
    """Sends to a topic. With a name, sends are idempotent: a repeated sequence is stored once.

    Opening a producer fences the older ones of its name: their sends raise ProducerFenced. With
    chunking a message may be larger than max_message_bytes, and come from a file.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         with client.producer("orders", name="till-7") as producer:
    ...             first = producer.send(b"one", sequence_id=1)
    ...             again = producer.send(b"one", sequence_id=1)
    ...         first.message_id == again.message_id, again.duplicate
    (True, True)
    """

    __slots__ = (
        "_access",
        "_asserting",
        "_idle_on_close",
        "_is_closed",
        "_lanes",
        "_name",
        "_named",
        "_number",
        "_router",
        "_sends",
        "_shape",
        "_store",
        "chunking",
        "topic",
    )

    def __init__(
        self,
        store: Store,
        topic: str,
        name: str | None,
        *,
        sends: tuple[Callable[[], Outbox], Batching],
        chunking: bool = False,
        idle_on_close: bool = False,
        router: Router | None = None,
        access_mode: str = SHARED,
    ) -> None:
        self._store = store
        self._sends = sends
        self._lanes: dict[int | None, Lane] = {}  # by the schema's version, as in _Shape
        self.chunking = chunking
        self.topic = TopicName.parse(topic, allow_partition=True)
        self._name = None if name is None else check_name("producer", name)
        self._number = topic_in_use(store, self.topic).number
        self._shape = _Shape(0)
        self._shape = store.read(self._look, fresh=False)
        self._router = router or Router(None, ROUND_ROBIN, self._short(), self._name or "")
        self._named: NamedProducer | None = None
        self._access = Access(store, self._number, self._short(), access_mode)
        try:
            if self._name is not None:
                self._named = self._take_over(self._name)
        except BaseException:  # nobody else can free the seat
            self._access.close()
            raise
        target = self._access.target
        self._asserting = Asserting(store, self.topic, target, self._name, self._named)
        self._idle_on_close = idle_on_close
        self._is_closed = False

    def _take_over(self, name: str) -> NamedProducer | None:
        """Fence older producers of the name; not on a read-only store."""
        if self._store.disk.read_only:
            return None
        number = self._number
        named = self._store.write(
            lambda view, now: producers.open_producer(
                view, self._store.settings, now, live_topic(view, number, self._short()), name
            )
        )
        return named

    @property
    def producer_name(self) -> str | None:
        """The name, None for a producer without deduplication."""
        return self._name

    @property
    def access(self) -> Access:
        """Its place on the topic, for the client that closes it."""
        return self._access

    def last_sequence_id(self) -> int:
        """The highest sequence stored under this producer's name in any partition; -1: none."""
        self._check_open()
        if self._name is None:
            return -1
        name = self._name
        return self._store.read(
            lambda view: max(
                known.sequence if (known := view.topic(number).producers.get(name)) else -1
                for number in numbers(live_topic(view, self._number, self._short()))
            )
        )

    def send(
        self,
        value: Value | str | Record | None,
        *,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
        txn: Transaction | TxnId | None = None,
    ) -> SendReceipt:
        """Send one message; durable when it returns, in a transaction with the commit.

        value:                  bytes, or a record of the topic's schema: an object of its class, or
                                a dict; with chunking also a binary file or an iterable of bytes,
                                of which only a few chunks are in memory
        value, key:             a str becomes its UTF-8
        ordering_key:           what Key_Shared keeps in order instead of the key, which goes on to
                                choose the partition; a property of the message (ORDERING_KEY)
        event_time:             ms since 1970 UTC
        deliver_at:             not before this, ms since 1970 UTC; a past instant is no delay
        deliver_after:          not before this many ms after the message was stored
        raises: InvalidMessage, InvalidArgument, LimitExceeded, ProducerFenced,
                TransactionNotFound, ...
        """
        return self._send_one(
            value,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time=event_time,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            sequence_id=sequence_id,
            partition=partition,
            txn=txn,
        ).receipts()[0]

    def _send_one(
        self,
        value: Value | str | Record | None,
        *,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
        txn: Transaction | TxnId | None = None,
    ) -> BatchReceipt | LargeReceipt:
        """Send one message, as `send`; answers like a batch of one."""
        self._check_open()
        if txn is None:
            self._settle()
        version = self._shape.version
        given: Any = value
        if type(value) is not bytes:
            given, version = self._bytes(value)
        key = as_bytes(key)
        if ordering_key is not None:
            properties = with_ordering_key(properties, as_bytes(ordering_key))
        if sequence_id is None and partition is None and deliver_at is deliver_after is None:
            row = self._simple(given, key, properties, event_time)
            if row is not None:
                return self._send_batch(row, txn, version)
        head = beside(key, properties, event_time, deliver_at, deliver_after)
        if self.chunking and given is not None:
            body = large.body_of(given, key, properties, self._store.settings)
            if isinstance(body, large.Body):
                if self.topic.partition is not None:
                    partition = self.topic.partition
                self._shape = self._store.read(self._look)
                partitions = self._shape.partitions
                if partition is None and self._router.is_own:
                    partition = self._router.of_message(
                        partitions, None, key, properties, event_time, deliver_at, sequence_id
                    )
                turn = self._router.next()
                to = large.address(partitions, turn, key, partition, self._named, sequence_id)
                receipt = large.send_large(self._store, self._access.target, to, head, body, txn)
                if txn is not None:
                    self._asserting.note(txn, event_time)
                return receipt
            given = body
        batch = one_row(given, head, sequence_id, partition)
        return self._send_batch(batch, txn, version)

    def _simple(
        self,
        value: object,
        key: object,
        properties: Mapping[str, str] | None,
        event_time: int | None,
    ) -> OneRow | None:
        """The row of a message of which Arrow need not know; None if it must, or refuses it."""
        if type(value) is not bytes or len(value) > KEY_BYTES_MAX:
            return None
        if not (key is None or (type(key) is bytes and len(key) <= KEY_BYTES_MAX)):
            return None
        if event_time is not None and not (type(event_time) is int and event_time in outbox.INT64):
            return None
        if self.topic.partition is not None or self._router.is_own or self._named is not None:
            return None
        if self._shape.typing is not None or (properties and len(properties) > PROPERTIES_MAX):
            return None
        try:
            row = OneRow(value, key, properties, event_time)
        except (TypeError, AttributeError, UnicodeEncodeError):
            return None  # no texts: Arrow says what is wrong with them
        size = row.payload_bytes + row.property_bytes
        return row if size <= self._store.settings.max_message_bytes else None

    @overload
    def send_async(
        self,
        value: bytes | str | Record | None,
        *,
        txn: None = None,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
    ) -> SendFuture: ...

    @overload
    def send_async(
        self,
        value: bytes | str | Record | None,
        *,
        txn: Transaction,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
    ) -> Later[SendReceipt]: ...

    def send_async(
        self,
        value: bytes | str | Record | None,
        *,
        txn: Transaction | None = None,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
    ) -> SendFuture | Later[SendReceipt]:
        """Send one message without waiting; returns a Future of what `send` returns.

        A thread of the client sends what is queued, in order, with messages of other producers in
        one frame: after batching_max_publish_delay_ms, at batching_max_messages, at
        batching_max_allowed_size_in_bytes, or when `flush`, `close` or `send` waits. The future has
        the receipt once it is durable, or the error; one that nobody asked for is raised by the
        next `flush` or `close`.
        txn:    send it in a transaction instead: as send_batch_async
        raises: InvalidArgument (a type); ProducerQueueIsFull, unless block_if_queue_full;
                ReadOnlyStore, AlreadyClosed. All else is in the future

        >>> import tempfile, txlog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = txlog.init(folder)
        ...     with txlog.open(folder) as client:
        ...         _ = client.create_topic("orders")
        ...         producer = client.producer("orders", block_if_queue_full=True)
        ...         sent = [producer.send_async(b"%d" % n) for n in range(3)]
        ...         producer.flush()
        ...         [one.result().message_id.entry for one in sent]
        [0, 1, 2]
        """
        version = self._shape.version
        if type(value) is not bytes:
            value, version = self._whole(value)
        if ordering_key is not None:
            properties = with_ordering_key(properties, as_bytes(ordering_key))
        key = as_bytes(key)
        if self._router.is_own and partition is None and self.topic.partition is None:
            partition = self._router.of_message(
                self._shape.partitions, value, key, properties, event_time, deliver_at, sequence_id
            )
        if txn is None:
            self._check_open()
            lane = self._lanes.get(version) or self._queue(version)
            times = (event_time, deliver_at, deliver_after)
            return lane.put(value, key, properties, times, sequence_id, partition)
        is_plain = not properties and deliver_at is None and deliver_after is None
        if is_plain and partition is None and self._is_sound(value, key, event_time, sequence_id):
            self._check_open()
            self._asserting.note(txn, event_time)
            item = (None, value, key, None, event_time, None, None, sequence_id, None)
            return txn.leave_row(self._together, item, _receipt)
        head = beside(key, properties, event_time, deliver_at, deliver_after)
        batch = one_row(cast(Any, value), head, sequence_id, partition)
        return self._leave(batch, txn, lambda answer: answer.receipts()[0], version)

    def _is_sound(self, value: object, key: object, *numbers: object) -> bool:
        """True for a message that no routing refuses: it may be routed later, with others.

        numbers: event time, sequence id
        """
        if type(value) is not bytes or self.topic.partition is not None:
            return False
        if self._named is None and any(type(one) is int and one < 0 for one in numbers[1:]):
            return False
        if self._shape.typing is not None:
            return False
        size = len(value)
        if key is not None:
            if type(key) is not bytes:
                return False
            size += len(key)
        if size > KEY_BYTES_MAX or size > self._store.settings.max_message_bytes:
            return False
        return all(one is None or (type(one) is int and one in outbox.INT64) for one in numbers)

    def _together(self, items: list[outbox.Item]) -> Together:
        """What sends messages that were left for later in one transaction, as one batch."""
        sending = self._in_txn(outbox.rows_of(items), self._shape.version)
        routing = sending.routing

        def stretch(answer: list[SliceReceipt]) -> Stretch:
            return Stretch(answer, routing.routed.order, in_txn=True)

        return Together(sending.decide, sending.uses, stretch)

    def _queue(self, version: int | None) -> Lane:
        """The queue of what is sent without waiting, made by the first message.

        version: of the schema that wrote what it has; of another there is another queue
        """
        make, batching = self._sends

        def route(rows: pa.RecordBatch) -> produce.Batch:
            routing = self._route(rows, version)
            return lambda view: produce.OutgoingBatch(*self._routed(view, routing), self._named)

        sent = make()
        made = sent.lane(batching, route)
        with sent.lock:
            return self._lanes.setdefault(version, made)  # another thread may have been faster

    def _settle(self) -> None:
        """Wait for what was sent without waiting: what comes now comes after it."""
        for lane in list(self._lanes.values()):
            lane.settle()

    def _flush(self) -> None:
        """The same, and raise the first error that nobody was told of."""
        self._settle()
        for lane in list(self._lanes.values()):
            lane.flush()

    def new_message(self, txn: Transaction | TxnId | None = None) -> MessageBuilder:
        """A message to build and send, as in Pulsar's client; txn: sends it in a transaction.

        >>> import tempfile, txlog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = txlog.init(folder)
        ...     with txlog.open(folder) as client:
        ...         _ = client.create_topic("orders")
        ...         message = client.producer("orders").new_message().value(b"one").key(b"ana")
        ...         _ = message.property("lang", "en").deliver_after(0).send()
        ...         [(one.value, one.key, one.properties) for one in client.reader("orders")]
        [(b'one', b'ana', {'lang': 'en'})]
        """
        self._check_open()
        return message_builder.MessageBuilder(self.send, txn)

    def new_watermark(self, txn: Transaction | TxnId | None = None) -> WatermarkBuilder:
        """A watermark to send: from here on nothing of this producer is older than a time.

        txn: with it the watermark takes effect at the commit, together with the messages
        Producers without a name count as one; if there are several, name each.

        >>> import tempfile, txlog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = txlog.init(folder)
        ...     with txlog.open(folder) as client:
        ...         _ = client.create_topic("orders", partitions=2)
        ...         with client.producer("orders", name="till-7", idle_on_close=True) as producer:
        ...             _ = producer.send(b"one", event_time=1_700_000_000_000)
        ...             producer.new_watermark().event_time(1_700_000_000_000).send().partitions
        [0, 1]
        """
        self._check_open()
        return WatermarkBuilder(self._asserting, txn, self._settle)

    @property
    def watermarks_ahead(self) -> int:
        """Watermarks that were ahead of messages in open transactions of this producer."""
        return self._asserting.ahead

    def send_batch(
        self, data: pa.Table | pa.RecordBatch, *, txn: Transaction | TxnId | None = None
    ) -> BatchReceipt:
        """Send rows; one frame, so all or none.

        data:   value binary, optionally key binary, properties map<string,string>, event_time and
                deliver_at timestamp[ms, UTC], deliver_after int64 (ms), sequence_id int64,
                partition int32
        raises: as send
        """
        return self._send_batch(data, txn, self._shape.version)

    def _send_batch(
        self,
        data: pa.Table | pa.RecordBatch | OneRow,
        txn: Transaction | TxnId | None,
        version: int | None,
    ) -> BatchReceipt:
        if txn is not None:
            self._check_open()
            sending = self._in_txn(data, version)
            answer = transaction.in_transaction(self._store, txn, sending.decide, sending.uses)
            self._asserting.note_batch(txn, sending.routing.routed.rows)
            return sending.receipt(answer)
        self._check_open()
        self._settle()
        routing = self._route(data, version)
        named, store = self._named, self._store

        def plainly(view: View, now: Instant) -> Decision[list[SliceReceipt]]:
            topic, routed = self._routed(view, routing)
            return produce.send(view, store.settings, now, topic, routed, named)

        answer = store.write(plainly)
        tend_due(store)
        return BatchReceipt(routing.routed, answer, in_txn=False)

    def send_batch_async(
        self, data: pa.Table | pa.RecordBatch, *, txn: Transaction
    ) -> Later[BatchReceipt]:
        """Send rows in a transaction, together with its next call that waits for an answer.

        What cannot be sent raises here; what the store refuses is raised by `result()`, or else by
        the commit, which then aborts. Nothing is sent automatically before the commit. Until it is
        sent the rows are not copied, so their buffers must not be written to.
        """
        return self._leave(data, txn, lambda answer: answer, self._shape.version)

    def _leave(
        self,
        data: pa.Table | pa.RecordBatch,
        txn: Transaction,
        finish: Callable[[BatchReceipt], T],
        version: int | None,
    ) -> Later[T]:
        self._check_open()
        sending = self._in_txn(data, version)
        self._asserting.note_batch(txn, sending.routing.routed.rows)
        receipt = sending.receipt
        return txn._leave(sending.decide, sending.uses, lambda answer: finish(receipt(answer)))

    def _route(self, data: pa.Table | pa.RecordBatch | OneRow, version: int | None) -> _Routing:
        """Route over the partitions that are known; the decision checks for more.

        version: of the schema that wrote the values, as in _Shape. It goes with them from here:
                 another thread may send by another one meanwhile
        raises:  InvalidMessage, also where that schema was deleted
        """
        shape = self._shape
        if shape.version != version:
            shape = self._seen(shape._replace(version=version))
        if isinstance(data, OneRow):
            pass  # it names no partition, and no router does
        elif self.topic.partition is not None:
            fixed = pa.repeat(pa.scalar(self.topic.partition, pa.int64()), data.num_rows)
            data = data.append_column("partition", fixed)
        elif self._router.is_own:
            data = self._router.over(data, shape.partitions)
        most, turn = self._store.settings.max_message_bytes, self._router.next()
        try:
            routing = _Routing(data, shape, turn, most)
        except (InvalidArgument, InvalidMessage):  # a partition was added, or another schema
            before, shape = shape, self._seen(shape)
            if shape == before:
                raise
            routing = _Routing(data, shape, turn, most)
        if self._named is None and not isinstance(data, OneRow):  # else the decision looks at them
            _check_sequences(routing.routed.batch)
        return routing

    def _routed(self, view: View, routing: _Routing) -> tuple[Topic, Routed]:
        """The topic, and the rows over the partitions it has: under the lock a key has one place.

        raises: TopicNotFound when it was deleted; ProducerFenced, ProducerBusy
        """
        topic = self._access.topic(view)
        shape = self._shape_of(view, topic, routing.shape)
        if shape.version == self._shape.version:
            self._shape = shape
        return topic, routing.over(shape)

    def _look(self, view: View) -> _Shape:
        topic = live_topic(view, self._number, self._short())
        return self._shape_of(view, topic, self._shape)

    def _seen(self, known: _Shape) -> _Shape:
        """The shape of the topic as it is now; that of the producer, if it writes this version."""

        def look(view: View) -> _Shape:
            return self._shape_of(view, live_topic(view, self._number, self._short()), known)

        shape = self._store.read(look)
        if shape.version == self._shape.version:
            self._shape = shape
        return shape

    def _shape_of(self, view: View, topic: Topic, known: _Shape) -> _Shape:
        """The shape of the topic for what is written as the known one says.

        raises: InvalidMessage: that schema was deleted, and the topic has another
        """
        if not topic.schemas:
            same = known.written is None and known.partitions == topic.partitions
            return known if same else _Shape(topic.partitions)
        version, written = known.version, schema_of(topic)
        if version is not None and written is not None:
            written = topic.schemas[version - 1]
            if written.deleted:
                if not known.is_stated and self._shape.version == version:
                    self._shape = _Shape(topic.partitions)  # the next is written by the newest
                raise InvalidMessage(
                    f"schema {version} of topic {self._short()}, which this was written by, was"
                    " deleted",
                    hint="open the producer again" if known.is_stated else "send it again",
                    topic=self._short(),
                )
        typing = typing_of(view, self._store.settings, topic, version)
        return _Shape(topic.partitions, written, typing, version, known.is_stated)

    def _write(self, version: int) -> None:
        """Write records of this version of the topic's schema; until then it is the newest."""
        self._shape = self._shape._replace(version=version, is_stated=True)
        self._shape = self._store.read(self._look)

    def _bytes(self, value: Any) -> tuple[Any, int | None]:
        """A value as it is sent, and the version in _Shape that goes with it.

        Records are written by the schema. raises: InvalidArgument, InvalidMessage
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
                return self._written(shape, shape.written, value)
            except InvalidMessage:  # the topic may have another schema by now
                if shape.is_stated:
                    raise
        self._settle()  # what waits was written by the schema so far
        shape = self._seen(shape if shape.is_stated else shape._replace(version=None))
        if shape.written is None:
            return value, shape.version
        return self._written(shape, shape.written, value)

    def _whole(self, value: Any) -> tuple[bytes | None, int | None]:
        """The same for a value that is not read from a file: it is bytes, or nothing."""
        given, version = self._bytes(value)
        if given is not None and not isinstance(given, bytes | bytearray | memoryview):
            raise InvalidArgument(f"value is {type(given).__name__}, it must be bytes")
        return cast(Any, given), version

    def _written(
        self, shape: _Shape, schema: SchemaVersion, value: Record
    ) -> tuple[bytes, int | None]:
        """A record as bytes, and which version they are of: Avro does not say it."""
        data = values.encode_one(schema_in(schema), value)
        if schema.kind != "avro" or shape.version is not None:
            return data, shape.version
        self._shape = shape._replace(version=schema.version)
        return data, schema.version

    def _short(self) -> str:
        return self.topic.topic.short

    def _in_txn(self, data: pa.Table | pa.RecordBatch | OneRow, version: int | None) -> _Sending:
        """What sends rows in a transaction; version: as in `_route`."""
        routing = self._route(data, version)
        number, named, store = self._number, self._named, self._store
        uid = store.disk.owner()[0]

        def decide(
            view: View, now: Instant, use: Use
        ) -> Decision[tuple[TxnId, list[SliceReceipt]]]:
            topic, routed = self._routed(view, routing)
            return produce.send_in_txn(view, store.settings, now, uid, topic, routed, named, use)

        return _Sending(routing, decide, CallScope(sends=(number, routing.routed.slices)))

    def flush(self) -> None:
        """Wait until all that was sent without waiting is stored; everything written is durable.

        raises: the first error of a message whose future nobody has asked for it
        """
        self._check_open()
        self._flush()
        self._store.flush()

    def close(self) -> None:
        """Stop sending; waits for what was sent without waiting, and raises as `flush`.

        Consumers keep waiting for its watermarks, so that the last one of a finished job counts
        when they get there; not with idle_on_close, which asserts that it is idle. From `__del__`
        or a signal handler, inside a call on the store: once that has ended.
        """
        if self._is_closed:
            return
        has_pending = any(lane.has_pending for lane in list(self._lanes.values()))
        if (self._idle_on_close or has_pending or self._access.epoch) and self._store.put_off(
            self.close
        ):
            return
        try:
            self._flush()
            if self._idle_on_close:
                self._idle_on_close = False
                self.new_watermark().mark_idle().send()
        finally:
            self._is_closed = True
            self._access.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed("the producer is closed")

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        self._idle_on_close = False  # consumers wait for a failed job until it comes back
        with suppress(TxlogError):  # the first error is the cause
            self.close()
