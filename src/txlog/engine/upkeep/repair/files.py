"""The parts of a repair: rebuilding or salvaging published files, and cutting a damaged journal.

A published file is rebuilt from the journal, from older files, or from its own readable rows:

    a dump        replay from the checkpoint before the newest, or from LSN 1
    a part        the same replay: the rows are in frames that still exist
    a sealed file replay up to the frame that sealed or compacted it: its parts, its
                  source files, or the frames that they came from
    nothing left  the row groups that are good; every other message is *lost*: it keeps its id, has
                  no key and value, and the reason in the property `txlog.lost`. A large message is
                  never restored in part. The ids of lost compacted rows are unknown: these rows
                  are missing until the next compaction finds the surviving messages in the log

A rebuilt file gets a new name; a manifest of the same cut names it. No file is changed in place.

If durable frames of the journal cannot be read, the frames before the damage become a checkpoint.
Its cut is the last LSN that any reader may have seen, so that no LSN is used twice. The journal
continues there. No id that a lost frame may have given out is used again. Every open ledger is
closed, and the next ones are far above it. Sequences of transactions are skipped, every key gets a
newer epoch, and open transactions are aborted (R9).

    journal K+1 published   with one frame: the loss, rolls, aborts, epochs (Law 4); unused so far
    manifest published      this puts all of it to use (Law 5)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import msgspec
import pyarrow as pa

from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.clock import Clock, Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.transaction import recover_lossy
from txlog.engine.folds.buffer import Marker, OpenTxn, live_rows
from txlog.engine.folds.catalog import numbers, topic_of
from txlog.engine.model.ops import (
    Adopted,
    Appended,
    BufferAppended,
    ChunksAppended,
    Compacted,
    Component,
    KeyConnected,
    LedgerReserved,
    LedgerRolled,
    LedgerSealed,
    LossAccepted,
    decode_ops,
    encode_ops,
)
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
from txlog.engine.storage.frame import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    MAGIC,
    Buffer,
    JournalFile,
    JournalName,
    decode_header,
    encode,
    is_genuine,
    list_journals,
    publish_journal,
)
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.storage.manifest import (
    Changes,
    DumpRef,
    Manifest,
    changes_of,
    encode_manifest,
    generations,
    manifest_path,
    raw_changes,
)
from txlog.engine.storage.remote import is_far, open_file
from txlog.engine.storage.segment import FileRef, encode_part, encode_sealed, make_ref
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint.checkpoint import (
    CheckpointReport,
    crc_of,
    directories_of,
    dropped_files,
    make_dumps,
    need_states,
    next_generation,
    state_at_cut,
    write_parts,
    write_state,
)
from txlog.engine.upkeep.checkpoint.seal import clean_rows
from txlog.engine.upkeep.space.compact import moved_rows
from txlog.engine.upkeep.verify.journal import JournalChain
from txlog.engine.upkeep.verify.verify import StoreEvidence
from txlog.engine.view import View, ledger_dir, part_path, sealed_path
from txlog.errors import Corruption, IntegrityError, TxlogError

# --- published files ------------------------------------------------------------------------------

LOST_PROPERTY: Final = "txlog.lost"
FRAMES_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """The checkpoint that a replay starts from (0: LSN 1), and its last LSN (None: all durable)."""

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
    """A view at the end of a replay, for the caller to close; raises Corruption, JournalMoved."""
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
    """The damaged dumps that a replay to the newest cut makes again; the others are lost."""
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
    """The rows of a part or sealed file, from older files and frames; None: they are lost."""
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

    lost:     the replaced entries, as runs
    messages: how many replaced entries are messages
    what:     a description of the rows for the user
    """

    table: pa.Table
    lost: list[tuple[int, int]]
    messages: int
    what: str


def salvaged(disk: Disk, view: View, ref: FileRef, reason: str) -> SalvagedRows | None:
    """Read the good row groups of a file, and replace the others; None: it is outside the store."""
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
    """Replace a large message with one null chunk, because a part of a value is not a message.

    The description has the number of readable bytes; they stay in the quarantined file.
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
    """Stand-ins for lost rows, with the fields that the folds have, and the reason of the loss."""
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
    """Fill in markers from the sidecar's fold, and rows of watermarks, which lose their effect."""
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

    A row without an owner was dead or the end of a transaction.
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
    """((marker's ledger, marker) or (0, open transaction), transaction, row, index) by row."""
    state = view.buffer(partition)
    owners: list[tuple[tuple[int, Marker | OpenTxn], tuple[int, int]]] = [
        ((number, marker), (marker.coordinator, marker.sequence))
        for number, markers in state.markers.items()
        for marker in markers
    ]
    for coordinator, by_sequence in state.held.items():
        owners += [((0, txn), (coordinator, sequence)) for sequence, txn in by_sequence.items()]
    for owner, pair in owners:
        for where, row, rows, index in owner[1].ranges:
            if where == ledger:
                for step in range(rows):
                    yield owner, pair, row + step, index + step


# --- the journal ----------------------------------------------------------------------------------

# An unreadable frame may have used ledger ids; this is far more than any frame uses.
LEDGERS_SKIPPED: Final = 1_000_000
REASON: Final = "frames of the journal were damaged"
_MESSAGES: Final = (Appended, BufferAppended, Adopted, ChunksAppended)


@dataclass(frozen=True, slots=True)
class LostFrames:
    """The frames after the damage.

    first, last: the range of their LSNs
    messages:    how many are in frames that can still be read
    unread:      frames with unknown contents
    """

    first: int
    last: int
    messages: int
    unread: int

    @property
    def words(self) -> str:
        """How many messages are lost, as far as known."""
        lost = "1 message" if self.messages == 1 else f"{self.messages} messages"
        if not self.unread:
            return f"{lost} lost"
        frames = "1 frame" if self.unread == 1 else f"{self.unread} frames"
        return f"{lost} known to be lost; what was in {frames} that cannot be read is unknown"


def headless(disk: Disk, evidence: StoreEvidence) -> JournalName | None:
    """The last journal file that begins at the newest cut, if it has bytes after its header.

    The caller has found that its header is bad.
    """
    cut = evidence.newest.cut_lsn if evidence.newest else 0
    candidates = [name for name in list_journals(disk) if name.first_lsn == cut + 1]
    if (
        not candidates
        or disk.kind(candidates[-1].path) != "file"
        or disk.size(candidates[-1].path) <= FILE_HEADER_BYTES
    ):
        return None
    return candidates[-1]


def rewrite_header(disk: Disk, evidence: StoreEvidence) -> JournalName:
    """Publish the frames of the headless journal at the same offsets, after a correct header.

    Without such a file it publishes a journal without frames. Returns the new name.
    """
    cut, chain_crc = (
        (evidence.newest.cut_lsn, evidence.newest.chain_crc) if evidence.newest else (0, 0)
    )
    old = headless(disk, evidence)
    frames: list[Buffer] = [] if old is None else [disk.read(old.path)[FILE_HEADER_BYTES:]]
    rewrites = [name.rewrite for name in list_journals(disk) if name.first_lsn == cut + 1]
    name = JournalName(cut + 1, max(rewrites) + 1 if rewrites else 0)
    publish_journal(disk, name, evidence.identity.salt, chain_crc, frames)
    return name


def lost_frames(disk: Disk, salt: bytes, chain: JournalChain) -> LostFrames:
    """Search all files for frames after the last valid one, and count the lost messages."""
    highest, messages = chain.known_lsn, 0
    seen: set[int] = set()
    for name in list_journals(disk):
        if chain.name is not None and name < chain.name:
            continue
        try:
            data = disk.read(name.path)
        except TxlogError:
            continue
        view = memoryview(data)
        for match in re.finditer(re.escape(MAGIC), data):
            at = match.start()
            header = decode_header(view[at : at + HEADER_BYTES]) if at % 8 == 0 else None
            if header is None or header.lsn <= chain.last_lsn or header.lsn in seen:
                continue
            if not is_genuine(header, view[at:], salt, at):
                continue
            highest = max(highest, header.lsn, header.durable_lsn)
            ops_end = at + HEADER_BYTES + header.ops_bytes
            try:
                ops = decode_ops(data[at + HEADER_BYTES : ops_end], lsn=header.lsn)
            except TxlogError:
                continue
            seen.add(header.lsn)
            for op in ops:
                if isinstance(op, _MESSAGES):
                    messages += (
                        getattr(op, "rows", 1) if not isinstance(op, Adopted) else (op.file.rows)
                    )
    first, last = chain.last_lsn + 1, max(highest, chain.last_lsn + 1)
    return LostFrames(first, last, messages, last - first + 1 - len(seen))


def cut_off(disk: Disk, clock: Clock, evidence: StoreEvidence, lost: LostFrames | None) -> int:
    """Write a checkpoint of the readable frames without opening the store; returns its generation.

    The caller holds both locks. lost: the frames after the damage; None: there are none
    raises: Corruption (a file that it needs or would name), StoreFull, DiskFailed: nothing was
            changed
    """
    now, salt = clock.now(), evidence.identity.salt
    base = evidence.newest.generation if evidence.newest else 0
    view = View.open(disk, salt, now.boot_id, generation=base)
    try:
        need_states(disk, view.manifest.dumps)
        view.take(view.journal.read_valid())
        view.journal.current.file.datasync()  # R14: a cut flushes the old file
        old, chain_crc = view.manifest, view.journal.chain_crc
        cut_lsn = view.lsn if lost is None else lost.last
        cut = state_at_cut(view)
        make_dumps(disk, cut)
        need_files(disk, old, removed={*cut.sealed, *cut.gone})
        generation = next_generation(disk, old, directories_of(cut))
        has_frames = view.lsn > old.cut_lsn
        dumps = write_state(view, cut, generation) if has_frames else [*old.dumps]
        files = write_parts(view, cut, generation, CheckpointReport()) if has_frames else old.files
        change_logs = changes_of(old)
        if has_frames:  # their changes are unread: the next checkpoint starts from the state
            change_logs = Changes(False, change_logs.refs)
        dropped = dropped_files(old, files, dumps, old.history, change_logs, cut.lost, now.wall_ms)
        frames: list[Buffer] = []
        if lost is not None:
            settings = Settings.from_mapping(view.catalog.settings)
            ops = accept(view, settings, now, disk.owner(), lost).ops
            frames, _, _ = encode(
                lsn=cut_lsn + 1,
                durable_lsn=cut_lsn,
                time_ms=now.wall_ms,
                offset=FILE_HEADER_BYTES,
                ops=encode_ops(ops),
                rows=None,
                columns=0,
                salt=salt,
                previous_crc=chain_crc,
            )
        _publish_journal(disk, salt, cut_lsn + 1, chain_crc, frames)
        manifest = Manifest(
            generation,
            crc_of(disk, old.generation),
            cut_lsn,
            chain_crc,
            now.wall_ms,
            files,
            dumps,
            dropped,
            old.history,
            raw_changes(change_logs),
        )
        disk.publish(manifest_path(generation), [encode_manifest(manifest, salt)])
        forget_before(disk, old.generation)
        return generation
    finally:
        view.close()


def need_files(disk: Disk, manifest: Manifest, removed: Collection[int] = ()) -> None:
    """Raise Corruption unless the files that a manifest names exist, with their lengths.

    removed: ledgers whose files a newer manifest no longer names. Files outside the store are not
          checked: a missing file may be back after the next mount.
    """
    sizes = {ref.path: ref.bytes for ref in manifest.history}
    for ledger, refs in manifest.files.items():
        if ledger not in removed:
            sizes |= {ref.path: ref.bytes for ref in refs if not is_far(ref.path)}
    for path, size in sorted(sizes.items()):
        if disk.size(path) != size:
            raise Corruption(f"{path} has {disk.size(path)} bytes instead of {size}", path=path)


def forget_before(disk: Disk, generation: int) -> None:
    """Unlink manifests older than a generation."""
    for generation_ in generations(disk):
        if generation_ < generation:
            disk.unlink(manifest_path(generation_))


def _publish_journal(
    disk: Disk, salt: bytes, first_lsn: int, chain_crc: int, frames: list[Buffer]
) -> None:
    """Publish the file after the cut, unless there are no frames and a file that continues
    exists.
    """
    name = JournalName(first_lsn)
    if not frames:
        journals = [journal for journal in list_journals(disk) if journal.first_lsn == first_lsn]
        if journals:
            file = JournalFile(disk, journals[-1], salt)
            is_same = file.chain_crc == chain_crc
            file.close()
            if is_same:
                return
            name = JournalName(first_lsn, journals[-1].rewrite + 1)
    publish_journal(disk, name, salt, chain_crc, frames)


def accept(
    view: View, settings: Settings, now: Instant, owner: tuple[int, str], lost: LostFrames
) -> Decision[LostFrames]:
    """Decide the frame that gives up the lost ones; it is durable before anything else."""
    draft = Draft(view, settings, now.wall_ms)
    draft.ops.append(
        LossAccepted(
            0, 0, lost.first, lost.last, lost.messages, f"{REASON}: {lost.words}", owner[0]
        )
    )
    recover_lossy(view, draft)
    partitions = [n for topic in view.catalog.topics.values() for n in numbers(topic)]
    if partitions:
        rolled = [op.new for op in draft.ops if isinstance(op, LedgerRolled)]
        base = max([view.catalog.next_ledger, *(new + 1 for new in rolled)]) + LEDGERS_SKIPPED
        draft.ops.append(LedgerReserved(partitions[0], "p", base))
        for number in partitions:
            for role in ("p", "s"):
                base = _roll(draft, number, role, base)
    for key in sorted(view.known()):
        if key[0] == "key":
            for uid, keys_of_user in view.keys(key[1]).of.items():
                for name, key_record in keys_of_user.items():
                    if not key_record.deleted:
                        draft.ops.append(
                            KeyConnected(key[1], uid, key_record.owner, name, key_record.epoch + 1)
                        )
    return draft.decision(lost, sync=True)


def _roll(draft: Draft, number: int, role: str, base: int) -> int:
    """Close the open ledger in any case, because a lost frame may have used its next entries.

    A partition whose watermark is used begins its next ledger with a snapshot, as usual.
    """
    state = draft.view.topic(number) if role == "p" else draft.view.buffer(number)
    if not state.ledgers:
        return base
    last = state.ledgers[-1].ledger
    for op in draft.ops:
        if isinstance(op, LedgerRolled) and (op.partition, op.role) == (number, role):
            last = op.new
    draft.skip_ledgers(base + 1)
    new, _ = draft.roll(number, role, last)
    return new
