"""How many messages became visible and were acknowledged, by time: read from the journal's frames.

A store has no process that counts. But each frame has the time at which it was written, and its ops
say how many messages it made visible in a partition and how many it acknowledged on a cursor. The
journal keeps all frames since the checkpoint before the newest one, so every process can count
them. A process that stays open reads the new frames at each look and so remembers up to
REMEMBERED_MS. `known_since_ms` is the time from which nothing is missing.

A rate is messages a second over a window, or over the known part of the window. If less than a
sixth of the window is known, the rate is unknown: None, never 0.
Source: docs/design/consuming, "Lag".
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final
from weakref import WeakKeyDictionary

from txlog.base.settings import MINUTE_MS, SECOND_MS
from txlog.client.answers.lists import frames_behind
from txlog.engine.door.facts import (
    Acked,
    Adopted,
    Appended,
    CommitMarker,
    ConsumerAttached,
    ConsumerDetached,
    PendingAborted,
    PendingAcked,
    PendingCommitted,
    TxnEnded,
    TxnOpened,
    decode_ops,
)
from txlog.engine.door.journal import JournalMoved, RawFrame
from txlog.engine.door.segments import Manifest, generations, read_manifest
from txlog.engine.door.store import Store, View
from txlog.errors import Corruption, MissingFile

SHORT_MS: Final = MINUTE_MS
LONG_MS: Final = 15 * MINUTE_MS
REMEMBERED_MS: Final = LONG_MS
# A rate needs this share of its window.
SHARE: Final = 6
# With more sums than this, `follow` forgets the older half of the remembered time.
SUMS_MAX: Final = 500_000

Cell = tuple[int, int]  # numbers of a subscription and of a partition
_Sum = list[int]  # time of the first message, messages, bytes; of at most a second
_Series = dict[Any, deque[_Sum]]


class Rates:
    """The counts of a store that this process has read so far."""

    __slots__ = ("_acked", "_added", "_first_opened", "_held", "_lsn", "_sums", "_unsure",
                 "attended_ms", "known_since_ms")  # fmt: skip

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._lsn = -1
        self._sums = 0
        self._added: _Series = {}  # by partition
        self._acked: _Series = {}  # by cell
        self._held: dict[tuple[Cell, int, int], int] = {}
        self._first_opened: dict[int, int] = {}  # coordinator -> its first sequence seen to open
        # by cell: the last commit whose acknowledgements are older than the known frames
        self._unsure: dict[Cell, int] = {}
        # by subscription: when a consumer last came or left
        self.attended_ms: dict[int, int] = {}
        self.known_since_ms: int | None = None

    def follow(self, view: View, now_ms: int) -> None:
        """Count the new frames up to the view's LSN; if the journal lacks them, forget all counts.

        cost: reads the journal since the newest checkpoint, or the one before; decodes new ops only
        """
        if self._lsn == view.lsn:
            return
        try:
            frames = self._new_frames(view, now_ms)
        except (JournalMoved, MissingFile, Corruption):
            self._forget()
            return
        for frame in frames:
            if frame.lsn > self._lsn:
                for op in decode_ops(frame.ops, lsn=frame.lsn):
                    self._take(frame.time_ms, op)
                self._lsn = frame.lsn
        self._lsn = view.lsn
        self._drop(now_ms - REMEMBERED_MS)
        while self._sums > SUMS_MAX:
            assert self.known_since_ms is not None
            self._drop((max(self.known_since_ms, now_ms - REMEMBERED_MS) + now_ms) // 2)

    def _new_frames(self, view: View, now_ms: int) -> list[RawFrame]:
        """The frames after the counted ones; after a gap, all of the window in the journal."""
        newest = view.manifest
        if self.known_since_ms is not None and self._lsn >= newest.cut_lsn:
            return frames_behind(view, newest)
        older = None if _reaches(newest, now_ms) else _older(view)
        if self.known_since_ms is not None:
            if older is not None and self._lsn >= older.cut_lsn:
                return frames_behind(view, older)
            self._forget()
        for manifest in (older, newest):
            if manifest is None:
                continue
            try:
                frames = frames_behind(view, manifest)
            except (JournalMoved, MissingFile, Corruption):
                if manifest is newest:
                    raise
                continue  # a checkpoint is removing it
            self._lsn, self.known_since_ms = manifest.cut_lsn, manifest.time_ms
            return frames
        raise AssertionError("the newest manifest is never None")

    def _take(self, time_ms: int, op: object) -> None:
        match op:
            case Appended():
                self._add(self._added, op.partition, time_ms, op.rows, op.payload_bytes)
            case CommitMarker() if op.count:
                self._add(self._added, op.partition, time_ms, op.count, op.payload_bytes)
            case Adopted():
                self._add(self._added, op.partition, time_ms, op.file.rows, op.payload_bytes)
            case Acked() if op.count:
                self._add(self._acked, (op.subscription, op.partition), time_ms, op.count, 0)
            case TxnOpened() | TxnEnded(opened=TxnOpened()):
                self._first_opened.setdefault(op.coordinator, op.sequence)
            case PendingAcked():
                key = _held(op)
                self._held[key] = self._held.get(key, 0) + op.count
            case PendingAborted():
                self._held.pop(_held(op), None)
            case PendingCommitted():
                self._commit(time_ms, op)
            case ConsumerAttached() | ConsumerDetached():
                self.attended_ms[op.subscription] = time_ms
            case _:
                pass

    def _commit(self, time_ms: int, op: PendingCommitted) -> None:
        """Count a commit: its op has no number of messages, the PendingAcked ops before it have."""
        count = self._held.pop(_held(op), 0)
        cell = (op.subscription, op.partition)
        if op.sequence >= self._first_opened.get(op.coordinator, op.sequence + 1):
            self._add(self._acked, cell, time_ms, count, 0)
        elif self.known_since_ms:  # 0: since the store was made, so nothing is older
            self._unsure[cell] = time_ms
        else:
            self._add(self._acked, cell, time_ms, count, 0)

    def _add(self, series: _Series, key: Any, time_ms: int, count: int, size: int) -> None:
        sums = series.get(key)
        if sums is None:
            sums = series[key] = deque()
        if sums and 0 <= time_ms - sums[-1][0] < SECOND_MS:
            sums[-1][1] += count
            sums[-1][2] += size
        else:
            sums.append([time_ms, count, size])
            self._sums += 1

    def _drop(self, before_ms: int) -> None:
        """Forget sums that began before this time."""
        if self.known_since_ms is None or self.known_since_ms >= before_ms:
            return
        self.known_since_ms = before_ms
        for series in (self._added, self._acked):
            for key, sums in [*series.items()]:
                while sums and sums[0][0] < before_ms:
                    sums.popleft()
                    self._sums -= 1
                if not sums:
                    del series[key]

    def is_quiet(self, cell: Cell) -> bool:
        """True when no message came or was acknowledged in the known time."""
        return cell[1] not in self._added and cell not in self._acked and cell not in self._unsure

    # --- answers -----------------------------------------------------------------------------

    def rate_in(self, partition: int, now_ms: int, window_ms: int) -> tuple[float, float] | None:
        """Messages and bytes a second that became visible in a partition; None: unknown."""
        return _rate(self._added.get(partition), self.known_since_ms, now_ms, window_ms)

    def rate_out(self, cell: Cell, now_ms: int, window_ms: int) -> float | None:
        """Messages a second that were acknowledged on a cursor; None: unknown."""
        since_ms = self.known_since_ms
        if since_ms is not None and cell in self._unsure:
            since_ms = max(since_ms, self._unsure[cell])
        rate = _rate(self._acked.get(cell), since_ms, now_ms, window_ms)
        return None if rate is None else rate[0]


def _held(op: PendingAcked | PendingAborted | PendingCommitted) -> tuple[Cell, int, int]:
    return ((op.subscription, op.partition), op.coordinator, op.sequence)


def _reaches(manifest: Manifest, now_ms: int) -> bool:
    """True if the frames after a checkpoint cover all that is remembered."""
    return not manifest.cut_lsn or manifest.time_ms <= now_ms - REMEMBERED_MS


def _older(view: View) -> Manifest | None:
    """The oldest manifest before the view's; its journal exists, too."""
    for generation in sorted(generations(view.disk)):
        if generation < view.manifest.generation:
            try:
                return read_manifest(view.disk, generation, view.salt)
            except (MissingFile, Corruption):
                continue  # a checkpoint is removing it
    return None


def _rate(
    sums: deque[_Sum] | None, since_ms: int | None, now_ms: int, window_ms: int
) -> tuple[float, float] | None:
    if since_ms is None:
        return None
    start_ms = max(since_ms, now_ms - window_ms)
    covered_ms = now_ms - start_ms
    if covered_ms * SHARE < window_ms:
        return None
    messages = size = 0
    for time_ms, count, count_bytes in sums or ():
        if time_ms > start_ms:
            messages += count
            size += count_bytes
    return messages * SECOND_MS / covered_ms, size * SECOND_MS / covered_ms


_OF_STORES: WeakKeyDictionary[Store, Rates] = WeakKeyDictionary()


def rates_of(view: View, store: Store) -> Rates:
    """The rates of a store up to the view; an open store remembers what it read before."""
    rates = _OF_STORES.get(store)
    if rates is None:
        rates = _OF_STORES[store] = Rates()
    rates.follow(view, store.clock.now().wall_ms)
    return rates
