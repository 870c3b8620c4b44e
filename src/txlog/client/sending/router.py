"""Owns Router: which partition a producer chooses for a message.

A message that names a partition goes there. Else a producer's own function decides, in the thread
that sends, before anything is queued or locked; else the key; and messages without a key go round,
or all to one partition.
Source: Pulsar's MessageRouter and MessageRoutingMode.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa

from txlog.base.arguments import fits
from txlog.engine.door import reading
from txlog.engine.door.sending import partition_of_key, user_batch
from txlog.errors import InvalidArgument

Choose: TypeAlias = "Callable[[reading.Message, int], int]"
ROUND_ROBIN: Final = "round-robin"
SINGLE_PARTITION: Final = "single-partition"
ROUTING_MODES: Final = (ROUND_ROBIN, SINGLE_PARTITION)
_FIELDS: Final = ("value", "key", "properties", "event_time", "deliver_at", "sequence_id")
_made = itertools.count()


class Router:
    """How one producer chooses; turn: the partition that is next for messages without a key."""

    __slots__ = ("_choose", "_step", "_topic", "turn")

    def __init__(self, choose: Choose | None, mode: str, topic: str, seed: str) -> None:
        """A producer's choice; seed: what tells it from others. Raises InvalidArgument."""
        if mode not in ROUTING_MODES:
            raise InvalidArgument(
                f"message_routing_mode is {mode!r}, it must be one of {', '.join(ROUTING_MODES)}"
            )
        given: object = choose
        if given is not None and not callable(given):
            kind = type(given).__name__
            raise InvalidArgument(f"message_router is {kind}, it must be a function")
        self._choose, self._topic = choose, topic
        self._step = int(mode == ROUND_ROBIN)
        self.turn = 0 if self._step else partition_of_key(seed.encode(), 1 << 32)

    @property
    def is_own(self) -> bool:
        """True when a function of the producer decides."""
        return self._choose is not None

    def next(self) -> int:
        """The turn of a batch."""
        turn = self.turn
        self.turn += self._step
        return turn

    def of_message(
        self,
        partitions: int,
        value: object,
        key: bytes | None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        sequence_id: int | None = None,
    ) -> int:
        """What the function says of one message; raises InvalidArgument, and what it raises."""
        message = reading.Message(
            topic=self._topic,
            partition=-1,
            message_id=None,
            value=value if isinstance(value, bytes) else None,
            key=key,
            properties=dict(properties or {}),
            event_time=event_time,
            deliver_at=deliver_at,
            sequence_id=sequence_id,
        )
        assert self._choose is not None
        chosen = self._choose(message, partitions)
        if not fits(chosen, int) or not 0 <= chosen < partitions:
            raise InvalidArgument(
                f"the message router chose {chosen!r}, not one of 0 to {partitions - 1}", code=203
            )
        return chosen

    def over(self, data: pa.Table | pa.RecordBatch, partitions: int) -> pa.RecordBatch:
        """Rows with the partition that the function says of each, unless they name theirs."""
        rows, named = user_batch(data)
        if named is None:
            columns = [
                rows.column(name) if name in rows.schema.names else pa.nulls(rows.num_rows)
                for name in _FIELDS
            ]
            for at in (3, 4):  # instants as numbers
                columns[at] = columns[at].cast(pa.int64())
            found = [
                self.of_message(partitions, *row)
                for row in zip(*(column.to_pylist() for column in columns), strict=True)
            ]
            named = pa.array(found, pa.int64())
        return rows.append_column("partition", named)


def seed_of(name: str | None, pid: int) -> str:
    """What tells a producer from others: its name, or else its process and its number there."""
    return name or f"{pid}-{next(_made)}"
