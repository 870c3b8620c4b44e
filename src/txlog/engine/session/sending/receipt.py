"""What a producer is told: of a message, a partition, a batch, a large message."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txlog.base.ids import MessageId
from txlog.engine.plan.route import bytes_between

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.engine.decide.sending.large import LargeOutcome
    from txlog.engine.decide.sending.send import SliceReceipt
    from txlog.engine.plan.route import Routed


class SendReceipt(NamedTuple):
    """Where a message is: its id, or in a transaction its index (from 1) in the partition.

    beyond_ttl: it is stored, but will expire before it is due: the topic's time to live is shorter
    """

    partition: int
    message_id: MessageId | None
    txn_index: int | None
    duplicate: bool
    beyond_ttl: bool = False


class PartitionReceipt(NamedTuple):
    """What one partition got; first and last are ids of messages without a transaction."""

    partition: int
    messages: int
    first: MessageId | None
    last: MessageId | None


class BatchReceipt:
    """What became of a batch; the lists by row are made when asked for.

    bytes:      keys and values of what was stored
    beyond_ttl: how many were stored that will expire before they are due
    """

    __slots__ = ("_in_txn", "_routed", "_stored", "beyond_ttl", "bytes", "duplicates", "messages")

    def __init__(self, routed: Routed, stored: list[SliceReceipt], *, in_txn: bool) -> None:
        self._routed = routed
        self._stored = stored
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
        """One receipt for each partition that the batch went to."""
        out: list[PartitionReceipt] = []
        for piece in self._stored:
            kept = piece.rows - (piece.duplicates if piece.repeats else 0)
            first = last = None
            if kept and not self._in_txn:
                first = MessageId(piece.ledger, piece.first_entry)
                last = MessageId(piece.ledger, piece.first_entry + kept - 1)
            out.append(PartitionReceipt(piece.partition, kept, first, last))
        return out

    def receipts(self) -> list[SendReceipt]:
        """One receipt a row, in the order the rows were given."""
        return receipts_of(self._stored, self._routed.order, in_txn=self._in_txn)

    def ids(self) -> list[MessageId | None]:
        """The id of each row; None in a transaction, and for older repetitions."""
        return [receipt.message_id for receipt in self.receipts()]


class Stretch:
    """What became of messages that were sent together; the receipts are made when asked for."""

    __slots__ = ("_in_txn", "_order", "_receipts", "_stored")

    def __init__(self, stored: list[SliceReceipt], order: pa.Array | None, *, in_txn: bool) -> None:
        self._stored, self._order, self._in_txn = stored, order, in_txn
        self._receipts: list[SendReceipt] | None = None

    def receipt(self, row: int) -> SendReceipt:
        """The receipt of one of them, counted in the order they were given."""
        if self._receipts is None:
            self._receipts = receipts_of(self._stored, self._order, in_txn=self._in_txn)
        return self._receipts[row]


def receipts_of(
    stored: list[SliceReceipt], order: pa.Array | None, *, in_txn: bool
) -> list[SendReceipt]:
    """One receipt a row, in the order the rows were given; order: as of Routed."""
    out: list[SendReceipt] = []
    for piece in stored:
        beyond = None if piece.beyond_ttl is None else piece.beyond_ttl.to_pylist()
        for row, place in enumerate(piece.places() if piece.repeats else range(piece.rows)):
            out.append(_receipt_of(piece, row, place, beyond, in_txn=in_txn))
    if order is None:
        return out
    ordered = list(out)
    for receipt, row in zip(out, order.to_pylist(), strict=True):
        ordered[row] = receipt
    return ordered


def _receipt_of(
    piece: SliceReceipt, row: int, place: int | None, beyond: list[bool] | None, *, in_txn: bool
) -> SendReceipt:
    """The receipt of a row; place: among those that were stored, None: it is a repetition."""
    if place is None:
        original = None
        if piece.original is not None and piece.original[0] == row:
            original = piece.original[1]
        if in_txn and original is not None:
            return SendReceipt(piece.partition, None, original.index, True)
        return SendReceipt(piece.partition, original, None, True)
    is_beyond = beyond is not None and beyond[place]
    if in_txn:
        return SendReceipt(piece.partition, None, piece.first_index + place, False, is_beyond)
    where = MessageId(piece.ledger, piece.first_entry + place)
    return SendReceipt(piece.partition, where, None, False, is_beyond)


class LargeReceipt:
    """What became of a large message; answers like the receipt of a batch of one."""

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
        """What its partition got."""
        where = None if self.duplicates else self._placed.message_id
        return [PartitionReceipt(self._partition, self.messages, where, where)]

    def receipts(self) -> list[SendReceipt]:
        """Its one receipt."""
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
        """Its id; None in a transaction, and for an older repetition."""
        return [self._placed.message_id]
