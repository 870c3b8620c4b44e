"""Owns Session: the interface between the handle of a consumer and its session.

Three classes implement it, for one topic (`consumer`), for several topics or a pattern
(`many_topics`), and for a subscription in memory (`client/consuming/in_memory`, over a reader).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.engine.decide.consuming.acknowledge import AckAnswer
from txlog.engine.decide.consuming.dead_letters import MoveResult
from txlog.engine.decide.consuming.lease import ReturnResult
from txlog.engine.relation.positions import Where
from txlog.engine.session.consuming.acknowledge import Acknowledgeable
from txlog.engine.session.reading.message import Message
from txlog.engine.session.reading.pause import Quiet
from txlog.engine.session.reading.watermark_session import WatermarkSession
from txlog.engine.session.transactions.transaction import Later, Transaction
from txlog.engine.store.store import Store

# For one topic dict[int, MessageId | None], by partition; for several topics a dict from
# topic to such a dict. Both have one class of handle, so a type checker cannot tell them apart.
LastIds: TypeAlias = dict[Any, Any]


class Session(Protocol):
    """One consumer between calls. Many threads may call it at once.

    A message that goes back uncounted does not count as redelivered.

    is_thorough, of `next` and `take`: False if no event has come since a turn that found nothing.
    The session may then rely on that turn and skip the search.
    """

    @property
    def store(self) -> Store:
        """The store that it reads."""

    @property
    def watermarks(self) -> WatermarkSession | None:
        """Its watermark; None if the consumer did not ask for watermarks."""

    @property
    def subscription(self) -> str:
        """The name of the subscription."""

    @property
    def topics(self) -> list[str]:
        """Short names of the topics it currently receives from."""

    @property
    def blocked(self) -> str | None:
        """`unacked_max` if that limit kept the last turn from leasing messages; else None."""

    def next(self, is_thorough: bool) -> tuple[Message | None] | None:
        """(the next message,); (None,): there is a new watermark; None: there is neither."""

    def take(self, limit: int, is_thorough: bool) -> pa.Table | None:
        """At most `limit` messages; no rows: there is a new watermark; None: there is neither."""

    def empty(self) -> pa.Table:
        """The table that a call returns when there is no message."""

    def rest(self, pause: float) -> Quiet:
        """How long a waiting call may sleep, and which events wake it."""

    def give_back(self, table: pa.Table) -> None:
        """Return rows of the last turn to the subscription, uncounted: no application got them."""

    def give_back_message(self, message: Message) -> None:
        """Return a message that `next` returned, uncounted."""

    def give_back_ahead(self) -> None:
        """Return the messages that were taken ahead of the application, uncounted."""

    def has_message_available(self) -> bool:
        """True when a message can be received now."""

    def check_open(self) -> None:
        """Raises AlreadyClosed."""

    def last_message_ids(self) -> LastIds:
        """The last visible message of each partition, None for an empty one."""

    def last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when there are several partitions."""

    def acknowledge(self, what: Acknowledgeable, txn: Transaction | TxnId | None) -> AckAnswer:
        """Acknowledge messages, ids or received rows."""

    def acknowledge_later(self, what: Acknowledgeable, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer."""

    def acknowledge_cumulative(
        self, what: Message | MessageId, txn: Transaction | TxnId | None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition."""

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None, default_ms: int = 0
    ) -> ReturnResult:
        """Return received messages, counted as redelivered; they come again after the delay.

        delay_ms: None: the consumer's or subscription's; default_ms: if neither has one
        """

    def reconsume_later(
        self, message: Message | MessageId, delay_ms: int, properties: dict[str, str] | None
    ) -> MoveResult:
        """Move a message to the retry topic and acknowledge it."""

    def redeliver(self) -> ReturnResult:
        """Return all messages that were received and not acknowledged, counted as redelivered."""

    def seek(self, to: Where) -> None:
        """Move the subscription to before a message, an instant or a bound."""

    def unsubscribe(self) -> None:
        """Delete the subscription and leave it."""

    def close(self) -> None:
        """Leave the subscription; a second call does nothing."""
