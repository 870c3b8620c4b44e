"""Owns Message, and how it is made from received rows: the one place with an object per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from txlog.ids import MessageId, TxnId

_COLUMNS: Final = (
    "topic partition ledger entry index value key properties publish_time event_time deliver_at "
    "visible_time producer sequence_id txn_most txn_least txn_state redelivery_count"
).split()
_BESIDE: Final = (
    "key properties publish_time event_time deliver_at producer sequence_id txn redelivery_count "
    "is_late"
).split()
SHOWN_BYTES: Final = 48  # of a value or a key, in a repr
SHOWN_PROPERTIES: Final = 4
_INSTANTS: Final = frozenset({"publish_time", "event_time", "deliver_at", "visible_time"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message:
    """A received message; instants are milliseconds since 1970 UTC.

    It can be hashed, by its place; `repr` shows what is set, and only the beginning of a long
    value.

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
    is_late: bool = False  # older than the last watermark when it was received

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.message_id, self.txn, self.value))

    def __repr__(self) -> str:
        shown = [f"topic={self.topic!r}", f"partition={self.partition}"]
        shown.append(f"message_id={self.message_id}")
        shown.append(f"value={_short(self.value)}")
        for name in _BESIDE:
            item = getattr(self, name)
            if name == "properties" and len(item) > SHOWN_PROPERTIES:
                shown.append(f"properties=({len(item):,} of them)")
            elif item not in (None, 0, False, {}):
                shown.append(f"{name}={_short(item) if name == 'key' else repr(item)}")
        return f"Message({', '.join(shown)})"

    def data(self) -> bytes | None:
        """The payload, as in Pulsar's client."""
        return self.value


def _short(value: bytes | None) -> str:
    """A value as Python writes it; a long one as its beginning and its length."""
    if value is None or len(value) <= SHOWN_BYTES:
        return repr(value)
    return f"{bytes(value[:SHOWN_BYTES])!r}…({len(value):,} bytes)"


def messages(table: pa.Table) -> Iterator[Message]:
    """Yield a Message for each row of a received table, in order."""
    if "is_late" not in table.column_names:
        return _plain(table)
    late = table.column("is_late").to_pylist()
    return (
        replace(message, is_late=True) if is_late else message
        for message, is_late in zip(_plain(table), late, strict=True)
    )


def _plain(table: pa.Table) -> Iterator[Message]:
    columns = [_items(table, name) for name in _COLUMNS]
    for (
        topic,
        partition,
        ledger,
        entry,
        index,
        value,
        key,
        properties,
        publish_time,
        event_time,
        deliver_at,
        visible_time,
        producer,
        sequence_id,
        most,
        least,
        txn_state,
        redelivery_count,
    ) in zip(*columns, strict=False):
        yield Message(
            topic=topic,
            partition=partition,
            message_id=None if ledger is None else MessageId(ledger, entry, index or 0),
            value=value,
            key=key,
            properties=dict(properties) if properties else {},
            publish_time=publish_time,
            event_time=event_time,
            deliver_at=deliver_at,
            visible_time=visible_time,
            producer=producer,
            sequence_id=sequence_id,
            txn=None if most is None else TxnId.from_halves(most, least),
            txn_state=txn_state,
            redelivery_count=redelivery_count,
        )


def _items(table: pa.Table, name: str) -> Iterable[Any]:
    """The values of a column; most messages have no value in most of them."""
    column = table.column(name)
    if name != "topic" and column.null_count == len(column):
        return repeat(None)
    if name in _INSTANTS:
        column = column.cast(pa.int64())
    items: list[Any] = column.to_pylist()
    return items
