"""READ_UNCOMMITTED: sidecar rows of transactions without a marker, after all committed messages.

A preview has no message id, is never acknowledged and counts nowhere. After the commit the message
comes again in its proper place; (TxnID, partition, index) identifies it.
Source: PIP-31 "Isolation level", spec/transactions 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from txlog.base.ids import TxnId
from txlog.base.settings import RECEIVE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.engine.folds import buffer
from txlog.engine.model.schema import KIND_DATA
from txlog.engine.plan.reading import dispatch
from txlog.engine.storage.segment_reader import rows_of
from txlog.engine.view import View
from txlog.errors import InvalidArgument, SnapshotExpired

if TYPE_CHECKING:
    from txlog.engine.folds.buffer import Buffer, Marker

Stretch: TypeAlias = tuple[int, int]  # rows of a ledger: the first, and the one after the last
ISOLATIONS = ("committed", "uncommitted")
PREVIEW_ROWS = 4096
_END = ((1 << 63) - 1, (1 << 31) - 1)
_KIND = pa.scalar(KIND_DATA, pa.int8())
_READ = ("kind", "lsn", "txn_index", *dispatch.STORED)


def check_isolation(isolation: str) -> str:
    """The isolation, if there is one of this name; raises InvalidArgument."""
    if isolation not in ISOLATIONS:
        raise InvalidArgument(
            f"isolation {isolation!r} is not one of {', '.join(ISOLATIONS)}", code=203
        )
    return isolation


class UnmarkedRows:
    """The rows of a sidecar that no marker makes visible, computed once for all batches at one LSN.

    late: markers above the LSN of the read; their transactions were open at that LSN
    cost: O(markers after the position of the first batch)
    """

    __slots__ = ("_lsn", "_marked", "_state", "_through_lsn", "late")

    def __init__(
        self, view: View, state: Buffer, position: PreviewPosition, through_lsn: int | None
    ) -> None:
        self._lsn, self._state, self._through_lsn = view.lsn, state, through_lsn
        self.late: list[Marker] = []
        self._marked: dict[int, list[Stretch]] = {}
        for marker in _markers_since(state, _floor(state, position)):
            if through_lsn is not None and marker.lsn > through_lsn:
                self.late.append(marker)
                continue
            for ledger, row, rows, _ in marker.ranges:
                self._marked.setdefault(ledger, []).append((row, row + rows))
        for ledger, ranges in state.trimmed.items():  # they were visible, and are trimmed
            self._marked.setdefault(ledger, []).extend((row, row + rows) for row, rows in ranges)
        for stretches in self._marked.values():
            stretches.sort()

    def is_of(self, view: View, state: Buffer, through_lsn: int | None) -> bool:
        """True when it was computed for this sidecar, view and LSN."""
        built_for = (self._lsn, self._through_lsn)
        return self._state is state and built_for == (view.lsn, through_lsn)

    def stretches(self, ledger: int, start: int, stop: int) -> Iterator[Stretch]:
        """Stretches of rows start..stop of a ledger that no marker makes visible."""
        marked = self._marked.get(ledger, [])
        # they do not overlap, so only the last that begins before the start can reach into it
        for low, high in islice(marked, max(0, bisect_right(marked, (start,)) - 1), None):
            if start >= stop:
                return
            if start < low:
                yield start, min(low, stop)
            start = max(start, high)
        if start < stop:
            yield start, stop


class PreviewPosition(NamedTuple):
    """The row that a reader read last: its LSN and index, and its location at that time.

    The row number saves searching the ledger again; it is valid until the ledger is sealed.
    unmarked: the rows left to read, valid at the LSN that it was computed for
    """

    lsn: int = 0
    txn_index: int = 0
    ledger: int = 0
    row: int = 0
    unmarked: UnmarkedRows | None = None


START = PreviewPosition()


def _floor(state: Buffer, position: PreviewPosition) -> int:
    """An LSN at or below all markers of rows after a position: rows come before their marker.

    0 for a position in a sealed ledger: its rows have moved, so every marker is looked at.
    """
    is_sealed = any(end.ledger == position.ledger and end.sealed for end in state.ledgers)
    return 0 if is_sealed else position.lsn


def _markers_since(state: Buffer, lsn: int) -> Iterator[Marker]:
    """The markers at an LSN or above it, from the newest back."""
    for ledger in sorted(state.markers, reverse=True):
        for marker in reversed(state.markers[ledger]):
            if marker.lsn < lsn:
                return
            yield marker


def preview(
    view: View,
    topic: str,
    partition_number: int,
    partition: int,
    position: PreviewPosition,
    limit: int,
    *,
    through_lsn: int | None = None,
    only: TxnId | None = None,
    is_strict: bool = False,
) -> tuple[pa.Table, PreviewPosition]:
    """(rows as RECEIVED in append order, at most limit; the position of the last).

    It ends where the bytes of a batch are reached, but has at least one row if there is one.
    through_lsn: rows and markers written later are left out
    only:        the rows of one transaction
    is_strict:   raise SnapshotExpired if rows that may belong to that LSN were moved
    """
    state = view.buffer(partition)
    unmarked = position.unmarked
    if unmarked is None or not unmarked.is_of(view, state, through_lsn):
        unmarked = UnmarkedRows(view, state, position, through_lsn)
    if is_strict and through_lsn is not None:
        _check_unmoved(view, state, unmarked.late, topic)
    out: list[pa.Table] = []
    size = 0
    for large in [*_large(state, position, unmarked, through_lsn, only), None]:
        stop = _END if through_lsn is None else (through_lsn, _END[1])
        if large is not None:
            stop = (state.chunked[large].lsn, state.chunked[large].index - 1)
        for rows, next_position in _small(view, state, position, unmarked, limit, stop, only):
            position = next_position
            out.append(_received(state, rows, topic, partition_number, unmarked.late))
            limit -= rows.num_rows
            size += rows.nbytes
        if large is None or limit <= 0 or size > RECEIVE_BYTES_MAX:
            break
        if size and size + state.chunked[large].payload_bytes > RECEIVE_BYTES_MAX:
            break
        rows = pa.concat_tables(view.rows([(large, 0, 1)], _READ))
        large_message = state.chunked[large]
        position = PreviewPosition(
            large_message.lsn, large_message.index, position.ledger, position.row
        )
        out.append(_received(state, rows, topic, partition_number, unmarked.late))
        limit -= 1
        size += large_message.payload_bytes
        if limit <= 0:
            break
    rows = pa.concat_tables(out) if out else dispatch.NO_MESSAGES
    return rows, position._replace(unmarked=unmarked)


def _check_unmoved(view: View, state: Buffer, late: list[Marker], topic: str) -> None:
    """Raise SnapshotExpired for rows in a clean file: it has the LSN at which they became visible.

    It lacks the LSN at which they were written, so whether they were open then is unknown.
    """
    sealed = {
        end.ledger
        for end in state.ledgers
        if end.sealed and any(ref.clean for ref in view.files.of(end.ledger))
    }
    for marker in late:
        if any(part[0] in sealed for part in marker.ranges):
            raise SnapshotExpired(
                f"messages of {topic} that were open have been committed and moved while they "
                "were read",
                hint="read again",
                topic=topic,
            )


def _large(
    state: Buffer,
    position: PreviewPosition,
    unmarked: UnmarkedRows,
    through_lsn: int | None,
    only: TxnId | None,
) -> list[int]:
    """Ledgers of large messages after a position that no marker makes visible, in append order."""
    large_ledgers = [
        (large.lsn, ledger)
        for ledger, large in state.chunked.items()
        if (large.lsn, large.index) > (position.lsn, position.txn_index)
        and (through_lsn is None or large.lsn <= through_lsn)
        and (only is None or only == TxnId(large.coordinator, large.sequence))
        and any(unmarked.stretches(ledger, 0, 1))
    ]
    return [ledger for _, ledger in sorted(large_ledgers)]


def _small(
    view: View,
    state: Buffer,
    position: PreviewPosition,
    unmarked: UnmarkedRows,
    limit: int,
    through: tuple[int, int],
    only: TxnId | None,
) -> Iterator[tuple[pa.Table, PreviewPosition]]:
    """Batches of the other rows after a position, each with the position after it."""
    ends = [end for end in state.ledgers if end.ledger not in state.chunked]
    order = [end.ledger for end in ends]  # the order of appending, not of ids
    first = order.index(position.ledger) if position.ledger in order else 0
    size, at_once = 0, min(PREVIEW_ROWS, limit)
    for end in ends[first:]:
        refs = view.files.of(end.ledger)
        stop = refs[0].rows if end.sealed else end.entries
        start = position.row if end.ledger == position.ledger and not end.sealed else 0
        while start < stop:
            spans = _spans(unmarked.stretches(end.ledger, start, stop), at_once)
            if not spans:
                break
            start, at_once = spans[-1][1], min(PREVIEW_ROWS, 2 * at_once)
            read = pa.concat_tables(view.rows([(end.ledger, *span) for span in spans], _READ))
            rows = _wanted(read, rows_of(spans), position, through, only).slice(0, limit)
            if rows.num_rows:
                last = rows.slice(rows.num_rows - 1).to_pylist()[0]
                position = PreviewPosition(
                    last["lsn"], last["txn_index"], end.ledger, last["row"] + 1
                )
                limit -= rows.num_rows
                size += rows.nbytes
                yield rows, position
            if limit <= 0 or size > RECEIVE_BYTES_MAX:
                return
            newest = pc.max(read.column("lsn")).as_py() or 0
            if newest > through[0]:
                return  # later rows have a higher LSN


def _spans(stretches: Iterable[Stretch], count: int) -> list[Stretch]:
    """About `count` rows, from the first on."""
    spans: list[Stretch] = []
    for low, high in stretches:
        spans.append((low, min(high, low + count)))
        count -= spans[-1][1] - low
        if count <= 0:
            break
    return spans


def _wanted(
    rows: pa.Table,
    numbers: pa.Array,
    position: PreviewPosition,
    through: tuple[int, int],
    only: TxnId | None,
) -> pa.Table:
    """Data rows after a position up to an LSN and index, with their row numbers."""
    rows = rows.append_column("row", numbers)
    lsn = rows.column("lsn")
    here = pa.scalar(position.lsn, pa.int64())
    is_after = pc.or_(
        pc.greater(lsn, here),
        pc.and_(
            pc.equal(lsn, here),
            pc.greater(rows.column("txn_index"), pa.scalar(position.txn_index, pa.int32())),
        ),
    )
    keep = pc.and_kleene(pc.equal(rows.column("kind"), _KIND), is_after)
    if through != _END:
        last = pa.scalar(through[0], pa.int64())
        within = pc.or_(
            pc.less(lsn, last),
            pc.and_(
                pc.equal(lsn, last),
                pc.less_equal(rows.column("txn_index"), pa.scalar(through[1], pa.int32())),
            ),
        )
        keep = pc.and_kleene(keep, within)
    if only is not None:
        for name, half in (("txn_most", only.most), ("txn_least", only.least)):
            keep = pc.and_kleene(keep, pc.equal(rows.column(name), pa.scalar(half, pa.int64())))
    return rows.filter(keep)


def _received(
    state: Buffer, rows: pa.Table, topic: str, partition_number: int, late: list[Marker]
) -> pa.Table:
    since = {
        (marker.coordinator, marker.sequence) for marker in late
    }  # committed later, so it was open
    pairs = zip(
        rows.column("txn_most").to_pylist(), rows.column("txn_least").to_pylist(), strict=True
    )
    names: dict[tuple[int, int], str] = {}
    states: list[str] = []
    for pair in pairs:
        if pair not in names:
            txn = TxnId.from_halves(*pair)
            messages = buffer.find_held(state, txn.coordinator, txn.sequence)
            was_open = messages is not None or (txn.coordinator, txn.sequence) in since
            names[pair] = "open" if was_open else "aborted"
        states.append(names[pair])
    total = rows.num_rows
    extra = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), total),
        "partition": pa.repeat(pa.scalar(partition_number, pa.int32()), total),
        "index": rows.column("txn_index"),
        "txn_state": pa.array(states, pa.string()),
    }
    columns = [
        extra[field.name]
        if field.name in extra
        else rows.column(field.name)
        if field.name in _READ
        else pa.nulls(total, field.type)
        for field in dispatch.RECEIVED
    ]
    return pa.Table.from_arrays(columns, schema=dispatch.RECEIVED)
