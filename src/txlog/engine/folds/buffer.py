"""The transaction buffer fold: the sidecar of one partition.

Ledger: the partition's _txnlog. Ops
  LedgerRolled (role s; the first makes the sidecar), LedgerSealed, BufferAppended,
  BufferCommitted, BufferAborted.

It holds the ranges of each open transaction, and for every marker of the partition the rows that it
made visible: `markers[ledger]` rises by entry, so a marker is found by bisection.

Invariants
  1. The messages of a transaction here have the indexes 1..count, in append order.
  2. A transaction ends once; its rows are visible exactly when it has a marker (PIP-31).
  3. A clean sealed ledger holds committed rows only, in order of (marker, index); sealing rewrites
     the ranges by that rule and needs no list of them.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from txlog.engine.model.fold import Fold, broken, unexpected
from txlog.engine.model.ops import (
    BufferAborted,
    BufferAppended,
    BufferCommitted,
    LedgerRolled,
    LedgerSealed,
    Op,
)

TxnPair = tuple[int, int]
# (ledger, first row, rows, index of the first row)
Range = tuple[int, int, int, int]


class Held(msgspec.Struct, array_like=True, gc=False):
    """What an open transaction has here; producers: name -> (last sequence, its index)."""

    ranges: list[Range] = []
    count: int = 0
    payload_bytes: int = 0
    producers: dict[str, tuple[int, int]] = {}
    first_ms: int = 0


class Marker(msgspec.Struct, array_like=True, gc=False):
    """A commit marker of the partition and where its messages lie in the sidecar."""

    entry: int
    coordinator: int
    sequence: int
    count: int
    time_ms: int
    lsn: int
    ranges: list[Range]


class SidecarLedger(msgspec.Struct, array_like=True, gc=False):
    """A ledger of the sidecar, open or closed."""

    ledger: int
    entries: int = 0
    payload_bytes: int = 0
    opened_ms: int = 0
    open_txns: int = 0
    sealed: bool = False


class Buffer(msgspec.Struct, array_like=True):
    """State of the fold."""

    ledgers: list[SidecarLedger] = []
    held: dict[int, dict[int, Held]] = {}  # coordinator -> sequence -> what it has here
    markers: dict[int, list[Marker]] = {}  # partition ledger -> markers, by entry
    dead_bytes: int = 0
    aborted_count: int = 0
    committed_count: int = 0


def apply(state: Buffer, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    if isinstance(op, BufferAppended):
        _appended(state, lsn, time_ms, op)
    elif isinstance(op, BufferCommitted):
        _grow(state, lsn, op.ledger, op.entry, 1, 0)
        held = _take(state, lsn, op.coordinator, op.sequence)
        known = state.markers.setdefault(op.marker_ledger, [])
        if known and known[-1].entry >= op.marker_entry:
            raise broken("buffer", lsn, f"marker {op.marker_entry} does not follow the last")
        known.append(
            Marker(op.marker_entry, op.coordinator, op.sequence, held.count, time_ms, lsn,
                   held.ranges)
        )  # fmt: skip
        state.committed_count += 1
    elif isinstance(op, BufferAborted):
        _grow(state, lsn, op.ledger, op.entry, 1, 0)
        held = _take(state, lsn, op.coordinator, op.sequence)
        state.dead_bytes += held.payload_bytes
        state.aborted_count += 1
    elif isinstance(op, LedgerRolled):
        if (state.ledgers[-1].ledger if state.ledgers else 0) != op.old:
            raise broken("buffer", lsn, f"ledger {op.old} is not the open one")
        state.ledgers.append(SidecarLedger(op.new, opened_ms=time_ms))
    elif isinstance(op, LedgerSealed):
        _sealed(state, op.file.ledger)
    else:
        raise unexpected("buffer", lsn, op)


def _grow(state: Buffer, lsn: int, ledger: int, first: int, rows: int, size: int) -> None:
    end = state.ledgers[-1] if state.ledgers else SidecarLedger(0)
    if end.ledger != ledger or end.entries != first:
        raise broken("buffer", lsn, f"entry {ledger}:{first} does not follow the last")
    end.entries += rows
    end.payload_bytes += size


def _appended(state: Buffer, lsn: int, time_ms: int, op: BufferAppended) -> None:
    _grow(state, lsn, op.ledger, op.first_entry, op.rows, op.payload_bytes)
    of_coordinator = state.held.get(op.coordinator)
    if of_coordinator is None:
        of_coordinator = state.held[op.coordinator] = {}
    held = of_coordinator.get(op.sequence)
    if held is None:
        held = of_coordinator[op.sequence] = Held(first_ms=time_ms)
    if op.first_index != held.count + 1:
        raise broken("buffer", lsn, f"index {op.first_index} does not follow {held.count}")
    last = held.ranges[-1] if held.ranges else None
    if last is not None and last[0] == op.ledger and last[1] + last[2] == op.first_entry:
        held.ranges[-1] = (last[0], last[1], last[2] + op.rows, last[3])
    else:
        if last is None or last[0] != op.ledger:
            state.ledgers[-1].open_txns += 1
        held.ranges.append((op.ledger, op.first_entry, op.rows, op.first_index))
    held.count += op.rows
    held.payload_bytes += op.payload_bytes
    if op.producer is not None:
        held.producers[op.producer] = (op.last_sequence, held.count)


def _take(state: Buffer, lsn: int, coordinator: int, sequence: int) -> Held:
    of_coordinator = state.held.get(coordinator)
    held = None if of_coordinator is None else of_coordinator.pop(sequence, None)
    if held is None:
        raise broken("buffer", lsn, f"transaction {coordinator}:{sequence} has nothing here")
    if len(held.ranges) == 1 and held.ranges[0][0] == state.ledgers[-1].ledger:  # most of them
        state.ledgers[-1].open_txns -= 1
        return held
    touched = {part[0] for part in held.ranges}
    for end in state.ledgers:
        if end.ledger in touched:
            end.open_txns -= 1
    return held


def _sealed(state: Buffer, ledger: int) -> None:
    row = 0
    for number in sorted(state.markers):
        for marker in state.markers[number]:
            for at, part in enumerate(marker.ranges):
                if part[0] == ledger:
                    marker.ranges[at] = (ledger, row, part[2], part[3])
                    row += part[2]
    for end in state.ledgers:
        if end.ledger == ledger:
            end.sealed = True


def find_held(state: Buffer, coordinator: int, sequence: int) -> Held | None:
    """What an open transaction has in this sidecar."""
    return state.held.get(coordinator, {}).get(sequence)


def marker_of(
    state: Buffer, coordinator: int, sequence: int, since_lsn: int
) -> tuple[int, Marker] | None:
    """(ledger, marker) of a transaction here, looked for from the newest back to its decision."""
    for ledger in sorted(state.markers, reverse=True):
        for marker in reversed(state.markers[ledger]):
            if marker.lsn < since_lsn:
                return None
            if (marker.coordinator, marker.sequence) == (coordinator, sequence):
                return ledger, marker
    return None


def find_marker(state: Buffer, ledger: int, entry: int) -> Marker | None:
    """The marker at exactly this position of the partition."""
    known = state.markers.get(ledger)
    if not known:
        return None
    at = bisect_left(known, entry, key=lambda marker: marker.entry)
    return known[at] if at < len(known) and known[at].entry == entry else None


_decoder = msgspec.msgpack.Decoder(Buffer)
FOLD = Fold("buffer", Buffer, apply, msgspec.msgpack.encode, _decoder.decode)
