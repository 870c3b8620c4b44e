"""Owns Message, and makes it from received rows. Only this module makes an object per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import accumulate, chain, islice, repeat, starmap
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.schemas.values import decode_one
from txlog.engine.folds.catalog import record_schemas, topic_of
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading.dispatch import PiecePlace, Rows, place_of
from txlog.engine.plan.records import schema_in
from txlog.engine.plan.route import ORDERING_KEY, ordering_key_in
from txlog.errors import InvalidArgument, TopicNotFound

if TYPE_CHECKING:
    from txlog.base.schemas.schema import Schema
    from txlog.engine.folds.catalog import Topic
    from txlog.engine.store.store import Store
    from txlog.engine.view import View

T = TypeVar("T")
_BESIDE: Final = (
    "key properties publish_time event_time deliver_at producer sequence_id txn redelivery_count "
    "is_late schema_version"
).split()
_INT64: Final = pa.int64()
_TOGETHER: Final = 1000  # rows whose messages are made at once
_WHOLE_BYTES_MAX: Final = 1 << 20  # of properties: above this, copying costs more than it saves
_FEW: Final = 100  # for so few rows, calling an Arrow kernel costs more than it saves
_SHORT_PIECE: Final = 16  # in shorter pieces, reading all rows is as fast as only the first one
SHOWN_BYTES: Final = 48  # of a value or a key in a repr
SHOWN_PROPERTIES: Final = 4
_INSTANTS: Final = frozenset({"publish_time", "event_time", "deliver_at", "visible_time"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message:
    """A received message; instants are milliseconds since 1970 UTC.

    A message hashes as its id. `repr` shows the fields that are set, and the first bytes of a
    long value.

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
    is_late: bool = False  # older than the consumer's last watermark when it was received
    schema_version: int | None = None  # the version of the topic's schema that encoded the value
    _decoder: Decoder | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.message_id, self.txn, self.value))

    def __repr__(self) -> str:
        fields = [f"topic={self.topic!r}", f"partition={self.partition}"]
        fields.append(f"message_id={self.message_id}")
        fields.append(f"value={_short(self.value)}")
        for name in _BESIDE:
            item = getattr(self, name)
            if name == "properties" and len(item) > SHOWN_PROPERTIES:
                fields.append(f"properties=({len(item):,} of them)")
            elif item not in (None, 0, False, {}):
                fields.append(f"{name}={_short(item) if name == 'key' else repr(item)}")
        return f"Message({', '.join(fields)})"

    def data(self) -> bytes | None:
        """The payload, as in Pulsar's client."""
        return self.value

    @property
    def ordering_key(self) -> bytes | None:
        """Key_Shared keeps messages with the same ordering key in order; None: it uses the key."""
        return ordering_key_in(self.properties.get(ORDERING_KEY))

    @overload
    def decode(self) -> dict[str, object] | None: ...
    @overload
    def decode(self, kind: type[T]) -> T | None: ...
    def decode(self, kind: type[T] | None = None) -> T | dict[str, object] | None:
        """The value as a record, with the fields of the topic's newest schema; None if it is null.

        The schema is the newest one when the client last received messages.

        kind:   a dataclass, msgspec.Struct or pydantic model to return instead of a dict
        raises: InvalidArgument: the message has no schema, so its value is bytes; the record does
                not fit `kind`; or the message comes from a pickle or from `txlog.messages`.
                InvalidMessage: the newest schema cannot read it. TopicNotFound: the topic was
                deleted
        """
        if self.value is None:
            return None
        if self.schema_version is None:
            raise InvalidArgument(
                f"message {self.message_id} of {self.topic} has no schema: its value is bytes",
                hint="read its value",
            )
        if self._decoder is None:
            raise InvalidArgument(
                f"message {self.message_id} does not know its store", hint="decode it when received"
            )
        ledger = None if self.message_id is None else self.message_id.ledger
        written, newest = self._decoder.schemas(self.topic, self.schema_version, ledger)
        if kind is None:
            return decode_one(written, self.value, as_of=newest)
        return decode_one(written, self.value, kind, as_of=newest)


class Decoder:
    """Finds the schemas that decode values. After pickling it has no store, so it finds none.

    number: of the topic; None: the ledger of each message gives it, because another topic may have
            the name by now
    """

    __slots__ = ("_known", "_store", "number")

    def __init__(self, store: Store | None, number: int | None = None) -> None:
        self._store = store
        self.number = number
        self._known: dict[tuple[str | int, int], tuple[Schema, Schema]] = {}

    def __reduce__(self) -> tuple[type[Decoder], tuple[None]]:
        return Decoder, (None,)

    def schemas(self, topic: str, version: int, ledger: int | None = None) -> tuple[Schema, Schema]:
        """(the schema with this version, the newest schema) of a topic.

        topic:  its name when the message was received
        ledger: of the message; None: it has no id yet, and the name tells the topic
        raises: TopicNotFound; InvalidArgument (no store, or the topic was made again)
        """
        if self._store is None:
            raise InvalidArgument(
                "a message from a pickle does not know its store", hint="decode it when received"
            )
        key = (topic if ledger is None else ledger, version)
        pair = self._known.get(key)
        if pair is None:
            schemas = self._store.ask(lambda view: record_schemas(self._topic(view, topic, ledger)))
            if version > len(schemas):
                raise InvalidArgument(f"topic {topic} has no schema {version}: it was made again")
            pair = schema_in(schemas[version - 1]), schema_in(schemas[-1])
            self._known[key] = pair
        return pair

    def renew(self) -> None:
        """Forget which schema is the newest: messages that use a newer one may have arrived."""
        self._known.clear()

    def _topic(self, view: View, name: str, ledger: int | None) -> Topic:
        if self.number is not None:
            return live_topic(view, self.number, name)
        if ledger is None:
            return find_topic(view, TopicName.parse(name))
        owner = view.catalog.owners.get(ledger)
        if owner is None:
            raise TopicNotFound(f"topic {name} was deleted", topic=name)
        return topic_of(view.catalog, owner[0])


def _short(value: bytes | None) -> str:
    """The repr of a value; of a long value the first bytes and the length."""
    if value is None or len(value) <= SHOWN_BYTES:
        return repr(value)
    return f"{bytes(value[:SHOWN_BYTES])!r}…({len(value):,} bytes)"


class _Draft:
    """A Message whose fields can still be set: `_made` changes its class to Message at the end."""

    __slots__ = tuple(field.name for field in fields(Message))

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
            self.schema_version,
            self._decoder,
        ) = row


def messages(table: pa.Table, decoder: Decoder | None = None) -> Iterator[Message]:
    """A Message for each row of a received table, in order; Message.decode uses the decoder."""
    _renew(decoder, table.column("schema_version"))
    parts = (table.slice(at, _TOGETHER) for at in range(0, table.num_rows, _TOGETHER))
    return chain.from_iterable(_of_table(part, decoder) for part in parts)


def messages_of(rows: Rows, decoder: Decoder | None = None) -> list[Message]:
    """A Message for each row. It reads the stored columns, without a table of RECEIVED."""
    stored = dict(rows.columns())
    _renew(decoder, stored["schema_version"])
    places = [(piece.rows, place_of(piece)) for piece in rows.pieces]
    halves = stored["txn_most"], stored["txn_least"]
    published = _items("publish_time", stored["publish_time"])
    if len(places) == 1:
        [(count, place)] = places
        ids = _ids_at(count, place)
        visible = published if place.time_ms is None else repeat(place.time_ms)
        states: Iterable[str | None] = repeat(place.txn_state)
        txns = _txns_of(halves, [count])
    else:
        ids = chain.from_iterable(starmap(_ids_at, places))
        visible, states = _visible(places, published), _states(places)
        txns = _txns_of(halves, [count for count, _ in places])
    return _made(
        {
            "topic": repeat(rows.topic),
            "partition": repeat(rows.partition),
            "message_id": ids,
            "publish_time": published,
            "visible_time": visible,
            "txn_state": states,
            "txn": txns,
            "redelivery_count": repeat(rows.times),
            "is_late": repeat(False),
        },
        stored,
        decoder,
    )


def _renew(decoder: Decoder | None, versions: pa.ChunkedArray) -> None:
    if decoder is not None and versions.null_count < len(versions):
        decoder.renew()


def _ids_at(count: int, place: PiecePlace) -> Iterable[MessageId]:
    """The ids of the messages of a piece."""
    ledger, entry, first, _, _ = place
    if first is None:
        return map(MessageId, repeat(ledger, count), range(entry, entry + count))
    return map(MessageId, repeat(ledger, count), repeat(entry), range(first, first + count))


def _visible(places: list[tuple[int, PiecePlace]], published: Iterable[Any]) -> list[int | None]:
    """When the messages of the pieces became visible, in ms since 1970 UTC."""
    times = list(islice(published, sum(count for count, _ in places)))
    at = 0
    for count, place in places:
        if place.time_ms is not None:
            times[at : at + count] = repeat(place.time_ms, count)
        at += count
    return times


def _states(places: list[tuple[int, PiecePlace]]) -> Iterable[str | None]:
    return chain.from_iterable(repeat(place.txn_state, count) for count, place in places)


def _of_table(table: pa.Table, decoder: Decoder | None) -> list[Message]:
    columns = dict(zip(table.column_names, table.columns, strict=True))
    late = columns.get("is_late")
    prepared: dict[str, Iterable[Any]] = {
        "topic": _names(columns["topic"]),
        "message_id": _ids(columns),
        "txn": _txns(columns["txn_most"], columns["txn_least"]),
        "is_late": repeat(False) if late is None else map(bool, _items("is_late", late)),
    }
    return _made(prepared, columns, decoder)


def _made(
    prepared: dict[str, Iterable[Any]], columns: dict[str, pa.ChunkedArray], decoder: Decoder | None
) -> list[Message]:
    """Make messages from prepared fields, and from columns for all other fields.

    Changing the class of drafts is six times as fast as the constructor of a frozen class.
    """
    prepared["properties"] = _properties(columns["properties"])
    prepared["_decoder"] = repeat(decoder)
    rows = zip(
        *[
            prepared[name] if name in prepared else _items(name, columns[name])
            for name in _Draft.__slots__
        ],
        strict=False,
    )
    drafts: list[Any] = list(map(_Draft, rows))
    for draft in drafts:
        draft.__class__ = Message
    return drafts


def _ids(columns: dict[str, pa.ChunkedArray]) -> Iterable[MessageId | None]:
    """The ids of the rows; None for messages of open transactions."""
    ledgers, entries = columns["ledger"].to_pylist(), columns["entry"].to_pylist()
    indexes = columns["index"]
    if indexes.null_count == len(indexes):
        ids = map(MessageId, ledgers, entries)
    else:
        ids = map(MessageId, ledgers, entries, [index or 0 for index in indexes.to_pylist()])
    if not columns["ledger"].null_count:
        return ids
    pairs = zip(ledgers, ids, strict=True)
    return (None if ledger is None else message_id for ledger, message_id in pairs)


def _properties(column: pa.ChunkedArray) -> Iterable[dict[str, str]]:
    """A new dict of properties for each row."""
    if column.null_count == len(column):
        return map(dict, repeat(()))
    if column.num_chunks > 1 and column.nbytes > _WHOLE_BYTES_MAX:
        return chain.from_iterable(map(_dicts, column.chunks))
    return _dicts(_whole(column))


def _dicts(maps: pa.MapArray) -> list[dict[str, str]]:
    """A dict for each map. `to_pylist` would first make lists of pairs, which doubles the cost."""
    bounds = maps.offsets.to_pylist()
    first = bounds[0]
    if first:
        bounds = [bound - first for bound in bounds]
    names, texts = (part.slice(first, bounds[-1]).to_pylist() for part in (maps.keys, maps.items))
    at, out = 0, []
    for end in bounds[1:]:
        properties: dict[str, str] = {}
        while at < end:
            properties[names[at]] = texts[at]
            at += 1
        out.append(properties)
    if maps.null_count:
        for row, is_set in enumerate(maps.is_valid().to_pylist()):
            if not is_set:
                out[row] = {}  # a null map may have any bounds
    return out


def _txns_of(
    halves: tuple[pa.ChunkedArray, pa.ChunkedArray], counts: list[int]
) -> Iterable[TxnId | None]:
    """The transaction of each row. All rows of a piece belong to the same transaction."""
    most, least = halves
    total = len(most)
    if total < len(counts) * _SHORT_PIECE or most.null_count == total:
        return _txns(most, least)
    firsts = [0, *accumulate(counts[:-1])]
    by_halves = _Txns()
    txns = [by_halves[most[at].as_py(), least[at].as_py()] for at in firsts]
    return chain.from_iterable(map(repeat, txns, counts))


def _txns(most: pa.ChunkedArray, least: pa.ChunkedArray) -> Iterable[TxnId | None]:
    """The transaction of each row, None for a plain send."""
    if most.null_count == len(most):
        return repeat(None)
    return map(_Txns().__getitem__, zip(most.to_pylist(), least.to_pylist(), strict=True))


class _Txns(dict[tuple[int | None, int], TxnId | None]):
    """Transaction ids by their two 64-bit halves; each id is made once."""

    def __missing__(self, halves: tuple[int | None, int]) -> TxnId | None:
        most, least = halves
        txn_id = self[halves] = None if most is None else TxnId.from_halves(most, least)
        return txn_id


def _names(column: pa.ChunkedArray) -> Iterable[str]:
    """The topic of each row. Mostly all are the same, and one string then serves all rows."""
    names: list[str] = (column.unique() if len(column) > _FEW else column).to_pylist()
    return repeat(names[0]) if len(names) == 1 else column.to_pylist()


def _items(name: str, column: pa.ChunkedArray) -> Iterable[Any]:
    """The values of a column; if all are null, which is common, without a list."""
    if column.null_count == len(column):
        return repeat(None)
    if name not in _INSTANTS:
        items: list[Any] = column.to_pylist()
        return items
    times: list[Any] = _whole(column).view(_INT64).to_pylist()
    return times


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array: each chunk would cost as much as thirty rows."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
