"""Owns Message, and how it is made from received rows: the one place with an object per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import accumulate, chain, islice, repeat, starmap
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.schemas.values import decode_one
from txlog.engine.folds.catalog import record_schemas
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading.dispatch import PiecePlace, Rows, place_of
from txlog.engine.plan.records import schema_in
from txlog.engine.plan.route import ORDERING_KEY, ordering_key_in
from txlog.errors import InvalidArgument

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
_WHOLE_BYTES_MAX: Final = 1 << 20  # of properties: copying more costs more than it saves
_FEW: Final = 100  # rows that a kernel is too dear for
_SHORT_PIECE: Final = 16  # rows of a piece that are looked at as soon as its first one alone
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
    schema_version: int | None = None  # of the topic's schema that the value fits
    _decoder: Decoder | None = field(default=None, compare=False)

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

    @property
    def ordering_key(self) -> bytes | None:
        """What Key_Shared keeps in order instead of the key; None if it was sent without one."""
        return ordering_key_in(self.properties.get(ORDERING_KEY))

    @overload
    def decode(self) -> dict[str, object] | None: ...
    @overload
    def decode(self, kind: type[T]) -> T | None: ...
    def decode(self, kind: type[T] | None = None) -> T | dict[str, object] | None:
        """The record of the value, with the fields of the topic's newest schema; null stays None.

        The newest is that of when messages were last received.


        kind:   a dataclass, msgspec.Struct or pydantic model to make of it, else a dict
        raises: InvalidArgument: the value is bytes, without a schema; it is not such a `kind`; or
                the message comes from a pickle or from `txlog.messages`. InvalidMessage: the
                newest schema cannot read it. TopicNotFound: the topic was deleted
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
        written, newest = self._decoder.schemas(self.topic, self.schema_version)
        if kind is None:
            return decode_one(written, self.value, as_of=newest)
        return decode_one(written, self.value, kind, as_of=newest)


class Decoder:
    """Decodes values of a topic of a store by their versions; from a pickle it cannot.

    number: of the topic, as another may have its name later; None: those that have the names now
    """

    __slots__ = ("_known", "_store", "number")

    def __init__(self, store: Store | None, number: int | None = None) -> None:
        self._store = store
        self.number = number
        self._known: dict[tuple[str, int], tuple[Schema, Schema]] = {}

    def __reduce__(self) -> tuple[type[Decoder], tuple[None]]:
        return Decoder, (None,)

    def schemas(self, topic: str, version: int) -> tuple[Schema, Schema]:
        """The schema of a version of a topic, and the newest.

        raises: TopicNotFound, InvalidArgument
        """
        if self._store is None:
            raise InvalidArgument(
                "a message from a pickle does not know its store", hint="decode it when received"
            )
        known = self._known.get((topic, version))
        if known is None:
            found = self._store.ask(lambda view: record_schemas(self._topic(view, topic)))
            if version > len(found):
                raise InvalidArgument(f"topic {topic} has no schema {version}: it was made again")
            known = schema_in(found[version - 1]), schema_in(found[-1])
            self._known[topic, version] = known
        return known

    def renew(self) -> None:
        """Look again which schema is the newest, for messages that were just received."""
        self._known.clear()

    def _topic(self, view: View, name: str) -> Topic:
        if self.number is None:
            return find_topic(view, TopicName.parse(name))
        return live_topic(view, self.number, name)


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
            self.schema_version,
            self._decoder,
        ) = row


def messages(table: pa.Table, decoder: Decoder | None = None) -> Iterator[Message]:
    """A Message for each row of a received table, in order; decoder: for Message.decode."""
    _renew(decoder, table.column("schema_version"))
    parts = (table.slice(at, _TOGETHER) for at in range(0, table.num_rows, _TOGETHER))
    return chain.from_iterable(_of_table(part, decoder) for part in parts)


def messages_of(rows: Rows, decoder: Decoder | None = None) -> list[Message]:
    """A Message for each of some rows that were read; no table is made of them."""
    stored = dict(rows.columns())
    _renew(decoder, stored["schema_version"])
    places = [(piece.rows, place_of(piece)) for piece in rows.pieces]
    halves = stored["txn_most"], stored["txn_least"]
    published = _items("publish_time", stored["publish_time"])
    if len(places) == 1:
        [(count, one)] = places
        ids = _ids_at(count, one)
        visible = published if one.time_ms is None else repeat(one.time_ms)
        states: Iterable[str | None] = repeat(one.txn_state)
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
    """When the messages of pieces became visible."""
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
    """The messages of some rows of a received table."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    late = columns.get("is_late")
    known: dict[str, Iterable[Any]] = {
        "topic": _names(columns["topic"]),
        "message_id": _ids(columns),
        "txn": _txns(columns["txn_most"], columns["txn_least"]),
        "is_late": repeat(False) if late is None else map(bool, _items("is_late", late)),
    }
    return _made(known, columns, decoder)


def _made(
    known: dict[str, Iterable[Any]], columns: dict[str, pa.ChunkedArray], decoder: Decoder | None
) -> list[Message]:
    """The messages of fields that are known, and of the columns that have the others.

    The constructor of a frozen class would take six times as long.
    """
    known["properties"] = _properties(columns["properties"])
    known["_decoder"] = repeat(decoder)
    rows = zip(
        *[
            known[name] if name in known else _items(name, columns[name])
            for name in _Draft.__slots__
        ],
        strict=False,
    )
    made: list[Any] = list(map(_Draft, rows))
    for one in made:
        one.__class__ = Message
    return made


def _ids(columns: dict[str, pa.ChunkedArray]) -> Iterable[MessageId | None]:
    """The ids of the rows; messages that nothing has committed have none."""
    ledgers, entries = columns["ledger"].to_pylist(), columns["entry"].to_pylist()
    indexes = columns["index"]
    if indexes.null_count == len(indexes):
        made = map(MessageId, ledgers, entries)
    else:
        made = map(MessageId, ledgers, entries, [index or 0 for index in indexes.to_pylist()])
    if not columns["ledger"].null_count:
        return made
    pairs = zip(ledgers, made, strict=True)
    return (None if ledger is None else one for ledger, one in pairs)


def _properties(column: pa.ChunkedArray) -> Iterable[dict[str, str]]:
    """The properties of the rows, a dict of its own for each."""
    if column.null_count == len(column):
        return map(dict, repeat(()))
    if column.num_chunks > 1 and column.nbytes > _WHOLE_BYTES_MAX:
        return chain.from_iterable(map(_dicts, column.chunks))
    return _dicts(_whole(column))


def _dicts(maps: pa.MapArray) -> list[dict[str, str]]:
    """A dict for each map: what `to_pylist` makes first costs as much again."""
    bounds = maps.offsets.to_pylist()
    first = bounds[0]
    if first:
        bounds = [bound - first for bound in bounds]
    names, texts = (part.slice(first, bounds[-1]).to_pylist() for part in (maps.keys, maps.items))
    at, out = 0, []
    for end in bounds[1:]:
        one: dict[str, str] = {}
        while at < end:
            one[names[at]] = texts[at]
            at += 1
        out.append(one)
    if maps.null_count:
        for row, is_set in enumerate(maps.is_valid().to_pylist()):
            if not is_set:
                out[row] = {}  # whatever its bounds say
    return out


def _txns_of(
    halves: tuple[pa.ChunkedArray, pa.ChunkedArray], counts: list[int]
) -> Iterable[TxnId | None]:
    """The transactions of pieces: all messages of a marker are of one."""
    most, least = halves
    total = len(most)
    if total < len(counts) * _SHORT_PIECE or most.null_count == total:
        return _txns(most, least)
    firsts = [0, *accumulate(counts[:-1])]
    made = _Txns()
    known = [made[most[at].as_py(), least[at].as_py()] for at in firsts]
    return chain.from_iterable(map(repeat, known, counts))


def _txns(most: pa.ChunkedArray, least: pa.ChunkedArray) -> Iterable[TxnId | None]:
    """The transactions of the rows, which have been committed together or came alone."""
    if most.null_count == len(most):
        return repeat(None)
    return map(_Txns().__getitem__, zip(most.to_pylist(), least.to_pylist(), strict=True))


class _Txns(dict[tuple[int | None, int], TxnId | None]):
    """The ids of halves, each made once."""

    def __missing__(self, halves: tuple[int | None, int]) -> TxnId | None:
        most, least = halves
        made = self[halves] = None if most is None else TxnId.from_halves(most, least)
        return made


def _names(column: pa.ChunkedArray) -> Iterable[str]:
    """The topics of the rows, mostly one: a text for each costs most."""
    names: list[str] = (column.unique() if len(column) > _FEW else column).to_pylist()
    return repeat(names[0]) if len(names) == 1 else column.to_pylist()


def _items(name: str, column: pa.ChunkedArray) -> Iterable[Any]:
    """The values of a column; most messages have no value in most of them."""
    if column.null_count == len(column):
        return repeat(None)
    if name not in _INSTANTS:
        items: list[Any] = column.to_pylist()
        return items
    times: list[Any] = _whole(column).view(_INT64).to_pylist()
    return times


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece: a chunk costs as much as thirty rows."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
