"""Owns Unread: the messages that a reader has fetched and its application has not received.

They are kept as rows, and made into Message objects a part at a time, when the application asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from txlog.engine.plan.reading.dispatch import NO_MESSAGES, Rows
from txlog.engine.session.reading.message import Decoder, Message, messages, messages_of


class Received(NamedTuple):
    """Messages of one partition whose rows already have the columns of RECEIVED."""

    partition: int
    rows: pa.Table

    @property
    def num_rows(self) -> int:
        """How many messages."""
        return len(self.rows)

    @property
    def value_bytes(self) -> int:
        """The size of their values in memory."""
        return int(self.rows.column("value").nbytes)

    def part(self, start: int, stop: int) -> Received:
        """Its messages number start..stop-1."""
        return self._replace(rows=self.rows.slice(start, stop - start))

    def table(self) -> pa.Table:
        """Its rows, with the columns of RECEIVED."""
        return self.rows


Part: TypeAlias = Rows | Received


def table_of(parts: Sequence[Part]) -> pa.Table:
    """The messages of all parts in order, as one table with the columns of RECEIVED."""
    if not parts:
        return NO_MESSAGES
    tables = [part.table() for part in parts]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


class Unread:
    """A queue of messages: first those that are Message objects already, then those still rows.

    A signal handler can raise after any call of a C function, and when a Python function begins.
    So fields that must change together are set without a call between them. Then an interrupt
    neither loses a message nor delivers it twice.

    made: the next messages, as objects; a message that is taken from the left counts as received
    """

    __slots__ = ("_count", "_decoder", "_done", "_parts", "made")

    def __init__(self, decoder: Decoder, parts: Sequence[Part] = ()) -> None:
        self._decoder = decoder
        self.made: deque[Message] = deque()
        self._parts = parts
        self._count = sum([part.num_rows for part in parts])  # all messages, received or not
        self._done = 0  # messages that were made into objects so far

    def __len__(self) -> int:
        return self._count - self._done + len(self.made)

    def make_all(self) -> Iterable[Message]:
        """Make all remaining rows into objects; returns the messages not yet received."""
        while self._done < self._count:
            self._make()
        return self.made

    def _make(self) -> None:
        """Make the rows of the next part into objects."""
        part, start = self._at(self._done)
        rows = part.part(start, part.num_rows) if start else part
        if isinstance(rows, Rows):
            objects = messages_of(rows, self._decoder)
        else:
            objects = list(messages(rows.rows, self._decoder))
        done, queue = self._done + rows.num_rows, self.made
        queue += objects  # no call, as extend would be
        self._done = done

    def pop(self) -> Message | None:
        """Receive the next message; None if the queue is empty."""
        if not self.made and self._done < self._count:
            self._make()
        queue = self.made
        if not queue:
            return None
        message = queue[0]
        del queue[0]  # no call, as popleft would be
        return message

    def split(self, limit: int) -> tuple[pa.Table, Unread]:
        """(the next messages, at most `limit`, as a table of RECEIVED; a queue of the others)."""
        first, parts = [], []
        for part in self._left():
            rows = min(limit, part.num_rows)
            limit -= rows
            if rows:
                first.append(part.part(0, rows) if rows < part.num_rows else part)
            if rows < part.num_rows:
                parts.append(part.part(rows, part.num_rows) if rows else part)
        remaining = Unread(self._decoder, parts)
        remaining.made.extend(islice(self.made, sum([part.num_rows for part in first]), None))
        remaining._done = len(remaining.made)
        return table_of(first), remaining

    def last_row(self) -> Callable[[], pa.Table]:
        """A function that returns the row of the message received last; it may be called later."""
        part, at = self._at(self._count - len(self) - 1)
        return lambda: part.part(at, at + 1).table()

    def without(self, partitions: Iterable[int]) -> Unread:
        """A queue of the same messages, without the messages of `partitions`."""
        dropped = set(partitions)
        queue = Unread(
            self._decoder, [part for part in self._left() if part.partition not in dropped]
        )
        queue.made.extend(message for message in self.made if message.partition not in dropped)
        queue._done = len(queue.made)
        return queue

    def _at(self, number: int) -> tuple[Part, int]:
        """The part that holds the message with this number, and the message's row in that part."""
        for part in self._parts:
            if number < part.num_rows:
                return part, number
            number -= part.num_rows
        raise AssertionError(number)

    def _left(self) -> Iterator[Part]:
        """The parts with the messages that have not been received."""
        received = self._count - len(self)
        for part in self._parts:
            rows = part.num_rows
            if received < rows:
                yield part.part(received, rows) if received else part
            received = max(received - rows, 0)
