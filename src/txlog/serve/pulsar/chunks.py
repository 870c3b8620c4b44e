"""Owns Chunks: the chunks of one message that have come so far, and the memory that they take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from txlog.errors import InvalidMessage, LimitExceeded

if TYPE_CHECKING:
    from txlog.serve.core.budget import Reservation
    from txlog.serve.pulsar.messages import Proto

CHUNK_BYTES: Final = 256  # what a chunk costs beside its payload


class ChunkedMessage:
    """The chunks of one message so far.

    head:      the metadata of the first chunk
    sequences: first and highest of each chunk
    """

    def __init__(self, head: Proto, hold: Reservation, bytes_max: int, idle_seconds: float) -> None:
        """Raises LimitExceeded: the message is larger than bytes_max."""
        size = head.total_chunk_msg_size
        if size > bytes_max:
            raise LimitExceeded(
                f"a message of {size} bytes in chunks, the most is {bytes_max}",
                setting="max_chunked_message_bytes",
                limit=bytes_max,
                value=size,
            )
        self.head = head
        self.sequences: list[tuple[int, int]] = []
        self._data = bytearray()
        self._hold = hold
        self._idle_seconds = idle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._waits = self._has_ended = False

    def add(self, head: Proto, payload: memoryview, sequences: tuple[int, int]) -> None:
        """Take the next chunk. Raises InvalidMessage: it is not the next one."""
        if self._has_ended or self.head.uuid != head.uuid or head.chunk_id != len(self.sequences):
            raise InvalidMessage(f"chunk {head.chunk_id} of {head.uuid} is out of order")
        if not payload:
            raise InvalidMessage(f"chunk {head.chunk_id} of {head.uuid} has no bytes")
        if len(self._data) + len(payload) > self.head.total_chunk_msg_size:
            raise InvalidMessage(f"chunks of {head.uuid} are larger than it says")
        self._data += payload
        self.sequences.append(sequences)
        self._watch()

    def whole(self) -> memoryview:
        """All bytes; nothing more is to come, but the memory counts until `end`."""
        self._stop()
        return memoryview(self._data)

    async def room(self) -> None:
        """Wait until there is room for what came; the connection reads nothing meanwhile."""
        if self.has_ended():
            return
        size = len(self._data) + CHUNK_BYTES * len(self.sequences)
        self._waits = True
        try:
            await self._hold.reserve(size - self._hold.held, size)
        finally:
            self._waits = False
        if self.has_ended():
            self._hold.close()

    def has_ended(self) -> bool:
        """Whether nothing more is to come, and nothing counts."""
        return self._has_ended

    def end(self) -> None:
        """It is stored or refused, or its producer has gone."""
        self._has_ended = True
        self._stop()
        self._data = bytearray()
        self._hold.close()

    def _watch(self) -> None:
        self._stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_seconds, self._late)

    def _late(self) -> None:
        if self._waits:  # for others: its own time stands still
            self._watch()
        else:
            self.end()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
