"""Owns deliveries: received rows as messages to a consumer, in the batches that producers sent.

A complete batch goes out as a batch, with the ids of its receipt. If another consumer has a part of
the batch, or a part was acknowledged, each message goes out alone. This also applies to every batch
for a client that acknowledges in transactions and cannot name a message in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from struct import Struct
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.door.catalog import Topic, declared_of, number_of
from txlog.engine.door.reading import find_marker, is_newest
from txlog.engine.door.sending import ORDERING_KEY, ordering_key_in
from txlog.engine.door.store import View
from txlog.serve.pulsar.batches import ReceivedRows
from txlog.serve.pulsar.encrypted import ENCRYPTED, message_count
from txlog.serve.pulsar.ids import BatchSpan, in_txn, spans
from txlog.serve.pulsar.messages import Proto

SLOTS: Final = 1 << 16  # number of hashes of keys
_MASK: Final = (1 << 32) - 1
_WORD: Final = Struct("<I")
_NO_KEY: Final = b"NONE_KEY"  # the key by which Pulsar hashes messages without one
CHUNK_ROOM_BYTES: Final = 64 << 10  # besides a chunk, for its metadata


class Delivery(NamedTuple):
    """Messages that go out together: `size` messages of a batch from `at` on, or one alone.

    redelivered: their common redelivery count
    heads: (metadata, payload) of each frame: one, or one for each chunk of a large message
    inner: messages of an encrypted batch, which is one row; 0: not an encrypted batch
    """

    partition: int
    span: BatchSpan
    at: int
    size: int
    is_alone: bool
    redelivered: int
    heads: list[tuple[bytes, bytes]]
    inner: int = 0

    @property
    def entry_id(self) -> int:
        """The entry of its id on the wire."""
        return self.span.wire_entry + (self.at + 1 if self.is_alone else 0)


class BatchPiece(NamedTuple):
    """Rows of a table, from `row` on, that are the messages of one batch from `at` on."""

    span: BatchSpan
    at: int
    size: int
    row: int
    is_alone: bool


def reads_empty(version: str) -> bool:
    """Whether a client accepts an empty message without a batch.

    Go's client discards it as corrupted and acknowledges it, unless it has properties. We assume
    the same of unknown clients. Every client accepts an empty message in a batch of one.

    version: of the client, as it says
    """
    return version.startswith(("Pulsar-Java", "Pulsar-CPP"))


def names_in_batch(version: str) -> bool:
    """Whether a client can acknowledge one message of a batch in a transaction.

    Go's client acknowledges a whole batch, in the transaction of the last message that its
    application acknowledges. If an earlier transaction was aborted, the batch includes the messages
    of that transaction. If an earlier one was committed and the client is killed before the last
    message, its messages are delivered again.

    version: of the client, as it says
    """
    return not version.startswith("Pulsar-Go")


class BatchGap(NamedTuple):
    """The missing end of a batch: `rows` rows of a partition, from this entry on.

    inner: for a batch of a transaction, the first missing index; else None
    """

    partition: int
    ledger: int
    entry: int
    inner: int | None
    rows: int

    def mask(self, table: pa.Table) -> pa.Array:
        """For each row of a table whether it is in the gap."""
        name, first = ("entry", self.entry) if self.inner is None else ("index", self.inner)
        column = table.column(name)
        bounds = [
            pc.equal(table.column("ledger"), self.ledger),
            pc.greater_equal(column, first),
            pc.less(column, first + self.rows),
        ]
        if self.inner is not None:
            bounds.append(pc.equal(table.column("entry"), self.entry))
        mask = bounds[0]
        for bound in bounds[1:]:
            mask = pc.and_(mask, bound)
        return pc.fill_null(mask, False)


def gaps(view: View, topic: Topic, table: pa.Table, *, by_key: bool) -> list[BatchGap]:
    """The missing end of the last batch of each partition of a table.

    by_key: other consumers may get the messages of other keys: only batches of a single key have a
            gap
    """
    listed = []
    for partition, rows in _by_partition(table):
        last = rows.slice(rows.num_rows - 1)
        gap = _gap(view, number_of(topic, partition), partition, last, by_key=by_key)
        if gap is not None:
            listed.append(gap)
    return listed


def _by_partition(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The partitions of received rows, and the rows of each."""
    column = table.column("partition")
    partitions = (column if table.num_rows == 1 else pc.unique(column)).to_pylist()
    for partition in partitions:
        is_all = len(partitions) == 1
        yield partition, table if is_all else table.filter(pc.equal(column, partition))


def _gap(
    view: View, number: int, partition: int, last: pa.Table, *, by_key: bool
) -> BatchGap | None:
    """The missing end of the batch of a row, the last one of its partition."""
    [ledger], [entry], [index], [key] = (
        last.column(name).to_pylist() for name in ("ledger", "entry", "index", "key")
    )
    if ledger is None:
        return None
    if index is not None:
        marker = find_marker(view.buffer(number), ledger, entry)
        if marker is None or by_key:
            return None
        piece = in_txn(ledger, entry, marker.count, index)
        rows = piece.inner + piece.size - 1 - index
        return BatchGap(partition, ledger, entry, index + 1, rows) if rows > 0 else None
    batches = spans(view, number, ledger, entry, entry)
    rows = batches[0].entry + batches[0].size - 1 - entry if batches else 0
    if rows <= 0 or (by_key and not _has_key(view, ledger, entry + 1, key)):
        return None
    return BatchGap(partition, ledger, entry + 1, None, rows)


def _has_key(view: View, ledger: int, entry: int, key: bytes | None) -> bool:
    """Whether an entry has this key."""
    tables = view.rows([(ledger, entry, entry + 1)], ("key",))
    return any(table.column("key").to_pylist() == [key] for table in tables)


def plan_deliveries(
    view: View,
    topic: Topic,
    table: pa.Table,
    bytes_max: int,
    *,
    reads_empty: bool,
    is_split: bool = False,
    splits: Set[BatchSpan | None] = frozenset(),
) -> list[Delivery]:
    """The deliveries of received rows, in order.

    reads_empty: as of `reads_empty`, for the client that gets them
    is_split:    each message of a batch goes out alone
    splits:      batches whose messages go out alone in any case
    """
    out: list[Delivery] = []
    if table.column("ledger").null_count:
        table = table.filter(table.column("ledger").is_valid())
    if not table.num_rows:
        return out
    live = view.catalog.topics.get(topic.number)
    declared = None if live is None else declared_of(live)
    version = None if declared is None else declared.version
    for partition, rows in _by_partition(table):
        columns = ReceivedRows(rows, version)
        for whole in _pieces(view, number_of(topic, partition), columns):
            pieces = _split(whole) if is_split or whole.span in splits else (whole,)
            for piece in pieces:
                out += _delivered(columns, partition, piece, bytes_max, reads_empty=reads_empty)
    return out


def _pieces(view: View, number: int, rows: ReceivedRows) -> Iterator[BatchPiece]:
    """Rows by their batches."""
    at = 0
    while at < rows.count:
        ledger, entry = rows.ledgers[at], rows.entries[at]
        inner = None if rows.indexes is None else rows.indexes[at]
        stop = at + 1
        if inner is not None:
            while _continues(rows, at, stop) and rows.entries[stop] == entry:
                stop += 1
            marker = find_marker(view.buffer(number), ledger, entry)
            row = at
            # its ledger was trimmed: only compacted messages are left, each alone
            if marker is None:
                yield from _compacted(ledger, entry, inner, at, stop)
                row = stop
            while row < stop:
                assert marker is not None
                index = inner + row - at
                span = in_txn(ledger, entry, marker.count, index)
                size = min(span.inner + span.size - index, stop - row)
                yield from _of_span(span, index - span.inner, row, size)
                row += size
        else:
            while _continues(rows, at, stop) and rows.entries[stop] == entry + stop - at:
                stop += 1
            for span in spans(view, number, ledger, entry, entry + stop - at - 1):
                first = max(span.entry, entry)
                size = min(span.entry + span.size, entry + stop - at) - first
                yield from _of_span(span, first - span.entry, at + first - entry, size)
        at = stop


def _compacted(ledger: int, entry: int, inner: int, row: int, stop: int) -> Iterator[BatchPiece]:
    """Rows of a transaction whose number of messages is no longer known."""
    for index in range(inner, inner + stop - row):
        span = in_txn(ledger, entry, index, index)
        yield BatchPiece(span, index - span.inner, 1, row + index - inner, True)


def _continues(rows: ReceivedRows, at: int, row: int) -> bool:
    """Whether a row exists, has the same ledger and kind, and follows the one before."""
    if row >= rows.count or rows.ledgers[row] != rows.ledgers[at]:
        return False
    if rows.indexes is None:
        return True
    previous, here = rows.indexes[row - 1], rows.indexes[row]
    if previous is None or here is None:
        return previous is here
    return bool(here == previous + 1)


def _of_span(span: BatchSpan, at: int, row: int, size: int) -> Iterator[BatchPiece]:
    """Messages at..at+size-1 of a batch: as one piece if they are the whole batch."""
    piece = BatchPiece(span, at, size, row, False)
    if size == span.size:
        yield piece
    else:
        yield from _split(piece)


def _split(piece: BatchPiece) -> Iterator[BatchPiece]:
    """The messages of a piece, each alone; a whole batch of one keeps the batch's id."""
    span, at, size, row, _ = piece
    if span.size == 1:
        yield piece
        return
    for step in range(size):
        yield BatchPiece(span, at + step, 1, row + step, True)


# --- the rows that a consumer gets ---------------------------------------------------------------


def newest_by_key(topic: Topic, table: pa.Table, view: View) -> pa.BooleanArray:
    """For each leased row whether a consumer of compacted messages gets it."""
    column = table.column("partition")
    mask = pa.repeat(pa.scalar(True), table.num_rows)
    for partition in pc.unique(column).to_pylist():
        is_here = pc.equal(column, partition)
        rows = table.filter(is_here)
        order = pc.sort_indices(
            rows, [("ledger", "ascending"), ("entry", "ascending"), ("index", "ascending")]
        )
        is_kept = is_newest(view, number_of(topic, partition), rows.take(order))
        unsorted = is_kept.take(pc.sort_indices(order))
        mask = pc.replace_with_mask(mask, is_here.combine_chunks(), unsorted)
    return mask


def rows_within(table: pa.Table, bytes_max: int) -> int:
    """How many of the first rows fit into `bytes_max`, at least one."""
    sizes = pc.fill_null(pc.binary_length(table.column("value")), 0)
    ends = pc.cumulative_sum(pc.cast(sizes, pa.int64()))
    within: int = pc.sum(pc.less_equal(ends, bytes_max)).as_py()
    return max(1, within)


def within_permits(table: pa.Table, permits: Mapping[int, int]) -> pa.BooleanArray | None:
    """For each row whether its consumer has permits for it; None: for all of them.

    A lease counts rows, and clients count messages. An encrypted batch is one row, so it may have
    more messages than permits are left. It goes out, as a broker sends it, and the permits become
    negative; the rows after it wait. Pulsar's brokers do so only in shared subscriptions, by the
    average size of batches; in others they read as many entries as there are permits.
    """
    properties = table.column("properties").combine_chunks()
    if properties.null_count == len(properties):
        return None
    encrypted = pc.map_lookup(properties, ENCRYPTED, "last")
    if encrypted.null_count == len(encrypted):
        return None
    remaining = dict(permits)
    flags = []
    for partition, text in zip(
        table.column("partition").to_pylist(), encrypted.to_pylist(), strict=True
    ):
        flags.append(remaining[partition] > 0)
        remaining[partition] -= 1 if text is None else message_count([(ENCRYPTED, text)])
    return None if all(flags) else pa.array(flags, pa.bool_())


# --- ranges of hashes ----------------------------------------------------------------------------


def hash_of_key(key: bytes) -> int:
    """The slot of a key as in Pulsar: MurmurHash3 of 32 bits without its sign, mod 65,536.

    Source: https://github.com/aappleby/smhasher/wiki/MurmurHash3
    """
    state, end = 0, len(key) // 4 * 4
    for (word,) in _WORD.iter_unpack(key[:end]):
        state = (_rotated(state ^ _mixed(word), 13) * 5 + 0xE6546B64) & _MASK
    state ^= _mixed(int.from_bytes(key[end:], "little")) ^ len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ (state >> shift)) * factor & _MASK
    return (state & 0x7FFFFFFF) % SLOTS


def _mixed(word: int) -> int:
    return _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(word: int, count: int) -> int:
    return (word << count | word >> (32 - count)) & _MASK


def is_within(rows: pa.Table, ranges: Sequence[range]) -> pa.BooleanArray:
    """For each row whether the slot of its key is in a range; no key counts as NONE_KEY."""
    keys = pc.fill_null(rows.column("key"), _NO_KEY)
    properties = rows.column("properties").combine_chunks()
    if properties.null_count < len(properties):
        ordering = pc.map_lookup(properties, ORDERING_KEY, "last").to_pylist()
        ordering_keys = [None if text is None else ordering_key_in(text) for text in ordering]
        keys = pc.coalesce(pa.array(ordering_keys, pa.binary()), keys)
    encoded = pc.dictionary_encode(keys)
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    slots = [hash_of_key(key) for key in encoded.dictionary.to_pylist()]
    is_in = pa.array(
        [any(slot in slots_of_range for slots_of_range in ranges) for slot in slots], pa.bool_()
    )
    return is_in.take(encoded.indices)


def _delivered(
    rows: ReceivedRows, partition: int, piece: BatchPiece, bytes_max: int, *, reads_empty: bool
) -> Iterator[Delivery]:
    """The deliveries of a piece; a batch that would be too large goes out message by message."""
    span, at, size, row, is_alone = piece
    counts = [0] * size
    if rows.redelivered is not None:
        counts = [count or 0 for count in rows.redelivered[row : row + size]]
    is_batch = not is_alone and (size > 1 or span.inner > 0)
    # A frame has one redelivery count. If messages shared it, one could become a dead letter too
    # early.
    is_even = min(counts) == max(counts)
    if is_batch and is_even and not (span.inner and rows.has_encrypted(row, size)):
        head, payload = rows.batch(row, size)
        if len(payload) <= bytes_max:
            heads = [(head.SerializeToString(), payload)]
            yield Delivery(partition, span, at, size, False, counts[0], heads)
            return
    for step in range(size):
        here = row + step
        is_one = span.size == 1 and not is_batch and rows.is_batch_of_one(here)
        is_unread = not (reads_empty or rows.values[here] or rows.has_encrypted(here, 1))
        heads, inner = _heads(rows, here, bytes_max, in_batch=is_one or is_unread)
        # a message that is its whole span keeps the id of its receipt, as a chunked message does
        alone = is_alone or size > 1
        yield Delivery(partition, span, at + step, 1, alone, counts[step], heads, inner)


def _heads(
    rows: ReceivedRows, row: int, bytes_max: int, *, in_batch: bool
) -> tuple[list[tuple[bytes, bytes]], int]:
    """The frames of one row, and its number of messages if it is an encrypted batch.

    in_batch: as a batch of one, unless it is too large for that
    """
    if in_batch:
        head, payload = rows.batch(row, 1)
        if len(payload) <= bytes_max:
            return [(head.SerializeToString(), payload)], 0
    head, payload = rows.alone(row)
    inner = head.num_messages_in_batch if head.encryption_keys else 0
    return list(_chunks(head, payload, bytes_max)), inner


def _chunks(head: Proto, payload: bytes, bytes_max: int) -> Iterator[tuple[bytes, bytes]]:
    """A message as one frame, or as chunks if it is too large for one."""
    # small messages leave less than that room
    most = max(bytes_max - CHUNK_ROOM_BYTES, (bytes_max + 1) // 2)
    if len(payload) <= bytes_max:
        yield head.SerializeToString(), payload
        return
    head.uuid = f"{head.producer_name}-{head.sequence_id}"
    head.num_chunks_from_msg = -(-len(payload) // most)
    head.total_chunk_msg_size = len(payload)
    head.uncompressed_size = len(payload)  # without it Go's client returns the last chunk alone
    for number in range(head.num_chunks_from_msg):
        head.chunk_id = number
        yield head.SerializeToString(), payload[number * most : (number + 1) * most]
