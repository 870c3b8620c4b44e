"""Owns Consumer: receives a subscription's messages and acknowledges them.

The handle has no state of its own: its session (`engine/session/consuming`) holds the leases and
calls the store. A message is delivered again when the consumer dies, returns it, or does not
acknowledge it within the acknowledgement time-out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TxnId
from txlog.base.times import DurationLike, duration_ms
from txlog.client.consuming.batches import Batching, BatchReceivePolicy, receive_batch
from txlog.client.consuming.listeners import Listening, needed
from txlog.engine.door.consuming import (
    AckAnswer,
    Acknowledgeable,
    ConsumerSession,
    LastIds,
    MoveResult,
    ReturnResult,
    Session,
)
from txlog.engine.door.reading import Message, Where, until
from txlog.engine.door.transactions import Later, Transaction
from txlog.engine.door.watermarks import Watermarked, WatermarkListener, WatermarkSession
from txlog.errors import AlreadyClosed, NotAllowed


@checked
class Consumer(Watermarked):
    """Receives from one topic or several on a subscription; safe to call from many threads.

    With several topics, or a pattern (re.compile), each topic has its own subscription of that name
    and its own order; there is no order between topics, and each gets a share of a batch. With
    `durable=False` the subscription is in memory: it writes nothing, no other consumer sees it, and
    it does not keep messages from being trimmed.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         for name in ("orders", "returns"):
    ...             _ = client.create_topic(name)
    ...             _ = client.producer(name).send(name.encode())
    ...         with client.consumer("orders", "billing", create=True) as consumer:
    ...             message = consumer.receive()
    ...             _ = consumer.acknowledge(message)
    ...             one = (message.value, consumer.receive(timeout_ms=0))
    ...         with client.consumer(["orders", "returns"], "audit", create=True) as consumer:
    ...             table = consumer.receive_batch()
    ...             _ = consumer.acknowledge(table)
    ...         with client.consumer("orders", "glance", durable=False) as consumer:
    ...             _ = consumer.negative_acknowledge(consumer.receive())
    ...             again = consumer.receive()
    ...     one, sorted(table["value"].to_pylist()), again.redelivery_count
    ((b'orders', None), [b'orders', b'returns'], 1)
    """

    __slots__ = ("__weakref__", "_session", "batching", "listening", "session")

    def __init__(
        self,
        session: Session,
        listener: WatermarkListener[Consumer] | None = None,
        policy: BatchReceivePolicy | None = None,
    ) -> None:
        """listener: called for each watermark; policy: for receive_batch without limits."""
        self.session = session
        self.listening: Listening | None = None
        self._session: WatermarkSession | None = session.watermarks
        if self._session is not None and listener is not None:
            self._session.notify = partial(listener.received_watermark, self)
        self.batching = Batching(policy, has_watermarks=self._session is not None)

    def _single(self) -> ConsumerSession:
        if not isinstance(self.session, ConsumerSession):
            raise NotAllowed(
                f"subscription {self.subscription} is on several topics or in memory: "
                "the consumer has no single id and name",
                subscription=self.subscription,
            )
        return self.session

    @property
    def id(self) -> int:
        """Its number in the store, never used twice.

        raises: NotAllowed with several topics, or a subscription in memory
        """
        return self._single().member.number

    @property
    def name(self) -> str:
        """Its name; with several topics, or in memory, the name of the subscription."""
        session = self.session
        return session.name if isinstance(session, ConsumerSession) else session.subscription

    @property
    def kind(self) -> str:
        """The subscription's type: exclusive, failover, shared or key-shared. Raises as `id`."""
        return self._single().member.kind

    @property
    def short(self) -> str:
        """The name of its topic, without public/default; with several topics, of the first."""
        return next(iter(self.session.topics), "")

    @property
    def topics(self) -> list[str]:
        """The topics it currently receives from."""
        return self.session.topics

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self.session.subscription

    @property
    def blocked(self) -> str | None:
        """unacked_max, if that limit kept messages from the last receive; else None."""
        return self.session.blocked

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(
        self, max_messages: int | None = None, timeout_ms: DurationLike = 0
    ) -> pa.Table:
        """The next messages, at most max_messages, with the columns of RECEIVED.

        It returns no rows when time runs out; `blocked` may then say why. Without arguments it
        follows batch_receive_policy, or else returns at most 1,000 messages without waiting.
        Redelivered messages come before new ones, and messages of one transaction are together.
        With watermarks the table has a column is_late, and a new watermark ends the call with no
        rows. With several topics, each gets a share first.
        raises: AlreadyClosed, InvalidArgument, SubscriptionNotFound (deleted); Corruption, after
                everything readable was returned; PartitionUnavailable, if no partition is available
        """
        return receive_batch(self.session, self.batching, max_messages, duration_ms(timeout_ms))

    def receive(self, timeout_ms: DurationLike | None = 0) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait forever).

        The consumer leases several messages ahead, depending on the application's pace, at most
        receiver_queue_size. Messages that `receive` has not returned count as not delivered: no
        time-out runs for them, and they go back uncounted when the consumer closes or dies. With
        watermarks it also returns None as soon as there is a new one; see get_last_watermark.
        raises: as receive_batch
        """
        session = self.session
        received = until(session.store, session.next, duration_ms(timeout_ms), session.rest)
        return None if received is None else received[0]

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        return self.session.has_message_available()

    def pause_message_listener(self) -> None:
        """Stop calling the message listener, and return messages taken ahead.

        It waits until a running call of the listener ends, unless the listener itself calls this.
        raises: AlreadyClosed, NotAllowed (there is no listener)
        """
        self.session.check_open()
        needed(self.listening).pause()
        self.session.give_back_ahead()

    def resume_message_listener(self) -> None:
        """Call the message listener again.

        raises: as pause_message_listener
        """
        self.session.check_open()
        needed(self.listening).resume()

    def get_last_message_ids(self) -> LastIds:
        """The last visible message of each partition: {partition: MessageId, or None if empty}.

        With several topics, {topic: {partition: …}}.
        """
        return self.session.last_message_ids()

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when there are several partitions."""
        return self.session.last_message_id()

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows; in a transaction, its commit does so.

        It acknowledges all of the messages or none, also with several topics.
        raises: AlreadyClosed, MessageNotFound, PartitionUnavailable; in a transaction also
                TransactionConflict, which aborts the transaction, and errors of its state
        """
        return self.session.acknowledge(what, txn)

    def acknowledge_async(self, what: Acknowledgeable, *, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        If it is refused, `result()` raises the error. If the caller does not ask for the result,
        the commit raises it and aborts.
        raises: AlreadyClosed, MessageNotFound (of a topic that it does not consume),
                InvalidArgument
        """
        return self.session.acknowledge_later(what, txn)

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition.

        If earlier messages were returned after the message was received, it does nothing, and
        `stale` is set; in a transaction it raises TransactionConflict.
        raises: as acknowledge; NotAllowed (shared, key-shared)
        """
        return self.session.acknowledge_cumulative(what, txn)

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: DurationLike | None = None
    ) -> ReturnResult:
        """Return received messages; they come again after a delay, counted as redelivered.

        Messages that this consumer does not hold are skipped.
        delay_ms: None: the delay of the consumer or subscription, doubled with each redelivery up
                  to nack_backoff_max_ms
        returns:  returned: how many came back; missed: how many were skipped
        raises:   AlreadyClosed, InvalidArgument, MessageNotFound
        """
        return self.session.negative_acknowledge(what, duration_ms(delay_ms))

    def reconsume_later(
        self,
        message: Message | MessageId,
        delay_ms: DurationLike = 0,
        properties: dict[str, str] | None = None,
    ) -> MoveResult:
        """Postpone a message: copy it to the retry topic and acknowledge it, in one frame.

        The retry topic is <topic>-<subscription>-RETRY, or the one in the subscription's policy. If
        it is missing it is created, with this subscription, so that a consumer of both topics gets
        the message again.
        delay_ms: of the copy, as deliver_after of a send; it takes effect if the subscription type
                  on the retry topic supports delays
        raises:   InvalidMessage (a delay above the maximum of the retry topic), and nothing is
                  moved; NotAllowed (a subscription in memory)
        """
        return self.session.reconsume_later(message, duration_ms(delay_ms), properties)

    def redeliver_unacknowledged_messages(self) -> ReturnResult:
        """Return all received and unacknowledged messages; they come again at once, counted."""
        return self.session.redeliver()

    def seek(self, to: Where) -> None:
        """Move the subscription to before a message, an instant or a bound.

        With several topics, a message id moves only its topic; anything else moves each topic in
        turn. See SubscriptionHandle.seek.
        """
        self.session.seek(to)

    def unsubscribe(self) -> None:
        """Delete the subscription, on each topic, and close.

        raises: ConsumerBusy if it has other consumers; it is then deleted on earlier topics only
        """
        self.session.unsubscribe()

    def close(self) -> None:
        """Leave the subscription; its unacknowledged messages come again, counted if received.

        If `__del__` or a signal handler calls this inside another call on the store, it takes
        effect when that call has ended.
        """
        self.session.close()

    def __iter__(self) -> Iterator[Message]:
        """Receive for ever: wait for the next message, and end when the consumer is closed.

        The loop does not acknowledge, and a new watermark does not end it.
        raises: as receive; AlreadyClosed if the consumer was closed before the loop
        """
        self.session.check_open()
        while True:
            try:
                message = self.receive(None)
            except AlreadyClosed:
                return
            if message is not None:
                yield message

    def __repr__(self) -> str:
        topics = ", ".join(self.topics)
        return f"<txlog.Consumer of {topics}, subscription {self.subscription!r}>"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# Older names, from when each kind of consumer had a class of its own.
MultiTopicsConsumer: TypeAlias = Consumer
NonDurableConsumer: TypeAlias = Consumer
