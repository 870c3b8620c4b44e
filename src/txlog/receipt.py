"""Owns the answers of a producer: where a message is, what a partition got, a large message."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txlog.ids import MessageId

if TYPE_CHECKING:
    from txlog.engine.flow.chunked import Placed


class SendReceipt(NamedTuple):
    """Where a message is: its id, or in a transaction its index (from 1) in the partition.

    beyond_ttl: it is stored, and will expire before it is due: the topic's time to live is shorter
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


class LargeReceipt:
    """What became of a large message; answers like the receipt of a batch of one."""

    __slots__ = ("_partition", "_placed", "beyond_ttl", "bytes", "duplicates", "messages")

    def __init__(self, partition: int, placed: Placed, size: int) -> None:
        self._partition = partition
        self._placed = placed
        self.bytes = size
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
                self._partition, placed.message_id, placed.index, placed.duplicate,
                placed.beyond_ttl,
            )
        ]  # fmt: skip

    def ids(self) -> list[MessageId | None]:
        """Its id; None in a transaction, or when an original is gone."""
        return [self._placed.message_id]
