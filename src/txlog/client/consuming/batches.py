"""Owns BatchReceivePolicy: when a batch of messages is full.

A call with its own limit returns the messages that are available. Under a policy, several turns
(calls of `Session.take`) fill a batch, whose messages stay leased meanwhile. Sizes are known only
after rows were read. So the batch returns rows above the byte limit, uncounted. It asks the next
turn for as many rows as fit, if they are as large as the previous rows.
Source: Pulsar's BatchReceivePolicy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple, dataclass

import pyarrow as pa

from txlog.base.arguments import fits
from txlog.base.settings import MIB
from txlog.base.startup import compute as pc
from txlog.base.times import DurationLike, duration_ms
from txlog.engine.door.consuming import Session
from txlog.engine.door.reading import until
from txlog.errors import InvalidArgument, TxlogError

MESSAGES = 1000  # the most messages that a call without a limit returns
TURN_MESSAGES = 10_000  # the most messages that a turn under a policy asks for
_SIZE = 1024  # the assumed bytes of a message, before the first one was read


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceivePolicy:
    """A batch is full as soon as it reaches one limit; 0 or less: no such limit.

    max_num_messages: messages in the batch
    max_num_bytes:    bytes of their values; a larger message comes in a batch of its own
    timeout_ms:       time since the call; the batch then has the messages so far, perhaps none
    raises: InvalidArgument if there is no limit, as the batch would never be full

    >>> from txlog import BatchReceivePolicy
    >>> BatchReceivePolicy(max_num_messages=100, timeout_ms=20).max_num_bytes
    10485760
    """

    max_num_messages: int = -1
    max_num_bytes: int = 10 * MIB
    timeout_ms: DurationLike = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout_ms", duration_ms(self.timeout_ms))
        limits = astuple(self)
        for name, limit in zip(self.__slots__, limits, strict=True):
            if not fits(limit, int):
                raise InvalidArgument(f"{name} is {type(limit).__name__}, it must be int")
        if max(limits) <= 0:
            raise InvalidArgument(
                "a batch would never be full: the policy has no messages, bytes or time", code=203
            )


def _bound(value: int) -> int | None:
    return value if value > 0 else None


class Batching:
    """How a consumer fills batches.

    size: mean bytes of a value in the last turn, for estimating the next
    """

    __slots__ = ("_full", "_is_marked", "size")

    def __init__(self, policy: BatchReceivePolicy | None, *, has_watermarks: bool) -> None:
        self._full: tuple[int | None, int | None, int | None] | None = None
        if policy is not None:
            messages, size, timeout_ms = map(_bound, astuple(policy))
            self._full = (messages, size, timeout_ms)
        self._is_marked = has_watermarks
        self.size: float = _SIZE

    def begin(self, session: Session, max_messages: int | None, timeout_ms: int | None) -> Batch:
        """Begin the batch of one call; the policy applies only to a call without limits."""
        if max_messages is not None and max_messages <= 0:
            raise InvalidArgument(f"max_messages is {max_messages}, it must be positive", code=203)
        if self._full is None or max_messages is not None or timeout_ms != 0:
            return Batch(session, self, max_messages or MESSAGES, None, timeout_ms, True)
        # with watermarks only one turn, as a watermark must follow exactly the messages before it
        return Batch(session, self, *self._full, self._is_marked)


class Batch:
    """A batch being filled: call `look` until it returns a table, or `table` when time is up."""

    __slots__ = (
        "_batching",
        "_bytes_left",
        "_is_one_turn",
        "_left",
        "_session",
        "_tables",
        "timeout_ms",
    )

    def __init__(
        self,
        session: Session,
        batching: Batching,
        limit: int | None,
        bytes_max: int | None,
        timeout_ms: int | None,
        is_one_turn: bool,
    ) -> None:
        self._session, self._batching = session, batching
        self._left, self._bytes_left = limit, bytes_max
        self.timeout_ms, self._is_one_turn = timeout_ms, is_one_turn
        self._tables: list[pa.Table] = []

    def look(self, is_thorough: bool) -> pa.Table | None:
        """Take messages; returns the batch when it is full or a new watermark comes, else None."""
        while True:
            try:
                table = self._session.take(self._wanted(), is_thorough)
            except TxlogError:
                if not self._tables:
                    raise
                return self.table()  # the next call gets the error
            if table is None:
                return None
            if not table.num_rows:
                self._tables.append(table)
                return self.table()
            if self._add(table) or self._is_one_turn:
                return self.table()

    def _wanted(self) -> int:
        limit = TURN_MESSAGES if self._left is None else self._left
        if self._bytes_left is None:
            return limit
        return max(1, min(limit, TURN_MESSAGES, int(self._bytes_left / self._batching.size)))

    def _add(self, table: pa.Table) -> bool:
        """Add the rows that fit, and return the others; True if the batch is full."""
        if self._bytes_left is not None:
            rows, size = self._fitting(table, self._bytes_left)
            if rows < table.num_rows:
                self._session.give_back(table.slice(rows))
                table, size = table.slice(0, rows), self._bytes_left
            self._bytes_left = max(0, self._bytes_left - size)
        if table.num_rows:
            self._tables.append(table)
            if self._left is not None:
                self._left -= table.num_rows
        return self._left == 0 or self._bytes_left == 0

    def _fitting(self, table: pa.Table, room: int) -> tuple[int, int]:
        """(how many rows fit into `room` bytes, the bytes of all rows)."""
        sizes = pc.fill_null(pc.binary_length(table.column("value")), 0)
        ends = pc.cumulative_sum(sizes.cast(pa.int64()))
        size = ends[-1].as_py()
        self._batching.size = max(1.0, size / table.num_rows)
        if size <= room or table.column("ledger").null_count:
            return table.num_rows, size  # previews cannot go back, as they are not leased
        rows = pc.sum(pc.less_equal(ends, room)).as_py()
        return max(rows, 0 if self._tables else 1), size  # the first message of a batch always fits

    def table(self) -> pa.Table:
        """The messages in the batch."""
        tables = self._tables
        if not tables:
            return self._session.empty()
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def give_back(self) -> None:
        """Return the messages of a batch that its caller does not get, uncounted."""
        tables, self._tables = self._tables, []
        for table in reversed(tables):
            if table.num_rows:
                self._session.give_back(table)


def receive_batch(
    session: Session, batching: Batching, max_messages: int | None, timeout_ms: int
) -> pa.Table:
    """Wait for one batch; see Consumer.receive_batch."""
    batch = batching.begin(session, max_messages, timeout_ms)
    try:
        table = until(session.store, batch.look, batch.timeout_ms, session.rest)
    except BaseException:  # also on Ctrl-C: the caller does not get the messages in the batch
        with suppress(TxlogError):  # the first error is the cause
            batch.give_back()
        raise
    return batch.table() if table is None else table
