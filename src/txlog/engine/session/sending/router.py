"""Owns Router: how one producer chooses the partition of a message that names none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa

from txlog.base.arguments import fits
from txlog.engine.plan.route import partition_of_key, user_batch
from txlog.engine.session.reading import message as reading
from txlog.errors import InvalidArgument

Choose: TypeAlias = "Callable[[reading.Message, int], int]"
ROUND_ROBIN: Final = "round-robin"
SINGLE_PARTITION: Final = "single-partition"
ROUTING_MODES: Final = (ROUND_ROBIN, SINGLE_PARTITION)
_ROUTED_BY: Final = ("value", "key", "properties", "event_time", "deliver_at", "sequence_id")


class Router:
    """How one producer chooses the partition of a message that names none.

    A function of the application decides first, in the thread that sends, before the message is
    queued or any lock is taken. Without a named partition the key decides. Messages without a key
    go round, or all to one partition.
    Source: Pulsar's MessageRouter and MessageRoutingMode.
    """

    __slots__ = ("_choose", "_step", "_topic", "_turn")

    def __init__(self, choose: Choose | None, mode: str, topic: str, seed: str) -> None:
        """seed: its hash is the partition in mode single-partition. Raises InvalidArgument."""
        if mode not in ROUTING_MODES:
            raise InvalidArgument(
                f"message_routing_mode is {mode!r}, it must be one of {', '.join(ROUTING_MODES)}"
            )
        router: object = choose
        if router is not None and not callable(router):
            kind = type(router).__name__
            raise InvalidArgument(f"message_router is {kind}, it must be a function")
        self._choose, self._topic = choose, topic
        self._step = int(mode == ROUND_ROBIN)
        self._turn = 0 if self._step else partition_of_key(seed.encode(), 1 << 32)

    @property
    def has_function(self) -> bool:
        """True when a function of the application decides."""
        return self._choose is not None

    def next_turn(self) -> int:
        """The turn of the next batch, which chooses the partition of its messages without a key."""
        turn = self._turn
        self._turn += self._step
        return turn

    def partition_of(
        self,
        partitions: int,
        value: object,
        key: bytes | None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        deliver_at: int | None = None,
        sequence_id: int | None = None,
    ) -> int:
        """The partition that the function chooses; raises InvalidArgument, and its own errors."""
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

    def with_partitions(self, data: pa.Table | pa.RecordBatch, partitions: int) -> pa.RecordBatch:
        """Rows with the partition that the function chooses for each, unless they have a column."""
        rows, explicit = user_batch(data)
        if explicit is None:
            columns = [
                rows.column(name) if name in rows.schema.names else pa.nulls(rows.num_rows)
                for name in _ROUTED_BY
            ]
            for column in (3, 4):  # instants as numbers
                columns[column] = columns[column].cast(pa.int64())
            chosen = [
                self.partition_of(partitions, *fields)
                for fields in zip(*(column.to_pylist() for column in columns), strict=True)
            ]
            explicit = pa.array(chosen, pa.int64())
        return rows.append_column("partition", explicit)
