"""Repairing published files, from the journal, from older files, or by salvaging readable rows.

    a dump        replay from the checkpoint before the newest, or from LSN 1
    a part        the same replay: the rows are in frames that still exist
    a sealed file replay up to the frame that sealed or compacted it: its parts, its
                  source files, or the frames that they came from
    nothing left  the row groups that are good; every other message is *lost*: it keeps its id, has
                  no key and value, and the reason in the property `txlog.lost`. A large message is
                  never half there. The ids of lost compacted rows are unknown: these rows are
                  missing until the next compaction finds the surviving messages in the log

A mended file gets a new name; a manifest of the same cut names it. Nothing here changes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import msgspec
import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Marker, OpenTxn, live_rows
from txlog.engine.folds.catalog import topic_of
from txlog.engine.model.ops import Compacted, Component, LedgerSealed, decode_ops
from txlog.engine.model.schema import (
    INSTANT,
    KIND_DATA,
    MESSAGE,
    PROPERTY_MAP,
    TXN_COMMIT,
    W_SNAPSHOT,
)
from txlog.engine.plan.delayed.upcoming import columns_of, later_in
from txlog.engine.plan.records import records_for
from txlog.engine.storage.chunks import CHUNK_KIND
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.frame import list_journals
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.storage.manifest import DumpRef, Manifest
from txlog.engine.storage.remote import is_far, open_file
from txlog.engine.storage.segment import FileRef, encode_part, encode_sealed, make_ref
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint.seal import clean_rows
from txlog.engine.upkeep.space.compact import moved_rows
from txlog.engine.view import View, ledger_dir, part_path, sealed_path
from txlog.errors import IntegrityError, TxlogError

LOST_PROPERTY: Final = "txlog.lost"
FRAMES_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """The start of a replay: generation 0 is LSN 1; it reads frames up to `until`."""

    generation: int
    until: int | None


def sources(disk: Disk, manifests: Sequence[Manifest]) -> list[ReplayStart]:
    """The possible starts of a replay to the newest cut, nearest first."""
    if not manifests:
        return []
    newest = manifests[-1]
    out = [ReplayStart(manifest.generation, newest.cut_lsn) for manifest in manifests[:-1]]
    if any(name.first_lsn == 1 for name in list_journals(disk)):
        out.append(ReplayStart(0, newest.cut_lsn))
    return out


def _replayed(disk: Disk, salt: bytes, boot_id: str, source: ReplayStart) -> View:
    """A view at the end of a source. Raises Corruption, JournalMoved; the caller closes it."""
    view = View.open(disk, salt, boot_id, generation=source.generation)
    try:
        if source.until is None:
            view.take(view.journal.read_durable())
        else:
            while view.lsn < source.until:
                last = min(view.lsn + FRAMES_AT_ONCE, source.until)
                view.take(view.journal.read_until(last))
    except BaseException:  # no caller has the view yet, so close it here
        view.close()
        raise
    return view


def led_to(
    disk: Disk, salt: bytes, boot_id: str, manifests: Sequence[Manifest], bad: Sequence[DumpRef]
) -> dict[Component, bytes]:
    """The dumps of components at the newest cut that a replay yields; the others are lost."""
    out: dict[Component, bytes] = {}
    requested = [(ref.kind, ref.a, ref.b) for ref in bad]
    for source in sources(disk, manifests):
        missing = [key for key in requested if key not in out]
        if not missing:
            break
        try:
            view = _replayed(disk, salt, boot_id, source)
        except (TxlogError, JournalMoved):
            continue
        try:
            for key in missing:
                try:
                    out[key] = view.dump(key)
                except TxlogError:
                    continue  # the older dump has the same bad bytes
        finally:
            view.close()
    return out


def rows_led_to(
    disk: Disk, salt: bytes, boot_id: str, manifests: Sequence[Manifest], ref: FileRef
) -> pa.Table | None:
    """The rows of a part or sealed file, from files and frames that are older; None: lost."""
    if ref.form == "sealed":
        return _before_sealing(disk, salt, boot_id, manifests, ref)
    if ref.form != "part":
        return None
    for source in sources(disk, manifests):
        try:
            view = _replayed(disk, salt, boot_id, source)
        except (TxlogError, JournalMoved):
            continue
        try:
            table = view.ledger_table(ref.ledger, ref.first, ref.first + ref.rows)
            if table.num_rows == ref.rows:
                return table
        except TxlogError:
            continue  # the rows come from the same file
        finally:
            view.close()
    return None


def _before_sealing(
    disk: Disk, salt: bytes, boot_id: str, manifests: Sequence[Manifest], ref: FileRef
) -> pa.Table | None:
    for source in sources(disk, manifests):
        try:
            view = View.open(disk, salt, boot_id, generation=source.generation)
        except TxlogError:
            continue
        try:
            for raw in view.journal.read_until(source.until or 0):
                ops = decode_ops(raw.ops, lsn=raw.lsn)
                for op in ops:
                    if isinstance(op, LedgerSealed) and op.file.path == ref.path:
                        return _sealed_rows(view, op)
                    if isinstance(op, Compacted) and op.file.path == ref.path:
                        return moved_rows(view, op)
                view.apply(raw, ops)
        except (TxlogError, JournalMoved):
            continue
        finally:
            view.close()
    return None


def _sealed_rows(view: View, op: LedgerSealed) -> pa.Table:
    state = view.topic(op.partition) if op.role == "p" else view.buffer(op.partition)
    ledger = op.file.ledger
    entries = next(end.entries for end in state.ledgers if end.ledger == ledger)
    if op.role == "s":
        return clean_rows(view, op.partition, ledger)
    return view.ledger_table(ledger, 0, entries)


def publish_like(disk: Disk, view: View, ref: FileRef, table: pa.Table, generation: int) -> FileRef:
    """Publish rows in the form of a file under a new name, which the caller must record."""
    partition, role = view.catalog.owners[ref.ledger]
    directory = ledger_dir(view.catalog, partition, role)
    if ref.form == "part":
        path = part_path(directory, ref.ledger, generation)
        buffers = encode_part(table, {"ledger": str(ref.ledger), "generation": str(generation)})
        new_ref = make_ref(path, ref.ledger, buffers, table, form="part")
    else:
        path = sealed_path(directory, ref.ledger, generation)
        has_keys = table.column("key").null_count < table.num_rows
        in_rows = ref.ledger if role == "p" and ref.form == "sealed" else None
        records = records_for(topic_of(view.catalog, partition)) if ref.record else None
        buffers = encode_sealed(table, has_keys=has_keys, ledger=in_rows, records=records)
        new_ref = make_ref(
            path, ref.ledger, buffers, table, form="sealed", clean=ref.clean, records=records
        )
        if ref.form == "chunks":  # one chunk now, however many there were
            new_ref = msgspec.structs.replace(new_ref, form="chunks", messages=-1)
        else:
            new_ref = msgspec.structs.replace(
                new_ref,
                form=ref.form,
                first=ref.first,
                last=ref.last,
                lsn_first=ref.lsn_first,
                lsn_last=ref.lsn_last,
                messages=new_ref.messages if ref.form == "sealed" else -1,
            )
    disk.publish(path, buffers)
    return new_ref


# --- salvaging a file ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SalvagedRows:
    """The rows of a damaged file, with stand-ins for the unreadable ones.

    lost: the replaced entries, as runs; messages: how many of these are messages
          what: a description of the rows
    """

    table: pa.Table
    lost: list[tuple[int, int]]
    messages: int
    what: str


def salvaged(disk: Disk, view: View, ref: FileRef, reason: str) -> SalvagedRows | None:
    """Salvage the readable rows of a file, row group by row group; None for a form without rows."""
    if is_far(ref.path):
        return None
    if ref.form == "chunks":
        return _without_value(disk, view, ref, reason)
    starts = [0, *accumulate(group[0] for group in ref.groups)]
    is_compacted = view.catalog.owners[ref.ledger][1] == "c"
    pieces: list[pa.Table] = []
    lost: list[tuple[int, int]] = []
    messages = 0
    for start, stop in pairwise(starts):
        table = _readable(disk, ref, start, stop)
        if table is None and is_compacted:
            table = MESSAGE.empty_table()
            lost.append((start, stop - 1))
            messages += stop - start
        elif table is None:
            table = _stand_ins(view, ref, start, stop, reason)
            first = start if ref.form == "sealed" else ref.first + start
            lost.append((first, first + stop - start - 1))
            is_lost = pc.and_(pc.equal(table["kind"], KIND_DATA), pc.is_valid(table["properties"]))
            messages += int(pc.sum(is_lost).as_py() or 0)
        pieces.append(table)
    table = pa.concat_tables(pieces) if pieces else MESSAGE.empty_table()
    summary = f"{ref.rows} rows, {messages} messages of them without key and value"
    if is_compacted:
        summary = f"{table.num_rows} compacted messages, {messages} are lost"
    return SalvagedRows(table, lost, messages, summary)


def _without_value(disk: Disk, view: View, ref: FileRef, reason: str) -> SalvagedRows:
    """Replace a large message with one chunk that is null, because a part of a value is not a
    message.

    The answer has the number of readable bytes; they stay in the quarantined file.
    """
    starts = [0, *accumulate(group[0] for group in ref.groups)]
    sizes = [_value_bytes(_readable(disk, ref, *piece)) for piece in pairwise(starts)]
    gap = sizes.index(None) if None in sizes else len(sizes)
    good = sum(size or 0 for size in sizes)
    state = view.buffer(view.catalog.owners[ref.ledger][0])
    summary = (
        f"a large message of {state.chunked[ref.ledger].value_bytes} bytes stays without key and "
        f"value; {good} bytes can be read, the first {sum(size or 0 for size in sizes[:gap])} "
        "without a gap"
    )
    stand_in: dict[str, object] = {
        "kind": CHUNK_KIND,
        "entry": 0,
        "properties": [(LOST_PROPERTY, reason)],
    }
    arrays = [pa.array([stand_in.get(field.name)], field.type) for field in MESSAGE]
    table = pa.Table.from_arrays(arrays, schema=MESSAGE)
    return SalvagedRows(table, [(0, 0)], live_rows(state).get(ref.ledger, 0), summary)


def _value_bytes(table: pa.Table | None) -> int | None:
    """Bytes of the values of rows; None: unreadable."""
    if table is None:
        return None
    return int(pc.sum(pc.binary_length(table["value"])).as_py() or 0)


def _readable(disk: Disk, ref: FileRef, start: int, stop: int) -> pa.Table | None:
    try:
        file = open_file(disk, ref.path)
    except TxlogError:
        return None
    try:
        return SegmentReader(file, ref).rows(start, stop)
    except TxlogError:
        return None
    finally:
        file.close()


def _stand_ins(view: View, ref: FileRef, start: int, stop: int, reason: str) -> pa.Table:
    """Stand-ins for lost rows: their fields as far as the folds have them, and the reason of
    the loss.
    """
    partition, role = view.catalog.owners[ref.ledger]
    base = 0 if ref.form == "sealed" and role == "s" else ref.first
    count = stop - start
    rows = [base + number for number in range(start, stop)]
    ends = view.topic(partition).ledgers if role == "p" else []
    end = next((ledger_end for ledger_end in ends if ledger_end.ledger == ref.ledger), None)
    time_ms = view.manifest.time_ms if end is None else end.first_ms
    later = _known_delays(view, partition)
    stand_ins: dict[str, list[object]] = {name: [None] * count for name in MESSAGE.names}
    stand_ins["kind"] = [KIND_DATA] * count
    stand_ins["entry"] = [*rows]
    stand_ins["publish_time"] = [time_ms] * count
    stand_ins["properties"] = [[(LOST_PROPERTY, reason)]] * count
    if role == "p":
        _known_markers(view, partition, ref.ledger, rows, stand_ins)
        for at, row in enumerate(rows):
            stand_ins["deliver_at"][at] = later.get((ref.ledger, row, 0))
    else:
        _known_messages(view, partition, ref, rows, stand_ins, later)
    arrays = [
        pa.array(stand_ins[field.name], pa.int64()).cast(INSTANT)
        if field.type == INSTANT
        else pa.array(
            stand_ins[field.name], PROPERTY_MAP if field.name == "properties" else field.type
        )
        for field in MESSAGE
    ]
    return pa.Table.from_arrays(arrays, schema=MESSAGE)


def _known_markers(
    view: View, partition: int, ledger: int, rows: list[int], stand_ins: dict[str, list[object]]
) -> None:
    """Markers are in the sidecar's fold; rows of watermarks are not data, and lose their effect."""
    markers = {marker_.entry: marker_ for marker_ in view.buffer(partition).markers.get(ledger, [])}
    state = view.watermark(partition)
    silent, moves = state.silent.get(ledger, ()), state.moves.get(ledger, ())
    for at, row in enumerate(rows):
        marker = markers.get(row)
        if marker is not None:
            stand_ins["kind"][at], stand_ins["count"][at] = TXN_COMMIT, marker.count
            stand_ins["txn_most"][at] = marker.coordinator << 48
            stand_ins["txn_least"][at] = marker.sequence
            stand_ins["publish_time"][at], stand_ins["lsn"][at] = marker.time_ms, marker.lsn
        elif row in silent:
            # a row that a fold may read becomes a marker without effects, a snapshot becomes
            # unreadable
            stand_ins["kind"][at] = TXN_COMMIT if row in moves else W_SNAPSHOT
            stand_ins["count"][at] = 0 if row in moves else None
        if marker is not None or row in silent:
            stand_ins["properties"][at] = None
            if row in moves:
                stand_ins["value"][at] = msgspec.msgpack.encode([])


def _known_delays(view: View, partition: int) -> dict[tuple[int, int, int], int]:
    """The due times of messages in the index, by (ledger, entry, index), without damaged
    buckets.
    """
    state = view.delayed(partition)
    tables = [columns_of(state.mutable)]
    for bucket in state.buckets:
        try:
            tables.append(later_in(view, bucket, state.passed_ms))
        except IntegrityError:
            continue  # the bucket is dropped, and rebuilt from the rows that exist then
    return {
        (row["ledger"], row["entry"], row["index"]): row["deliver_at"]
        for table in tables
        for row in table.to_pylist()
    }


def _known_messages(
    view: View,
    partition: int,
    ref: FileRef,
    rows: list[int],
    stand_ins: dict[str, list[object]],
    later: dict[tuple[int, int, int], int],
) -> None:
    """Fill in the transaction and index of sidecar rows.

    A row without one was dead or the end of a transaction.
    """
    places = {row: at for at, row in enumerate(rows)}
    for live in _in_ledger(view, partition, ref.ledger):
        owner, pair, row, index = live
        at = places.get(row)
        if at is None:
            continue
        stand_ins["txn_most"][at], stand_ins["txn_least"][at] = pair[0] << 48, pair[1]
        stand_ins["txn_index"][at] = index
        if isinstance(owner[1], Marker):
            stand_ins["publish_time"][at] = owner[1].time_ms
            stand_ins["deliver_at"][at] = later.get((owner[0], owner[1].entry, index))
            if ref.clean:
                stand_ins["marker_ledger"][at], stand_ins["marker_entry"][at] = (
                    owner[0],
                    owner[1].entry,
                )
                stand_ins["visible_time"][at], stand_ins["lsn"][at] = owner[1].time_ms, owner[1].lsn
        else:
            stand_ins["publish_time"][at] = owner[1].first_ms
        places.pop(row)
    for at in places.values():
        stand_ins["properties"][at] = None
        # as if of a trimmed marker: query engines then leave it out, because they do not read the
        # kind
        if ref.clean:
            stand_ins["marker_ledger"][at] = stand_ins["marker_entry"][at] = 0
        else:
            stand_ins["kind"][at] = W_SNAPSHOT


def _in_ledger(
    view: View, partition: int, ledger: int
) -> Iterator[tuple[tuple[int, Marker | OpenTxn], tuple[int, int], int, int]]:
    """((ledger of the marker, marker), transaction, row, index) of each live row of a ledger."""
    state = view.buffer(partition)
    owners: list[tuple[tuple[int, Marker | OpenTxn], tuple[int, int]]] = [
        ((number, marker), (marker.coordinator, marker.sequence))
        for number, markers in state.markers.items()
        for marker in markers
    ]
    for coordinator, by_sequence in state.held.items():
        owners += [((0, held), (coordinator, sequence)) for sequence, held in by_sequence.items()]
    for owner, pair in owners:
        for where, row, rows, index in owner[1].ranges:
            if where == ledger:
                for step in range(rows):
                    yield owner, pair, row + step, index + step
