"""Owns the ids on the wire: how ledger, entry and index of the store are Pulsar's ids, and back.

    wire                            store
    (L, E·10^9)                     L:E       a message that was sent alone
    (L, E·10^9), batch index i      L:E+i     message i of a batch whose first is L:E
                                    L:E:i+1   message i of the transaction whose marker is L:E
    (L, E·10^9 + i+1)               the same two, delivered without the rest of their batch
    (L, E·10^9 + H + 2000 k)        piece k > 0 of a transaction of more than a thousand messages,
                                    in which L:E:1000k+i+1 has index i; H is 5·10^8
    (L, E·10^9 + H + 2000 k + i+1)  that message, delivered without the rest of its piece

1. A batch is what one SEND stored: its rows follow each other, and have the same frame (`lsn`) and
   producer, which every file keeps. So the ids of a receipt are those that consumers get, from any
   server, at any time, and no id depends on what a server remembers. Messages that were sent
   without a batch may share a frame; those have an empty map of properties instead of none, which
   a message of a batch never has, so each is told from its neighbours, and from a batch of one.
   (Properties are not looked at otherwise: the first of a frame may have some.)
2. Ids are ordered as the messages are. A message that came once with its batch and once without it,
   because another consumer had the rest, has two ids; the later one is the greater.
3. Every id of this table can be acknowledged, sought and read from, whoever delivered it.
4. Clients name, for each message that they acknowledge in a transaction, what is left of its batch,
   so a batch of many makes frames that no server takes. Nobody has a receipt of a batch that came
   without a producer's name, so it is cut before each entry that PIECE divides; each piece is a
   batch by its first entry. Transactions are cut at the same of their indices. What has a name has
   a receipt, perhaps, and is cut beyond BATCH_MAX only. An id that is of a batch before it was cut
   (its index, or the bits that it names, are beyond the piece) is understood.

Source: spec/serve 3.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import pack
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.engine.door.facts import Run
from txlog.engine.door.reading import find_marker
from txlog.engine.door.store import View
from txlog.serve.pulsar.encrypted import message_count
from txlog.serve.pulsar.messages import MessageIdData, Proto

STEP: Final = 1_000_000_000
NOWHERE: Final = (1 << 64) - 1  # -1 as the protocol's unsigned numbers have it
LATEST: Final = (1 << 63) - 1
WINDOW_MIN, WINDOW_MAX = 16, 1024  # rows looked at together for where a batch ends
PIECE: Final = 1_000  # rows of a piece of a batch
BATCH_MAX: Final = 10_000  # rows of a batch with a producer's name; a longer one is cut, too
UNCUT_MAX: Final = 100_000  # rows of a batch that an id may be of
_HALF: Final = STEP // 2  # in the last part of an entry's number: where pieces of a transaction are
_STRIDE: Final = 2 * PIECE  # from one to the next: a number for each, and for each message alone

_COLUMNS: Final = ("kind", "lsn", "producer", "properties")


class Span(NamedTuple):
    """A batch, or one message: of a transaction if inner is not 0 (then its first index).

    A message alone is a span of one. What was cut is a span for each piece.
    """

    ledger: int
    entry: int
    size: int
    inner: int = 0

    @property
    def wire_entry(self) -> int:
        """The entry of its id on the wire."""
        piece = self.inner // PIECE
        return self.entry * STEP + (_HALF + piece * _STRIDE if piece else 0)

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

    def at(self, place: MessageId) -> int:
        """Which of its messages has an id of the store, counted from 0."""
        return place.index - self.inner if self.inner else place.entry - self.entry


class Place(NamedTuple):
    """What an id names.

    at:     the message, counted from 0; of an id of all of a batch, the last
    is_one: it names just that one
    start:  where a reader starts that names it: in a batch at its first message, as clients leave
            out themselves what they do not want of it
    """

    span: Span
    at: int
    is_one: bool
    start: int


def wire_id(span: Span, at: int, partition: int, *, is_alone: bool) -> Proto:
    """The id of message `at` of a batch.

    is_alone: it is delivered without the rest of its batch
    """
    found = MessageIdData(ledgerId=span.ledger, entryId=span.wire_entry, partition=partition)
    if is_alone:
        found.entryId += at + 1
    elif span.size > 1 or span.inner:
        found.batch_index, found.batch_size = at, span.size
    return found


def spans(view: View, partition: int, ledger: int, first: int, last: int) -> list[Span]:
    """The batches, or pieces of them, that hold the plain rows first..last of a ledger, in order.

    partition: by its store-wide number. Entries of other kinds than messages are in none. Of a
               ledger that was trimmed only compacted messages are left, each alone.
    """
    stop = _end(view, partition, ledger)
    if last >= stop:
        return [Span(ledger, entry, 1) for entry in range(first, last + 1)]
    low, high = max(0, first - 1), min(last + 2, stop)  # mostly the neighbours tell
    rows = _marks(view, ledger, low, high)
    begins, ends = rows[first - low], rows[last - low]
    window = WINDOW_MIN
    while low and begins is not None and rows[0] == begins and first - low < BATCH_MAX:
        start, low = low, max(0, low - window)
        rows = _marks(view, ledger, low, start) + rows
        window = min(4 * window, WINDOW_MAX)
    window = WINDOW_MIN
    while high < stop and ends is not None and rows[-1] == ends and high - last <= BATCH_MAX:
        rows += _marks(view, ledger, high, min(high + window, stop))
        high = low + len(rows)
        window = min(4 * window, WINDOW_MAX)
    found: list[Span] = []
    start = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and rows[at] == rows[start]:
            continue
        if rows[start] is not None and low + start <= last and low + at > first:
            found += _cut(Span(ledger, low + start, at - start), first, last)
        start = at
    return found


def _cut(span: Span, first: int, last: int) -> list[Span]:
    """A batch that is longer than any as its pieces, those that hold an entry of first..last."""
    if span.size <= BATCH_MAX:
        return [span]
    start, stop = max(span.entry, first), min(span.entry + span.size, last + 1)
    pieces = range(start // PIECE * PIECE, stop, PIECE)
    ends = [(max(at, span.entry), min(at + PIECE, span.entry + span.size)) for at in pieces]
    return [Span(span.ledger, low, high - low) for low, high in ends]


def _marks(view: View, ledger: int, start: int, stop: int, *, is_cut: bool = True) -> list[object]:
    """What the rows of one batch have in common; None for a row that is no message.

    is_cut: a batch without a producer's name is several
    """
    tables = view.rows([(ledger, start, stop)], _COLUMNS) if start < stop else []
    out: list[object] = []
    for table in tables:
        kinds, lsns, names = (table.column(name).to_pylist() for name in _COLUMNS[:3])
        alone = _alone(table.column("properties"))
        base = start + len(out)
        for at, kind, lsn, name in zip(range(base, stop), kinds, lsns, names, strict=False):
            if kind:
                out.append(None)
                continue
            part = at // PIECE if is_cut and name is None else 0
            out.append((lsn, name, at if at - base in alone else -1 - part))
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


def span_at(
    view: View, partition: int, ledger: int, entry: int, index: int | None = None
) -> Span | None:
    """The batch, or piece of one, that holds a message; None: there is none.

    index: of a message of a transaction, from 1; by itself, any other is taken for the nearest
    """
    marker = find_marker(view.buffer(partition), ledger, entry)
    if marker is not None:
        return in_txn(ledger, entry, marker.count, index or 1) if marker.count else None
    if not 0 <= entry < _end(view, partition, ledger):
        return None
    found = spans(view, partition, ledger, entry, entry)
    return found[0] if found else None


def last_before(view: View, partition: int, ledger: int, entry: int, steps: int) -> list[Run]:
    """The last message before an entry, no more than so many entries back, as a run of one."""
    low, stop = max(0, entry - steps), min(entry, _end(view, partition, ledger))
    if low >= stop:
        return []
    tables = view.rows([(ledger, low, stop)], ("kind",))
    kinds = [kind for table in tables for kind in table.column("kind").to_pylist()]
    buffer = view.buffer(partition)
    for before in range(stop - 1, low - 1, -1):
        if before - low < len(kinds) and not kinds[before - low]:
            return [(ledger, before, before, 0, 0)]
        marker = find_marker(buffer, ledger, before)
        if marker is not None and marker.count:
            return [(ledger, before, before, marker.count, marker.count)]
    return []


def is_batch_of_one(view: View, span: Span) -> bool:
    """Whether a message that is a span by itself came in a batch; as of Rows.is_batch_of_one."""
    if span.size > 1 or span.inner:
        return False
    tables = view.rows([(span.ledger, span.entry, span.entry + 1)], ("producer", "properties"))
    rows = [row for table in tables for row in table.to_pylist()]
    return any(row["producer"] is not None and row["properties"] is None for row in rows)


def in_txn(ledger: int, entry: int, count: int, index: int) -> Span:
    """The piece of a transaction of so many messages that holds one of them."""
    first = (min(index, count) - 1) // PIECE * PIECE
    return Span(ledger, entry, min(PIECE, count - first), first + 1)


def _uncut(view: View, partition: int, span: Span) -> Span:
    """The batch that a piece is the first of."""
    ledger, entry = span.ledger, span.entry
    if span.inner:
        marker = find_marker(view.buffer(partition), ledger, entry)
        return span if marker is None else Span(ledger, entry, marker.count, 1)
    stop = min(_end(view, partition, ledger), entry + UNCUT_MAX)
    rows = _marks(view, ledger, entry, stop, is_cut=False)
    size = next((at for at, one in enumerate(rows) if one != rows[0]), len(rows))
    return Span(ledger, entry, size)


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


def place_of(view: View, partition: int, given: Proto) -> Place | None:
    """What an id names; None: there is no such message."""
    entry, part = divmod(given.entryId, STEP)
    piece, rest = divmod(part - _HALF, _STRIDE) if part >= _HALF else (0, part)
    span = span_at(view, partition, given.ledgerId, entry, piece * PIECE + 1)
    if span is None:
        return None
    # by what it names beyond a piece one knows an id of the whole batch
    is_cut = part < _HALF and span.entry == entry
    is_cut = is_cut and span.size < max(part, reach(given)) <= UNCUT_MAX
    if is_cut:
        span = _uncut(view, partition, span)
    if span.inner:
        part = rest
    at = min(part or given.batch_index + 1 or span.size, span.size) - 1
    is_one = part > 0 or given.batch_index >= 0
    return Place(span, at, is_one, at if part or (is_cut and is_one) else 0)


def parts_of(given: Proto) -> tuple[int, int]:
    """Entry and index of an id that only a compacted message of a trimmed ledger can have."""
    entry, part = divmod(given.entryId, STEP)
    piece, rest = divmod(part - _HALF, _STRIDE) if part >= _HALF else (0, part)
    return entry, piece * PIECE + rest


def reach(given: Proto) -> int:
    """How many messages a batch has at least of which an id names one, or some."""
    found: int = max(given.batch_index + 1, 64 * len(given.ack_set) - 63)
    return found


def inner_count(view: View, span: Span) -> int:
    """How many messages clients see in a row that is alone; more than 1: it is encrypted."""
    if span.inner or span.size > 1:
        return 1
    [table] = view.rows([(span.ledger, span.entry, span.entry + 1)], ("properties",))
    [properties] = table.column("properties").to_pylist()
    return message_count(properties)


def is_part(view: View, span: Span, given: Proto) -> bool:
    """True if an id names some messages of a batch that is one row, and not all of it."""
    if not given.ack_set and given.batch_index < 0:
        return False
    count = inner_count(view, span)
    return count > 1 and (not given.ack_set or unacked(list(given.ack_set), count) > 0)


def unacked(ack_set: list[int], count: int) -> int:
    """The bits of an ack_set as one number: bit i is set where message i is not acknowledged."""
    words = [word & NOWHERE for word in ack_set[: -(-count // 64)]]
    bits = int.from_bytes(pack(f"<{len(words)}Q", *words), "little")
    return bits & ((1 << count) - 1)
