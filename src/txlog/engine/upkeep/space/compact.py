"""Compacting sidecars: rewriting closed ledgers as sealed ones in commit order, without dead rows.

    1 choose    closed ledgers with dead rows, or that an open transaction keeps from being sealed
    2 build     rows with a marker in the order (marker, index), then rows of unfinished
                transactions in the old order; aborted and trimmed rows are left out
    3 publish   under a ledger id that a frame reserved, read back and compared
    4 switch    one frame, checked again under the write lock; nothing names the old files then

Message ids, order and cursors do not change. A crash before the frame leaves a file that nothing
names, a crash after it files that nothing needs. The sweep removes both. The caller holds the
maintenance lock.
Source: spec/transactions 12, R17, R18.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import pyarrow as pa

from txlog.base.ids import txn_halves
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.topics import ledgers
from txlog.engine.decide.topics.ledgers import RowMove, SidecarReplacement
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.buffer import Buffer, Marker, SidecarLedger, moved_row
from txlog.engine.folds.catalog import topic_of
from txlog.engine.model.ops import Compacted
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE, conform
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.records import records_for
from txlog.engine.storage.manifest import generations
from txlog.engine.storage.segment import FileRef, encode_sealed, make_ref
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.view import View, ledger_dir, sealed_path
from txlog.errors import Corruption

# (sealed files, other rows, PLACES) -> (the rows of PLACES in its order, how many rows are data)
Arrange = Callable[[Sequence[FileRef], pa.Table, pa.Table], tuple[pa.Table, int]]
PLACES = pa.schema(
    [
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("at", pa.int64()),
    ]
)


@dataclass(slots=True)
class CompactReport:
    """The counts of a compaction of sidecars, or of a dry run."""

    transactions: int = 0
    messages: int = 0
    aborted_dropped: int = 0
    size_before_bytes: int = 0
    size_after_bytes: int = 0
    ledgers_before: int = 0
    ledgers_after: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _TxnRows:
    """Rows of one transaction in one old ledger; marker None: it has not ended."""

    ledger: int
    row: int
    rows: int
    index: int
    txn: tuple[int, int]
    number: int = 0  # the partition ledger of the marker
    marker: Marker | None = None


def roll_open(store: Store, numbers: list[int]) -> None:
    """Close the open ledgers of sidecars with dead rows, so that a compaction can drop these."""

    def decide(view: View, now: Instant) -> Decision[None]:
        return ledgers.roll_dead(view, numbers, Draft(view, store.settings, now.wall_ms))

    store.write(decide)


def compact_sidecars(
    store: Store,
    numbers: Collection[int],
    report: CompactReport,
    *,
    ratio: float | None = None,
    arrange: Arrange | None = None,
) -> bool:
    """Compact the sidecars of partitions, by store-wide number; returns whether files changed.

    ratio:   only ledgers with at least this share of dead bytes, or without live rows; None: every
             ledger that gets smaller, or that can then be sealed
    arrange: a function that reads and sorts instead of this process; its rows are checked
    """
    changed = False
    closed = store.read(partial(_with_closed, numbers))
    if not closed:
        return False  # skip opening a second view, which reads the journal
    view = _view_of(store)
    try:
        for number in closed:
            if number in view.catalog.unavailable:
                continue  # a command has refused it before
            changed = _drop_dead(store, view, number, ratio, report) or changed
            candidates = _wanted(view, number, ratio)
            for group in _groups(view, number, candidates, store.settings.ledger_bytes_max):
                changed = _compact_group(store, view, number, group, report, arrange) or changed
        return changed
    finally:
        view.close()


def _with_closed(numbers: Collection[int], view: View) -> list[int]:
    """The partitions whose sidecar has a closed ledger; only these are compacted."""
    away = view.catalog.unavailable
    return [
        number for number in numbers if number not in away and len(view.buffer(number).ledgers) > 1
    ]


def _drop_dead(
    store: Store, view: View, number: int, ratio: float | None, report: CompactReport
) -> bool:
    """Drop ledgers without live rows; this needs no file."""
    live = buffers.live_rows(view.buffer(number))
    dead = [end for end in _wanted(view, number, ratio) if not live.get(end.ledger)]
    if not dead:
        return False
    chunked = view.buffer(number).chunked
    report.aborted_dropped += sum(
        1 if end.ledger in chunked else _data_rows(_stored(view, end)) for end in dead
    )
    dropped = store.write(lambda now_live, now: ledgers.drop_dead(now_live, number))
    view.take(view.journal.read_durable())
    return bool(dropped)


def plan_compaction(store: Store, number: int, report: CompactReport) -> None:
    """Fill in the report of a compaction of one partition's sidecar; writes nothing."""
    view = _view_of(store)
    try:
        ends = view.buffer(number).ledgers
        candidates = _wanted(view, number, None)
        candidates += [end for end in ends[-1:] if end.dead_bytes]
        bytes_before = sidecar_bytes(view, number)
        report.size_before_bytes += bytes_before
        report.ledgers_before += len(ends)
        bytes_after, ledgers_after = bytes_before, len(ends)
        for end in candidates:
            if end.ledger in view.buffer(number).chunked:
                bytes_after -= sum(ref.bytes for ref in view.files.of(end.ledger))
                ledgers_after -= 1
                report.aborted_dropped += 1
        for group in _groups(view, number, candidates, store.settings.ledger_bytes_max):
            table, _ = _built(view, number, group, report)
            bytes_after -= sum(ref.bytes for end in group for ref in view.files.of(end.ledger))
            ledgers_after -= len(group)
            if table.num_rows:
                records = records_for(topic_of(view.catalog, number))
                data = encode_sealed(table, has_keys=_has_keys(table), records=records)
                bytes_after += sum(map(len, data))
                ledgers_after += 1
        report.size_after_bytes += bytes_after
        report.ledgers_after += ledgers_after + any(end is ends[-1] for end in candidates)
    finally:
        view.close()


def sidecar_bytes(view: View, number: int) -> int:
    """Bytes of the files of a partition's sidecar."""
    ends = view.buffer(number).ledgers
    return sum(ref.bytes for end in ends for ref in view.files.of(end.ledger))


def _view_of(store: Store) -> View:
    view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
    view.take(view.journal.read_durable())
    return view


def _wanted(view: View, number: int, ratio: float | None) -> list[SidecarLedger]:
    """The closed ledgers of a sidecar that are worth compacting; ratio: as in compact_sidecars."""
    state = view.buffer(number)
    closed = state.ledgers[:-1]
    live = buffers.live_rows(state) if closed else {}
    out = []
    for end in closed:
        if not live.get(end.ledger):
            out.append(end)
        elif end.ledger in state.chunked:
            continue  # a large message is dropped as a whole, or stays unchanged
        elif ratio is not None:
            if end.dead_bytes and end.dead_bytes >= ratio * end.payload_bytes:
                out.append(end)
        elif not end.sealed:
            out.append(end)
        else:
            file = view.files.of(end.ledger)[0]
            if file.rows != live[end.ledger] or not (file.clean or end.open_txns):
                out.append(end)
    return out


def _groups(
    view: View, number: int, candidates: list[SidecarLedger], bytes_max: int
) -> Iterator[list[SidecarLedger]]:
    """The ledgers in groups; each group becomes one ledger of at most the usual size.

    Only neighbours: rows without a marker are read in the order of their ledgers. Ledgers of large
    messages are read separately, so their place does not matter.
    """
    state = view.buffer(number)
    ends = [end.ledger for end in state.ledgers if end.ledger not in state.chunked]
    order = {ledger: at for at, ledger in enumerate(ends)}
    group: list[SidecarLedger] = []
    size = 0
    for end in candidates:
        if end.ledger in state.chunked:
            continue
        live = end.payload_bytes - end.dead_bytes
        is_next = bool(group) and order[end.ledger] == order[group[-1].ledger] + 1
        if group and (size + live > bytes_max or not is_next):
            yield group
            group, size = [], 0
        group.append(end)
        size += live
    if group:
        yield group


def _compact_group(
    store: Store,
    view: View,
    number: int,
    group: list[SidecarLedger],
    report: CompactReport,
    arrange: Arrange | None,
) -> bool:
    """Make one new ledger of a group; False if it changed meanwhile or has no live rows."""
    table, places = _built(view, number, group, report, arrange)
    if not table.num_rows:
        return False
    ledger = store.write(lambda live, now: ledgers.reserve_ledger(live, number))
    if not ledger:
        return False
    records = records_for(topic_of(view.catalog, number))
    data = encode_sealed(table, has_keys=_has_keys(table), records=records)
    generation = max([view.manifest.generation, *generations(store.disk)])
    path = sealed_path(ledger_dir(view.catalog, number, "s"), ledger, generation)
    clean = all(span.marker is not None for span in places)
    ref = make_ref(path, ledger, data, table, form="sealed", clean=clean, records=records)
    store.disk.publish(path, data)
    compare_rows(store, ref, [table], records=records)
    old = [(end.ledger, end.sealed) for end in group]
    size = _payload_bytes(view.buffer(number), {end.ledger for end in group})
    replacement = SidecarReplacement(number, old, ref, size, list(_moved(places)))
    if store.write(lambda live, now: ledgers.switch_sidecar(live, replacement)):
        return True
    store.disk.unlink(path)
    return False


def _has_keys(table: pa.Table) -> bool:
    return bool(table.column("key").null_count < table.num_rows)


def _payload_bytes(state: Buffer, ledgers: set[int]) -> int:
    return sum(
        buffers.bytes_in(txn, ledger)
        for txn in buffers.transactions(state)
        for ledger in {part[0] for part in txn.ranges} & ledgers
    )


def _built(
    view: View,
    number: int,
    group: list[SidecarLedger],
    report: CompactReport,
    arrange: Arrange | None = None,
) -> tuple[pa.Table, list[_TxnRows]]:
    """The rows of the new ledger, and their old places, in the same order."""
    places = list(_places(view.buffer(number), {end.ledger for end in group}))
    if arrange is None:
        tables = {end.ledger: _stored(view, end) for end in group}
        data = sum(_data_rows(table) for table in tables.values())
        pieces = [tables[ledger].slice(row, rows) for ledger, row, rows, _ in _moved(places)]
        rows = pa.concat_tables([MESSAGE.empty_table(), *pieces])
    else:
        sealed = [view.files.of(end.ledger)[0] for end in group if end.sealed]
        other = [_stored(view, end) for end in group if not end.sealed]
        other_rows = pa.concat_tables([MESSAGE.empty_table(), *other])
        rows, data = arrange(sealed, other_rows, _place_table(places))
    report.aborted_dropped += data - sum(span.rows for span in places)
    for span in places:
        if span.marker is not None:
            report.messages += span.rows
            report._seen.add((span.marker.coordinator, span.marker.sequence))
    report.transactions = len(report._seen)
    return _marked(rows, places), places


def moved_rows(view: View, op: Compacted) -> pa.Table:
    """Build the rows of a compaction's file again, in a view from before its frame.

    The op has the new places of the rows; the state has their markers, including markers written
    while the file was made. Rows that became dead meanwhile stay, without a marker.
    raises: Corruption, when one of the old ledgers cannot be read either
    """
    state = view.buffer(op.partition)
    tables = {end.ledger: _stored(view, end) for end in state.ledgers if end.ledger in op.old}
    order = sorted(op.moved, key=lambda move: move[3])
    pieces = [tables[ledger].slice(row, rows) for ledger, row, rows, _ in order]
    table = pa.concat_tables([MESSAGE.empty_table(), *pieces])
    moves: dict[int, list[tuple[int, int, int]]] = {ledger: [] for ledger in op.old}
    for ledger, row, rows, new_row in sorted(op.moved):
        moves[ledger].append((row, rows, new_row))
    moved = [
        (at, span)
        for span in _places(state, set(op.old))
        if (at := moved_row(moves[span.ledger], span.row, span.rows)) is not None
    ]
    ends: list[int] = []
    marks: list[tuple[int, Marker | None]] = []
    for at, span in sorted(moved, key=lambda pair: pair[0]):
        if at > (ends[-1] if ends else 0):
            ends.append(at)
            marks.append((0, None))
        ends.append(at + span.rows)
        marks.append((span.number, span.marker))
    if table.num_rows > (ends[-1] if ends else 0):
        ends.append(table.num_rows)
        marks.append((0, None))
    return _said(table, ends, marks)


def _place_table(places: list[_TxnRows]) -> pa.Table:
    """The new places of the messages of transactions, by their indexes, as PLACES."""
    starts = accumulate((span.rows for span in places), initial=0)
    rows = [
        (*txn_halves(*span.txn), span.index, span.index + span.rows - 1, at)
        for span, at in zip(places, starts, strict=False)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(PLACES)
    arrays = [pa.array(values, pa.int64()) for values in columns]
    return pa.Table.from_arrays(arrays, schema=PLACES)


def _stored(view: View, end: SidecarLedger) -> pa.Table:
    rows = view.files.of(end.ledger)[0].rows if end.sealed else end.entries
    return view.ledger_table(end.ledger, 0, rows)


def _data_rows(table: pa.Table) -> int:
    return int(pc.sum(pc.equal(table.column("kind"), KIND_DATA)).as_py() or 0)


def _places(state: Buffer, ledgers: set[int]) -> Iterator[_TxnRows]:
    """The live rows of the old ledgers, in their order in the new ledger."""
    for number in sorted(state.markers):
        for marker in state.markers[number]:
            txn = (marker.coordinator, marker.sequence)
            for ledger, row, rows, index in marker.ranges:
                if ledger in ledgers:
                    yield _TxnRows(ledger, row, rows, index, txn, number, marker)
    order = {end.ledger: at for at, end in enumerate(state.ledgers)}
    unfinished = [
        _TxnRows(ledger, row, rows, index, (coordinator, sequence))
        for coordinator, by_sequence in state.held.items()
        for sequence, messages in by_sequence.items()
        for ledger, row, rows, index in messages.ranges
        if ledger in ledgers
    ]
    yield from sorted(unfinished, key=lambda span: (order[span.ledger], span.row))


def _moved(places: Iterable[_TxnRows]) -> Iterator[RowMove]:
    """The new places of rows, in as few pieces as possible."""
    at = 0
    last: RowMove | None = None
    for span in places:
        if last is not None and (last[0], last[1] + last[2]) == (span.ledger, span.row):
            last = (last[0], last[1], last[2] + span.rows, last[3])
        else:
            if last is not None:
                yield last
            last = (span.ledger, span.row, span.rows, at)
        at += span.rows
    if last is not None:
        yield last


def _check_rows(rows: pa.Table, places: list[_TxnRows], ends: list[int]) -> None:
    """R17: check that every row has the transaction and index of its place."""
    halves = [txn_halves(*span.txn) for span in places]
    starts = [span.index - end + span.rows for span, end in zip(places, ends, strict=True)]
    index = pc.add(pa.arange(0, ends[-1]), repeat_runs(starts, ends, pa.int64()))
    expected = {
        "kind": pa.repeat(pa.scalar(KIND_DATA, pa.int8()), ends[-1]),
        "txn_most": repeat_runs([most for most, _ in halves], ends, pa.int64()),
        "txn_least": repeat_runs([least for _, least in halves], ends, pa.int64()),
        "txn_index": index.cast(pa.int32()),
    }
    for name, column in expected.items():
        if rows.num_rows != ends[-1] or not rows.column(name).equals(pa.chunked_array([column])):
            raise Corruption(
                f"a sidecar does not hold the rows that its transactions point at ({name})",
                hint="restore the files of the partition from a copy of the store",
                code=604,
            )


def _marked(rows: pa.Table, places: list[_TxnRows]) -> pa.Table:
    """The rows of the places with the columns of their markers, as in a clean file."""
    if not places:
        return MESSAGE.empty_table()
    ends = list(accumulate(span.rows for span in places))
    _check_rows(rows, places, ends)
    return _said(rows, ends, [(p.number, p.marker) for p in places])


def _said(rows: pa.Table, ends: list[int], marks: list[tuple[int, Marker | None]]) -> pa.Table:
    """The rows with the columns of the markers of their runs."""
    for name, values, kind in (
        ("marker_ledger", [n if m is not None else None for n, m in marks], pa.int64()),
        ("marker_entry", [m.entry if m is not None else None for _, m in marks], pa.int64()),
        ("visible_time", [m.time_ms if m is not None else None for _, m in marks], INSTANT),
        ("lsn", [m.lsn if m is not None else None for _, m in marks], pa.int64()),
    ):
        at = rows.schema.get_field_index(name)
        column = repeat_runs(values, ends, kind)
        if name == "lsn":  # a row without a marker keeps the LSN of its frame
            column = pc.coalesce(column, rows.column(at))
        rows = rows.set_column(at, name, column)
    return conform(rows)
