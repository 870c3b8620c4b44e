"""Owns the messages of a send as rows, and its answers as receipts.

A single message becomes a row with the columns that its caller gave; a batch is a table already.
Both then go the same way (`producer`). Receipts are made when a caller reads them, so that a batch
costs one object however many rows it has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, TypeAlias, TypeVar, cast

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.base.settings import PROPERTIES_MAX
from txlog.engine.decide.sending.send import AFTER, AT
from txlog.engine.plan.route import COLUMNS, bytes_between, check_numbers
from txlog.errors import InvalidArgument, InvalidMessage, TxlogError

if TYPE_CHECKING:
    from txlog.engine.decide.sending.large import LargeOutcome
    from txlog.engine.decide.sending.send import SliceReceipt
    from txlog.engine.plan.route import Routed
    from txlog.engine.session.transactions.buffer import Run

T = TypeVar("T")
INT64: Final = range(-(1 << 63), 1 << 63)
# A message that waits in a queue: its future, then _FIELDS.
Item: TypeAlias = tuple[Any, ...]
_FIELDS: Final = (
    "value",
    "key",
    "properties",
    "event_time",
    "deliver_at",
    "deliver_after",
    "sequence_id",
    "partition",
)
_INT64: Final = pa.int64()
_OFFSETS: Final = struct.Struct("=2i")
_NUMBER: Final = struct.Struct("=q")
_BYTES_MAX: Final = (1 << 31) - 1


# --- messages as rows ------------------------------------------------------------------------


def as_bytes(value: T | str) -> T | bytes:
    """A value or a key as bytes; text becomes UTF-8."""
    return value.encode() if isinstance(value, str) else value


def attributes_of(
    key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time: int | None,
    deliver_at: int | None,
    deliver_after: int | None,
) -> dict[str, object]:
    """The columns of a message besides its value, only those that its caller gave.

    raises: InvalidMessage, InvalidArgument
    """
    times = {"event_time": event_time, AT: deliver_at, AFTER: deliver_after}
    attributes: dict[str, object] = {} if key is None else {"key": key}
    for name, when in times.items():
        if when is None:
            continue
        if type(when) is not int and not _is_integer(when):
            raise InvalidArgument(f"{name} is {when!r}, it must be an integer: milliseconds")
        attributes[name] = when
    if properties:
        if len(properties) > PROPERTIES_MAX:
            raise too_many_properties(properties)
        attributes["properties"] = list(properties.items())
    return attributes


def row_of(
    value: object,
    attributes: Mapping[str, object],
    sequence_id: int | None,
    partition: int | None,
) -> pa.RecordBatch:
    """A message as a batch of one row. Raises InvalidArgument."""
    fields = {"value": value, **attributes}
    for name, number in (("sequence_id", sequence_id), ("partition", partition)):
        if number is not None:
            if type(number) is not int and not _is_integer(number):
                raise InvalidArgument(f"{name} is {number!r}, it must be an integer")
            fields[name] = number
    try:
        columns = [_column_of(name, item) for name, item in fields.items()]
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as exc:
        raise InvalidArgument(f"the message cannot be encoded: {exc}") from exc
    return pa.RecordBatch.from_arrays(columns, list(fields))


def _column_of(name: str, item: object) -> pa.Array:
    """A column of one item. Bytes and instants are packed by hand, in a third of pyarrow's time."""
    kind = COLUMNS.get(name, _INT64)
    if type(item) is bytes and len(item) <= _BYTES_MAX and name in ("value", "key"):
        offsets = pa.py_buffer(_OFFSETS.pack(0, len(item)))
        return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(item)])
    if type(item) is int and name in ("event_time", AT) and item in INT64:
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(_NUMBER.pack(item))])
    return pa.array([item], kind)


def _is_integer(value: object) -> bool:
    """True for the integers of other libraries. A float is refused: pyarrow would truncate it."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def rows_of(items: list[Item]) -> pa.RecordBatch:
    """Queued messages as a batch, without columns that are null in every row.

    raises: whatever pyarrow raises for values that it cannot encode
    """
    columns = list(zip(*items, strict=True))[1:]
    names, arrays = [], []
    for name, column in zip(_FIELDS, columns, strict=True):
        if name == "value" or column.count(None) < len(column):
            names.append(name)
            arrays.append(pa.array(column, COLUMNS.get(name, _INT64)))
    return pa.RecordBatch.from_arrays(arrays, names)


def check_sequences(rows: pa.RecordBatch) -> None:
    """Refuse negative sequence ids: they have no form in the Pulsar protocol."""
    column = rows.schema.get_field_index("sequence_id")
    if column >= 0:
        check_numbers("sequence_id", rows.column(column))


def too_many_properties(properties: Mapping[str, str]) -> InvalidMessage:
    """The error for a message with more than PROPERTIES_MAX properties."""
    return InvalidMessage(
        f"a message has {len(properties)} properties, the most is {PROPERTIES_MAX}"
    )


# --- receipts --------------------------------------------------------------------------------


class SendReceipt(NamedTuple):
    """The place of a message: its id, or in a transaction its index (from 1) in the partition.

    duplicate:  it was stored before; its place is None unless the store still knows it
    beyond_ttl: the message will expire before it is due, since the topic's time to live is shorter
    """

    partition: int
    message_id: MessageId | None
    txn_index: int | None
    duplicate: bool
    beyond_ttl: bool = False


class BufferedReceipt(SendReceipt):
    """The receipt of a message that waits in a transaction: its first reader writes the messages.

    The tuple itself is empty; each way to read it asks the run. Printing it writes nothing.
    """

    _at: tuple[Run, int] | None  # its run, and its row there; None once it is filled
    _place: SendReceipt

    @staticmethod
    def of(at: tuple[Run, int]) -> BufferedReceipt:
        """The receipt of a message by its run, and its row there."""
        receipt: BufferedReceipt = tuple.__new__(BufferedReceipt)
        receipt._at = at
        return receipt

    def filled(self) -> SendReceipt:
        """Write the waiting messages, and return the receipt, or raise the error of the message."""
        at = self._at
        if at is not None:
            self._place = cast(SendReceipt, at[0].receipt(at[1]))
            self._at = None
        return self._place

    def is_filled(self) -> bool:
        """True once the message was written or refused."""
        at = self._at
        return at is None or at[0].is_written(at[1])

    partition = property(lambda self: self.filled().partition)
    message_id = property(lambda self: self.filled().message_id)
    txn_index = property(lambda self: self.filled().txn_index)
    duplicate = property(lambda self: self.filled().duplicate)
    beyond_ttl = property(lambda self: self.filled().beyond_ttl)

    def __repr__(self) -> str:
        if not self.is_filled():
            return "SendReceipt(not written yet)"
        try:
            return repr(self.filled())
        except TxlogError as error:
            return f"SendReceipt(refused: {error})"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.filled())

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, at: Any) -> Any:
        return self.filled()[at]

    def __contains__(self, item: object) -> bool:
        return item in self.filled()

    def __eq__(self, other: object) -> bool:
        return self.filled() == (other.filled() if isinstance(other, BufferedReceipt) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.filled())

    def __lt__(self, other: Any) -> bool:
        return self.filled() < tuple(other)

    def __le__(self, other: Any) -> bool:
        return self.filled() <= tuple(other)

    def __gt__(self, other: Any) -> bool:
        return self.filled() > tuple(other)

    def __ge__(self, other: Any) -> bool:
        return self.filled() >= tuple(other)

    def __add__(self, other: Any) -> Any:
        return self.filled() + tuple(other)

    def __radd__(self, other: Any) -> Any:
        return other + self.filled()

    def __mul__(self, times: Any) -> Any:
        return self.filled() * times

    __rmul__ = __mul__

    def __reduce__(self) -> tuple[Any, ...]:
        return SendReceipt, tuple(self.filled())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def count(self, item: object) -> int:
        """How many fields have this value."""
        return self.filled().count(item)

    def index(self, *args: object) -> int:
        """The number of the first field with this value."""
        return self.filled().index(*cast("tuple[Any, ...]", args))

    def _replace(self, **fields: Any) -> Any:  # the plain receipt, not one that waits
        return self.filled()._replace(**fields)

    def _asdict(self) -> dict[str, Any]:
        return self.filled()._asdict()


new_receipt: Callable[[type[BufferedReceipt]], BufferedReceipt] = tuple.__new__  # a tenth of a send


class PartitionReceipt(NamedTuple):
    """The part of a batch that went to one partition; first and last: None in a transaction."""

    partition: int
    messages: int
    first: MessageId | None
    last: MessageId | None


class BatchReceipt:
    """The answer to a batch. Its lists are computed on demand.

    bytes:      of the keys and values that were stored
    beyond_ttl: the number of stored messages that will expire before they are due
    stored:     the outcome in each partition
    """

    __slots__ = ("_in_txn", "_routed", "beyond_ttl", "bytes", "duplicates", "messages", "stored")

    def __init__(self, routed: Routed, stored: list[SliceReceipt], *, in_txn: bool) -> None:
        self._routed = routed
        self.stored = stored
        self._in_txn = in_txn
        repeated = [
            bytes_between(routed, piece.row_start + start, piece.row_start + stop)
            for piece in stored
            for start, stop in piece.repeats
        ]
        self.bytes = routed.payload_bytes - sum(repeated)
        self.duplicates = sum([piece.duplicates for piece in stored if piece.repeats])
        self.messages = routed.rows.num_rows - self.duplicates
        self.beyond_ttl = sum(
            [piece.beyond_ttl.true_count for piece in stored if piece.beyond_ttl is not None]
        )

    @property
    def partitions(self) -> list[PartitionReceipt]:
        """One receipt for each partition of the batch."""
        receipts: list[PartitionReceipt] = []
        for piece in self.stored:
            count = piece.rows - (piece.duplicates if piece.repeats else 0)
            first = last = None
            if count and not self._in_txn:
                first = MessageId(piece.ledger, piece.first_entry)
                last = MessageId(piece.ledger, piece.first_entry + count - 1)
            receipts.append(PartitionReceipt(piece.partition, count, first, last))
        return receipts

    def receipts(self) -> list[SendReceipt]:
        """One receipt a row, in the caller's order."""
        return receipts_of(self.stored, self._routed.order, in_txn=self._in_txn)

    def ids(self) -> list[MessageId | None]:
        """The id of each row; None in a transaction, and for a duplicate whose id is unknown."""
        return [receipt.message_id for receipt in self.receipts()]


class SharedReceipts:
    """The receipts of a producer's messages in one frame, for their futures to share."""

    __slots__ = ("_in_txn", "_order", "_receipts", "_stored")

    def __init__(self, stored: list[SliceReceipt], order: pa.Array | None, *, in_txn: bool) -> None:
        self._stored, self._order, self._in_txn = stored, order, in_txn
        self._receipts: list[SendReceipt] | None = None

    def receipt(self, row: int) -> SendReceipt:
        """The receipt of a message, by its number in the caller's order."""
        if self._receipts is None:
            self._receipts = receipts_of(self._stored, self._order, in_txn=self._in_txn)
        return self._receipts[row]


def receipts_of(
    stored: list[SliceReceipt], order: pa.Array | None, *, in_txn: bool
) -> list[SendReceipt]:
    """One receipt a row, in the caller's order; order: as of Routed."""
    by_partition: list[SendReceipt] = []
    for piece in stored:
        beyond = None if piece.beyond_ttl is None else piece.beyond_ttl.to_pylist()
        for row, stored_row in enumerate(piece.places() if piece.repeats else range(piece.rows)):
            by_partition.append(_receipt_of(piece, row, stored_row, beyond, in_txn=in_txn))
    if order is None:
        return by_partition
    ordered = list(by_partition)
    for receipt, row in zip(by_partition, order.to_pylist(), strict=True):
        ordered[row] = receipt
    return ordered


def _receipt_of(
    piece: SliceReceipt,
    row: int,
    stored_row: int | None,
    beyond: list[bool] | None,
    *,
    in_txn: bool,
) -> SendReceipt:
    """The receipt of a row; stored_row: its number among the stored rows, None for a duplicate."""
    if stored_row is None:
        original = None
        if piece.original is not None and piece.original[0] == row:
            original = piece.original[1]
        if in_txn and original is not None:
            return SendReceipt(piece.partition, None, original.index, True)
        return SendReceipt(piece.partition, original, None, True)
    is_beyond = beyond is not None and beyond[stored_row]
    if in_txn:
        return SendReceipt(piece.partition, None, piece.first_index + stored_row, False, is_beyond)
    message_id = MessageId(piece.ledger, piece.first_entry + stored_row)
    return SendReceipt(piece.partition, message_id, None, False, is_beyond)


class LargeReceipt:
    """The answer to a large message, with the attributes of a batch of one."""

    __slots__ = ("_partition", "_placed", "beyond_ttl", "bytes", "duplicates", "messages")

    def __init__(self, partition: int, placed: LargeOutcome, size: int) -> None:
        self._partition = partition
        self._placed = placed
        self.bytes = 0 if placed.duplicate else size
        self.duplicates = int(placed.duplicate)
        self.messages = 1 - self.duplicates
        self.beyond_ttl = int(placed.beyond_ttl)

    @property
    def partitions(self) -> list[PartitionReceipt]:
        """The receipt of its partition."""
        message_id = None if self.duplicates else self._placed.message_id
        return [PartitionReceipt(self._partition, self.messages, message_id, message_id)]

    def receipts(self) -> list[SendReceipt]:
        """Its receipt, in a list."""
        placed = self._placed
        return [
            SendReceipt(
                self._partition,
                placed.message_id,
                placed.index,
                placed.duplicate,
                placed.beyond_ttl,
            )
        ]

    def ids(self) -> list[MessageId | None]:
        """Its id, in a list; None in a transaction, and for a duplicate whose id is unknown."""
        return [self._placed.message_id]
