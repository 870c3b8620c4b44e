"""Verifying Law 1: a checkpoint and the frames after it give one state.

`check_replay` compares two checkpoints; `first_conflict` applies the frames after the newest one.

State is compared as values: the packing of a bitmap and the order of a dict make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.folds.coordinator import Coordinator, EndedTxns
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.routes import Component
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.file import RawFrame
from txlog.engine.storage.journal.journal import JournalMoved
from txlog.engine.storage.late_values import Late
from txlog.engine.storage.manifest import DumpRef, Manifest, manifest_path
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.view.view import FOLDS, View, load_dump
from txlog.errors import MissingFile, TxlogError

FRAMES_AT_ONCE: Final = 4096
_VALUES_OF_DUMP: Final = ("delayed", "watermark")


@dataclass(frozen=True, slots=True)
class ReplayConflict:
    """The first frame that its fold cannot apply; why: the reason from the fold."""

    raw: RawFrame
    why: str


def first_conflict(disk: Disk, salt: bytes, boot_id: str, generation: int) -> ReplayConflict | None:
    """The first frame, flushed or not, that contradicts the checkpoint and the frames before it.

    generation: of the checkpoint; 0: the journal begins at LSN 1
    returns:    None, also when the frames cannot be read, which other checks report
    """
    try:
        view = View.open(disk, salt, boot_id, generation=generation)
    except TxlogError:
        return None
    try:
        frames = view.journal.read_valid()
        view.take(frames)
        conflicts = [_conflict_of(view, key) for key in view.changed()]
    except (TxlogError, JournalMoved):
        return None
    finally:
        view.close()
    lsn, why = min(filter(None, conflicts), default=(0, ""))
    return next((ReplayConflict(raw, why) for raw in frames if raw.lsn == lsn), None)


def _conflict_of(view: View, key: Component) -> tuple[int, str] | None:
    """The LSN of the first op that a component cannot apply, and the reason."""
    fold, origin = FOLDS[key[0]], view.origin(key)
    assert origin is not None  # this view has loaded nothing
    try:
        state = fold.new() if origin.ref is None else load_dump(view.disk, fold, origin.ref)
    except TxlogError:
        return None  # its dump is damaged, which is reported for the state file
    for lsn, time_ms, op in origin.ops:
        try:
            fold.apply(state, lsn, time_ms, op)
        except TxlogError as error:
            return lsn, error.message.partition(": ")[2] or error.message
        except (LookupError, ValueError, TypeError, AssertionError) as error:
            return lsn, f"{key[0]}: {error!r}"
    return None


def check_replay(
    disk: Disk, salt: bytes, boot_id: str, manifests: Sequence[Manifest], findings: Findings
) -> None:
    """Replay from the older of two checkpoints to the cut of the newer, and compare every dump."""
    if len(manifests) < 2:
        return
    old, new = manifests[-2:]
    try:
        view = View.open(disk, salt, boot_id, generation=old.generation)
    except TxlogError:
        return  # damaged bytes were reported
    try:
        while view.lsn < new.cut_lsn:
            view.take(view.journal.read_until(min(view.lsn + FRAMES_AT_ONCE, new.cut_lsn)))
        _compare(disk, view, old, new, findings)
    except MissingFile:
        return  # a checkpoint has replaced both meanwhile
    except TxlogError as error:
        if not findings.is_damaged:
            findings.caught(error)
    finally:
        view.close()


def _compare(disk: Disk, view: View, old: Manifest, new: Manifest, findings: Findings) -> None:
    stored = {(ref.kind, ref.a, ref.b): ref for ref in new.dumps}
    old_refs = {(ref.kind, ref.a, ref.b): ref for ref in old.dumps}
    changed = set(view.changed())
    for key in sorted({*view.known(), *stored}):
        ref = stored.get(key)
        if ref is not None and ref == old_refs.get(key) and key not in changed:
            continue  # the same bytes
        theirs = FOLDS[key[0]].dump(FOLDS[key[0]].new()) if ref is None else _bytes_of(disk, ref)
        if theirs is None:
            continue  # damaged, which was reported
        if plain(key, view.dump(key)) != plain(key, theirs):
            name = f"{key[0]} {key[1]}" + (f" {key[2]}" if key[2] else "")
            findings.error(
                604,
                f"the state of {name} in {manifest_path(new.generation)} is not what "
                f"{manifest_path(old.generation)} and the journal lead to",
                path=manifest_path(new.generation) if ref is None else ref.path,
                hint="txlog admin repair --rebuild state",
            )


def _bytes_of(disk: Disk, ref: DumpRef) -> bytes | None:
    file = disk.open(ref.path)
    try:
        data = file.pread(ref.offset, ref.length)
    finally:
        file.close()
    return data if len(data) == ref.length and crc32c(data) == ref.crc else None


def plain(key: Component, blob: bytes) -> object:
    """A dump as values that do not depend on the packing of bitmaps or the order of dicts."""
    if key[0] in _VALUES_OF_DUMP:
        return msgspec.msgpack.decode(blob, strict=False)
    state: Any = FOLDS[key[0]].load(blob)
    if isinstance(state, Cursor):
        return _plain_cursor(state)
    for name in state.__struct_fields__:
        if isinstance(late := getattr(state, name), Late):  # an older dump lacks newer fields
            setattr(state, name, dict(late.items()))
    if isinstance(state, Coordinator):
        state.ended = EndedTxns(state.ended.values())
    return _sorted(msgspec.msgpack.decode(FOLDS[key[0]].dump(state), strict=False))


def _plain_cursor(state: Cursor) -> object:
    leases = state.leases
    return [
        state.mark_delete,
        state.acked.runs(),
        state.held.runs(),
        state.acked_count,
        state.last_ack_ms,
        state.epoch,
        state.round,
        state.rewinds,
        state.redelivered,
        state.released.runs(),
        msgspec.to_builtins(state.figures),
        leases.leased.runs(),
        {
            number: (
                lease.ids.runs(),
                [(due, ids.runs()) for due, ids in lease.handouts],
                lease.ahead,
                list(lease.batch),
                list(lease.again),
            )
            for number, lease in sorted(leases.by_consumer.items())
            if lease.ids
        },
        leases.waiting,
        leases.waiting_ids.runs(),
        _sorted(msgspec.to_builtins(state.pending, str_keys=False)),
    ]


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value
