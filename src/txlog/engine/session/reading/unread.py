"""Owns Unread: what a reader has read ahead, as messages once they are wanted, or as rows again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from txlog.engine.plan.reading.dispatch import NO_MESSAGES, Rows
from txlog.engine.session.reading.message import Decoder, Message, messages, messages_of


class Received(NamedTuple):
    """Messages of a partition that are RECEIVED already."""

    partition: int
    rows: pa.Table

    @property
    def num_rows(self) -> int:
        """How many messages."""
        return len(self.rows)

    @property
    def value_bytes(self) -> int:
        """What their values take in memory."""
        return int(self.rows.column("value").nbytes)

    def part(self, start: int, stop: int) -> Received:
        """The messages start..stop-1 of these."""
        return self._replace(rows=self.rows.slice(start, stop - start))

    def table(self) -> pa.Table:
        """They as RECEIVED."""
        return self.rows


Part: TypeAlias = Rows | Received


def table_of(parts: Sequence[Part]) -> pa.Table:
    """The messages of parts as RECEIVED, in order."""
    if not parts:
        return NO_MESSAGES
    tables = [part.table() for part in parts]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


class Unread:
    """Messages in order; those that are made come first.

    An interrupt (an exception of a signal handler) comes after a call of C, or as a function
    begins. So what belongs together is changed in steps without a call between them: then no
    message is lost, and none is there twice.

    made: the next ones; who takes one from the left has received it
    """

    __slots__ = ("_count", "_decoder", "_done", "_parts", "made")

    def __init__(self, decoder: Decoder, parts: Sequence[Part] = ()) -> None:
        self._decoder = decoder
        self.made: deque[Message] = deque()
        self._parts = parts
        self._count = sum([part.num_rows for part in parts])  # whoever has them
        self._done = 0  # of these, how many were made

    def __len__(self) -> int:
        return self._count - self._done + len(self.made)

    def make_all(self) -> Iterable[Message]:
        """Make all, and return those that nobody has received."""
        while self._done < self._count:
            self._make()
        return self.made

    def _make(self) -> None:
        """Make the messages of the next part."""
        part, start = self._at(self._done)
        some = part.part(start, part.num_rows) if start else part
        if isinstance(some, Rows):
            made = messages_of(some, self._decoder)
        else:
            made = list(messages(some.rows, self._decoder))
        done, queue = self._done + some.num_rows, self.made
        queue += made  # no call, as extend would be
        self._done = done

    def pop(self) -> Message | None:
        """Receive the next message; None: there is none."""
        if not self.made and self._done < self._count:
            self._make()
        made = self.made
        if not made:
            return None
        message = made[0]
        del made[0]  # no call, as popleft would be
        return message

    def split(self, limit: int) -> tuple[pa.Table, Unread]:
        """The next messages as RECEIVED, at most so many, and what is left without them."""
        first, rest = [], []
        for part in self._left():
            rows = min(limit, part.num_rows)
            limit -= rows
            if rows:
                first.append(part.part(0, rows) if rows < part.num_rows else part)
            if rows < part.num_rows:
                rest.append(part.part(rows, part.num_rows) if rows else part)
        left = Unread(self._decoder, rest)
        left.made.extend(islice(self.made, sum([part.num_rows for part in first]), None))
        left._done = len(left.made)
        return table_of(first), left

    def last_row(self) -> Callable[[], pa.Table]:
        """What makes the row of the message that was received last, also later."""
        part, at = self._at(self._count - len(self) - 1)
        return lambda: part.part(at, at + 1).table()

    def without(self, partitions: Iterable[int]) -> Unread:
        """These but the messages of partitions."""
        gone = set(partitions)
        kept = Unread(self._decoder, [part for part in self._left() if part.partition not in gone])
        kept.made.extend(message for message in self.made if message.partition not in gone)
        kept._done = len(kept.made)
        return kept

    def _at(self, number: int) -> tuple[Part, int]:
        """The part of a message by its number, and which it is there."""
        for part in self._parts:
            if number < part.num_rows:
                return part, number
            number -= part.num_rows
        raise AssertionError(number)

    def _left(self) -> Iterator[Part]:
        """What nobody has received."""
        behind = self._count - len(self)
        for part in self._parts:
            rows = part.num_rows
            if behind < rows:
                yield part.part(behind, rows) if behind else part
            behind = max(behind - rows, 0)
