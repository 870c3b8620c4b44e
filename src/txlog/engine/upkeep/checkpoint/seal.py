"""Sealing: a closed ledger whose rows are all in parts becomes one Parquet file.

A partition's ledger is sealed as it is. A sidecar's ledger waits until no open transaction has rows
in it; its file is then *clean*: committed rows only, in the order (marker, index), with the marker
and the visible time stored in each row. The frame LedgerSealed makes the file real (R17).
"""

from __future__ import annotations

import pyarrow as pa

from txlog.engine.decide.topics import sidecar
from txlog.engine.folds import buffer as buffers
from txlog.engine.model.ops import LedgerSealed
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE, conform
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.damage import first_bad_row
from txlog.engine.storage.manifest import Manifest, generations
from txlog.engine.storage.segment import FileRef, encode_sealed, make_ref
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.quarantine import record_damage
from txlog.engine.view.paths import ledger_dir, sealed_path
from txlog.engine.view.view import View
from txlog.errors import Corruption
from txlog.startup import compute as pc


def sealable(view: View, manifest: Manifest) -> list[tuple[int, str, int, int]]:
    """(partition, role, ledger, entries) of closed ledgers whose rows are all in parts.

    cost: a look at each ledger's number, and the folds of partitions with a closed ledger
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
            continue  # it is away
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
    view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
    try:
        view.take(view.journal.read_durable())
        work = sealable(view, manifest)
        number = max([manifest.generation, *generations(store.disk)])
        sealed = 0
        for partition, role, ledger, entries in work:
            try:
                sealed += _seal(store, view, number, partition, role, ledger, entries)
                view.files.close()  # what is kept of open parts is as large as they are
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
    table = view.ledger_table(ledger, 0, entries)
    if role == "s":
        table = clean_rows(view, partition, ledger, table)
    in_rows = ledger if role == "p" else None
    has_keys = table.column("key").null_count < table.num_rows
    data = encode_sealed(table, has_keys, ledger=in_rows)
    directory = ledger_dir(view.catalog, partition, role)
    path = sealed_path(directory, ledger, number)
    while store.disk.exists(path):  # left by a pass that died before its frame
        number += 1
        path = sealed_path(directory, ledger, number)
    ref = make_ref(path, ledger, data, table, form="sealed", clean=role == "s")
    store.disk.publish(path, data)
    compare_rows(store, ref, table, in_rows)
    op = LedgerSealed(partition, role, ref)
    if store.write(lambda live, now: sidecar.seal(live, op)):
        return True
    store.disk.unlink(path)
    return False


def clean_rows(view: View, partition: int, ledger: int, table: pa.Table) -> pa.Table:
    """The committed rows of a sidecar ledger in the order (marker, index), markers in the row."""
    pieces: list[pa.Table] = []
    markers: list[tuple[int, buffers.Marker]] = []
    ends: list[int] = []
    total = 0
    state = view.buffer(partition)
    for number in sorted(state.markers):
        for marker in state.markers[number]:
            for where, row, rows, _ in marker.ranges:
                if where == ledger:
                    pieces.append(table.slice(row, rows))
                    markers.append((number, marker))
                    total += rows
                    ends.append(total)
    if not pieces:
        return MESSAGE.empty_table()
    rows = pa.concat_tables(pieces)
    if pc.any(pc.not_equal(rows.column("kind"), KIND_DATA)).as_py():
        raise Corruption(f"ledger {ledger}: a marker points at rows that are not data", code=604)
    for name, values, kind in (
        ("marker_ledger", [number for number, _ in markers], pa.int64()),
        ("marker_entry", [marker.entry for _, marker in markers], pa.int64()),
        ("visible_time", [marker.time_ms for _, marker in markers], INSTANT),
        ("lsn", [marker.lsn for _, marker in markers], pa.int64()),
    ):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, repeat_runs(values, ends, kind))
    return conform(rows)


def compare_rows(store: Store, ref: FileRef, table: pa.Table, ledger: int | None = None) -> None:
    """Read the sealed file back and compare every row with its source (R17).

    ledger: what every row says of it
    """
    said = None if ledger is None else (ledger, ledger)
    file = store.disk.open(ref.path)
    try:
        reader = SegmentReader(file, ref)
        is_same, at = ref.rows == table.num_rows, 0
        for number, (rows, *_) in enumerate(ref.groups):  # one by one: not twice the ledger
            is_same &= reader.rows(at, at + rows).equals(table.slice(at, rows))
            is_same &= reader.statistics(number, "ledger") == said
            at += rows
        if not is_same:
            raise Corruption(f"{ref.path} does not hold the rows it was made from", path=ref.path)
    finally:
        file.close()
