"""Owns the ids on the wire: how ledger, entry and index of the store are Pulsar's ids, and back.

    wire                            store
    (L, E·10^9)                     L:E       a message that was sent alone
    (L, E·10^9), batch index i      L:E+i     message i of a batch whose first is L:E
                                    L:E:i+1   message i of the transaction whose marker is L:E
    (L, E·10^9 + i+1)               the same two, delivered without the rest of their batch

1. A batch is what one SEND stored: its rows follow each other, and have the same frame (`lsn`) and
   producer, which every file keeps. So the ids of a receipt are those that consumers get, from any
   server, at any time, and no id depends on what a server remembers. Messages that were sent
   without a batch may share a frame; those have an empty map of properties instead of none, which
   a message of a batch never has, so each is told from its neighbours. (Properties are not looked
   at otherwise: the first of a frame may have some.)
2. Ids are ordered as the messages are. A message that came once with its batch and once without it,
   because another consumer had the rest, has two ids; the later one is the greater.
3. Every id of this table can be acknowledged, sought and read from, whoever delivered it.

Source: spec/serve 3.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.engine.folds.buffer import find_marker
from txlog.engine.model.ops import Run
from txlog.engine.view.view import View
from txlog.ids import MessageId
from txlog.serve.pulsar.messages import MessageIdData, Proto

STEP: Final = 1_000_000_000
NOWHERE: Final = (1 << 64) - 1  # -1 as the protocol's unsigned numbers have it
LATEST: Final = (1 << 63) - 1
WINDOW: Final = 1024  # rows looked at together for where a batch ends
BATCH_MAX: Final = 100_000  # rows of one batch; a longer one is delivered in pieces

_COLUMNS: Final = ("kind", "lsn", "producer", "properties")


class Span(NamedTuple):
    """A batch, or one message: of a transaction if inner is not 0 (then its first index).

    A message alone is a span of one.
    """

    ledger: int
    entry: int
    size: int
    inner: int = 0

    def run(self, first: int, last: int) -> Run:
        """Its messages first..last, counted from 0."""
        if self.inner:
            return (self.ledger, self.entry, self.entry, self.inner + first, self.inner + last)
        return (self.ledger, self.entry + first, self.entry + last, 0, 0)

    def id(self, at: int) -> MessageId:
        """Its message at, counted from 0."""
        if self.inner:
            return MessageId(self.ledger, self.entry, self.inner + at)
        return MessageId(self.ledger, self.entry + at)


def wire_id(span: Span, at: int, partition: int, *, is_alone: bool) -> Proto:
    """The id of message `at` of a batch.

    is_alone: it is delivered without the rest of its batch
    """
    found = MessageIdData(ledgerId=span.ledger, entryId=span.entry * STEP, partition=partition)
    if is_alone:
        found.entryId += at + 1
    elif span.size > 1 or span.inner:
        found.batch_index, found.batch_size = at, span.size
    return found


def spans(view: View, partition: int, ledger: int, first: int, last: int) -> list[Span]:
    """The batches that hold the plain rows first..last of a ledger, whole, in order.

    partition: by its store-wide number. Entries of other kinds than messages are in none.
    """
    stop = _end(view, partition, ledger)
    low, high = first, min(last + 1 + WINDOW, stop)
    rows = _marks(view, ledger, low, high)
    while low and rows[0] is not None and first - low < BATCH_MAX:
        more = _marks(view, ledger, max(0, low - WINDOW), low)
        same = 0
        while same < len(more) and more[-1 - same] == rows[0]:
            same += 1
        rows = more[len(more) - same :] + rows
        low -= same
        if same < len(more) or not more:
            break
    while high < stop and rows[-1] is not None and rows[-1] == rows[last - low]:
        if high - last > BATCH_MAX:
            break
        rows += _marks(view, ledger, high, min(high + WINDOW, stop))
        high = low + len(rows)
    found: list[Span] = []
    start = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and rows[at] == rows[start]:
            continue
        if rows[start] is not None and low + start <= last and low + at > first:
            found.append(Span(ledger, low + start, at - start))
        start = at
    return found


def _marks(view: View, ledger: int, start: int, stop: int) -> list[object]:
    """What the rows of one batch have in common; None for a row that is no message."""
    tables = view.rows([(ledger, start, stop)], _COLUMNS) if start < stop else []
    out: list[object] = []
    for table in tables:
        kinds, lsns, names = (table.column(name).to_pylist() for name in _COLUMNS[:3])
        alone = _alone(table.column("properties"))
        base = start + len(out)
        out += [
            None if kind else (lsn, name, base + at if at in alone else -1)
            for at, (kind, lsn, name) in enumerate(zip(kinds, lsns, names, strict=True))
        ]
    return out


def _alone(properties: pa.ChunkedArray) -> set[int]:
    """The rows that have an empty map of properties."""
    if properties.null_count == len(properties):
        return set()
    found, base = set[int](), 0
    for chunk in properties.chunks:
        if chunk.null_count < len(chunk):
            ends, valid = chunk.offsets.to_pylist(), chunk.is_valid().to_pylist()
            found.update(
                base + at for at, one in enumerate(valid) if one and ends[at] == ends[at + 1]
            )
        base += len(chunk)
    return found


def _end(view: View, partition: int, ledger: int) -> int:
    """How many entries a ledger of a partition has."""
    ends = view.topic(partition).ledgers
    at = bisect_left(ends, ledger, key=lambda end: end.ledger)
    return ends[at].entries if at < len(ends) and ends[at].ledger == ledger else 0


def span_at(view: View, partition: int, ledger: int, entry: int) -> Span | None:
    """The batch that holds an entry; None: there is no message."""
    marker = find_marker(view.buffer(partition), ledger, entry)
    if marker is not None:
        return Span(ledger, entry, marker.count, 1) if marker.count else None
    if not 0 <= entry < _end(view, partition, ledger):
        return None
    found = spans(view, partition, ledger, entry, entry)
    return found[0] if found else None


def is_start(given: Proto) -> bool:
    """True for Pulsar's `earliest`."""
    return bool(given.ledgerId >= 1 << 63)


def is_end(given: Proto) -> bool:
    """True for Pulsar's `latest`."""
    return bool(given.ledgerId == LATEST)


def partition_of(view: View, given: Proto) -> int | None:
    """The partition, by its store-wide number, of an id; None: no ledger of one."""
    owner = view.catalog.owners.get(given.ledgerId)
    return owner[0] if owner is not None and owner[1] == "p" else None


def place_of(view: View, partition: int, given: Proto) -> tuple[Span, int, bool] | None:
    """The batch that an id names, which message of it, and whether it names just that one.

    None: there is no such message.
    """
    entry, part = divmod(given.entryId, STEP)
    span = span_at(view, partition, given.ledgerId, entry)
    if span is None:
        return None
    if part:
        return span, min(part, span.size) - 1, True
    if given.batch_index >= 0:
        return span, min(given.batch_index, span.size - 1), True
    return span, span.size - 1, False


def unacked(ack_set: list[int], count: int) -> int:
    """The bits of an ack_set as one number: bit i is set where message i is not acknowledged."""
    bits = 0
    for at, word in enumerate(ack_set):
        bits |= (word & NOWHERE) << (64 * at)
    return bits & ((1 << count) - 1)
