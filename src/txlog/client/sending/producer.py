"""Owns the handles of a producer: Producer, MessageBuilder and WatermarkBuilder.

A Producer has no state of its own: its `ProducerSession` (engine/session/sending) holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import Position, TopicName, TxnId
from txlog.base.times import NO_TIMES, DurationLike, InstantLike, duration_ms, instant_ms
from txlog.engine.door import transactions as transaction
from txlog.errors import InvalidArgument, TxlogError

if TYPE_CHECKING:
    from txlog.base.schemas.classes import Record
    from txlog.engine.door.sending import (
        Access,
        BatchReceipt,
        ProducerSession,
        SendFuture,
        SendReceipt,
        Value,
    )
    from txlog.engine.door.transactions import Later, Transaction
    from txlog.engine.door.watermarks import WatermarkPlaced


class SendOptions(TypedDict, total=False):
    """The fields of a message besides its value."""

    key: bytes | str | None
    ordering_key: bytes | str | None
    properties: Mapping[str, str] | None
    event_time: InstantLike | None
    deliver_at: InstantLike | None
    deliver_after: DurationLike | None
    sequence_id: int | None
    partition: int | None


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

    __slots__ = ("session",)

    def __init__(self, session: ProducerSession) -> None:
        self.session = session

    def __repr__(self) -> str:
        name = "" if self.producer_name is None else f", name {self.producer_name!r}"
        return f"<txlog.Producer of {self.topic}{name}>"

    @property
    def topic(self) -> TopicName:
        """The topic that it sends to, or one partition of it."""
        return self.session.topic

    @property
    def producer_name(self) -> str | None:
        """The name, None for a producer without deduplication."""
        return self.session.name

    @property
    def chunking(self) -> bool:
        """Whether a message may be larger than max_message_bytes."""
        return self.session.chunking

    @property
    def access(self) -> Access:
        """Its right to send to the topic: mode and epoch."""
        return self.session.access

    def last_sequence_id(self) -> int:
        """The highest sequence stored under this producer's name in any partition; -1: none."""
        return self.session.last_sequence_id()

    def send(
        self,
        value: Value | str | Record | None,
        *,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: InstantLike | None = None,
        deliver_at: InstantLike | None = None,
        deliver_after: DurationLike | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
        txn: Transaction | TxnId | None = None,
    ) -> SendReceipt:
        """Send one message, which is durable on return; with txn, it is durable after the commit.

        In a transaction the message waits in the client, and goes into one frame with the commit.
        `txn.flush()`, `txn.id`, and the first use of a receipt write the waiting messages. They, or
        the commit, raise the errors that only the store can find: fencing, a time-out, a full disk.
        With a bare id, and in a transaction with write_through, `send` writes the message.
        value:         bytes, or a record of the topic's schema: an object of its class, or a dict;
                       with chunking also a binary file or an iterable of bytes, read a few chunks
                       at a time
        value, key:    a str becomes its UTF-8
        ordering_key:  Key_Shared keeps messages of an ordering key in order; the key still chooses
                       the partition. A property of the message (ORDERING_KEY)
        event_time:    an instant: ms since 1970 UTC, a datetime, a date or a text
        deliver_at:    deliver no earlier than this instant; a past one is no delay
        deliver_after: deliver no earlier than this long after the message was stored: ms, a
                       timedelta or a text
        raises: InvalidMessage, InvalidArgument, LimitExceeded, ProducerFenced,
                TransactionNotFound, ...
        """
        session, times = self.session, NO_TIMES
        if event_time is not None or deliver_at is not None or deliver_after is not None:
            times = instant_ms(event_time), instant_ms(deliver_at), duration_ms(deliver_after)
        if isinstance(txn, transaction.Transaction) and not txn.is_write_through:
            return session.send_buffered(
                value, key, ordering_key, properties, times, sequence_id, partition, txn
            )
        return session.send(
            value, key, ordering_key, properties, *times, sequence_id, partition, txn
        ).receipts()[0]

    @overload
    def send_async(
        self,
        value: bytes | str | Record | None,
        *,
        txn: None = None,
        **options: Unpack[SendOptions],
    ) -> SendFuture: ...

    @overload
    def send_async(
        self,
        value: bytes | str | Record | None,
        *,
        txn: Transaction,
        **options: Unpack[SendOptions],
    ) -> Later[SendReceipt]: ...

    def send_async(
        self,
        value: bytes | str | Record | None,
        *,
        txn: Transaction | None = None,
        key: bytes | str | None = None,
        ordering_key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: InstantLike | None = None,
        deliver_at: InstantLike | None = None,
        deliver_after: DurationLike | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
    ) -> SendFuture | Later[SendReceipt]:
        """Send one message without waiting; returns a Future of the receipt of `send`.

        A thread of the client sends the queued messages in order, with messages of other producers
        in one frame: after batching_max_publish_delay_ms, at batching_max_messages, at
        batching_max_allowed_size_in_bytes, or when `flush`, `close` or `send` waits. The future
        gets the receipt once the message is durable, or the error. The next `flush` or `close`
        raises the first error that no caller has taken from a future.
        txn:    send it in a transaction instead: as send_batch_async
        raises: InvalidArgument (a type); ProducerQueueIsFull, unless block_if_queue_full;
                ReadOnlyStore, AlreadyClosed. The future has every other error

        >>> import tempfile, txlog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = txlog.init(folder)
        ...     with txlog.open(folder) as client:
        ...         _ = client.create_topic("orders")
        ...         producer = client.producer("orders", block_if_queue_full=True)
        ...         sent = [producer.send_async(b"%d" % n) for n in range(3)]
        ...         producer.flush()
        ...         [future.result().message_id.entry for future in sent]
        [0, 1, 2]
        """
        return self.session.send_async(
            value,
            key,
            ordering_key,
            properties,
            instant_ms(event_time),
            instant_ms(deliver_at),
            duration_ms(deliver_after),
            sequence_id,
            partition,
            txn,
        )

    def new_message(self, txn: Transaction | TxnId | None = None) -> MessageBuilder:
        """A message to build and send, as in Pulsar's client; txn: sends it in a transaction.

        >>> import tempfile, txlog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = txlog.init(folder)
        ...     with txlog.open(folder) as client:
        ...         _ = client.create_topic("orders")
        ...         message = client.producer("orders").new_message().value(b"one").key(b"ana")
        ...         _ = message.property("lang", "en").deliver_after(0).send()
        ...         [(row.value, row.key, row.properties) for row in client.reader("orders")]
        [(b'one', b'ana', {'lang': 'en'})]
        """
        self.session.check_open()
        return MessageBuilder(self, txn)

    def new_watermark(self, txn: Transaction | TxnId | None = None) -> WatermarkBuilder:
        """A watermark to send: a promise that the producer's later messages are not older than it.

        txn: the watermark takes effect at its commit, together with its messages
        All producers without a name count as one producer; if there are several, name each.

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
        self.session.check_open()
        return WatermarkBuilder(self.session, txn)

    @property
    def watermarks_ahead(self) -> int:
        """How many of its watermarks were later than a message in one of its open transactions."""
        return self.session.watermarks.ahead

    def send_batch(
        self, data: pa.Table | pa.RecordBatch, *, txn: Transaction | TxnId | None = None
    ) -> BatchReceipt:
        """Send rows in one frame: the store keeps all rows, or none.

        data:   value binary, optionally key binary, properties map<string,string>, event_time and
                deliver_at timestamp[ms, UTC], deliver_after int64 (ms), sequence_id int64,
                partition int32
        raises: as send
        """
        return self.session.send_batch(data, txn)

    def send_batch_async(
        self, data: pa.Table | pa.RecordBatch, *, txn: Transaction
    ) -> Later[BatchReceipt]:
        """Send rows in a transaction, together with its next call that waits for an answer.

        Invalid rows raise here. If the store refuses the rows, `result()` raises the error. If no
        caller asks for the result, the commit raises it and aborts. Until then the handle keeps the
        rows without a copy, so the caller must not write to their buffers.
        """
        return self.session.send_batch_async(data, txn)

    def flush(self) -> None:
        """Wait until all messages sent without waiting are stored; every write is then durable.

        raises: the first error that no caller has taken from a future
        """
        self.session.flush()

    def close(self) -> None:
        """Store the messages sent without waiting, then stop. Raises as `flush`.

        A closed producer still holds watermarks back at the last time that it asserted. With
        idle_on_close, `close` declares it idle, so it holds nothing back. If `__del__` or a signal
        handler calls this inside another call on the store, it takes effect after that call.
        """
        self.session.close()

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
        self.session.idle_on_close = False  # a failed job holds watermarks back until it resumes
        with suppress(TxlogError):  # the first error is the cause
            self.close()


@checked
class MessageBuilder:
    """A message that is not sent yet. If a method is called twice, the last call counts.

    A message with both deliver_at and deliver_after is refused when it is sent.
    """

    __slots__ = ("_fields", "_producer", "_properties", "_value")

    def __init__(self, producer: Producer, txn: Transaction | TxnId | None) -> None:
        self._producer = producer
        self._value: Value | str | None = None
        self._properties: dict[str, str] = {}
        self._fields: dict[str, Any] = {"txn": txn}

    def __repr__(self) -> str:
        return f"<txlog.MessageBuilder of {self._producer.topic}>"

    def value(self, value: Value | str | None) -> MessageBuilder:
        """The payload: bytes; with chunking also a binary file or an iterable of bytes."""
        self._value = value
        return self

    def key(self, key: bytes | str | None) -> MessageBuilder:
        """The key, which chooses the partition."""
        self._fields["key"] = key
        return self

    def ordering_key(self, ordering_key: bytes | str | None) -> MessageBuilder:
        """Key_Shared keeps messages of an ordering key in order; the key chooses the partition."""
        self._fields["ordering_key"] = ordering_key
        return self

    def property(self, name: str, value: str) -> MessageBuilder:
        """One more property."""
        self._properties[name] = value
        return self

    def properties(self, properties: Mapping[str, str]) -> MessageBuilder:
        """More properties."""
        self._properties.update(properties)
        return self

    def event_time(self, event_time: InstantLike | None) -> MessageBuilder:
        """When it happened: ms since 1970 UTC, a datetime, a date or a text."""
        self._fields["event_time"] = instant_ms(event_time)
        return self

    def deliver_at(self, deliver_at: InstantLike | None) -> MessageBuilder:
        """Deliver no earlier than this instant; a past one is no delay."""
        self._fields["deliver_at"] = instant_ms(deliver_at)
        return self

    def deliver_after(self, deliver_after: DurationLike | None) -> MessageBuilder:
        """Deliver no earlier than this long after the message was stored: ms, or a timedelta."""
        self._fields["deliver_after"] = duration_ms(deliver_after)
        return self

    def sequence_id(self, sequence_id: int | None) -> MessageBuilder:
        """The sequence id, by which the store recognizes a repeated send of a named producer."""
        self._fields["sequence_id"] = sequence_id
        return self

    def partition(self, partition: int | None) -> MessageBuilder:
        """The partition, whatever the key."""
        self._fields["partition"] = partition
        return self

    def send(self) -> SendReceipt:
        """Send it, as Producer.send; it may be sent again."""
        properties = self._properties or None
        return self._producer.send(self._value, properties=properties, **self._fields)


class WatermarkId:
    """Where a watermark is: in every partition, or in a transaction until that commits.

    partitions: their numbers in the topic
    txn:        the transaction it was sent in, None for a plain one
    """

    __slots__ = ("_handle", "_placed", "txn")

    def __init__(self, placed: WatermarkPlaced, handle: Transaction | None = None) -> None:
        self._placed, self._handle = placed, handle
        self.txn = placed.txn

    @property
    def partitions(self) -> list[int]:
        """The partitions that have it, or will have it with the commit."""
        return list(self._placed.numbers)

    @property
    def positions(self) -> dict[int, Position]:
        """By partition where it takes effect; empty while its transaction is open.

        After the commit it is the marker, if the transaction's own handle committed it.
        """
        if self.txn is None:
            return {index: Position(*where) for index, where in self._placed.positions.items()}
        outcome = None if self._handle is None else self._handle.outcome
        rows = [] if outcome is None else outcome.markers
        markers = {number: Position(ledger, entry) for number, ledger, entry, *_ in rows}
        return {
            index: markers[number]
            for index, number in self._placed.numbers.items()
            if number in markers
        }

    def __repr__(self) -> str:
        where = self.positions or f"txn={self.txn}"
        return f"WatermarkId({where})"


@checked
class WatermarkBuilder:
    """A watermark to send: `producer.new_watermark().event_time(t).send()`, or mark_idle.

    It promises that every message of the producer that becomes visible after it is not older than
    t. In a transaction it takes effect with the commit, and the transaction's own messages may be
    older. Outside of one, t should not be above the lowest event time in the producer's open
    transactions; see the policy watermark_open_transaction_check.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders", partitions=2)
    ...         producer = client.producer("orders", name="till-7")
    ...         plain = producer.new_watermark().event_time(1_700_000_000_000).send()
    ...         with client.transaction() as txn:
    ...             _ = producer.send(b"one", event_time=1_700_000_000_500, txn=txn)
    ...             inside = producer.new_watermark(txn).event_time(1_700_000_001_000).send()
    ...             before = inside.positions
    ...         plain.partitions, before, sorted(inside.positions)
    ([0, 1], {}, [0, 1])
    """

    __slots__ = ("_event_time", "_is_idle", "_session", "_txn")

    def __init__(self, session: ProducerSession, txn: Transaction | TxnId | None) -> None:
        self._session, self._txn = session, txn
        self._event_time: int | None = None
        self._is_idle = False

    def __repr__(self) -> str:
        return f"<txlog.WatermarkBuilder of {self._session.topic}>"

    def event_time(self, event_time: InstantLike) -> WatermarkBuilder:
        """Promise that later messages of this producer are not older than this, ms since 1970 UTC.

        A time below its last one changes nothing. 2^63 - 1 is the end of its stream.
        """
        self._event_time = instant_ms(event_time)
        return self

    def mark_idle(self) -> WatermarkBuilder:
        """Consumers do not wait for this producer until it asserts a time again."""
        self._is_idle = True
        return self

    def send(self) -> WatermarkId:
        """Append it to every partition of the topic, in one frame; durable now, or at the commit.

        Sending again is harmless. A producer of one partition also asserts for every partition.
        returns: its positions
        raises:  InvalidArgument (neither a time nor idle, or both; a time that is none), NotAllowed
                 (ahead of an open transaction, where that is refused), LimitExceeded (producers),
                 PartitionUnavailable, and the errors of `Producer.send`; nothing is appended then
        """
        if self._is_idle == (self._event_time is not None):
            raise InvalidArgument(
                "a watermark is either an event_time or mark_idle",
                code=203,
                hint="call one of event_time(ms) and mark_idle()",
            )
        self._session.settle()  # the watermark comes after the queued messages
        placed = self._session.watermarks.send(self._event_time, self._txn)
        txn = self._txn
        return WatermarkId(placed, txn if isinstance(txn, transaction.Transaction) else None)
