"""Compacting sidecars: closed ledgers become sealed ones in commit order, without dead rows.

    1 choose    closed ledgers with dead rows, or that an open transaction keeps from being sealed
    2 build     rows with a marker in the order (marker, index), then those of unfinished
                transactions as they stood; aborted and trimmed ones are left out
    3 publish   under a ledger id that a frame reserved, read back and compared
    4 switch    one frame, checked again under the write lock; the old files lose their names

Message ids, order and cursors do not change. A crash before the frame leaves a file that nothing
names, one after it files that nothing needs: both are swept. The caller holds the maintenance lock.
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
from txlog.engine.decide.topics import sidecar
from txlog.engine.decide.topics.sidecar import RowMove, Switch
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.buffer import Buffer, Marker, SidecarLedger
from txlog.engine.folds.catalog import topic_of
from txlog.engine.model.ops import Compacted
from txlog.engine.model.ranges import moved_row
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE, conform
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.records import records_for
from txlog.engine.storage.manifest import generations
from txlog.engine.storage.segment import FileRef, encode_sealed, make_ref
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.view.paths import ledger_dir, sealed_path
from txlog.engine.view.view import View
from txlog.errors import Corruption

# Where rows of sealed files and other rows go: (columns of PLACES) -> them in that order, and how
# many data rows there were at all.
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
    """What a compaction did, or would do."""

    transactions: int = 0
    messages: int = 0
    aborted_dropped: int = 0
    size_before_bytes: int = 0
    size_after_bytes: int = 0
    ledgers_before: int = 0
    ledgers_after: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows of one transaction in one old ledger; marker None: it has not ended."""

    ledger: int
    row: int
    rows: int
    index: int
    txn: tuple[int, int]
    number: int = 0  # the partition ledger of the marker
    marker: Marker | None = None


def roll_open(store: Store, numbers: list[int]) -> None:
    """Close the open ledgers of sidecars that hold dead rows, so that these can go."""

    def decide(view: View, now: Instant) -> Decision[None]:
        return sidecar.roll_dead(view, numbers, Draft(view, store.settings, now.wall_ms))

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

    arrange: what reads and sorts, if not this process; the rows are checked against the state
    ratio: only ledgers with at least this share of dead bytes; None: every one that gains from it
    """
    changed = False
    closed = store.read(partial(_with_closed, numbers))
    if not closed:
        return False  # a view of its own reads the journal
    view = _view_of(store)
    try:
        for number in closed:
            if number in view.catalog.unavailable:
                continue  # by command it was refused before
            changed = _drop_dead(store, view, number, ratio, report) or changed
            wanted = _wanted(view, number, ratio)
            for group in _groups(view, number, wanted, store.settings.ledger_bytes_max):
                changed = _compact_group(store, view, number, group, report, arrange) or changed
        return changed
    finally:
        view.close()


def _with_closed(numbers: Collection[int], view: View) -> list[int]:
    """Those whose sidecar has a closed ledger: no other is compacted."""
    away = view.catalog.unavailable
    return [one for one in numbers if one not in away and len(view.buffer(one).ledgers) > 1]


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
    dropped = store.write(lambda now_live, now: sidecar.drop_dead(now_live, number))
    view.take(view.journal.read_durable())
    return bool(dropped)


def plan_compaction(store: Store, number: int, report: CompactReport) -> None:
    """Work out what a compaction of the sidecar would do; nothing is written."""
    view = _view_of(store)
    try:
        ends = view.buffer(number).ledgers
        wanted = _wanted(view, number, None)
        wanted += [end for end in ends[-1:] if end.dead_bytes]
        before = sidecar_bytes(view, number)
        report.size_before_bytes += before
        report.ledgers_before += len(ends)
        after, left = before, len(ends)
        for end in wanted:
            if end.ledger in view.buffer(number).chunked:
                after -= sum(ref.bytes for ref in view.files.of(end.ledger))
                left -= 1
                report.aborted_dropped += 1
        for group in _groups(view, number, wanted, store.settings.ledger_bytes_max):
            table, _ = _built(view, number, group, report)
            after -= sum(ref.bytes for end in group for ref in view.files.of(end.ledger))
            left -= len(group)
            if table.num_rows:
                records = records_for(topic_of(view.catalog, number))
                data = encode_sealed(table, has_keys=_has_keys(table), records=records)
                after += sum(map(len, data))
                left += 1
        report.size_after_bytes += after
        report.ledgers_after += left + any(end is ends[-1] for end in wanted)
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
    """The closed ledgers of a sidecar that are worth compacting."""
    state = view.buffer(number)
    closed = state.ledgers[:-1]
    live = buffers.live_rows(state) if closed else {}
    out = []
    for end in closed:
        if not live.get(end.ledger):
            out.append(end)
        elif end.ledger in state.chunked:
            continue  # a large message is dropped as a whole, or stays as it is
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
    view: View, number: int, wanted: list[SidecarLedger], bytes_max: int
) -> Iterator[list[SidecarLedger]]:
    """The ledgers in groups, each of which becomes one ledger of no more than the usual size.

    Only neighbours: rows without a marker are read in the order of their ledgers. Those of large
    messages are read on their own, so their place does not matter.
    """
    state = view.buffer(number)
    ends = [end.ledger for end in state.ledgers if end.ledger not in state.chunked]
    order = {ledger: at for at, ledger in enumerate(ends)}
    group: list[SidecarLedger] = []
    size = 0
    for end in wanted:
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
    """Make one new ledger of some; False if they changed meanwhile or have no live rows."""
    table, places = _built(view, number, group, report, arrange)
    if not table.num_rows:
        return False
    ledger = store.write(lambda live, now: sidecar.reserve_ledger(live, number))
    if not ledger:
        return False
    records = records_for(topic_of(view.catalog, number))
    data = encode_sealed(table, has_keys=_has_keys(table), records=records)
    generation = max([view.manifest.generation, *generations(store.disk)])
    path = sealed_path(ledger_dir(view.catalog, number, "s"), ledger, generation)
    clean = all(place.marker is not None for place in places)
    ref = make_ref(path, ledger, data, table, form="sealed", clean=clean, records=records)
    store.disk.publish(path, data)
    compare_rows(store, ref, [table], records=records)
    old = [(end.ledger, end.sealed) for end in group]
    size = _payload_bytes(view.buffer(number), {end.ledger for end in group})
    made = Switch(number, old, ref, size, list(_moved(places)))
    if store.write(lambda live, now: sidecar.switch(live, made)):
        return True
    store.disk.unlink(path)
    return False


def _has_keys(table: pa.Table) -> bool:
    return bool(table.column("key").null_count < table.num_rows)


def _payload_bytes(state: Buffer, ledgers: set[int]) -> int:
    return sum(
        buffers.bytes_in(one, ledger)
        for one in buffers.transactions(state)
        for ledger in {part[0] for part in one.ranges} & ledgers
    )


def _built(
    view: View,
    number: int,
    group: list[SidecarLedger],
    report: CompactReport,
    arrange: Arrange | None = None,
) -> tuple[pa.Table, list[_Place]]:
    """The rows of the new ledger, and where each came from, in the same order."""
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
    report.aborted_dropped += data - sum(place.rows for place in places)
    for place in places:
        if place.marker is not None:
            report.messages += place.rows
            report._seen.add((place.marker.coordinator, place.marker.sequence))
    report.transactions = len(report._seen)
    return _marked(rows, places), places


def moved_rows(view: View, op: Compacted) -> pa.Table:
    """The rows of a compaction's file once more, in a view where its frame is yet to come.

    The op says where they went; the state says of which marker they are, and knows those written
    while the file was made, too. Rows that died meanwhile stay, without a marker.
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
    found = [
        (at, place)
        for place in _places(state, set(op.old))
        if (at := moved_row(moves[place.ledger], place.row, place.rows)) is not None
    ]
    ends: list[int] = []
    said: list[tuple[int, Marker | None]] = []
    for at, place in sorted(found, key=lambda one: one[0]):
        if at > (ends[-1] if ends else 0):
            ends.append(at)
            said.append((0, None))
        ends.append(at + place.rows)
        said.append((place.number, place.marker))
    if table.num_rows > (ends[-1] if ends else 0):
        ends.append(table.num_rows)
        said.append((0, None))
    return _said(table, ends, said)


def _place_table(places: list[_Place]) -> pa.Table:
    """Where the messages of transactions go, by their indexes."""
    starts = accumulate((place.rows for place in places), initial=0)
    rows = [
        (*txn_halves(*place.txn), place.index, place.index + place.rows - 1, at)
        for place, at in zip(places, starts, strict=False)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(PLACES)
    arrays = [pa.array(values, pa.int64()) for values in columns]
    return pa.Table.from_arrays(arrays, schema=PLACES)


def _stored(view: View, end: SidecarLedger) -> pa.Table:
    rows = view.files.of(end.ledger)[0].rows if end.sealed else end.entries
    return view.ledger_table(end.ledger, 0, rows)


def _data_rows(table: pa.Table) -> int:
    return int(pc.sum(pc.equal(table.column("kind"), KIND_DATA)).as_py() or 0)


def _places(state: Buffer, ledgers: set[int]) -> Iterator[_Place]:
    """Live rows of these ledgers in the order of the new one."""
    for number in sorted(state.markers):
        for marker in state.markers[number]:
            txn = (marker.coordinator, marker.sequence)
            for ledger, row, rows, index in marker.ranges:
                if ledger in ledgers:
                    yield _Place(ledger, row, rows, index, txn, number, marker)
    order = {end.ledger: at for at, end in enumerate(state.ledgers)}
    held = [
        _Place(ledger, row, rows, index, (coordinator, sequence))
        for coordinator, by_sequence in state.held.items()
        for sequence, one in by_sequence.items()
        for ledger, row, rows, index in one.ranges
        if ledger in ledgers
    ]
    yield from sorted(held, key=lambda place: (order[place.ledger], place.row))


def _moved(places: Iterable[_Place]) -> Iterator[RowMove]:
    """Where rows went, in as few pieces as possible."""
    at = 0
    last: RowMove | None = None
    for place in places:
        if last is not None and (last[0], last[1] + last[2]) == (place.ledger, place.row):
            last = (last[0], last[1], last[2] + place.rows, last[3])
        else:
            if last is not None:
                yield last
            last = (place.ledger, place.row, place.rows, at)
        at += place.rows
    if last is not None:
        yield last


def _check_rows(rows: pa.Table, places: list[_Place], ends: list[int]) -> None:
    """R17: every row is the message of the transaction and index that we take it for."""
    halves = [txn_halves(*place.txn) for place in places]
    starts = [place.index - end + place.rows for place, end in zip(places, ends, strict=True)]
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


def _marked(rows: pa.Table, places: list[_Place]) -> pa.Table:
    """The rows of the places with what their markers say, as a clean file has it."""
    if not places:
        return MESSAGE.empty_table()
    ends = list(accumulate(place.rows for place in places))
    _check_rows(rows, places, ends)
    return _said(rows, ends, [(p.number, p.marker) for p in places])


def _said(rows: pa.Table, ends: list[int], said: list[tuple[int, Marker | None]]) -> pa.Table:
    """The rows with what the markers of their runs say."""
    for name, values, kind in (
        ("marker_ledger", [n if m is not None else None for n, m in said], pa.int64()),
        ("marker_entry", [m.entry if m is not None else None for _, m in said], pa.int64()),
        ("visible_time", [m.time_ms if m is not None else None for _, m in said], INSTANT),
        ("lsn", [m.lsn if m is not None else None for _, m in said], pa.int64()),
    ):
        at = rows.schema.get_field_index(name)
        column = repeat_runs(values, ends, kind)
        if name == "lsn":  # a row without a marker keeps that of its frame
            column = pc.coalesce(column, rows.column(at))
        rows = rows.set_column(at, name, column)
    return conform(rows)
