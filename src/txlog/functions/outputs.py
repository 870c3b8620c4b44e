"""Owns the results of a function: Output, and the outbox that collects them as Arrow batches.

    None          nothing                     bytes, str    a message, key and event time as the
    dict          the same, as JSON                         input's
    Output        all parts are set           pa.Table      messages as columns, without an object
    an iterable   several results                           each

A result that cannot be a message is refused at once, while its input is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum
from itertools import groupby
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.times import DurationLike, InstantLike, duration_ms, instant_ms
from txlog.engine.door.reading import Message
from txlog.engine.door.sending import check_delays
from txlog.errors import InvalidArgument, InvalidMessage

_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_INSTANT: Final = pa.timestamp("ms", "UTC")
_COLUMNS: Final = {
    "value": pa.binary(),
    "key": pa.binary(),
    "properties": _PROPERTIES,
    "event_time": _INSTANT,
    "deliver_at": _INSTANT,
    "deliver_after": pa.int64(),
}
# Columns of a received table that describe a message's origin; they are not sent on.
_ORIGIN: Final = frozenset(
    "topic partition ledger entry index publish_time visible_time producer sequence_id txn_most "
    "txn_least txn_state redelivery_count schema_version".split()
)
_INSTANT_MAX: Final = 1 << 53


class _Origin(Enum):
    INPUT = "the input's"


FROM_INPUT: Final = _Origin.INPUT


@dataclass(frozen=True, slots=True)
class Output:
    """A message to produce.

    value:         bytes, text, a dict or list as JSON, or None for no payload
    key:           bytes or text, None for none; by default the key of the input
    event_time:    an instant as in Producer.send, None for none; by default the input's
    deliver_at:    earliest delivery, an instant
    deliver_after: earliest delivery, a duration after the message was stored
    topic:         by default the output topic of the function. It may be an input topic, but then
                   the function must make sure that the loop ends

    >>> Output({"total": 3}, key="ana", topic="totals").topic
    'totals'
    """

    value: object
    key: bytes | str | _Origin | None = FROM_INPUT
    properties: Mapping[str, str] | None = None
    event_time: InstantLike | _Origin | None = FROM_INPUT
    deliver_at: InstantLike | None = None
    topic: str | None = None
    deliver_after: DurationLike | None = None


Returned: TypeAlias = object
Row: TypeAlias = tuple[
    bytes | None, bytes | None, list[tuple[str, str]] | None, int | None, int | None, int | None
]
Mark: TypeAlias = int


class Outbox:
    """The outputs of one attempt, by topic, in the order they were given.

    topic:     topic of outputs without one; None: they are refused
    bytes_max: limit for key, payload and properties of one message
    check:     called once with each topic; raises TopicNotFound
    """

    __slots__ = ("_bytes_max", "_check", "_items", "_known", "_topic")

    def __init__(self, topic: str | None, bytes_max: int, check: Callable[[str], object]) -> None:
        self._topic = topic
        self._bytes_max = bytes_max
        self._check = check
        self._known: dict[str, str] = {}
        self._items: list[tuple[str, Row | pa.Table]] = []

    def add(self, returned: Returned, source: Message | None = None) -> None:
        """Add the results of a function for one input, or for a batch of inputs.

        raises: InvalidMessage, InvalidArgument, TopicNotFound
        """
        if returned is None:
            return
        if isinstance(returned, bytes) and source is not None and self._topic is not None:
            self._keep(self._topic, (returned, source.key, None, source.event_time, None, None))
            return
        if isinstance(returned, bytes | str | dict | Output):
            self._put(returned, source)
        elif isinstance(returned, pa.Table | pa.RecordBatch):
            self.add_table(None, returned)
        elif isinstance(returned, Iterable) and not isinstance(returned, bytearray | memoryview):
            for item in returned:
                if isinstance(item, pa.Table | pa.RecordBatch):
                    self.add_table(None, item)
                elif item is not None:
                    self._put(item, source)
        else:
            raise InvalidMessage(f"a function cannot return {type(returned).__name__}")

    def add_table(self, topic: str | None, rows: pa.Table | pa.RecordBatch) -> None:
        """Add messages as columns named like fields of Output; an input's origin is dropped."""
        if "value" not in rows.schema.names:
            raise InvalidMessage("a table of outputs has no column named value")
        unknown = [n for n in rows.schema.names if n not in _COLUMNS and n not in _ORIGIN]
        if unknown:
            raise InvalidMessage(
                f"a table of outputs has an unknown column {unknown[0]}",
                hint=f"known are {', '.join(_COLUMNS)}",
            )
        if not rows.num_rows:
            return
        name = self._resolve(topic)
        columns = [name for name in _COLUMNS if name in rows.schema.names]
        table = pa.table(rows.columns, names=rows.schema.names).select(columns)
        try:
            for at, column in enumerate(columns):
                if table.schema.field(at).type != _COLUMNS[column]:
                    table = table.set_column(at, column, table[column].cast(_COLUMNS[column]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidMessage(
                f"column {column} is {table.schema.field(at).type}, it must be {_COLUMNS[column]}"
            ) from error
        if "deliver_after" in columns:
            try:
                check_delays(table)
            except InvalidArgument as error:
                raise InvalidMessage(error.message, hint=error.hint) from error
        self._items.append((name, table))

    def mark(self) -> Mark:
        """Return a mark of the current end."""
        return len(self._items)

    def rollback(self, mark: Mark) -> None:
        """Remove all outputs that were added since the mark."""
        del self._items[mark:]

    def batches(self) -> list[tuple[str, pa.Table]]:
        """One table per topic, each in the order of the calls."""
        by_topic: dict[str, list[Row | pa.Table]] = {}
        for topic, item in self._items:
            by_topic.setdefault(topic, []).append(item)
        return [(topic, _joined(items)) for topic, items in by_topic.items()]

    def _put(self, item: object, source: Message | None) -> None:
        output = item if isinstance(item, Output) else Output(item)
        if not isinstance(item, bytes | str | dict | Output):
            raise InvalidMessage(f"a function cannot return {type(item).__name__} as a message")
        key: object = output.key
        if key is FROM_INPUT:
            key = None if source is None else source.key
        event_time: object = output.event_time
        if event_time is FROM_INPUT:
            event_time = None if source is None else source.event_time
        row = (
            encoded(output.value),
            _key(key),
            _properties(output.properties),
            _instant("event_time", event_time),
            _instant("deliver_at", output.deliver_at),
            _delay(output),
        )
        self._keep(output.topic, row)

    def _keep(self, topic: str | None, row: Row) -> None:
        value, key, properties, *_ = row
        size = len(value or b"") + len(key or b"")
        if properties:
            size += sum([len(name.encode()) + len(text.encode()) for name, text in properties])
        if size > self._bytes_max:
            raise InvalidMessage(f"an output has {size} bytes, the most is {self._bytes_max}")
        self._items.append((self._resolve(topic), row))

    def _resolve(self, topic: str | None) -> str:
        """The topic in its short form, once `check` has accepted it."""
        topic_name = self._topic if topic is None else topic
        if topic_name is None:
            raise InvalidMessage("an output names no topic, and the function has no output topic")
        short_name = self._known.get(topic_name)
        if short_name is None:
            if not isinstance(topic_name, str):
                raise InvalidArgument(f"a topic is text, not {type(topic_name).__name__}")
            short_name = TopicName.parse(topic_name).short
            self._check(short_name)
            self._known[topic_name] = short_name
        return short_name


def encoded(value: object) -> bytes | None:
    """Convert a payload to bytes; raises InvalidMessage."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage("a text in a message is not valid Unicode") from error
    if isinstance(value, dict | list):
        try:
            return orjson.dumps(value)
        except TypeError as error:  # orjson's own error is a subclass
            raise InvalidMessage(f"a message is not JSON: {error}") from error
    raise InvalidMessage(f"a payload is bytes, text or JSON, not {type(value).__name__}")


def _key(key: object) -> bytes | None:
    if key is None or isinstance(key, bytes | str):
        return encoded(key)
    raise InvalidMessage(f"a key is bytes or text, not {type(key).__name__}")


def _properties(properties: object) -> list[tuple[str, str]] | None:
    if not properties:
        return None
    if not isinstance(properties, Mapping):
        raise InvalidMessage(f"properties are a mapping, not {type(properties).__name__}")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage("properties are text by text")
    return list(properties.items())


def _instant(name: str, value: object) -> int | None:
    if isinstance(value, date | str):
        value = instant_ms(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _INSTANT_MAX:
        raise InvalidMessage(f"{name} is an integer, milliseconds since 1970 UTC")
    return value


def _delay(output: Output) -> int | None:
    delay_ms = duration_ms(output.deliver_after)
    if delay_ms is None:
        return None
    if type(delay_ms) is not int or not 0 <= delay_ms < 1 << 63:
        raise InvalidMessage("deliver_after is an integer of milliseconds, not negative")
    if output.deliver_at is not None:
        raise InvalidMessage("an output has both deliver_at and deliver_after", hint="give one")
    return delay_ms


def _joined(items: list[Row | pa.Table]) -> pa.Table:
    """Rows and tables as one table; adjacent rows form one piece of it."""
    tables: list[pa.Table] = []
    for are_rows, group in groupby(items, lambda item: isinstance(item, tuple)):
        if are_rows:
            tables.append(_table([item for item in group if isinstance(item, tuple)]))
        else:
            tables += group
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")


def _table(rows: list[Row]) -> pa.Table:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    arrays = {}
    for (name, kind), column in zip(_COLUMNS.items(), columns, strict=True):
        # An empty column is omitted: most messages have no properties and no times.
        if name == "value" or any(item is not None for item in column):
            arrays[name] = pa.array(column, kind)
    return pa.table(arrays)
