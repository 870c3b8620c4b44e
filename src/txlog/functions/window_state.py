"""Owns the state of windows on watermarks: a topic of its own, and its rows in memory.

    <topic>-<subscription>-WINDOWS     one partition; for instance I from 1 on: ...-WINDOWS-I
      messages of open windows         unchanged; the last property holds their origin
      the watermark up to which windows are closed      one row; a new one replaces it

The state is all messages that the subscription of the same name has not acknowledged there. The
runner reads it once without receiving it, so that it may be larger than unacked_max. From then on
the runner remembers the rows it sends, by the marker of the transaction. A message of the state has
its value, key, properties, event and publish time, and its original topic, partition and id. It has
nothing else, so that a window is the same whether or not the runner was restarted in between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.ranges import Range
from txlog.base.startup import compute as pc
from txlog.client.client import Client
from txlog.client.consuming.consumer import Consumer
from txlog.client.sending.producer import Producer
from txlog.engine.door.catalog import topic_of
from txlog.engine.door.reading import RECEIVED
from txlog.engine.door.topics import find_state, state_topic
from txlog.engine.door.transactions import Transaction
from txlog.errors import NotAllowed, PartitionUnavailable
from txlog.functions.windows import by_window, starts_of, times_of

_ORIGIN: Final = "WINDOW_ORIGIN"
_CLOSED: Final = "WINDOWS_CLOSED"
_KEPT: Final = (
    "topic", "partition", "ledger", "entry", "index", "key", "value", "properties", "publish_time",
    "event_time",
)  # fmt: skip
# fields of _ORIGIN
_FROM: Final = ("partition", "ledger", "entry", "index", "publish_time", "topic")
_OWN: Final = {"own_ledger": pa.int64(), "own_entry": pa.int64(), "own_index": pa.int32()}
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_ENTRIES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_TEXT, _INT = pa.string(), pa.int64()


class WindowState:
    """The messages of open windows.

    topic:  the topic that stores them, by its name at `make`
    closed: the stored watermark up to which windows are closed; None: no window was closed yet
    """

    __slots__ = (
        "_client",
        "_closed_row",
        "_consumer",
        "_duration_ms",
        "_number",
        "_of",
        "_open",
        "_subscription",
        "closed",
        "topic",
    )

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        subscription: str,
        instance: int,
        duration_ms: int,
    ) -> None:
        self.topic = ""
        self._of = (topics, subscription, instance)  # the arguments of find_state
        self._client, self._subscription = client, subscription
        self._duration_ms = duration_ms
        self._consumer: Consumer | None = None
        self._number = -1
        self._open: dict[int, list[pa.Table]] = {}  # tables by the start of the window
        self.closed: int | None = None
        self._closed_row: pa.Table | None = None

    # --- opening -----------------------------------------------------------------------------

    def make(self) -> None:
        """Find the topic; create it and its subscription if they are missing."""
        client, name = self._client, self._subscription
        self.topic = client.store.read(lambda view: find_state(view, *self._of))
        client.create_topic(self.topic, 1, if_not_exists=True, retention_acked=1)
        client.create_subscription(self.topic, name, if_not_exists=True)

    def opened(self, name: str) -> None:
        """Subscribe exclusively, so that no other runner has this state. Raises ConsumerBusy."""
        self._consumer = self._client.consumer(
            self.topic, self._subscription, name=name, isolation="committed", type="exclusive"
        )
        [self._number] = self._client.topic(self.topic).numbers
        self.load()

    def close(self) -> None:
        """Release the subscription."""
        if self._consumer is not None:
            self._consumer.close()

    def load(self) -> None:
        """Read the unacknowledged messages."""
        self._open.clear()
        self.closed = self._closed_row = None
        unacked = Range(kind="unacked", subscription=self._subscription)
        for table in self._client.read(self._present_name(), range=unacked):
            names, values, properties = _without_last(table.column("properties"))
            names = pc.fill_null(names, "")
            is_message = pc.equal(names, _ORIGIN)
            is_closed = pc.equal(names, _CLOSED)
            if not pc.all(pc.or_(is_message, is_closed)).as_py():
                raise self._foreign()
            self._take_closed(table.filter(is_closed), values.filter(is_closed))
            table = table.set_column(
                table.schema.get_field_index("properties"), "properties", properties
            )
            self._put(_restored(table.filter(is_message), values.filter(is_message)))

    def _present_name(self) -> str:
        """The name of the topic, which may have been renamed since `make`."""
        of = self._client.store.read(lambda view: topic_of(view.catalog, self._number))
        return TopicName.parse(of.name).short

    def _take_closed(self, rows: pa.Table, values: pa.Array) -> None:
        if not rows.num_rows:
            return
        most = pc.max(values.cast(_INT)).as_py()
        self.closed = most if self.closed is None else max(most, self.closed)
        self._closed_row = (
            rows if self._closed_row is None else pa.concat_tables([self._closed_row, rows])
        )

    def _foreign(self) -> NotAllowed:
        return NotAllowed(
            f"{self.topic} stores the windows of {self._subscription}, but has foreign messages",
            hint="no other producer may send to it",
            topic=self.topic,
        )

    # --- contents -----------------------------------------------------------------------

    @property
    def windows(self) -> int:
        """The number of open windows."""
        return len(self._open)

    @property
    def messages(self) -> int:
        """The number of their messages."""
        return sum(table.num_rows for tables in self._open.values() for table in tables)

    def take_until(self, start_ms: int, rows: int) -> pa.Table | None:
        """Take the first complete windows that begin at start_ms or before, up to this many rows.

        It takes at least one window, if there is one. The caller must commit their outcome, or load
        the state again.
        """
        tables_taken: list[pa.Table] = []
        for start in sorted(start for start in self._open if start <= start_ms):
            if rows <= 0:
                break
            tables = self._open.pop(start)
            tables_taken += tables
            rows -= sum(table.num_rows for table in tables)
        return pa.concat_tables(tables_taken) if tables_taken else None

    # --- in a transaction --------------------------------------------------------------------

    def keep(self, rows: pa.Table, producer: Producer, txn: Transaction) -> None:
        """Send messages to the state; rows: RECEIVED, with the rows of a window together."""
        producer.send_batch_async(_encoded(rows), txn=txn)

    def kept(self, rows: pa.Table, txn: Transaction) -> None:
        """Add messages whose transaction is committed."""
        ledger, entry = self._marker(txn, rows.num_rows)
        id_columns = [
            pa.repeat(pa.scalar(ledger, _INT), rows.num_rows),
            pa.repeat(pa.scalar(entry, _INT), rows.num_rows),
            _numbers(rows.num_rows, 1).cast(pa.int32()),
        ]
        self._put(_with_own(_reduced(rows), id_columns))

    def acknowledge(self, rows: pa.Table, txn: Transaction) -> None:
        """Acknowledge messages of the state."""
        assert self._consumer is not None, "it is open"
        ids = pa.table([rows.column(name) for name in _OWN], names=["ledger", "entry", "index"])
        self._consumer.acknowledge_async(ids, txn=txn)

    def close_up_to(self, closed: int, producer: Producer, txn: Transaction) -> None:
        """Store the value that windows are closed up to, unless it is already stored."""
        if closed == self.closed:
            return
        assert self._consumer is not None, "it is open"
        row = pa.table(
            {
                "value": pa.nulls(1, pa.binary()),
                "properties": pa.array([[(_CLOSED, str(closed))]], _PROPERTIES),
            }
        )
        producer.send_batch_async(row, txn=txn)
        if self._closed_row is not None:
            self._consumer.acknowledge_async(self._closed_row, txn=txn)

    def closed_up_to(self, closed: int, txn: Transaction) -> None:
        """Keep the value, as its transaction is committed."""
        if closed == self.closed:
            return
        ledger, entry = self._marker(txn, 1)
        self.closed = closed
        self._closed_row = pa.table(
            {
                "ledger": pa.array([ledger], _INT),
                "entry": pa.array([entry], _INT),
                "index": pa.array([1], pa.int32()),
            }
        )

    def _marker(self, txn: Transaction, rows: int) -> tuple[int, int]:
        """The position at which the rows of a committed transaction became visible."""
        assert txn.outcome is not None, "it is committed"
        marker_of_partition = {marker[0]: marker for marker in txn.outcome.markers}.get(
            self._number
        )
        # the commit is decided and takes effect when the partition is back
        if marker_of_partition is None:
            raise PartitionUnavailable(
                f"partition {self.topic}/0 is unavailable: the windows continue when it is back",
                topic=self.topic,
                partition=0,
            )
        _, ledger, entry, messages = marker_of_partition
        if messages != rows:
            raise self._foreign()
        return ledger, entry

    def _put(self, rows: pa.Table) -> None:
        """Add messages to their windows; rows: with their own ids."""
        if rows.num_rows:
            for start, window_rows in by_window(rows, starts_of(times_of(rows), self._duration_ms)):
                self._open.setdefault(start, []).append(window_rows)


def left_open(
    client: Client, topics: Sequence[str], subscription: str, instances: int
) -> dict[str, int]:
    """States that a run with this many instances does not use, with their numbers of messages.

    They belong to a run with more instances, or to one of another of these topics alone.
    """
    used_topics = client.store.read(
        lambda view: {find_state(view, topics, subscription, at) for at in range(instances)}
    )
    firsts = [re.escape(state_topic(topic, subscription, 0).short) for topic in topics]
    pattern = re.compile(rf"(?:{'|'.join(firsts)})(?:-[1-9][0-9]*)?")
    out: dict[str, int] = {}
    for row in client.subscriptions():
        topic = row["topic"]
        if (
            row["subscription"] != subscription
            or topic in used_topics
            or not pattern.fullmatch(topic)
        ):
            continue
        messages = 0  # not the backlog: the row of the closed value is not a message
        for table in client.read(topic, range=Range(kind="unacked", subscription=subscription)):
            names, _, _ = _without_last(table.column("properties"))
            messages += pc.sum(pc.equal(names, _ORIGIN)).as_py() or 0
        if messages:
            out[topic] = messages
    return out


def without_own(rows: pa.Table) -> pa.Table:
    """Messages of the state in the form of RECEIVED."""
    return rows.select(RECEIVED.names)


def _reduced(rows: pa.Table) -> pa.Table:
    """Received messages, reduced to the fields that the state stores."""
    columns = [
        rows.column(field.name) if field.name in _KEPT else pa.nulls(rows.num_rows, field.type)
        for field in RECEIVED
    ]
    return pa.table(columns, schema=RECEIVED)


def _with_own(rows: pa.Table, id_columns: list[pa.Array]) -> pa.Table:
    for (name, kind), column in zip(_OWN.items(), id_columns, strict=True):
        rows = rows.append_column(pa.field(name, kind), column)
    return rows


def _encoded(rows: pa.Table) -> pa.Table:
    """Received messages in the form that is sent to the state."""
    texts = [
        pc.fill_null(_flat(rows.column(name)), 0).cast(_TEXT)
        if name == "index"
        else _flat(rows.column(name)).cast(_INT).cast(_TEXT)
        if name == "publish_time"
        else _flat(rows.column(name)).cast(_TEXT)
        for name in _FROM
    ]
    origin = pc.binary_join_element_wise(*texts, " ")
    return pa.table(
        {
            "value": rows.column("value"),
            "key": rows.column("key"),
            "properties": _with_last(rows.column("properties"), origin),
            "event_time": rows.column("event_time"),
        }
    )


def _restored(rows: pa.Table, origins: pa.Array) -> pa.Table:
    """Messages of the state in their original form, with their own ids; the reverse of _encoded."""
    id_columns = [_flat(rows.column(name)) for name in ("ledger", "entry", "index")]
    parts = pc.split_pattern(origins, " ", max_splits=len(_FROM) - 1)
    for at, name in enumerate(_FROM):
        field_index = RECEIVED.get_field_index(name)
        column = pc.list_element(parts, at)
        if name != "topic":
            column = column.cast(_INT).cast(RECEIVED.field(field_index).type)
        if name == "index":  # null for a plain message
            column = pc.if_else(pc.equal(column, 0), pa.scalar(None, column.type), column)
        rows = rows.set_column(field_index, RECEIVED.field(field_index), column)
    return _with_own(_reduced(rows), id_columns)


# --- the last property of each row ----------------------------------------------------------


def _with_last(properties: pa.ChunkedArray, values: pa.Array) -> pa.Array:
    """Properties with one more at the end."""
    rows = len(values)
    names = pa.repeat(pa.scalar(_ORIGIN, _TEXT), rows)
    if properties.null_count == rows:
        return pa.MapArray.from_arrays(_numbers(rows + 1, 0), names, values)
    lengths, structs = _lists(properties)
    # a row's own properties come first, as the sort is stable
    order = pc.sort_indices(pa.concat_arrays([_parents(lengths), _numbers(rows, 0)]))
    offsets = pc.add(_offsets(lengths), _numbers(rows + 1, 0))
    return pa.MapArray.from_arrays(
        offsets,
        pa.concat_arrays([pc.struct_field(structs, 0), names]).take(order),
        pa.concat_arrays([pc.struct_field(structs, 1), values]).take(order),
    )


def _without_last(properties: pa.ChunkedArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Name and value of each row's last property, and the other properties; null: it has none."""
    lengths, entries = _lists(properties)
    offsets = _offsets(lengths)
    has_one = pc.greater(lengths, 0)
    last = pc.if_else(has_one, pc.subtract(offsets.slice(1), 1), pa.scalar(None, pa.int32()))
    names, values = pc.struct_field(entries, 0), pc.struct_field(entries, 1)
    others = pc.invert(pc.is_in(_numbers(len(entries), 0), value_set=last.drop_null()))
    fewer = pc.subtract(lengths, has_one.cast(pa.int32()))
    others_map = pa.MapArray.from_arrays(
        _offsets(fewer), names.filter(others), values.filter(others)
    )
    none = pa.scalar(None, _PROPERTIES)
    return names.take(last), values.take(last), pc.if_else(pc.greater(fewer, 0), others_map, none)


def _lists(properties: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """The number of properties of each row, and all properties as structs."""
    lists = _flat(properties).cast(_ENTRIES)
    return pc.fill_null(pc.list_value_length(lists), 0), pc.list_flatten(lists)


def _parents(lengths: pa.Array) -> pa.Array:
    """For each item of lists with these lengths, the number of its list."""
    is_filled = pc.greater(lengths, 0)
    numbers = _numbers(len(lengths), 0).filter(is_filled)
    if not len(numbers):
        return numbers
    ends = pc.cumulative_sum(lengths.filter(is_filled))
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, numbers))


def _offsets(lengths: pa.Array) -> pa.Array:
    """The offsets of lists with these lengths."""
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _numbers(count: int, first: int) -> pa.Array:
    """`count` integers, counted up from first."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int32()), count)), 1 - first)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
