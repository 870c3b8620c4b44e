"""Arithmetic on acknowledged ids: which are valid, which still PENDING, where mark-delete moves.

Everything here works on runs (model/idset), never on single messages, and changes nothing. The
messages of a marker count one by one, but travel as one entry once all of them are acknowledged.
Source: PIP-31 "Acknowledgement", spec/transactions 9.2.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from itertools import islice

from pyroaring import BitMap, BitMap64

from txlog.base.ids import MessageId
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.cursor import Pending, covers
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.idset import IdSet, runs_of_bitmap, runs_of_inner
from txlog.engine.model.ops import Mark, Run
from txlog.engine.view.view import View
from txlog.errors import MessageNotFound


def ledger_entries(view: View, partition: int) -> list[tuple[int, int]]:
    """(ledger, entries) of a partition, in order; the last is the open one."""
    return [(end.ledger, end.entries) for end in view.topic(partition).ledgers]


def _place_of(ends: list[LedgerEnd], ledger: int) -> int:
    """Where a ledger is, or would be, among those of its partition; most are the last."""
    return len(ends) - 1 if ends[-1].ledger == ledger else bisect_left(ends, ledger, key=_number_of)


def _number_of(end: LedgerEnd) -> int:
    return end.ledger


def first_entry(view: View, partition: int) -> tuple[int, int] | None:
    """The first (ledger, entry) of a partition that is a message, or a marker with some."""
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
    """The run in its normal form: all messages of a marker are its entry.

    raises: MessageNotFound when an entry or an index does not exist in the partition
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
    """True for a ledger of the partition that is gone: what was in it counts as DELETED."""
    return ledger < view.topic(partition).ledgers[0].ledger


def _not_found(ledger: int, entry: int, index: int) -> MessageNotFound:
    wanted = MessageId(ledger, entry, index)
    return MessageNotFound(f"message {wanted} does not exist", message_id=wanted)


def messages_in(view: View, partition: int, runs: Iterable[Run]) -> int:
    """How many messages the runs stand for; rows that are not data do not count."""
    total = 0
    markers = view.buffer(partition).markers
    silent = view.watermark(partition).silent
    for ledger, first, last, index_first, index_last in runs:
        if index_first:
            total += index_last - index_first + 1
            continue
        total += last - first + 1
        known = markers.get(ledger)
        if known:
            low = bisect_left(known, first, key=lambda marker: marker.entry)
            high = bisect_right(known, last, key=lambda marker: marker.entry)
            total += sum(marker.count - 1 for marker in known[low:high] if marker.count)
        if ledger in silent:
            total -= silent[ledger].range_cardinality(first, last + 1)
    return total


def subtract(view: View, partition: int, run: Run, taken: IdSet) -> list[Run]:
    """The part of the run that is not in the set."""
    ledger, first, last, index_first, index_last = run
    known = taken.entries.get(ledger)
    if index_first:
        if known is not None and first in known:
            return []
        inner = taken.inner.get((ledger, first))
        if inner is None:
            return [run]
        left = BitMap(range(index_first, index_last + 1)) - inner
        return (
            [run]
            if len(left) == index_last - index_first + 1
            else runs_of_inner(ledger, first, left)
        )
    split: list[int] = []
    if taken.inner:
        split = [key[1] for key in taken.inner if key[0] == ledger and first <= key[1] <= last]
    if not split and (known is None or not known.range_cardinality(first, last + 1)):
        return [run]
    rest = BitMap64(range(first, last + 1))
    if known is not None:
        rest -= known
    out: list[Run] = []
    for entry in split:
        if entry in rest:
            rest.discard(entry)
            marker = buffers.find_marker(view.buffer(partition), ledger, entry)
            if marker is not None:
                whole: Run = (ledger, entry, entry, 1, marker.count)
                out += subtract(view, partition, whole, taken)
    return sorted(runs_of_bitmap(ledger, rest) + out)


def above_mark(view: View, partition: int, run: Run, mark: Mark) -> list[Run]:
    """The part of the run after the mark; of a marker that the mark is inside, the rest."""
    rest = _after(view, partition, run, mark)
    if rest is None:
        return []
    ledger, first, last, index_first, _ = rest
    if index_first or not (mark[2] and mark[:2] == (ledger, first)) or first == last:
        return [rest]
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


class Settled:
    """What the ops before in the same frame do to a cursor: its new mark, and what they delete."""

    __slots__ = ("extra", "mark")

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.extra = IdSet()


def acked_outcome(
    view: View, subscription: int, partition: int, runs: list[Run], before: Settled | None = None
) -> tuple[list[Run], Mark]:
    """The runs to record when these become DELETED, and the mark-delete position after that.

    A marker whose last message this acknowledges is recorded as its entry. What comes right after
    mark-delete only moves it: the usual case, acknowledging in order.

    before: what earlier ops of the frame do here; it is brought up to date
    """
    cursor = view.cursor(subscription, partition)
    before = before or Settled(cursor.mark_delete)
    extra = before.extra
    if len(runs) == 1 and not (
        cursor.acked.entries or cursor.acked.inner or extra.entries or extra.inner
    ):
        ledger, first, last, index_first, _ = runs[0]
        if (
            (ledger, first - 1, 0) == before.mark
            and not index_first
            and not _is_end(view, partition, ledger, last)
        ):
            before.mark = (ledger, last, 0)
            if view.watermark(partition).silent:
                before.mark = resting(view, partition, before.mark)
            return [], before.mark
    out: list[Run] = []
    for run in runs:
        extra.add(run)
        out.append(run)
        if run[3]:
            entry = (run[0], run[1])
            marker = buffers.find_marker(view.buffer(partition), *entry)
            have = BitMap(extra.inner.get(entry, BitMap())) | cursor.acked.inner.get(
                entry, BitMap()
            )
            if before.mark[:2] == entry:
                have.add_range(1, before.mark[2] + 1)
            if marker is not None and len(have) == marker.count:
                whole: Run = (*entry, entry[1], 0, 0)
                extra.add(whole)
                out.append(whole)
    before.mark = _advanced(view, partition, before.mark, cursor.acked, extra)
    return out, before.mark


def _is_end(view: View, partition: int, ledger: int, entry: int) -> bool:
    """True for the last entry of a ledger that others follow: mark-delete goes on to these."""
    ends = view.topic(partition).ledgers
    at = _place_of(ends, ledger)
    return at < len(ends) - 1 and entry + 1 >= ends[at].entries


def pending_outcome(
    view: View, subscription: int, partition: int, pending: Pending, before: Settled
) -> tuple[list[Run], Mark]:
    """acked_outcome for what a committing transaction holds."""
    return acked_outcome(view, subscription, partition, pending.runs, before)


def advanced(view: View, subscription: int, partition: int, mark: Mark) -> Mark:
    """Where mark-delete comes to rest if it is moved to this mark."""
    cursor = view.cursor(subscription, partition)
    return _advanced(view, partition, mark, cursor.acked, IdSet())


def resting(view: View, partition: int, mark: Mark) -> Mark:
    """Where a mark-delete position with nothing acknowledged after it comes to rest."""
    return _advanced(view, partition, mark, IdSet(), IdSet())


def _advanced(view: View, partition: int, mark: Mark, acked: IdSet, extra: IdSet) -> Mark:
    """Mark-delete moved over everything that is acknowledged, or no data, without a gap."""
    silent = view.watermark(partition).silent
    ends = view.topic(partition).ledgers
    for end in islice(ends, _place_of(ends, mark[0]), None):
        ledger, entries = end.ledger, end.entries
        if ledger > mark[0]:
            mark = (ledger, -1, 0)
        known = [s.entries[ledger] for s in (acked, extra) if ledger in s.entries]
        if ledger in silent:
            known.append(silent[ledger])
        entry = mark[1] + (mark[2] == 0)
        moved = True
        while moved:
            moved = False
            for bits in known:
                step = _stretch(bits, entry, entries)
                if step > entry:
                    entry, moved = step, True
        if entry > mark[1] + (mark[2] == 0):
            mark = (ledger, entry - 1, 0)
        if entry < entries:
            break
    return mark


def _stretch(bits: BitMap64, start: int, stop: int) -> int:
    """The first entry at or after start that is not in the bitmap."""
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
    """Messages that are visible and not DELETED; markers are never counted."""
    cursor = view.cursor(subscription, partition)
    ledger, entries = ledger_entries(view, partition)[-1]
    rest = through(view, partition, cursor.mark_delete, (ledger, entries - 1, 0))
    total = messages_in(view, partition, rest)
    silent = view.watermark(partition).silent
    for number, known in cursor.acked.entries.items():
        total -= len(known)
        if number in silent:
            total += known.intersection_cardinality(silent[number])
        for marker in view.buffer(partition).markers.get(number, []):
            if marker.count:
                total -= (marker.count - 1) * (marker.entry in known)
    return total - sum(map(len, cursor.acked.inner.values()))
