"""Owns Message, and how it is made from received rows: the one place with an object per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa

from txlog.ids import MessageId, TxnId

_BESIDE: Final = (
    "key properties publish_time event_time deliver_at producer sequence_id txn redelivery_count "
    "is_late"
).split()
_INT64: Final = pa.int64()
_TOGETHER: Final = 1000  # rows whose messages are made at once
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


class _Draft:
    """A Message in the making: it has the same slots, and they can be set."""

    __slots__ = tuple(one.name for one in fields(Message))

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.topic,
            self.partition,
            self.message_id,
            self.value,
            self.key,
            self.properties,
            self.publish_time,
            self.event_time,
            self.deliver_at,
            self.visible_time,
            self.producer,
            self.sequence_id,
            self.txn,
            self.txn_state,
            self.redelivery_count,
            self.is_late,
        ) = row


def messages(table: pa.Table) -> Iterator[Message]:
    """Yield a Message for each row of a received table, in order."""
    if table.num_rows <= _TOGETHER:
        yield from _made(table)
        return
    for at in range(0, table.num_rows, _TOGETHER):
        yield from _made(table.slice(at, _TOGETHER))


def _made(table: pa.Table) -> list[Message]:
    """The messages of some rows. The constructor of a frozen class would take six times as long."""
    index = (number or 0 for number in _items(table, "index"))
    places = zip(_items(table, "ledger"), _items(table, "entry"), index, strict=False)
    halves = zip(_items(table, "txn_most"), _items(table, "txn_least"), strict=False)
    is_judged = table.schema.get_field_index("is_late") >= 0
    columns = {
        "message_id": (None if place[0] is None else MessageId(*place) for place in places),
        "properties": (dict(pairs) if pairs else {} for pairs in _items(table, "properties")),
        "txn": map(_txn, halves),
        "is_late": map(bool, _items(table, "is_late")) if is_judged else repeat(False),
    }
    rows = zip(
        *(columns.get(name) or _items(table, name) for name in _Draft.__slots__), strict=False
    )
    made: list[Any] = list(map(_Draft, rows))
    for one in made:
        one.__class__ = Message
    return made


@lru_cache(16)
def _txn(halves: tuple[int | None, int]) -> TxnId | None:
    most, least = halves
    return None if most is None else TxnId.from_halves(most, least)


def _items(table: pa.Table, name: str) -> Iterable[Any]:
    """The values of a column; most messages have no value in most of them."""
    column = table.column(name)
    if name != "topic" and column.null_count == len(column):
        return repeat(None)
    if name not in _INSTANTS:
        items: list[Any] = column.to_pylist()
        return items
    return chain.from_iterable(chunk.view(_INT64).to_pylist() for chunk in column.chunks)
