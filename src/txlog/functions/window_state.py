"""Owns the state of windows on watermarks: a topic of its own, and its rows in memory.

    <topic>-<subscription>-WINDOWS     one partition; of instance I from 1 on: ...-WINDOWS-I
      messages of open windows         as they came; the last property says where they came from
      the value that windows are closed up to      one row, the one before is acknowledged

What the subscription of the same name has not acknowledged there is the state. It is read once,
without being received, so that it may be larger than unacked_max; from then on the runner
remembers what it sends, by the marker of the transaction. A message of the state has its value,
key, properties, event and publish time, and the topic, partition and id it came from; no more, so
that a window is the same whether or not the runner was started again in between.
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
from txlog.engine.door.reading import RECEIVED
from txlog.engine.door.transactions import Transaction
from txlog.errors import NotAllowed, PartitionUnavailable
from txlog.functions.windows import by_window, starts_of, times_of

_ORIGIN: Final = "WINDOW_ORIGIN"
_CLOSED: Final = "WINDOWS_CLOSED"
_KEPT: Final = (
    "topic", "partition", "ledger", "entry", "index", "key", "value", "properties", "publish_time",
    "event_time",
)  # fmt: skip
_FROM: Final = ("partition", "ledger", "entry", "index", "publish_time", "topic")  # of _ORIGIN
_OWN: Final = {"own_ledger": pa.int64(), "own_entry": pa.int64(), "own_index": pa.int32()}
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_ENTRIES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_TEXT, _INT = pa.string(), pa.int64()


class WindowState:
    """The messages of open windows.

    topic:  where they are kept
    closed: the value that is stored; None: no window was closed yet
    """

    __slots__ = (
        "_client",
        "_closed_row",
        "_consumer",
        "_duration_ms",
        "_number",
        "_open",
        "_subscription",
        "closed",
        "topic",
    )

    def __init__(
        self, client: Client, topic: str, subscription: str, instance: int, duration_ms: int
    ) -> None:
        self.topic = state_topic(topic, subscription, instance)
        self._client, self._subscription = client, subscription
        self._duration_ms = duration_ms
        self._consumer: Consumer | None = None
        self._number = -1
        self._open: dict[int, list[pa.Table]] = {}  # by the start of the window
        self.closed: int | None = None
        self._closed_row: pa.Table | None = None

    # --- opening -----------------------------------------------------------------------------

    def make(self) -> None:
        """Create the topic and its subscription if they are missing."""
        client, name = self._client, self._subscription
        client.create_topic(self.topic, 1, if_not_exists=True, retention_acked=1)
        client.create_subscription(self.topic, name, if_not_exists=True)

    def opened(self, name: str) -> None:
        """Take the subscription, so that nobody else has this state. Raises ConsumerBusy."""
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
        """Read what is not acknowledged."""
        self._open.clear()
        self.closed = self._closed_row = None
        unacked = Range(kind="unacked", subscription=self._subscription)
        for table in self._client.read(self.topic, range=unacked):
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
            f"{self.topic} keeps the windows of {self._subscription}, but has messages of others",
            hint="nothing else may be sent there",
            topic=self.topic,
        )

    # --- what is there -----------------------------------------------------------------------

    @property
    def windows(self) -> int:
        """How many windows are open."""
        return len(self._open)

    @property
    def messages(self) -> int:
        """How many messages they have."""
        return sum(table.num_rows for tables in self._open.values() for table in tables)

    def take_until(self, start_ms: int, rows: int) -> pa.Table | None:
        """Take the first whole windows that begin at start_ms or before, up to this many rows.

        At least one window, if there is one. Their outcome must be committed, or the state loaded
        again.
        """
        taken: list[pa.Table] = []
        for start in sorted(start for start in self._open if start <= start_ms):
            if rows <= 0:
                break
            tables = self._open.pop(start)
            taken += tables
            rows -= sum(table.num_rows for table in tables)
        return pa.concat_tables(taken) if taken else None

    # --- in a transaction --------------------------------------------------------------------

    def keep(self, rows: pa.Table, producer: Producer, txn: Transaction) -> None:
        """Send messages to the state; rows: RECEIVED, those of a window together."""
        producer.send_batch_async(_encoded(rows), txn=txn)

    def kept(self, rows: pa.Table, txn: Transaction) -> None:
        """They are committed: remember them."""
        ledger, entry = self._marker(txn, rows.num_rows)
        own = [
            pa.repeat(pa.scalar(ledger, _INT), rows.num_rows),
            pa.repeat(pa.scalar(entry, _INT), rows.num_rows),
            _numbers(rows.num_rows, 1).cast(pa.int32()),
        ]
        self._put(_with_own(_reduced(rows), own))

    def acknowledge(self, rows: pa.Table, txn: Transaction) -> None:
        """Acknowledge messages of the state."""
        assert self._consumer is not None, "it is open"
        ids = pa.table([rows.column(name) for name in _OWN], names=["ledger", "entry", "index"])
        self._consumer.acknowledge_async(ids, txn=txn)

    def close_up_to(self, closed: int, producer: Producer, txn: Transaction) -> None:
        """Store the value that windows are closed up to, unless it is stored."""
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
        """It is committed."""
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
        """Where the rows of a committed transaction became visible."""
        assert txn.outcome is not None, "it is committed"
        found = {marker[0]: marker for marker in txn.outcome.markers}.get(self._number)
        if found is None:  # decided, and it takes effect when the partition comes back
            raise PartitionUnavailable(
                f"partition {self.topic}/0 is unavailable: the windows continue when it is back",
                topic=self.topic,
                partition=0,
            )
        _, ledger, entry, messages = found
        if messages != rows:
            raise self._foreign()
        return ledger, entry

    def _put(self, rows: pa.Table) -> None:
        """Add messages to their windows; rows: with their own ids."""
        if rows.num_rows:
            for start, mine in by_window(rows, starts_of(times_of(rows), self._duration_ms)):
                self._open.setdefault(start, []).append(mine)


def state_topic(topic: str, subscription: str, instance: int) -> str:
    """The topic of a state, in its short form. Raises InvalidArgument: its name is too long."""
    of = TopicName.parse(topic).topic
    suffix = "WINDOWS" if not instance else f"WINDOWS-{instance}"
    return TopicName.parse(f"{of.tenant}/{of.namespace}/{of.name}-{subscription}-{suffix}").short


def left_open(
    client: Client, topics: Sequence[str], subscription: str, instances: int
) -> dict[str, int]:
    """States that a run of this many instances does not use, and how many messages they have.

    They belong to a run with more instances, or whose first topic by name was another.
    """
    taken = {state_topic(min(topics), subscription, number) for number in range(instances)}
    firsts = [re.escape(state_topic(topic, subscription, 0)) for topic in topics]
    pattern = re.compile(rf"(?:{'|'.join(firsts)})(?:-[1-9][0-9]*)?")
    out: dict[str, int] = {}
    for row in client.subscriptions():
        topic = row["topic"]
        if row["subscription"] != subscription or topic in taken or not pattern.fullmatch(topic):
            continue
        messages = 0  # not the backlog: the value up to which windows are closed is none
        for table in client.read(topic, range=Range(kind="unacked", subscription=subscription)):
            names, _, _ = _without_last(table.column("properties"))
            messages += pc.sum(pc.equal(names, _ORIGIN)).as_py() or 0
        if messages:
            out[topic] = messages
    return out


def without_own(rows: pa.Table) -> pa.Table:
    """Messages of the state as RECEIVED."""
    return rows.select(RECEIVED.names)


def _reduced(rows: pa.Table) -> pa.Table:
    """Received messages with what the state keeps of them."""
    columns = [
        rows.column(field.name) if field.name in _KEPT else pa.nulls(rows.num_rows, field.type)
        for field in RECEIVED
    ]
    return pa.table(columns, schema=RECEIVED)


def _with_own(rows: pa.Table, own: list[pa.Array]) -> pa.Table:
    for (name, kind), column in zip(_OWN.items(), own, strict=True):
        rows = rows.append_column(pa.field(name, kind), column)
    return rows


def _encoded(rows: pa.Table) -> pa.Table:
    """Received messages as they are sent to the state."""
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
    """Messages of the state as they came, with their own ids; the reverse of _encoded."""
    own = [_flat(rows.column(name)) for name in ("ledger", "entry", "index")]
    parts = pc.split_pattern(origins, " ", max_splits=len(_FROM) - 1)
    for at, name in enumerate(_FROM):
        place = RECEIVED.get_field_index(name)
        column = pc.list_element(parts, at)
        if name != "topic":
            column = column.cast(_INT).cast(RECEIVED.field(place).type)
        if name == "index":  # of a plain message
            column = pc.if_else(pc.equal(column, 0), pa.scalar(None, column.type), column)
        rows = rows.set_column(place, RECEIVED.field(place), column)
    return _with_own(_reduced(rows), own)


# --- the last property of each row ----------------------------------------------------------


def _with_last(properties: pa.ChunkedArray, values: pa.Array) -> pa.Array:
    """Properties with one more after the existing ones."""
    rows = len(values)
    names = pa.repeat(pa.scalar(_ORIGIN, _TEXT), rows)
    if properties.null_count == rows:
        return pa.MapArray.from_arrays(_numbers(rows + 1, 0), names, values)
    lengths, rest = _lists(properties)
    # a row's own come first: the sort is stable
    order = pc.sort_indices(pa.concat_arrays([_parents(lengths), _numbers(rows, 0)]))
    offsets = pc.add(_offsets(lengths), _numbers(rows + 1, 0))
    return pa.MapArray.from_arrays(
        offsets,
        pa.concat_arrays([pc.struct_field(rest, 0), names]).take(order),
        pa.concat_arrays([pc.struct_field(rest, 1), values]).take(order),
    )


def _without_last(properties: pa.ChunkedArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The name and value of the last property of each row, and the others; null: it has none."""
    lengths, entries = _lists(properties)
    offsets = _offsets(lengths)
    has_one = pc.greater(lengths, 0)
    last = pc.if_else(has_one, pc.subtract(offsets.slice(1), 1), pa.scalar(None, pa.int32()))
    names, values = pc.struct_field(entries, 0), pc.struct_field(entries, 1)
    others = pc.invert(pc.is_in(_numbers(len(entries), 0), value_set=last.drop_null()))
    fewer = pc.subtract(lengths, has_one.cast(pa.int32()))
    rest = pa.MapArray.from_arrays(_offsets(fewer), names.filter(others), values.filter(others))
    none = pa.scalar(None, _PROPERTIES)
    return names.take(last), values.take(last), pc.if_else(pc.greater(fewer, 0), rest, none)


def _lists(properties: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """How many properties each row has, and all of them as structs."""
    held = _flat(properties).cast(_ENTRIES)
    return pc.fill_null(pc.list_value_length(held), 0), pc.list_flatten(held)


def _parents(lengths: pa.Array) -> pa.Array:
    """For each item of lists of these lengths the number of its list."""
    some = pc.greater(lengths, 0)
    numbers = _numbers(len(lengths), 0).filter(some)
    if not len(numbers):
        return numbers
    ends = pc.cumulative_sum(lengths.filter(some))
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, numbers))


def _offsets(lengths: pa.Array) -> pa.Array:
    """The offsets of lists of these lengths."""
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _numbers(count: int, first: int) -> pa.Array:
    """This many integers from first on."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int32()), count)), 1 - first)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
