"""Owns Consumer: receives a subscription's messages and acknowledges them.

It is a handle: its session (`engine/session/consuming`) holds the leases and talks to the store.
Messages come back when the consumer dies, gives them back, or lets an acknowledgement time-out
expire.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TxnId
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
from txlog.errors import NotAllowed


@checked
class Consumer(Watermarked):
    """Receives from one topic or several on a subscription; safe to call from many threads.

    With several topics, or a pattern (re.compile), each topic has a subscription of that name and
    keeps its promises; between topics there is no order, and each gets its share of a batch. With
    `durable=False` the subscription is in memory: nothing is written, no other consumer sees it,
    and it keeps no message from being trimmed.

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
        """session: of any kind; listener: called for each watermark; policy: of receive_batch."""
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
        """Its number in the store; none is used twice. Of one topic, durable: else NotAllowed."""
        return self._single().member.number

    @property
    def name(self) -> str:
        """Its name; of a subscription in memory the name of that. Several topics: NotAllowed."""
        session = self.session
        return session.name if isinstance(session, ConsumerSession) else session.subscription

    @property
    def kind(self) -> str:
        """The type of the subscription: exclusive, failover, shared or key-shared."""
        return self._single().member.kind

    @property
    def short(self) -> str:
        """The name of its topic, without public/default; of several the first."""
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
        """Why the last receive returned nothing although there may be messages: unacked_max."""
        return self.session.blocked

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(self, max_messages: int | None = None, timeout_ms: int = 0) -> pa.Table:
        """The next messages, at most max_messages, as RECEIVED; no rows when time runs out.

        Without arguments: as batch_receive_policy says, else at most 1,000 and at once. Rows of one
        marker are together. Messages that came back go before new ones. `blocked` says why there is
        nothing although there may be messages. With watermarks also no rows, at once, when there is
        a new one, and a column is_late. Of several topics each first gets its share.
        raises: AlreadyClosed, InvalidArgument, SubscriptionNotFound (deleted); Corruption, after
                what can be read; PartitionUnavailable once all its partitions are unavailable
        """
        return receive_batch(self.session, self.batching, max_messages, timeout_ms)

    def receive(self, timeout_ms: int | None = 0) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait forever).

        It leases a few messages at once, as many as the application's pace suggests, at most
        receiver_queue_size. A message that was not received counts as not delivered: no time-out
        runs for it, and it goes back uncounted when the consumer closes or dies. With watermarks
        also None, at once, when there is a new one: see get_last_watermark.
        raises: as receive_batch
        """
        session = self.session
        found = until(session.store, session.next, timeout_ms, session.rest)
        return None if found is None else found[0]

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        return self.session.has_message_available()

    def pause_message_listener(self) -> None:
        """Stop calling its listener; returns when no call is under way.

        From within the listener: after this call. Messages taken ahead go back.
        raises: AlreadyClosed, NotAllowed (it has none)
        """
        self.session.check_open()
        needed(self.listening).pause()
        self.session.give_back_ahead()

    def resume_message_listener(self) -> None:
        """Call its listener again; raises as pause_message_listener."""
        self.session.check_open()
        needed(self.listening).resume()

    def get_last_message_ids(self) -> LastIds:
        """The last visible message of each partition, None for an empty one.

        Of several topics: a dictionary of these by topic.
        """
        return self.session.last_message_ids()

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when there are several partitions."""
        return self.session.last_message_id()

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows; in a transaction they become PENDING_ACK.

        Of several topics all are acknowledged, or none.
        raises: AlreadyClosed, MessageNotFound, PartitionUnavailable; in a transaction
                TransactionConflict, which has aborted it, and errors of its state
        """
        return self.session.acknowledge(what, txn)

    def acknowledge_async(self, what: Acknowledgeable, *, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        A refusal is raised by `result()`, or else by the commit, which then aborts.
        raises: AlreadyClosed, MessageNotFound (a topic that it does not have), InvalidArgument
        """
        return self.session.acknowledge_later(what, txn)

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition.

        If the message was received before some below it came back, it does nothing and `stale` says
        so; in a transaction that is a TransactionConflict.
        raises: as acknowledge; NotAllowed (shared, key-shared)
        """
        return self.session.acknowledge_cumulative(what, txn)

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None = None
    ) -> ReturnResult:
        """Return received messages, to come again after a delay; each counts as a redelivery.

        delay_ms: None: that of the consumer or subscription, doubled with each redelivery up to
                  nack_backoff_max_ms. Messages that this consumer does not hold are left alone
        raises:   AlreadyClosed, InvalidArgument, MessageNotFound
        """
        return self.session.negative_acknowledge(what, delay_ms)

    def reconsume_later(
        self,
        message: Message | MessageId,
        delay_ms: int = 0,
        properties: dict[str, str] | None = None,
    ) -> MoveResult:
        """Postpone a message: it goes to the retry topic and is acknowledged, in one frame.

        The retry topic is <topic>-<subscription>-RETRY, or the subscription's policy; it is made
        with this subscription on it, so that a consumer of both topics gets the message again.
        delay_ms: not delivered before, if the subscription type on the retry topic waits; a send
                  with deliver_after, so the policies of that topic apply
        raises: InvalidMessage (a delay above the maximum of the retry topic): nothing moved;
                NotAllowed (a subscription in memory)
        """
        return self.session.reconsume_later(message, delay_ms, properties)

    def redeliver_unacknowledged_messages(self) -> ReturnResult:
        """Return what was received and not acknowledged; it comes again at once, counted."""
        return self.session.redeliver()

    def seek(self, to: Where) -> None:
        """Move to before a message, an instant or a bound; as SubscriptionHandle.seek.

        Of several topics a message moves its own topic, anything else each topic in turn.
        """
        self.session.seek(to)

    def unsubscribe(self) -> None:
        """Delete the subscription, on each topic, and close.

        raises: ConsumerBusy if it has other consumers; topics before that one are done
        """
        self.session.unsubscribe()

    def close(self) -> None:
        """Leave the subscription; unacknowledged messages go back, counted if received.

        From `__del__` or a signal handler, inside a call on the store: once that has ended.
        """
        self.session.close()

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
