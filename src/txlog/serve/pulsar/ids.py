"""Owns message ids of the protocol: how ledger, entry and index of the store become Pulsar's ids,
and back.

    wire                            store
    (L, E·10^9)                     L:E       a message that was sent alone
    (L, E·10^9), batch index i      L:E+i     message i of a batch whose first is L:E
                                    L:E:i+1   message i of the transaction whose marker is L:E
    (L, E·10^9 + i+1)               the same two, delivered without the rest of their batch
    (L, E·10^9 + H + 2000 k)        piece k > 0 of a transaction of more than a thousand messages,
                                    in which L:E:1000k+i+1 has index i; H is 5·10^8
    (L, E·10^9 + H + 2000 k + i+1)  that message, delivered without the rest of its piece

1. A batch is the content of one SEND: its rows are adjacent, and have the same frame (`lsn`) and
   producer, which every file stores. So consumers get the ids of the receipt, from any server, at
   any time, and no id depends on a server's memory. Messages that were sent without a batch may
   share a frame. They have an empty map of properties instead of none, which a message of a batch
   never has. So each can be told from its neighbours, and from a batch of one. (Properties do not
   matter otherwise: the first message of a frame may have some.)
2. Ids have the order of the messages. If a message was delivered once with its batch and once
   without, because another consumer had the rest, it has two ids; the later one is greater.
3. Every id of this table can be acknowledged, sought and read from, whichever server delivered it.
4. For each message that a client acknowledges in a transaction it names the unacknowledged rest of
   the batch. So acknowledging a large batch would need frames that no server accepts. A batch
   without a producer's name has no receipt, so it is cut before each entry that PIECE divides. Each
   piece is a batch named by its first entry. Transactions are cut at the same multiples of their
   indices. A batch with a name may have a receipt, and is cut only beyond BATCH_MAX. The server
   still understands an id of the batch before it was cut: its index, or the bits that it names, are
   beyond the piece.

Source: spec/serve 3.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import pack
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.engine.door.catalog import Topic, index_of
from txlog.engine.door.facts import Run
from txlog.engine.door.reading import find_marker
from txlog.engine.door.store import View
from txlog.errors import MessageNotFound, NotAllowed, TxlogError
from txlog.serve.pulsar.encrypted import message_count
from txlog.serve.pulsar.messages import MessageIdData, Proto

STEP: Final = 1_000_000_000
NOWHERE: Final = (1 << 64) - 1  # -1 as the protocol's unsigned numbers write it
LATEST: Final = (1 << 63) - 1
WINDOW_MIN, WINDOW_MAX = 16, 1024  # rows that are read together to find the end of a batch
PIECE: Final = 1_000  # rows in a piece of a batch
BATCH_MAX: Final = 10_000  # rows in a batch with a producer's name; a longer one is cut, too
UNCUT_MAX: Final = 100_000  # rows in a batch that an id may name
BACK_STEPS_MAX: Final = 1_000
LOOKUPS_MAX: Final = 200  # ids that the store's thread looks up in one call: some 20 ms
REPEATED_MAX: Final = 10_000  # ids that such a call reads at most, with repeated ones
# in the last part of an entry's number: the offset of pieces of a transaction
_HALF: Final = STEP // 2
# from one piece to the next: a number for the piece, and for each message alone
_STRIDE: Final = 2 * PIECE

_COLUMNS: Final = ("kind", "lsn", "producer", "properties")


class BatchSpan(NamedTuple):
    """A batch or a single message; for a transaction, inner is its first index, otherwise 0.

    A message alone is a span of one. A batch that was cut is a span for each piece.
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
        """The id in the store of a message, counted from 0."""
        if self.inner:
            return MessageId(self.ledger, self.entry, self.inner + at)
        return MessageId(self.ledger, self.entry + at)

    def at(self, message_id: MessageId) -> int:
        """The number of a message by its id in the store, counted from 0."""
        return message_id.index - self.inner if self.inner else message_id.entry - self.entry


class IdTarget(NamedTuple):
    """The messages that an id names.

    at:     the message, counted from 0; for the id of a whole batch, the last one
    is_one: the id names just this message
    start:  where a reader with this id starts: in a batch at its first message, as clients skip
            unwanted messages themselves
    """

    span: BatchSpan
    at: int
    is_one: bool
    start: int


def wire_id(span: BatchSpan, at: int, partition: int, *, is_alone: bool) -> Proto:
    """The id of message `at` of a batch.

    is_alone: it is delivered without the rest of its batch
    """
    message_id = MessageIdData(ledgerId=span.ledger, entryId=span.wire_entry, partition=partition)
    if is_alone:
        message_id.entryId += at + 1
    elif span.size > 1 or span.inner:
        message_id.batch_index, message_id.batch_size = at, span.size
    return message_id


def spans(view: View, partition: int, ledger: int, first: int, last: int) -> list[BatchSpan]:
    """The batches, or their pieces, that hold the plain rows first..last of a ledger, in order.

    partition: by its store-wide number. Entries that are no messages are in no span. A ledger that
               was trimmed has only compacted messages left, each alone.
    """
    stop = _end(view, partition, ledger)
    if last >= stop:
        return [BatchSpan(ledger, entry, 1) for entry in range(first, last + 1)]
    if first == last and view.tail.is_single(ledger, first):
        return [BatchSpan(ledger, first, 1)]
    low, high = max(0, first - 1), min(last + 2, stop)  # usually the neighbours suffice
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
    listed: list[BatchSpan] = []
    start = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and rows[at] == rows[start]:
            continue
        if rows[start] is not None and low + start <= last and low + at > first:
            listed += _cut(BatchSpan(ledger, low + start, at - start), first, last)
        start = at
    return listed


def _cut(span: BatchSpan, first: int, last: int) -> list[BatchSpan]:
    """The pieces of an overlong batch that hold an entry of first..last."""
    if span.size <= BATCH_MAX:
        return [span]
    start, stop = max(span.entry, first), min(span.entry + span.size, last + 1)
    pieces = range(start // PIECE * PIECE, stop, PIECE)
    ends = [(max(at, span.entry), min(at + PIECE, span.entry + span.size)) for at in pieces]
    return [BatchSpan(span.ledger, low, high - low) for low, high in ends]


def _marks(view: View, ledger: int, start: int, stop: int, *, is_cut: bool = True) -> list[object]:
    """A mark for each row that is equal within a batch; None for a row that is no message.

    is_cut: a batch without a producer's name counts as several
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
    """The rows with an empty map of properties."""
    if properties.null_count == len(properties):
        return set()
    positions, base = set[int](), 0
    for chunk in properties.chunks:
        if chunk.null_count < len(chunk):
            ends, valid = chunk.offsets.to_pylist(), chunk.is_valid().to_pylist()
            positions.update(
                base + at
                for at, is_valid in enumerate(valid)
                if is_valid and ends[at] == ends[at + 1]
            )
        base += len(chunk)
    return positions


def _end(view: View, partition: int, ledger: int) -> int:
    """How many entries a ledger of a partition has."""
    ends = view.topic(partition).ledgers
    at = bisect_left(ends, ledger, key=lambda end: end.ledger)
    return ends[at].entries if at < len(ends) and ends[at].ledger == ledger else 0


def span_at(
    view: View, partition: int, ledger: int, entry: int, index: int | None = None
) -> BatchSpan | None:
    """The batch, or piece of one, that holds a message; None: there is no such message.

    index: of a message of a transaction, from 1; an index out of range selects the nearest
    """
    marker = find_marker(view.buffer(partition), ledger, entry)
    if marker is not None:
        return in_txn(ledger, entry, marker.count, index or 1) if marker.count else None
    if not 0 <= entry < _end(view, partition, ledger):
        return None
    listed = spans(view, partition, ledger, entry, entry)
    return listed[0] if listed else None


def last_before(view: View, partition: int, ledger: int, entry: int, steps: int) -> list[Run]:
    """The last message before an entry, at most `steps` entries back, as a run of one."""
    low, stop = max(0, entry - steps), min(entry, _end(view, partition, ledger))
    if low >= stop:
        return []
    tables = view.rows([(ledger, low, stop)], ("kind",))
    kinds = [kind for table in tables for kind in table.column("kind").to_pylist()]
    buffer = view.buffer(partition)
    for previous in range(stop - 1, low - 1, -1):
        if previous - low < len(kinds) and not kinds[previous - low]:
            return [(ledger, previous, previous, 0, 0)]
        marker = find_marker(buffer, ledger, previous)
        if marker is not None and marker.count:
            return [(ledger, previous, previous, marker.count, marker.count)]
    return []


def is_batch_of_one(view: View, span: BatchSpan) -> bool:
    """Whether a single message came in a batch, as in ReceivedRows.is_batch_of_one."""
    if span.size > 1 or span.inner:
        return False
    tables = view.rows([(span.ledger, span.entry, span.entry + 1)], ("producer", "properties"))
    rows = [row for table in tables for row in table.to_pylist()]
    return any(row["producer"] is not None and row["properties"] is None for row in rows)


def in_txn(ledger: int, entry: int, count: int, index: int) -> BatchSpan:
    """The piece of a transaction of `count` messages that holds the message of an index."""
    first = (min(index, count) - 1) // PIECE * PIECE
    return BatchSpan(ledger, entry, min(PIECE, count - first), first + 1)


def _uncut(view: View, partition: int, span: BatchSpan) -> BatchSpan:
    """The batch whose first piece this is."""
    ledger, entry = span.ledger, span.entry
    if span.inner:
        marker = find_marker(view.buffer(partition), ledger, entry)
        return span if marker is None else BatchSpan(ledger, entry, marker.count, 1)
    stop = min(_end(view, partition, ledger), entry + UNCUT_MAX)
    rows = _marks(view, ledger, entry, stop, is_cut=False)
    size = next((at for at, row in enumerate(rows) if row != rows[0]), len(rows))
    return BatchSpan(ledger, entry, size)


def is_start(message_id: Proto) -> bool:
    """Whether this is Pulsar's `earliest`."""
    return bool(message_id.ledgerId >= 1 << 63)


def is_end(message_id: Proto) -> bool:
    """Whether this is Pulsar's `latest`."""
    return bool(message_id.ledgerId == LATEST)


def partition_of(view: View, message_id: Proto) -> int | None:
    """The partition of an id, by its store-wide number; None: its ledger is not a partition's."""
    owner = view.catalog.owners.get(message_id.ledgerId)
    return owner[0] if owner is not None and owner[1] == "p" else None


def target_of(view: View, partition: int, message_id: Proto) -> IdTarget | None:
    """The messages that an id names; None: there is no such message."""
    entry, part = divmod(message_id.entryId, STEP)
    piece, offset = divmod(part - _HALF, _STRIDE) if part >= _HALF else (0, part)
    span = span_at(view, partition, message_id.ledgerId, entry, piece * PIECE + 1)
    if span is None:
        return None
    # an id that names messages beyond the piece is an id of the whole batch
    is_cut = part < _HALF and span.entry == entry
    is_cut = is_cut and span.size < max(part, reach(message_id)) <= UNCUT_MAX
    if is_cut:
        span = _uncut(view, partition, span)
    if span.inner:
        part = offset
    at = min(part or message_id.batch_index + 1 or span.size, span.size) - 1
    is_one = part > 0 or message_id.batch_index >= 0
    return IdTarget(span, at, is_one, at if part or (is_cut and is_one) else 0)


def parts_of(message_id: Proto) -> tuple[int, int]:
    """Entry and index of an id that only a compacted message of a trimmed ledger can have."""
    entry, part = divmod(message_id.entryId, STEP)
    piece, offset = divmod(part - _HALF, _STRIDE) if part >= _HALF else (0, part)
    return entry, piece * PIECE + offset


def reach(message_id: Proto) -> int:
    """The least size of a batch that has the messages of this id."""
    size: int = max(message_id.batch_index + 1, 64 * len(message_id.ack_set) - 63)
    return size


def inner_count(view: View, span: BatchSpan) -> int:
    """How many messages clients see in a single row; more than 1: it is encrypted."""
    if span.inner or span.size > 1:
        return 1
    [table] = view.rows([(span.ledger, span.entry, span.entry + 1)], ("properties",))
    [properties] = table.column("properties").to_pylist()
    return message_count(properties)


def is_part(view: View, span: BatchSpan, message_id: Proto) -> bool:
    """Whether an id names some, but not all, messages of a batch that is one row."""
    if not message_id.ack_set and message_id.batch_index < 0:
        return False
    count = inner_count(view, span)
    return count > 1 and (not message_id.ack_set or unacked(list(message_id.ack_set), count) > 0)


def unacked(ack_set: list[int], count: int) -> int:
    """The bits of an ack_set as one number: bit i is set if message i is not acknowledged."""
    numbers = [word & NOWHERE for word in ack_set[: -(-count // 64)]]
    bits = int.from_bytes(pack(f"<{len(numbers)}Q", *numbers), "little")
    return bits & ((1 << count) - 1)


def runs_of(span: BatchSpan, at: int, bits: int) -> list[Run]:
    """The messages of a batch whose bits are set; bit 0 is message `at`."""
    runs = []
    offset = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        offset += skip
        size = (~bits & (bits + 1)).bit_length() - 1
        runs.append(span.run(at + offset, at + offset + size - 1))
        bits >>= size
        offset += size
    return runs


# --- ids of acknowledgements ---------------------------------------------------------------------


class AckLookup:
    """The ids of an acknowledgement that the consumer does not have, and their messages in the
    store.

    runs:  the messages so far
    error: an id is of another topic, or names several messages in a transaction; None: neither
    """

    def __init__(
        self, topic: Topic, ids: list[Proto], *, is_cumulative: bool, is_in_txn: bool
    ) -> None:
        self.topic, self.is_cumulative, self.is_in_txn = topic, is_cumulative, is_in_txn
        self.error: TxlogError | None = None
        self.runs: list[Run] = []
        self.ids, self.at = ids, 0
        self.seen: set[tuple[int, ...]] = set()

    @property
    def is_done(self) -> bool:
        """Whether all ids were looked up."""
        return self.at == len(self.ids)


def resolve_ids(view: View, lookup: AckLookup) -> None:
    """Look up the next LOOKUPS_MAX ids; each only once."""
    seen_max = len(lookup.seen) + LOOKUPS_MAX
    stop = min(lookup.at + REPEATED_MAX, len(lookup.ids))
    while lookup.at < stop and len(lookup.seen) < seen_max:
        message_id = lookup.ids[lookup.at]
        lookup.at += 1
        key = (message_id.ledgerId, message_id.entryId, message_id.batch_index, *message_id.ack_set)
        if key not in lookup.seen:
            lookup.seen.add(key)
            lookup.runs += _runs_of_id(view, lookup, message_id)


def _runs_of_id(view: View, lookup: AckLookup, message_id: Proto) -> list[Run]:
    """The messages to acknowledge for an id; empty if they were deleted, or refused as `error`."""
    number = partition_of(view, message_id)
    if number is None:
        return []
    topic = lookup.topic
    if index_of(view.catalog.topics.get(topic.number, topic), number) < 0:
        name = f"{message_id.ledgerId}:{message_id.entryId}"
        lookup.error = MessageNotFound(f"message {name} does not exist in this topic")
        return []
    if lookup.is_cumulative:
        return _last_of(view, number, message_id)
    target = target_of(view, number, message_id)
    if target is None:
        return []
    span, at, is_one, _ = target
    if is_part(view, span, message_id):
        return []
    if message_id.ack_set:
        whole = (1 << span.size) - 1
        done = whole & ~unacked(list(message_id.ack_set), span.size)
    else:
        done = 1 << at if is_one else (1 << span.size) - 1
    if lookup.is_in_txn and done.bit_count() > 1:
        name = f"{message_id.ledgerId}:{message_id.entryId}"
        text = f"the consumer does not have all that {name} stands for: it comes again"
        lookup.error = NotAllowed(text)
        return []
    return runs_of(span, 0, done)


def _last_of(view: View, number: int, message_id: Proto) -> list[Run]:
    """The last message that a cumulative acknowledgement covers.

    A client that acknowledged a batch in part names the entry before the batch, by subtracting one.
    """
    entry = message_id.entryId // STEP
    target = target_of(view, number, message_id)
    if target is not None:
        span, at, is_one, _ = target
        if is_part(view, span, message_id):
            at = -1
        elif message_id.ack_set and not is_one:
            bits = unacked(list(message_id.ack_set), span.size)
            at = (bits & -bits).bit_length() - 2 if bits else span.size - 1
        if at >= 0 or span.inner > 1:
            return [span.run(at, at)]
        entry = span.entry
    return last_before(view, number, message_id.ledgerId, entry, BACK_STEPS_MAX)
