"""Continuing without durable frames of the journal that cannot be read.

The frames before the damage become a checkpoint. Its cut is the last LSN that any reader may have
seen, so that no LSN is used twice. The journal continues there. No id that a lost frame may have
given out is used again: every open ledger is closed and the next ones are far above it, sequences
of transactions are skipped, every key gets a newer epoch, open transactions are aborted (R9).

    journal K+1 published   with one frame: the loss, rolls, aborts, epochs (Law 4); void so far
    manifest published      this makes all of it valid (Law 5)
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from txlog.base.settings import Settings
from txlog.clock import Clock, Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.resolve import recover_lossy
from txlog.engine.folds.catalog import numbers
from txlog.engine.model.ops import (
    Adopted,
    Appended,
    BufferAppended,
    ChunksAppended,
    KeyConnected,
    LedgerReserved,
    LedgerRolled,
    LossAccepted,
    decode_ops,
    encode_ops,
)
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
from txlog.engine.storage.manifest import (
    Changes,
    Manifest,
    changes_of,
    encode_manifest,
    generations,
    manifest_path,
    raw_changes,
)
from txlog.engine.storage.remote import is_far
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
from txlog.engine.upkeep.verify.journal import JournalChain
from txlog.engine.upkeep.verify.verify import StoreEvidence
from txlog.engine.view import View
from txlog.errors import Corruption, TxlogError

# An unreadable frame may have used ledger ids; this is far more than any frame uses.
LEDGERS_SKIPPED: Final = 1_000_000
REASON: Final = "frames of the journal were damaged"
_MESSAGES: Final = (Appended, BufferAppended, Adopted, ChunksAppended)


@dataclass(frozen=True, slots=True)
class LostFrames:
    """The frames after the damage: their LSNs, and the messages of those that can still be read.

    unread: frames with unknown contents
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
    """The journal after the newest checkpoint, if it exists and its header is bad."""
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
    """Publish the same frames at the same offsets, after a correct header.

    Without frames it publishes an empty file.
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
    """Count the genuine frames after the last valid one, in all files."""
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
    """Decide to give up the frames: one frame, durable before anything else."""
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
