"""Deduplication: which rows of a slice are repetitions, and which sequences it stores.

A row is a repetition if its sequence is stored under its producer's name, in the scope of the send
(model/sequences). The other rows of the slice are stored, whichever sequences came before them. A
slice with a sequence that the producer has forgotten is refused as a whole: a receipt for it could
be a lie.

Rows that a key or the turn sent to several partitions have one numbering. If their batch has each
number between its lowest and its highest, every partition of it takes the whole range as stored: a
number that is missing there is in another partition of the same frame, and leaves no gap. Rows that
name their partition may have a numbering for each, so only what a partition gets counts there.
Source: PIP-6, spec/transactions 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from txlog.base.ids import SEQUENCE_STOP
from txlog.base.startup import compute as pc
from txlog.engine.model import sequences
from txlog.engine.model.schema import OneRow
from txlog.engine.model.sequences import GAPS_MAX, Sequences
from txlog.engine.plan.route import PartitionSlice, Routed, as_batch
from txlog.errors import InvalidMessage, LimitExceeded

# Rows of a slice, from the first up to the one before the second.
Rows = tuple[int, int]


class DedupResult(NamedTuple):
    """Which rows of a slice are stored.

    rows:          without the repetitions; `repeats` says which rows of the slice these are
    original:      the row of the slice that repeats the message whose position the fold knows
    last_sequence: for the op that appends the rows; -1: none, or `runs` has it
    runs, row:     for an op about the sequences, as it has them; None: none is needed
    """

    rows: pa.RecordBatch | OneRow
    repeats: Sequence[Rows] = ()
    original: int | None = None
    last_sequence: int = -1
    runs: list[int] | None = None
    row: int = -1


def fresh_rows(
    routed: Routed,
    piece: PartitionSlice,
    producer: str,
    sent: Sequences | None,
    series: list[int] | None,
) -> DedupResult:
    """Decide which rows of a slice are stored.

    sent: the sequences that the producer has stored in the scope; None: none
    series: of `series_of`
    raises: InvalidMessage, LimitExceeded (a sequence that was forgotten)
    """
    rows = routed.batch.slice(piece.row_start, piece.rows)
    at = rows.schema.get_field_index("sequence_id")
    if at < 0:
        first = next_sequence(producer, sent, piece.rows)
        numbers = pa.arange(first, first + piece.rows)
        stop = first + piece.rows - 1
        return DedupResult(rows.append_column("sequence_id", numbers), last_sequence=stop)
    runs = _runs_of(rows.column(at), piece.partition)
    check_known(producer, sent, runs[0])
    new = sequences.fresh(sent, runs)
    if not new:
        return DedupResult(
            rows.slice(piece.rows), [(0, piece.rows)], row_of(runs, sequences.placed(sent))
        )
    repeats = () if new == runs else tuple(_repeats(runs, new))
    stored, row = new, -1
    if series is not None:
        low = series[0] if sent is None else max(series[0], sent.unknown + 1)
        stored = sequences.fresh(sent, [low, series[1]])
        row = -1 if stored[-1] == new[-1] else new[-1]
    stored_rows = _without(rows, repeats)
    original = row_of(runs, sequences.placed(sent)) if repeats else None
    if row < 0 and sequences.is_next(sent, stored):
        return DedupResult(stored_rows, repeats, original, stored[-1])
    return DedupResult(stored_rows, repeats, original, -1, stored, row)


def next_sequence(producer: str, sent: Sequences | None, count: int) -> int:
    """The first of `count` sequences after the stored ones. Raises LimitExceeded."""
    first = 0 if sent is None else sent.sequence + 1
    if first + count > SEQUENCE_STOP:
        raise LimitExceeded(
            f"producer {producer} has no sequence above {SEQUENCE_STOP - 1}",
            hint="send under another producer name",
            limit=SEQUENCE_STOP - 1,
            value=first + count - 1,
        )
    return first


def check_known(producer: str, sent: Sequences | None, lowest: int) -> None:
    """Refuse a sequence that is too old to tell whether it is stored.

    Raises LimitExceeded.
    """
    if sent is not None and lowest <= sent.unknown:
        raise LimitExceeded(
            f"sequence {lowest} of producer {producer} may be stored or not: the producer left out "
            f"more than {GAPS_MAX} sequences, and those up to {sent.unknown} are forgotten",
            hint=f"go on above {sent.unknown}, or send under another producer name",
            limit=GAPS_MAX,
            value=lowest,
        )


def series_of(routed: Routed) -> list[int] | None:
    """The lowest and highest sequence of rows that were spread, if each between is among them."""
    if not routed.is_spread:
        return None
    rows = routed.batch
    at = rows.schema.get_field_index("sequence_id")
    if at < 0 or rows.column(at).null_count:
        return None
    column = rows.column(at)
    bounds = pc.min_max(column).as_py()
    is_whole = bounds["max"] - bounds["min"] + 1 == rows.num_rows
    if not is_whole or pc.count_distinct(column).as_py() != rows.num_rows:
        return None
    return [bounds["min"], bounds["max"]]


def row_of(runs: list[int], sequence: int) -> int | None:
    """The row that has this sequence, among rows with these sequences."""
    row = 0
    for at in range(0, len(runs), 2):
        if runs[at] <= sequence <= runs[at + 1]:
            return row + sequence - runs[at]
        row += runs[at + 1] - runs[at] + 1
    return None


def repeated(repeats: Sequence[Rows]) -> int:
    """How many rows are repetitions."""
    return sum([stop - start for start, stop in repeats])


def _runs_of(column: pa.Array, partition: int) -> list[int]:
    """The sequences of rows as runs; raises InvalidMessage if one is missing or they do not
    rise.
    """
    if column.null_count or (pc.min(column).as_py() or 0) < 0:
        raise InvalidMessage("a sequence id is missing or negative", hint="number every message")
    first, last, count = column[0].as_py(), column[-1].as_py(), len(column)
    if count == 1:
        return [first, first]
    step = pc.subtract(column.slice(1), column.slice(0, count - 1))
    if (pc.min(step).as_py() or 0) <= 0:
        raise InvalidMessage(
            f"the sequence ids for partition {partition} do not rise within the batch"
        )
    if last - first + 1 == count:
        return [first, last]
    ends = pc.indices_nonzero(pc.greater(step, pa.scalar(1, pa.int64())))
    stops = column.take(ends).to_pylist()
    starts = column.slice(1).take(ends).to_pylist()
    runs = [first]
    for stop, start in zip(stops, starts, strict=True):
        runs += (stop, start)
    return [*runs, last]


def _repeats(runs: list[int], new: list[int]) -> list[Rows]:
    """The rows whose sequence is in `runs` and not in `new`, which is a part of `runs`."""
    out: list[Rows] = []

    def add(start: int, stop: int) -> None:
        if out and out[-1][1] == start:
            start = out.pop()[0]
        out.append((start, stop))

    row = at_new = 0
    for at in range(0, len(runs), 2):
        low, high = runs[at], runs[at + 1]
        pending = low  # the first sequence of the run that no range covers so far
        while at_new < len(new) and new[at_new] <= high:
            if new[at_new] > pending:
                add(row + pending - low, row + new[at_new] - low)
            pending = new[at_new + 1] + 1
            at_new += 2
        if pending <= high:
            add(row + pending - low, row + high + 1 - low)
        row += high - low + 1
    return out


def _without(rows: pa.RecordBatch, repeats: Sequence[Rows]) -> pa.RecordBatch:
    """The rows without the repeats."""
    if not repeats:
        return rows
    stops = [start for start, _ in repeats] + [rows.num_rows]
    starts = [0] + [stop for _, stop in repeats]
    slices = [
        rows.slice(start, stop - start)
        for start, stop in zip(starts, stops, strict=True)
        if stop > start
    ]
    if len(slices) == 1:
        return slices[0]
    joined: pa.RecordBatch = pa.Table.from_batches(slices).combine_chunks().to_batches()[0]
    return joined


def as_kept(rows: pa.RecordBatch | OneRow, piece: PartitionSlice, count: int) -> pa.RecordBatch:
    """The stored rows of a slice; `rows` may be its whole batch."""
    batch = as_batch(rows)
    return batch if batch.num_rows == count else batch.slice(piece.row_start, count)
