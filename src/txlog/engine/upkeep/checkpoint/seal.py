"""Sealing: a closed ledger whose rows are all in parts becomes one Parquet file.

A partition's ledger is sealed unchanged. A sidecar's ledger waits until no open transaction has
rows in it; its file is then *clean*: committed rows only, in the order (marker, index), with the
marker and the visible time stored in each row. The frame LedgerSealed puts the file to use (R17).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.decide.topics import ledgers
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import topic_of
from txlog.engine.model.ops import LedgerSealed
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE, conform
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.damage import first_bad_row
from txlog.engine.plan.records import records_for
from txlog.engine.storage.disk.protocol import Stream
from txlog.engine.storage.manifest import Manifest, generations
from txlog.engine.storage.segment import GROUP_ROWS, FileRef, Records, SegmentStream, piece_rows
from txlog.engine.storage.segment_reader import SegmentReader, take_spans
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.quarantine import record_damage
from txlog.engine.view import View, ledger_dir, sealed_path
from txlog.errors import Corruption

if TYPE_CHECKING:
    from txlog.engine.storage.segment_reader import Span


def sealable(manifest: Manifest, view: View) -> list[tuple[int, str, int, int]]:
    """(partition, role, ledger, entries) of closed ledgers whose rows are all in parts.

    cost: a check of each ledger's number, and the folds of partitions with a closed ledger
    """
    out: list[tuple[int, str, int, int]] = []
    owners = view.catalog.owners
    newest: dict[tuple[int, str], int] = {}  # the open ledger is the newest, if there is one
    for ledger, owner in owners.items():
        newest[owner] = max(ledger, newest.get(owner, 0))
    parts = {
        ledger
        for ledger, refs in manifest.files.items()
        if refs[0].form == "part" and ledger in owners and ledger < newest[owners[ledger]]
    }
    for ledger in sorted(parts):
        partition, role = owners[ledger]
        if partition in view.catalog.unavailable:
            continue  # it is offline or quarantined
        state = view.topic(partition) if role == "p" else view.buffer(partition)
        for end in state.ledgers[:-1]:
            if end.ledger != ledger or end.sealed:
                continue
            waits = role == "s" and isinstance(end, buffers.SidecarLedger) and end.open_txns
            stored = sum(ref.rows for ref in manifest.files[ledger])
            if not waits and stored == end.entries:
                out.append((partition, role, ledger, end.entries))
    return out


def seal_ledgers(store: Store, manifest: Manifest) -> int:
    """Seal what can be sealed; returns how many ledgers. The caller holds the maintenance lock."""
    if not store.read(partial(sealable, manifest)):
        return 0  # skip opening a second view, which reads the journal
    view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
    try:
        view.take(view.journal.read_durable())
        work = sealable(manifest, view)
        number = max([manifest.generation, *generations(store.disk)])
        sealed = 0
        for partition, role, ledger, entries in work:
            try:
                sealed += _seal(store, view, number, partition, role, ledger, entries)
                view.files.close()  # the cache of open parts is as large as the parts
            except Corruption as error:
                row = first_bad_row(view, ledger)
                if row is None:
                    raise  # not a file of the ledger: nothing to quarantine
                record_damage(store, partition, ledger, row)
                store.reports.append(f"ledger {ledger} cannot be sealed: {error}")
        return sealed
    finally:
        view.close()


def _seal(
    store: Store, view: View, number: int, partition: int, role: str, ledger: int, entries: int
) -> bool:
    """Seal one ledger; False when it was trimmed meanwhile."""

    def pieces() -> Iterator[pa.Table]:
        return rows_in_pieces(view, partition, role, ledger, entries)

    in_rows = ledger if role == "p" else None
    directory = ledger_dir(view.catalog, partition, role)
    path = sealed_path(directory, ledger, number)
    while store.disk.exists(path):  # left by a process that died before its frame
        number += 1
        path = sealed_path(directory, ledger, number)
    records = records_for(topic_of(view.catalog, partition))
    segment = SegmentStream(records)
    with store.disk.publishing(
        path, Stream(segment.sealed(pieces(), _distinct_keys(pieces()), ledger=in_rows))
    ):
        pass
    ref = segment.ref(path, ledger, clean=role == "s")
    compare_rows(store, ref, pieces(), in_rows, records)
    op = LedgerSealed(partition, role, ref)
    if store.write(lambda live, now: ledgers.seal(live, op)):
        return True
    store.disk.unlink(path)
    return False


def rows_in_pieces(
    view: View, partition: int, role: str, ledger: int, entries: int
) -> Iterator[pa.Table]:
    """The rows of a ledger in the form of its sealed file, about GROUP_BYTES at a time."""
    step = piece_rows(entries, sum(ref.bytes for ref in view.files.of(ledger)))
    if role == "s":
        yield from _clean_pieces(view, partition, ledger, step)
        return
    for start in range(0, entries, step):
        yield view.ledger_table(ledger, start, min(start + step, entries))


def _distinct_keys(pieces: Iterable[pa.Table]) -> int:
    """The number of distinct keys, up to the limit that a bloom filter needs."""
    keys: pa.Array | None = None
    for piece in pieces:
        keys_of_piece = pc.unique(piece.column("key")).drop_null()
        if keys is not None:
            keys_of_piece = pc.unique(pa.chunked_array([keys, keys_of_piece], keys_of_piece.type))
        keys = keys_of_piece
        if len(keys) >= GROUP_ROWS:
            break
    return 0 if keys is None else min(len(keys), GROUP_ROWS)


def clean_rows(view: View, partition: int, ledger: int) -> pa.Table:
    """The committed rows of a sidecar ledger in the order (marker, index), markers in the row."""
    return pa.concat_tables([MESSAGE.empty_table(), *_clean_pieces(view, partition, ledger, 0)])


def _clean_pieces(view: View, partition: int, ledger: int, step: int) -> Iterator[pa.Table]:
    """The same in pieces of at most this many rows; 0: in one."""
    spans: list[Span] = []
    markers: list[tuple[int, buffers.Marker]] = []
    total = 0
    state = view.buffer(partition)
    for number in sorted(state.markers):
        for marker in state.markers[number]:
            for where, start, rows, _ in marker.ranges:
                stop = start + rows if where == ledger else start
                while start < stop:
                    end = min(stop, start + step - total) if step else stop
                    spans.append((start, end))
                    markers.append((number, marker))
                    total += end - start
                    start = end
                    if total == step:
                        yield _marked(view, ledger, spans, markers)
                        spans, markers, total = [], [], 0
    if spans:
        yield _marked(view, ledger, spans, markers)


def _picked(view: View, ledger: int, spans: list[Span]) -> pa.Table:
    """The rows of spans of a ledger, in their order; each row group is read once."""
    order = sorted(range(len(spans)), key=spans.__getitem__)
    tables = view.rows([(ledger, *spans[at]) for at in order])
    rows = pa.concat_tables(tables)
    if order == list(range(len(spans))):
        return rows
    begins = [0] * len(spans)
    total = 0
    for at in order:
        begins[at] = total
        total += spans[at][1] - spans[at][0]
    lengths = [stop - start for start, stop in spans]
    return take_spans(rows, [(at, at + length) for at, length in zip(begins, lengths, strict=True)])


def _marked(
    view: View, ledger: int, spans: list[Span], markers: list[tuple[int, buffers.Marker]]
) -> pa.Table:
    """The rows of spans, each with the marker of its span."""
    rows = _picked(view, ledger, spans)
    if pc.any(pc.not_equal(rows.column("kind"), KIND_DATA)).as_py():
        raise Corruption(f"ledger {ledger}: a marker points at rows that are not data", code=604)
    ends = list(accumulate(stop - start for start, stop in spans))
    for name, values, kind in (
        ("marker_ledger", [number for number, _ in markers], pa.int64()),
        ("marker_entry", [marker.entry for _, marker in markers], pa.int64()),
        ("visible_time", [marker.time_ms for _, marker in markers], INSTANT),
        ("lsn", [marker.lsn for _, marker in markers], pa.int64()),
    ):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, repeat_runs(values, ends, kind))
    return conform(rows)


def compare_rows(
    store: Store,
    ref: FileRef,
    pieces: Iterable[pa.Table],
    ledger: int | None = None,
    records: Records | None = None,
) -> None:
    """Read the sealed file back and compare every row with its source (R17).

    pieces:  of the source, each in whole row groups
    ledger:  the value of this column in every row; None: the file lacks the column
    records: for a typed topic, to compare the column `record` as well
    raises:  Corruption
    """
    bounds = None if ledger is None else (ledger, ledger)
    file = store.disk.open(ref.path)
    try:
        reader = SegmentReader(file, ref)
        is_same, number, total = True, 0, 0
        for piece in pieces:
            at = 0
            while is_same and at < piece.num_rows and number < len(ref.groups):
                rows = ref.groups[number][0]  # one by one: not twice the ledger
                read_rows = reader.rows(total + at, total + at + rows)
                is_same &= read_rows.equals(piece.slice(at, rows))
                is_same &= reader.statistics(number, "ledger") == bounds
                if is_same and records is not None:
                    read_records = reader.records(total + at, total + at + rows)
                    is_same = _are_same(read_records, records.of(piece.slice(at, rows)))
                at += rows
                number += 1
            total += piece.num_rows
            is_same &= at == piece.num_rows
        if not (is_same and number == len(ref.groups) and total == ref.rows):
            raise Corruption(f"{ref.path} does not hold the rows it was made from", path=ref.path)
    finally:
        file.close()


def _are_same(first: pa.ChunkedArray, second: pa.ChunkedArray) -> bool:
    """True for equal records; repr, because NaN is not equal to itself."""
    return first.equals(second) or repr(first.to_pylist()) == repr(second.to_pylist())
