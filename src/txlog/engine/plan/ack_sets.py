"""Message ids as runs; which ids may be acknowledged, and where mark-delete moves.

Callers give the ids to acknowledge, cancel or promote as ids or as a table. This module turns both
into runs: consecutive entries of a ledger, or consecutive messages of one commit marker. It
computes with runs (model/idset), never with single messages, and changes nothing. The messages of a
marker are acknowledged one by one; once all are, the set has the marker's entry instead.
Source: PIP-31 "Acknowledgement", spec/transactions 9.2.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter

import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.ids import MessageId
from txlog.base.startup import compute as pc
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.buffer import Marker
from txlog.engine.folds.cursor import PendingAcks
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.idset import IdSet, covers, runs_of_bitmap, runs_of_inner
from txlog.engine.model.ops import Mark, Run
from txlog.engine.view import View
from txlog.errors import MessageNotFound

# --- ids as runs ----------------------------------------------------------------------------------

# Typed scalars: pyarrow needs 40 us to guess the type of a Python number.
_ZERO, _ONE = pa.scalar(0, pa.int32()), pa.scalar(1, pa.int32())
_STAY, _STEP = pa.scalar(0, pa.int64()), pa.scalar(1, pa.int64())
FEW_ROWS = 64
_ENTRY, _REST = attrgetter("entry"), attrgetter("ledger", "index")


def runs_of_ids(ids: list[MessageId]) -> list[Run]:
    """Message ids as runs, sorted, an id twice counted once."""
    first = ids[0] if ids else None
    if first is not None and first.index == 0 and type(first.entry) is int:
        ledger, stop = first.ledger, first.entry + len(ids)
        # consecutive plain messages, most of the time; compared without a loop of Python
        if [*map(_ENTRY, ids)] == [*range(first.entry, stop)] and {*map(_REST, ids)} == {
            (ledger, 0)
        }:
            return [(ledger, first.entry, stop - 1, 0, 0)]
    return merged({(i.ledger, i.entry, i.index) for i in ids})


def merged(keys: set[tuple[int, int, int]]) -> list[Run]:
    """Ids as (ledger, entry, index), as runs in order."""
    out: list[Run] = []
    for ledger, entry, index in sorted(keys):
        last = out[-1] if out else None
        if index == 0 and last and last[3] == 0 and (last[0], last[2]) == (ledger, entry - 1):
            out[-1] = (ledger, last[1], entry, 0, 0)
        elif index and last and last[3] and last[:2] == (ledger, entry) and last[4] == index - 1:
            out[-1] = (ledger, entry, entry, last[3], index)
        else:
            out.append((ledger, entry, entry, index, index))
    return out


def runs_of_table(table: pa.Table) -> list[Run]:
    """The ids of received rows as runs, without a Python object per message.

    table: columns ledger, entry int64 and index int32 (null for a plain message), in any order;
           rows of a preview, where ledger is null, have no id and are left out
    cost:  a pyarrow kernel takes 3 to 8 us whatever its size, so a few rows go by a plain loop
    """
    if table.column("ledger").null_count:
        table = table.filter(table.column("ledger").is_valid())
    if not table.num_rows:
        return []
    if table.num_rows <= FEW_ROWS:
        columns = [table.column(name).to_pylist() for name in ("ledger", "entry", "index")]
        return merged({(a, b, c or 0) for a, b, c in zip(*columns, strict=True)})
    ledger = table.column("ledger").combine_chunks()
    entry = table.column("entry").combine_chunks()
    index = pc.fill_null(table.column("index").combine_chunks(), _ZERO)
    if table.num_rows > 1:

        def delta(column: pa.Array) -> pa.Array:
            return pc.subtract(column.slice(1), column.slice(0, len(column) - 1))

        plain = pc.equal(index, _ZERO)
        both_plain = pc.and_(plain.slice(1), plain.slice(0, len(plain) - 1))
        step, inner = delta(entry), delta(index)
        follows = pc.and_(
            pc.equal(delta(ledger), _STAY),
            pc.or_(
                pc.and_(both_plain, pc.equal(step, _STEP)),
                pc.and_(pc.equal(step, _STAY), pc.equal(inner, _ONE)),
            ),
        )
        breaks = pc.indices_nonzero(pc.invert(follows)).to_pylist()
    else:
        breaks = []
    starts = [0, *(at + 1 for at in breaks)]
    stops = [*breaks, table.num_rows - 1]
    at_start, at_stop = pa.array(starts, pa.int64()), pa.array(stops, pa.int64())
    firsts = [column.take(at_start).to_pylist() for column in (ledger, entry, index)]
    lasts = [column.take(at_stop).to_pylist() for column in (entry, index)]
    return [
        (at, first, last, index_first, index_last)
        for at, first, last, index_first, index_last in zip(
            firsts[0], firsts[1], lasts[0], firsts[2], lasts[1], strict=True
        )
    ]


# --- acknowledged ids -----------------------------------------------------------------------------


def ledger_entries(view: View, partition: int) -> list[tuple[int, int]]:
    """(ledger, entries) of a partition, in order; the last is the open one."""
    return [(end.ledger, end.entries) for end in view.topic(partition).ledgers]


def _place_of(ends: list[LedgerEnd], ledger: int) -> int:
    """The index of a ledger in its partition, or where it would be; most calls ask for the last."""
    return len(ends) - 1 if ends[-1].ledger == ledger else bisect_left(ends, ledger, key=_number_of)


def _number_of(end: LedgerEnd) -> int:
    return end.ledger


def first_entry(view: View, partition: int) -> tuple[int, int] | None:
    """The first (ledger, entry) of a partition that is a message, or a marker with messages."""
    silent = view.watermark(partition).silent
    for ledger, entries in ledger_entries(view, partition):
        entry, rows = 0, silent.get(ledger)
        if rows is not None:
            entry = bisect_left(range(entries), True, key=partial(_has_message, rows))
        if entry < entries:
            return (ledger, entry)
    return None


def _has_message(silent: BitMap64, entry: int) -> bool:
    """True when one of the rows up to an entry is data."""
    return bool(silent.rank(entry) <= entry)


def checked_run(view: View, partition: int, run: Run) -> Run:
    """The run; if it has all messages of a marker, the marker's entry. A trimmed run is unchanged.

    raises: MessageNotFound when an entry or an index is not a message of the partition
    """
    ledger, first, last, index_first, index_last = run
    ends = view.topic(partition).ledgers
    if ledger < ends[0].ledger:  # trimmed
        return run
    at = _place_of(ends, ledger)
    is_there = at < len(ends) and ends[at].ledger == ledger
    if not (is_there and 0 <= first <= last < ends[at].entries) or (
        first == last and first in view.watermark(partition).silent.get(ledger, ())
    ):
        raise _not_found(ledger, last, index_last)
    if index_first:
        marker = buffers.find_marker(view.buffer(partition), ledger, first)
        if marker is None or index_last > marker.count:
            raise _not_found(ledger, first, index_last)
        if (index_first, index_last) == (1, marker.count):
            return (ledger, first, first, 0, 0)
    return run


def is_trimmed(view: View, partition: int, ledger: int) -> bool:
    """True for a trimmed ledger: its messages count as DELETED."""
    return ledger < view.topic(partition).ledgers[0].ledger


def _not_found(ledger: int, entry: int, index: int) -> MessageNotFound:
    missing = MessageId(ledger, entry, index)
    return MessageNotFound(f"message {missing} does not exist", message_id=missing)


def messages_in(view: View, partition: int, runs: Iterable[Run]) -> int:
    """How many messages the runs cover; rows that are not data do not count."""
    total = 0
    markers = view.buffer(partition).markers
    silent = view.watermark(partition).silent
    for ledger, first, last, index_first, index_last in runs:
        if index_first:
            total += index_last - index_first + 1
            continue
        total += last - first + 1
        markers_there = markers.get(ledger)
        if markers_there:
            low = bisect_left(markers_there, first, key=lambda marker: marker.entry)
            high = bisect_right(markers_there, last, key=lambda marker: marker.entry)
            total += sum(marker.count - 1 for marker in markers_there[low:high] if marker.count)
        if ledger in silent:
            total -= silent[ledger].range_cardinality(first, last + 1)
    return total


def subtract(view: View, partition: int, run: Run, ids: IdSet) -> list[Run]:
    """The part of the run that is not in the set."""
    ledger, first, last, index_first, index_last = run
    bits = ids.entries.get(ledger)
    if index_first:
        if bits is not None and first in bits:
            return []
        inner = ids.inner.get((ledger, first))
        if inner is None:
            return [run]
        remaining = BitMap(range(index_first, index_last + 1)) - inner
        return (
            [run]
            if len(remaining) == index_last - index_first + 1
            else runs_of_inner(ledger, first, remaining)
        )
    split: list[int] = []
    if ids.inner:
        split = [key[1] for key in ids.inner if key[0] == ledger and first <= key[1] <= last]
    if not split and (bits is None or not bits.range_cardinality(first, last + 1)):
        return [run]
    outside = BitMap64(range(first, last + 1))
    if bits is not None:
        outside -= bits
    out: list[Run] = []
    for entry in split:
        if entry in outside:
            outside.discard(entry)
            marker = buffers.find_marker(view.buffer(partition), ledger, entry)
            if marker is not None:
                whole: Run = (ledger, entry, entry, 1, marker.count)
                out += subtract(view, partition, whole, ids)
    return sorted(runs_of_bitmap(ledger, outside) + out)


def above_mark(view: View, partition: int, run: Run, mark: Mark) -> list[Run]:
    """The part of the run after the mark, which may be inside a marker; empty: there is none."""
    part = _after(view, partition, run, mark)
    if part is None:
        return []
    ledger, first, last, index_first, _ = part
    if index_first or not (mark[2] and mark[:2] == (ledger, first)) or first == last:
        return [part]
    inner = _after(view, partition, (ledger, first, first, 0, 0), mark)
    out = [] if inner is None else [inner]
    return [*out, (ledger, first + 1, last, 0, 0)]


def _after(view: View, partition: int, run: Run, mark: Mark) -> Run | None:
    ledger, first, last, index_first, index_last = run
    if index_first:
        if covers(mark, (ledger, first, index_last)):
            return None
        if mark[:2] == (ledger, first) and mark[2] >= index_first:
            return (ledger, first, first, mark[2] + 1, index_last)
        return run
    if (ledger, last) < mark[:2] or (mark[:2] == (ledger, last) and mark[2] == 0):
        return None
    if mark[0] == ledger and first <= mark[1]:
        first = mark[1] + (mark[2] == 0)
        if mark[2] and first == last == mark[1]:
            marker = buffers.find_marker(view.buffer(partition), ledger, first)
            return (ledger, first, first, mark[2] + 1, marker.count if marker else mark[2] + 1)
    return (ledger, first, last, 0, 0)


def through(view: View, partition: int, mark: Mark, target: Mark) -> list[Run]:
    """Everything after the mark up to and including the target, as runs."""
    out: list[Run] = []
    ends = view.topic(partition).ledgers
    for end in islice(ends, _place_of(ends, mark[0]), None):
        ledger, entries = end.ledger, end.entries
        if ledger > target[0]:
            break
        last = entries - 1 if ledger < target[0] else target[1] - (target[2] != 0)
        if last >= 0:
            out += above_mark(view, partition, (ledger, 0, last, 0, 0), mark)
        if ledger == target[0] and target[2]:
            part: Run = (ledger, target[1], target[1], 1, target[2])
            out += above_mark(view, partition, part, mark)
    return out


class CursorEffect:
    """Mark-delete after earlier ops of the same frame, and the ids that they acknowledged."""

    __slots__ = ("extra", "mark")

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.extra = IdSet()


def acked_outcome(
    view: View,
    subscription: int,
    partition: int,
    runs: list[Run],
    settled: CursorEffect | None = None,
    acked: IdSet | None = None,
) -> tuple[list[Run], Mark]:
    """(runs to record when these messages are acknowledged, mark-delete after that).

    A marker whose last message this acknowledges is recorded as its entry. Ids right after
    mark-delete only move it, and nothing is recorded: the usual case, acknowledging in order.

    settled: the effect of earlier ops of the frame on the cursor; this updates it
    acked:   acknowledged before; None: the acknowledgements of the cursor
    """
    cursor = view.cursor(subscription, partition)
    settled = settled or CursorEffect(cursor.mark_delete)
    extra = settled.extra
    acked = cursor.acked if acked is None else acked
    if len(runs) == 1 and not (acked.entries or acked.inner or extra.entries or extra.inner):
        ledger, first, last, index_first, _ = runs[0]
        if (
            (ledger, first - 1, 0) == settled.mark
            and not index_first
            and not _is_end(view, partition, ledger, last)
        ):
            settled.mark = (ledger, last, 0)
            if view.watermark(partition).silent:
                settled.mark = resting(view, partition, settled.mark)
            return [], settled.mark
    out: list[Run] = []
    for run in runs:
        extra.add(run)
        out.append(run)
        if run[3]:
            entry = (run[0], run[1])
            marker = buffers.find_marker(view.buffer(partition), *entry)
            have = BitMap(extra.inner.get(entry, BitMap())) | acked.inner.get(entry, BitMap())
            if settled.mark[:2] == entry:
                have.add_range(1, settled.mark[2] + 1)
            if marker is not None and len(have) == marker.count:
                whole: Run = (*entry, entry[1], 0, 0)
                extra.add(whole)
                out.append(whole)
    settled.mark = _advanced(view, partition, settled.mark, acked, extra)
    return out, settled.mark


def _is_end(view: View, partition: int, ledger: int, entry: int) -> bool:
    """True for the last entry of a closed ledger: mark-delete moves on to the next ledger."""
    ends = view.topic(partition).ledgers
    at = _place_of(ends, ledger)
    return at < len(ends) - 1 and entry + 1 >= ends[at].entries


def pending_outcome(
    view: View, subscription: int, partition: int, pending: PendingAcks, settled: CursorEffect
) -> tuple[list[Run], Mark]:
    """acked_outcome for the acknowledgements of a committing transaction."""
    return acked_outcome(view, subscription, partition, pending.runs, settled)


def advanced(view: View, subscription: int, partition: int, mark: Mark) -> Mark:
    """Mark-delete after a move to this mark and over the acknowledged messages that follow it."""
    cursor = view.cursor(subscription, partition)
    return _advanced(view, partition, mark, cursor.acked, IdSet())


def resting(view: View, partition: int, mark: Mark) -> Mark:
    """A mark moved over the rows after it that are not data; nothing after it is acknowledged."""
    return _advanced(view, partition, mark, IdSet(), IdSet())


def _advanced(view: View, partition: int, mark: Mark, acked: IdSet, extra: IdSet) -> Mark:
    """Mark-delete moved over the acknowledged entries, and rows that are not data, up to the
    first gap.
    """
    silent = view.watermark(partition).silent
    ends = view.topic(partition).ledgers
    for end in islice(ends, _place_of(ends, mark[0]), None):
        ledger, entries = end.ledger, end.entries
        if ledger > mark[0]:
            mark = (ledger, -1, 0)
        bitmaps = [s.entries[ledger] for s in (acked, extra) if ledger in s.entries]
        if ledger in silent:
            bitmaps.append(silent[ledger])
        entry = mark[1] + (mark[2] == 0)
        moved = True
        while moved:
            moved = False
            for bits in bitmaps:
                step = _stretch(bits, entry, entries)
                if step > entry:
                    entry, moved = step, True
        if entry > mark[1] + (mark[2] == 0):
            mark = (ledger, entry - 1, 0)
        if entry < entries:
            break
    return mark


def _stretch(bits: BitMap64, start: int, stop: int) -> int:
    """The first entry at or after start that is not in the bitmap; at most stop."""
    if start >= stop or start not in bits:
        return start
    low, high = start + 1, stop
    while low < high:
        middle = (low + high + 1) // 2
        if bits.range_cardinality(start, middle) == middle - start:
            low = middle
        else:
            high = middle - 1
    return low


def backlog(view: View, subscription: int, partition: int) -> int:
    """How many visible messages are not acknowledged; markers are not counted."""
    return sum(count for _, count in backlog_by_ledger(view, subscription, partition))


def backlog_by_ledger(
    view: View, subscription: int, partition: int
) -> Iterator[tuple[LedgerEnd, int]]:
    """Each ledger that has entries after mark-delete, and how many of its messages are in the
    backlog.
    """
    cursor = view.cursor(subscription, partition)
    mark, acked = cursor.mark_delete, cursor.acked
    of_markers: dict[int, int] = {}
    for (ledger, _), indexes in acked.inner.items():
        of_markers[ledger] = of_markers.get(ledger, 0) + len(indexes)
    silent: Mapping[int, BitMap64] = {}
    markers: Mapping[int, list[Marker]] = {}
    if view.exists(("watermark", partition, 0)):  # reading it creates the state
        silent = view.watermark(partition).silent
    if view.exists(("buffer", partition, 0)):
        markers = view.buffer(partition).markers
    ends = view.topic(partition).ledgers
    for end in islice(ends, _place_of(ends, mark[0]), None):
        ledger = end.ledger
        bits = acked.entries.get(ledger)
        if ledger > mark[0] and bits is None and ledger not in of_markers:
            yield end, end.messages
            continue
        if not end.entries:
            continue
        runs = above_mark(view, partition, (ledger, 0, end.entries - 1, 0, 0), mark)
        count = messages_in(view, partition, runs) - of_markers.get(ledger, 0)
        if bits is not None:
            count -= len(bits)
            if ledger in silent:
                count += bits.intersection_cardinality(silent[ledger])
            for marker in markers.get(ledger, []):
                if marker.count:
                    count -= (marker.count - 1) * (marker.entry in bits)
        yield end, count
