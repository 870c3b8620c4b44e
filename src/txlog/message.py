"""Owns Message, and its making from received rows: the one place with an object a message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from txlog.ids import MessageId, TxnId


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message; instants are milliseconds since 1970 UTC.

    >>> from txlog import Message, MessageId
    >>> message = Message(topic="orders", partition=0, message_id=MessageId(1, 0), value=b"a")
    >>> message.data(), str(message.message_id)
    (b'a', '1:0')
    """

    topic: str
    partition: int
    message_id: MessageId | None
    value: bytes | None
    key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict)
    publish_time: int = 0
    event_time: int | None = None
    deliver_at: int | None = None
    visible_time: int | None = None
    producer: str | None = None
    sequence_id: int | None = None
    txn: TxnId | None = None
    txn_state: str | None = None
    redelivery_count: int | None = None

    def data(self) -> bytes | None:
        """The payload, as in Pulsar's client."""
        return self.value

    def partition_key(self) -> bytes | None:
        """The key, as in Pulsar's client."""
        return self.key


def messages(table: pa.Table) -> Iterator[Message]:
    """Yield a Message for each row of a received table, in order."""
    instants = ("publish_time", "event_time", "deliver_at", "visible_time")
    for name in instants:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    for row in table.to_pylist(maps_as_pydicts="strict"):
        ledger, index = row["ledger"], row["index"]
        most = row["txn_most"]
        yield Message(
            topic=row["topic"],
            partition=row["partition"],
            message_id=None if ledger is None else MessageId(ledger, row["entry"], index or 0),
            value=row["value"],
            key=row["key"],
            properties=row["properties"] or {},
            publish_time=row["publish_time"],
            event_time=row["event_time"],
            deliver_at=row["deliver_at"],
            visible_time=row["visible_time"],
            producer=row["producer"],
            sequence_id=row["sequence_id"],
            txn=None if most is None else TxnId.from_halves(most, row["txn_least"]),
            txn_state=row["txn_state"],
            redelivery_count=row["redelivery_count"],
        )
