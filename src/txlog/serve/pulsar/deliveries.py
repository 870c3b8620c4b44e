"""Owns deliveries: received rows as messages to a consumer, batches as they were sent.

A batch of which everything is there goes out as a batch, with the ids of its receipt. Of one that
another consumer has a part of, or that was acknowledged in part, each message goes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.engine.folds.buffer import find_marker
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.view.view import View
from txlog.serve.pulsar.batches import Rows
from txlog.serve.pulsar.ids import Span, in_txn, spans
from txlog.serve.pulsar.messages import Proto
from txlog.startup import compute as pc

CHUNK_ROOM_BYTES: Final = 64 << 10  # beside a chunk, for what goes with it


class Delivery(NamedTuple):
    """Messages that go out together: `size` of a batch from `at` on, or one alone.

    heads: (metadata, payload) of each frame: one, or a chunk each of a large message
    """

    partition: int
    span: Span
    at: int
    size: int
    is_alone: bool
    redelivered: int
    heads: list[tuple[bytes, bytes]]

    @property
    def entry_id(self) -> int:
        """The entry of its id on the wire."""
        return self.span.wire_entry + (self.at + 1 if self.is_alone else 0)


class Piece(NamedTuple):
    """Rows of a table that are messages of one batch: row is that of the first."""

    span: Span
    at: int
    size: int
    row: int
    is_alone: bool


def missing(view: View, topic: Topic, table: pa.Table) -> tuple[int, int] | None:
    """The batch at the end of a table lacks so many rows of a partition: (partition, rows)."""
    last = table.slice(table.num_rows - 1)
    [partition], [ledger], [entry], [index] = (
        last.column(name).to_pylist() for name in ("partition", "ledger", "entry", "index")
    )
    if ledger is None:
        return None
    number = number_of(topic, partition)
    if index is not None:
        marker = find_marker(view.buffer(number), ledger, entry)
        if marker is None:
            return None
        piece = in_txn(ledger, entry, marker.count, index)
        lacks = piece.inner + piece.size - 1 - index
    else:
        found = spans(view, number, ledger, entry, entry)
        lacks = found[0].entry + found[0].size - 1 - entry if found else 0
    return (partition, lacks) if lacks > 0 else None


def planned(view: View, topic: Topic, table: pa.Table, bytes_max: int) -> list[Delivery]:
    """What goes out of received rows, in their order."""
    out: list[Delivery] = []
    table = table.filter(table.column("ledger").is_valid())
    if not table.num_rows:
        return out
    partitions = pc.unique(table.column("partition")).to_pylist()
    for partition in partitions:
        rows = table
        if len(partitions) > 1:
            rows = table.filter(pc.equal(table.column("partition"), partition))
        columns = Rows(rows)
        for piece in _pieces(view, number_of(topic, partition), columns):
            out += _delivered(columns, partition, piece, bytes_max)
    return out


def _pieces(view: View, number: int, rows: Rows) -> Iterator[Piece]:
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
            count = inner + stop - at - 1 if marker is None else marker.count
            row = at
            while row < stop:
                index = inner + row - at
                span = in_txn(ledger, entry, count, index)
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


def _continues(rows: Rows, at: int, row: int) -> bool:
    """True if a row is there, of the same ledger and kind, and follows the one before."""
    if row >= rows.count or rows.ledgers[row] != rows.ledgers[at]:
        return False
    if rows.indexes is None:
        return True
    before, here = rows.indexes[row - 1], rows.indexes[row]
    if before is None or here is None:
        return before is here
    return bool(here == before + 1)


def _of_span(span: Span, at: int, row: int, size: int) -> Iterator[Piece]:
    """Messages at..at+size-1 of a batch: as one piece if that is all of it."""
    if size == span.size:
        yield Piece(span, at, size, row, False)
        return
    for step in range(size):
        yield Piece(span, at + step, 1, row + step, True)


def _delivered(rows: Rows, partition: int, piece: Piece, bytes_max: int) -> Iterator[Delivery]:
    """A piece as what goes out; a batch that would be too large, message for message."""
    span, at, size, row, is_alone = piece
    count = 0
    if rows.redelivered is not None:
        count = max(one or 0 for one in rows.redelivered[row : row + size])
    is_batch = not is_alone and (size > 1 or span.inner > 0)
    if is_batch:
        head, payload = rows.batch(row, size)
        if len(payload) <= bytes_max:
            heads = [(head.SerializeToString(), payload)]
            yield Delivery(partition, span, at, size, False, count, heads)
            return
    for step in range(size):
        head, payload = rows.alone(row + step)
        heads = list(_chunks(head, payload, bytes_max))
        yield Delivery(partition, span, at + step, 1, is_alone or is_batch, count, heads)


def _chunks(head: Proto, payload: bytes, bytes_max: int) -> Iterator[tuple[bytes, bytes]]:
    """A message as a frame, or as chunks where it is too large for one."""
    most = bytes_max - CHUNK_ROOM_BYTES
    if len(payload) <= bytes_max:
        yield head.SerializeToString(), payload
        return
    head.uuid = f"{head.producer_name}-{head.sequence_id}"
    head.num_chunks_from_msg = -(-len(payload) // most)
    head.total_chunk_msg_size = len(payload)
    for number in range(head.num_chunks_from_msg):
        head.chunk_id = number
        yield head.SerializeToString(), payload[number * most : (number + 1) * most]
