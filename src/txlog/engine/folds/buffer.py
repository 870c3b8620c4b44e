"""The transaction buffer fold: the sidecar of one partition.

Ledger: the partition's _txnlog. Ops
  LedgerRolled (role s; the first makes the sidecar), LedgerSealed, LedgerTrimmed, Compacted,
  BufferAppended, BufferSequencesStored, ChunksAppended, BufferCommitted, BufferAborted,
  BufferWatermark.

It holds the ranges of each open transaction, and for every marker of the partition the rows that it
made visible: `markers[ledger]` rises by entry, so a marker is found by bisection. The ranges of a
transaction are in order of index; adjacent rows are one range.

Invariants
  1. The messages of a transaction here have the indexes 1..count, in append order.
  2. A transaction ends once; its rows are visible exactly when it has a marker (PIP-31).
  3. Rows are dead exactly when their transaction was aborted or its marker trimmed; dead_bytes
     counts the dead rows that are still stored (I-21).
  4. A clean sealed ledger has committed rows only, in order of (marker, index); sealing rewrites
     the ranges by that rule and needs no list of them.
  5. A large message is a ledger of its own with one row, the message. It comes before the open
     ledger, and `chunked` has the columns that other messages have in their rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import msgspec

from txlog.engine.model import sequences
from txlog.engine.model.ops import (
    NO_TIME,
    BufferAborted,
    BufferAppended,
    BufferCommitted,
    BufferSequencesStored,
    BufferWatermark,
    ChunksAppended,
    Compacted,
    Fold,
    LedgerRolled,
    LedgerSealed,
    LedgerTrimmed,
    Op,
    array_head,
    broken,
    times_from,
    unexpected,
)

# --- rows of a transaction ------------------------------------------------------------------------

# (ledger, first row, rows, index of the first row)
Range = tuple[int, int, int, int]
# by old ledger, its ranges in the new one: (first row, rows, first row there), rising
Moves = dict[int, list[tuple[int, int, int]]]


def moved_row(moves: list[tuple[int, int, int]], row: int, rows: int) -> int | None:
    """The new row of rows of an old ledger; None: they were not moved as one range."""
    at = bisect_right(moves, row, key=lambda move: move[0]) - 1
    first, count, new_row = moves[at] if at >= 0 else (0, 0, 0)
    return new_row + row - first if first <= row <= row + rows <= first + count else None


def moved(ranges: Iterable[Range], moves: Moves, ledger: int) -> list[Range] | None:
    """The ranges of a transaction after its rows were moved to a ledger; None: some were not."""
    out: list[Range] = []
    for part in ranges:
        if part[0] in moves:
            new_row = moved_row(moves[part[0]], part[1], part[2])
            if new_row is None:
                return None
            part = (ledger, new_row, part[2], part[3])
        out.append(part)
    for prior, following in pairwise(out):
        if (prior[0], prior[1] + prior[2], prior[3] + prior[2]) == (*following[:2], following[3]):
            return _joined(out)
    return out


def _joined(ranges: list[Range]) -> list[Range]:
    out = ranges[:1]
    for part in ranges[1:]:
        ledger, row, rows, index = out[-1]
        if (ledger, row + rows, index + rows) == (part[0], part[1], part[3]):
            out[-1] = (ledger, row, rows + part[2], index)
        else:
            out.append(part)
    return out


# --- the fold -------------------------------------------------------------------------------------

BLOCK: Final = 1024  # markers that are encoded together


class TxnSequences(msgspec.Struct, array_like=True, gc=False):
    """The last sequence that a producer sent to a transaction here (model/sequences).

    index: of the message with the sequence `row`; row -1: with the last sequence
    """

    sequence: int
    index: int
    gaps: list[int] = []
    unknown: int = -1
    row: int = -1


class OpenTxn(msgspec.Struct, array_like=True, gc=False):
    """The messages of an open transaction here.

    sizes: payload bytes by ledger, once it has rows in more than one; delayed: with a deliver_at;
    watermarks: rows of watermarks, which are not messages
    """

    ranges: list[Range] = []
    count: int = 0
    payload_bytes: int = 0
    producers: dict[str, TxnSequences] = {}
    first_ms: int = 0
    sizes: dict[int, int] | None = None
    delayed: int = 0
    watermarks: int = 0


class Marker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit marker of the partition and the locations of its messages in the sidecar.

    It never changes, and the garbage collector skips tuples of numbers.
    """

    entry: int
    coordinator: int
    sequence: int
    count: int
    time_ms: int
    lsn: int
    ranges: tuple[Range, ...]
    payload_bytes: int = 0
    sizes: dict[int, int] | None = None


class Markers(list[Marker]):
    """The markers of a partition ledger, by entry: they are appended, and replaced in place.

    A dump contains all of them, and threads wait for it. So encoded blocks are cached; a block is
    encoded again when one of its markers was replaced.
    """

    __slots__ = ("_blocks",)

    def __init__(self, markers: Iterable[Marker] = ()) -> None:
        super().__init__(markers)
        self._blocks: dict[int, bytes] = {}

    def __setitem__(self, at: Any, marker: Any) -> None:
        assert at >= 0  # a block is found by the index from the front
        self._blocks.pop(at // BLOCK, None)
        super().__setitem__(at, marker)

    def encode_block(self) -> bool:
        """Encode one more block; returns whether there was one."""
        for number in range(len(self) // BLOCK):
            if number not in self._blocks:
                self._blocks[number] = self._items(number)
                return True
        return False

    def encoded(self) -> msgspec.Raw:
        """The list as msgpack."""
        whole = len(self) // BLOCK
        parts = [array_head(len(self))]
        for number in range(whole):
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = self._items(number)
            parts.append(block)
        parts.append(self._items(whole))
        return msgspec.Raw(b"".join(parts))

    def _items(self, number: int) -> bytes:
        """The markers of a block, concatenated."""
        items = self[number * BLOCK : (number + 1) * BLOCK]
        return msgspec.msgpack.encode(items)[len(array_head(len(items))) :]


class SidecarLedger(msgspec.Struct, array_like=True, gc=False):
    """A ledger of the sidecar, open or closed."""

    ledger: int
    entries: int = 0
    payload_bytes: int = 0
    opened_ms: int = 0
    open_txns: int = 0
    sealed: bool = False
    dead_bytes: int = 0


class ChunkedMessage(msgspec.Struct, array_like=True, gc=False):
    """The large message of a ledger in chunks, with the columns that its file lacks."""

    value_bytes: int
    crc: int
    payload_bytes: int
    coordinator: int
    sequence: int
    index: int
    time_ms: int
    lsn: int
    producer: str | None = None
    last_sequence: int = -1
    plain: bool = False
    deliver_at: int | None = None


class Buffer(msgspec.Struct, array_like=True):
    """State of the fold."""

    ledgers: list[SidecarLedger] = []
    held: dict[int, dict[int, OpenTxn]] = {}  # coordinator -> sequence -> its messages here
    markers: dict[int, list[Marker]] = {}  # partition ledger -> its Markers, by entry
    dead_bytes: int = 0
    aborted_count: int = 0
    committed_count: int = 0
    # sidecar ledger -> (row, rows) of trimmed markers; dead like aborted rows, and still stored
    trimmed: dict[int, list[tuple[int, int]]] = {}
    chunked: dict[int, ChunkedMessage] = {}  # sidecar ledger -> its message


def apply(state: Buffer, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("buffer", lsn, op)
    take(state, lsn, time_ms, op)


def _take_buffer_committed(state: Buffer, lsn: int, time_ms: int, op: BufferCommitted) -> None:
    end = _grow(state, lsn, op.ledger, op.entry, 1, 0)
    open_txn = _take(state, lsn, op.coordinator, op.sequence, end)
    markers = state.markers.get(op.marker_ledger)
    if markers is None:
        markers = state.markers[op.marker_ledger] = Markers()
    if markers and markers[-1].entry >= op.marker_entry:
        raise broken("buffer", lsn, f"marker {op.marker_entry} does not follow the last")
    markers.append(
        Marker(
            op.marker_entry,
            op.coordinator,
            op.sequence,
            open_txn.count,
            time_ms,
            lsn,
            tuple(open_txn.ranges),
            open_txn.payload_bytes,
            open_txn.sizes,
        )
    )
    state.committed_count += 1


def _take_buffer_aborted(state: Buffer, lsn: int, time_ms: int, op: BufferAborted) -> None:
    end = _grow(state, lsn, op.ledger, op.entry, 1, 0)
    open_txn = _take(state, lsn, op.coordinator, op.sequence, end)
    _kill(state, [open_txn])
    state.aborted_count += 1


def _take_ledger_rolled(state: Buffer, lsn: int, time_ms: int, op: LedgerRolled) -> None:
    if (state.ledgers[-1].ledger if state.ledgers else 0) != op.old:
        raise broken("buffer", lsn, f"ledger {op.old} is not the open one")
    state.ledgers.append(SidecarLedger(op.new, opened_ms=time_ms))


def _take_ledger_sealed(state: Buffer, lsn: int, time_ms: int, op: LedgerSealed) -> None:
    _sealed(state, op.file.ledger)


def _take_ledger_trimmed(state: Buffer, lsn: int, time_ms: int, op: LedgerTrimmed) -> None:
    if op.role == "p":
        _trim(state, op.ledger)
    else:
        _remove(state, lsn, op.ledger)


def _grow(state: Buffer, lsn: int, ledger: int, first: int, rows: int, size: int) -> SidecarLedger:
    """Add rows to the open ledger; returns it."""
    end = state.ledgers[-1] if state.ledgers else SidecarLedger(0)
    if end.ledger != ledger or end.entries != first:
        raise broken("buffer", lsn, f"entry {ledger}:{first} does not follow the last")
    end.entries = first + rows
    end.payload_bytes += size
    return end


def _watermark(state: Buffer, lsn: int, time_ms: int, op: BufferWatermark) -> None:
    _grow(state, lsn, op.ledger, op.entry, 1, 0)
    _known(state, time_ms, op.coordinator, op.sequence).watermarks += 1


def _held(
    state: Buffer, lsn: int, time_ms: int, coordinator: int, sequence: int, index: int
) -> OpenTxn:
    """The transaction that a message with this index is added to."""
    open_txn = _known(state, time_ms, coordinator, sequence)
    if index != open_txn.count + 1:
        raise broken("buffer", lsn, f"index {index} does not follow {open_txn.count}")
    return open_txn


def _known(state: Buffer, time_ms: int, coordinator: int, sequence: int) -> OpenTxn:
    """The transaction's messages here, created with its first row."""
    of_coordinator = state.held.get(coordinator)
    if of_coordinator is None:
        of_coordinator = state.held[coordinator] = {}
    open_txn = of_coordinator.get(sequence)
    if open_txn is None:
        open_txn = of_coordinator[sequence] = OpenTxn(first_ms=time_ms)
    return open_txn


def _chunks_appended(state: Buffer, lsn: int, time_ms: int, op: ChunksAppended) -> None:
    ledger = op.file.ledger
    if not state.ledgers or any(end.ledger == ledger for end in state.ledgers):
        raise broken("buffer", lsn, f"ledger {ledger} cannot be added to the sidecar")
    open_txn = _held(state, lsn, time_ms, op.coordinator, op.sequence, op.index)
    if open_txn.sizes is None:
        open_txn.sizes = {open_txn.ranges[-1][0]: open_txn.payload_bytes} if open_txn.ranges else {}
    open_txn.sizes[ledger] = op.payload_bytes
    open_txn.ranges.append((ledger, 0, 1, op.index))
    open_txn.count += 1
    open_txn.payload_bytes += op.payload_bytes
    if op.producer is not None and not op.plain:
        runs = [op.last_sequence, op.last_sequence]
        _store_sequences(open_txn, lsn, op.producer, runs, op.last_sequence)
    open_txn.delayed += op.deliver_at is not None
    state.ledgers.insert(
        -1, SidecarLedger(ledger, 1, op.payload_bytes, time_ms, open_txns=1, sealed=True)
    )
    state.chunked[ledger] = ChunkedMessage(
        op.value_bytes,
        op.crc,
        op.payload_bytes,
        op.coordinator,
        op.sequence,
        op.index,
        time_ms,
        lsn,
        op.producer,
        op.last_sequence,
        op.plain,
        op.deliver_at,
    )


def _appended(state: Buffer, lsn: int, time_ms: int, op: BufferAppended) -> None:
    ledger, first, rows, size = op.ledger, op.first_entry, op.rows, op.payload_bytes
    end = _grow(state, lsn, ledger, first, rows, size)
    open_txn = _held(state, lsn, time_ms, op.coordinator, op.sequence, op.first_index)
    ranges = open_txn.ranges
    if not ranges:
        end.open_txns += 1
        ranges.append((ledger, first, rows, op.first_index))
    else:
        last = ranges[-1]
        if last[0] == ledger and last[1] + last[2] == first:
            ranges[-1] = (ledger, last[1], last[2] + rows, last[3])
        else:
            # usually the last range is in it
            if all(part[0] != ledger for part in reversed(ranges)):
                end.open_txns += 1
                if open_txn.sizes is None:
                    open_txn.sizes = {last[0]: open_txn.payload_bytes}
            ranges.append((ledger, first, rows, op.first_index))
    open_txn.count += rows
    open_txn.payload_bytes += size
    if open_txn.sizes is not None:
        open_txn.sizes[ledger] = open_txn.sizes.get(ledger, 0) + size
    if op.producer is not None and op.last_sequence >= 0:
        sent = open_txn.producers.get(op.producer)
        if sent is None:
            open_txn.producers[op.producer] = TxnSequences(op.last_sequence, open_txn.count)
        else:
            sent.sequence, sent.index, sent.row = op.last_sequence, open_txn.count, -1
    if op.times:
        open_txn.delayed += op.rows - times_from(op.times).count(NO_TIME)


def _sequences_stored(state: Buffer, lsn: int, time_ms: int, op: BufferSequencesStored) -> None:
    open_txn = _known(state, time_ms, op.coordinator, op.sequence)
    _store_sequences(open_txn, lsn, op.producer, op.runs, op.row)


def _store_sequences(open_txn: OpenTxn, lsn: int, producer: str, runs: list[int], row: int) -> None:
    """Store sequences of the messages that the transaction got last."""
    sent = open_txn.producers.setdefault(producer, TxnSequences(-1, 0))
    last = sent.sequence
    if not runs or not sequences.store(sent, runs):
        raise broken("buffer", lsn, f"producer {producer} repeats a sequence")
    if sent.sequence > last:
        sent.index, sent.row = open_txn.count, row


def _take(state: Buffer, lsn: int, coordinator: int, sequence: int, last: SidecarLedger) -> OpenTxn:
    """Remove and return the messages of a transaction that ends; last: the open ledger."""
    of_coordinator = state.held.get(coordinator)
    open_txn = None if of_coordinator is None else of_coordinator.pop(sequence, None)
    if open_txn is None:
        raise broken("buffer", lsn, f"transaction {coordinator}:{sequence} has nothing here")
    if not of_coordinator:
        del state.held[coordinator]  # listing open transactions visits each coordinator
    ranges = open_txn.ranges
    if len(ranges) == 1 and ranges[0][0] == last.ledger:  # the usual case
        last.open_txns -= 1
        return open_txn
    touched = {part[0] for part in ranges}
    for end in state.ledgers:
        if end.ledger in touched:
            end.open_txns -= 1
    return open_txn


def _sealed(state: Buffer, ledger: int) -> None:
    row = 0
    for number in sorted(state.markers):
        markers = state.markers[number]
        for at, marker in enumerate(markers):
            if all(part[0] != ledger for part in marker.ranges):
                continue
            ranges = list[Range]()
            for part in marker.ranges:
                if part[0] == ledger:
                    part = (ledger, row, part[2], part[3])
                    row += part[2]
                ranges.append(part)
            markers[at] = msgspec.structs.replace(marker, ranges=tuple(ranges))
    for end in state.ledgers:
        if end.ledger == ledger:  # a clean file has no dead rows
            end.sealed = True
            end.payload_bytes -= end.dead_bytes
            end.dead_bytes = 0
    state.trimmed.pop(ledger, None)
    _recount(state)


def bytes_in(of: OpenTxn | Marker, ledger: int) -> int:
    """Payload bytes that a transaction has in a ledger of the sidecar.

    Dumps of older versions have no sizes; then it is the share by rows.
    """
    if of.sizes is not None:
        return of.sizes.get(ledger, 0)
    rows = sum(part[2] for part in of.ranges)
    here = sum(part[2] for part in of.ranges if part[0] == ledger)
    return of.payload_bytes * here // rows if rows else 0


def transactions(state: Buffer) -> list[OpenTxn | Marker]:
    """All transactions with live rows here: markers in order, then open transactions."""
    out: list[OpenTxn | Marker] = []
    for number in sorted(state.markers):
        out += state.markers[number]
    for _, by_sequence in sorted(state.held.items()):
        out += [open_txn for _, open_txn in sorted(by_sequence.items())]
    return out


def live_rows(state: Buffer) -> dict[int, int]:
    """Rows of each sidecar ledger that are not dead."""
    out: dict[int, int] = {}
    for txn in transactions(state):
        for part in txn.ranges:
            out[part[0]] = out.get(part[0], 0) + part[2]
    return out


def _trim(state: Buffer, ledger: int) -> None:
    trimmed = state.markers.pop(ledger, [])
    _kill(state, trimmed)
    for marker in trimmed:
        for side, row, rows, _ in marker.ranges:
            state.trimmed.setdefault(side, []).append((row, rows))


def _kill(state: Buffer, ended: Sequence[OpenTxn | Marker]) -> None:
    ends = {end.ledger: end for end in state.ledgers}
    for txn in ended:
        for ledger in {part[0] for part in txn.ranges}:
            ends[ledger].dead_bytes += bytes_in(txn, ledger)
    _recount(state)


def _recount(state: Buffer) -> None:
    state.dead_bytes = sum(end.dead_bytes for end in state.ledgers)


def _remove(state: Buffer, lsn: int, ledger: int) -> SidecarLedger:
    for at, end in enumerate(state.ledgers[:-1]):
        if end.ledger == ledger:
            del state.ledgers[at]
            state.trimmed.pop(ledger, None)
            state.chunked.pop(ledger, None)
            _recount(state)
            return end
    raise broken("buffer", lsn, f"{ledger} is not a closed ledger of the sidecar")


def _compacted(state: Buffer, lsn: int, time_ms: int, op: Compacted) -> None:
    position = next((at for at, end in enumerate(state.ledgers) if end.ledger == op.old[0]), 0)
    trimmed = [(ledger, *part) for ledger in op.old for part in state.trimmed.get(ledger, ())]
    for ledger in op.old:
        _remove(state, lsn, ledger)
    moves: Moves = {ledger: [] for ledger in op.old}
    for ledger, row, rows, new_row in sorted(op.moved):
        moves[ledger].append((row, rows, new_row))
    new = SidecarLedger(op.file.ledger, op.file.rows, op.payload_bytes, time_ms, sealed=True)
    live = 0
    for number in sorted(state.markers):
        markers = state.markers[number]
        for here, marker in enumerate(markers):
            if any(part[0] in moves for part in marker.ranges):
                to = _moved(marker, lsn, moves, new.ledger)
                markers[here] = msgspec.structs.replace(
                    marker, ranges=tuple(to.ranges), sizes=to.sizes
                )
                live += to.size
    for _, by_sequence in sorted(state.held.items()):
        for _, open_txn in sorted(by_sequence.items()):
            if any(part[0] in moves for part in open_txn.ranges):
                to = _moved(open_txn, lsn, moves, new.ledger)
                open_txn.ranges, open_txn.sizes = to.ranges, to.sizes
                new.open_txns += 1
                live += to.size
    new.dead_bytes = max(0, op.payload_bytes - live)
    # trimmed since the file was written: it has them as dead rows
    for ledger, row, rows in trimmed:
        at = moved_row(moves[ledger], row, rows)
        if at is not None:
            state.trimmed.setdefault(new.ledger, []).append((at, rows))
    state.ledgers.insert(position, new)  # ledgers are in the order of appending, not of ids
    _recount(state)


class _Moved(NamedTuple):
    """The ranges of a transaction after a compaction; size: the bytes that moved."""

    ranges: list[Range]
    sizes: dict[int, int] | None
    size: int


def _moved(txn: OpenTxn | Marker, lsn: int, moves: Moves, ledger: int) -> _Moved:
    """Make the ranges of a transaction point into the new ledger."""
    size = sum(bytes_in(txn, old) for old in {part[0] for part in txn.ranges} & moves.keys())
    sizes = txn.sizes
    if sizes is not None:
        sizes = {old: old_size for old, old_size in sizes.items() if old not in moves}
        sizes = {**sizes, ledger: size} if sizes else None
    new_ranges = moved(txn.ranges, moves, ledger)
    if new_ranges is None:
        raise broken("buffer", lsn, f"live rows were not moved to ledger {ledger}")
    return _Moved(new_ranges, sizes, size)


def find_held(state: Buffer, coordinator: int, sequence: int) -> OpenTxn | None:
    """The messages of an open transaction in this sidecar."""
    of_coordinator = state.held.get(coordinator)
    return None if of_coordinator is None else of_coordinator.get(sequence)


def marker_of(
    state: Buffer, coordinator: int, sequence: int, since_lsn: int
) -> tuple[int, Marker] | None:
    """(ledger, marker) of a transaction here, searched from the newest back to its decision."""
    for ledger in sorted(state.markers, reverse=True):
        for marker in reversed(state.markers[ledger]):
            if marker.lsn < since_lsn:
                return None
            if (marker.coordinator, marker.sequence) == (coordinator, sequence):
                return ledger, marker
    return None


def find_marker(state: Buffer, ledger: int, entry: int) -> Marker | None:
    """The marker at exactly this position of the partition."""
    markers = state.markers.get(ledger)
    if not markers:
        return None
    at = bisect_left(markers, entry, key=lambda marker: marker.entry)
    return markers[at] if at < len(markers) and markers[at].entry == entry else None


# Looked up by the type of the op: a chain of isinstance would cost more than applying the ops.
_TAKES: dict[type, Callable[[Buffer, int, int, Any], None]] = {
    BufferAppended: _appended,
    BufferSequencesStored: _sequences_stored,
    ChunksAppended: _chunks_appended,
    BufferWatermark: _watermark,
    BufferCommitted: _take_buffer_committed,
    BufferAborted: _take_buffer_aborted,
    LedgerRolled: _take_ledger_rolled,
    LedgerSealed: _take_ledger_sealed,
    LedgerTrimmed: _take_ledger_trimmed,
    Compacted: _compacted,
}


def encode_some(state: Buffer) -> bool:
    """Encode a block of markers ahead of a dump; returns whether there may be more."""
    return any(cast("Markers", markers).encode_block() for markers in state.markers.values())


class _Dump(Buffer, array_like=True):
    """A dump, whose markers are encoded separately."""

    markers: dict[int, msgspec.Raw] = {}  # type: ignore[assignment]


def _dump(state: Buffer) -> bytes:
    encoded: dict[int, msgspec.Raw] = {}
    for number, markers in state.markers.items():
        assert isinstance(markers, Markers)
        encoded[number] = markers.encoded()
    return msgspec.msgpack.encode(_Dump(**{**_fields(state), "markers": encoded}))


def _load(data: bytes) -> Buffer:
    values = _fields(_decoder.decode(data))
    markers = {number: Markers(_markers.decode(raw)) for number, raw in values["markers"].items()}
    return Buffer(**{**values, "markers": markers})


def _fields(of: Buffer) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Buffer.__struct_fields__}


assert _Dump.__struct_fields__ == Buffer.__struct_fields__
_decoder, _markers = msgspec.msgpack.Decoder(_Dump), msgspec.msgpack.Decoder(list[Marker])
FOLD = Fold("buffer", Buffer, apply, _dump, _load, _TAKES)
