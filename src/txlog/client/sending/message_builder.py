"""Owns MessageBuilder: a message put together step by step, like Pulsar's `newMessage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from txlog.base.arguments import checked
from txlog.base.ids import TxnId
from txlog.engine.door.sending import SendReceipt, Value
from txlog.engine.door.transactions import Transaction


class Send(Protocol):
    """`Producer.send`."""

    def __call__(
        self,
        value: Value | str | None,
        *,
        key: bytes | str | None,
        ordering_key: bytes | str | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
        deliver_at: int | None,
        deliver_after: int | None,
        sequence_id: int | None,
        partition: int | None,
        txn: Transaction | TxnId | None,
    ) -> SendReceipt: ...


@checked
class MessageBuilder:
    """A message that is not sent yet. If a method is called twice, the last call counts.

    A message with both deliver_at and deliver_after is refused when it is sent.
    """

    __slots__ = (
        "_deliver_after",
        "_deliver_at",
        "_event_time",
        "_key",
        "_ordering_key",
        "_partition",
        "_properties",
        "_send",
        "_sequence_id",
        "_txn",
        "_value",
    )

    def __init__(self, send: Send, txn: Transaction | TxnId | None) -> None:
        self._send = send
        self._txn = txn
        self._value: Value | str | None = None
        self._key: bytes | str | None = None
        self._ordering_key: bytes | str | None = None
        self._properties: dict[str, str] = {}
        self._event_time: int | None = None
        self._deliver_at: int | None = None
        self._deliver_after: int | None = None
        self._sequence_id: int | None = None
        self._partition: int | None = None

    def value(self, value: Value | str | None) -> MessageBuilder:
        """The payload: bytes; with chunking also a binary file or an iterable of bytes."""
        self._value = value
        return self

    def key(self, key: bytes | str | None) -> MessageBuilder:
        """The key, which chooses the partition."""
        self._key = key
        return self

    def ordering_key(self, ordering_key: bytes | str | None) -> MessageBuilder:
        """What Key_Shared keeps in order instead of the key; the key chooses the partition."""
        self._ordering_key = ordering_key
        return self

    def property(self, name: str, value: str) -> MessageBuilder:
        """One more property."""
        self._properties[name] = value
        return self

    def properties(self, properties: Mapping[str, str]) -> MessageBuilder:
        """More properties."""
        self._properties.update(properties)
        return self

    def event_time(self, event_time: int | None) -> MessageBuilder:
        """When it happened, ms since 1970 UTC."""
        self._event_time = event_time
        return self

    def deliver_at(self, deliver_at: int | None) -> MessageBuilder:
        """Not before this, ms since 1970 UTC; a past instant is no delay."""
        self._deliver_at = deliver_at
        return self

    def deliver_after(self, deliver_after: int | None) -> MessageBuilder:
        """Not before this many ms after the message was stored."""
        self._deliver_after = deliver_after
        return self

    def sequence_id(self, sequence_id: int | None) -> MessageBuilder:
        """Its number, for a producer with a name."""
        self._sequence_id = sequence_id
        return self

    def partition(self, partition: int | None) -> MessageBuilder:
        """The partition, whatever the key."""
        self._partition = partition
        return self

    def send(self) -> SendReceipt:
        """Send it, as Producer.send; it may be sent again."""
        return self._send(
            self._value,
            key=self._key,
            ordering_key=self._ordering_key,
            properties=self._properties or None,
            event_time=self._event_time,
            deliver_at=self._deliver_at,
            deliver_after=self._deliver_after,
            sequence_id=self._sequence_id,
            partition=self._partition,
            txn=self._txn,
        )
