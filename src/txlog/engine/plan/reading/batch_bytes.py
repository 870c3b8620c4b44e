"""How many messages fit a batch, by their bytes, so that large ones do not fill the memory.

The bytes of a large message are known. All others count with the mean of their ledger or
transaction; the error is bounded, since a ledger has no more than ledger_bytes_max.
"""

from __future__ import annotations

from bisect import bisect_left

from txlog.engine.folds.buffer import Marker
from txlog.engine.view.view import View


class BatchBytes:
    """The bytes that a batch of one partition still takes."""

    __slots__ = ("_partition", "_view", "left")

    def __init__(self, view: View, partition: int, bytes_max: int) -> None:
        self._view = view
        self._partition = partition
        self.left = bytes_max

    def fit(
        self, ledger: int, marker: Marker | None, index: int, requested: int, *, is_first: bool
    ) -> tuple[int, int]:
        """(how many of the next `requested` messages fit, bytes of each); 0: the batch is full.

        index: of the first message in its transaction; is_first: the batch is empty and takes one
            in any case
        """
        count, each = (
            self._plain(ledger, requested)
            if marker is None
            else self._in_txn(marker, index, requested)
        )
        if count * each <= self.left:
            return count, each
        return max(self.left // each, int(is_first)), each

    def _plain(self, ledger: int, requested: int) -> tuple[int, int]:
        ends = self._view.topic(self._partition).ledgers
        end = ends[bisect_left(ends, ledger, key=lambda ledger_end: ledger_end.ledger)]
        each = end.payload_bytes // max(1, end.messages)
        if requested * each <= self.left:
            return requested, each
        # exclude markers, because a few large transactions must not raise the mean of the other
        # messages
        markers = self._view.buffer(self._partition).markers.get(ledger, ())
        size = end.payload_bytes - sum([marker.payload_bytes for marker in markers])
        messages = end.messages - sum([marker.count for marker in markers])
        return requested, max(0, size) // max(1, messages)

    def _in_txn(self, marker: Marker, index: int, requested: int) -> tuple[int, int]:
        chunked = self._view.buffer(self._partition).chunked
        if not chunked or marker.payload_bytes <= self.left:
            return requested, marker.payload_bytes // max(1, marker.count)
        large = {part[3]: chunked[part[0]] for part in marker.ranges if part[0] in chunked}
        if index in large:
            return 1, large[index].payload_bytes
        next_large = min((at for at in large if at > index), default=index + requested)
        size = marker.payload_bytes - sum(
            large_message.payload_bytes for large_message in large.values()
        )
        return min(requested, next_large - index), size // max(1, marker.count - len(large))
