"""Frames that contradict the state before them: finding them, and keeping what can be kept.

A process that writes a frame and fails to apply it goes on with folds that do not know of it. Its
next frame gives the same entry out again, and a replay of the journal stops there. All the frames
are whole, but one of them was never part of what the writer knew. It is found as the frame without
which the replay gets further. Nobody was told that it is durable, so it gives up its place, and its
plain messages are appended after the last frame under new ids; every id that was answered stays.
Nothing else of it is kept: acknowledgements have to be repeated, a transaction is as open as its
owner believes, and messages that it would have taken are lost.

    LSN n, removed        an empty frame in its place, or LossAccepted when messages are lost
    after the last LSN    a frame for each removed one that has plain messages

All of it is one published journal file that begins with the first removed LSN: what an older file
holds from there on is void (R13, R14). A death before that leaves the old journal, one after it the
new. Source: Laws 1, 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import msgspec

from txlog.engine.folds.topic import LastSent, Topic
from txlog.engine.model import sequences
from txlog.engine.model.ops import (
    Adopted,
    Appended,
    BufferAppended,
    ChunksAppended,
    LossAccepted,
    Op,
    SequencesStored,
    SubscriptionDeleted,
    TopicDeleted,
    decode_ops,
    encode_ops,
)
from txlog.engine.model.routes import FILES, Component
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.file import (
    FILE_HEADER_BYTES,
    JournalFile,
    JournalName,
    RawFrame,
    list_journals,
    publish_journal,
)
from txlog.engine.storage.journal.frame import Buffer, encode
from txlog.engine.storage.journal.journal import JournalMoved
from txlog.engine.storage.journal.witness import Witness
from txlog.engine.storage.manifest import DumpRef, Manifest
from txlog.engine.view.view import FOLDS, OF_PARTITION, View, load_dump
from txlog.errors import TxlogError
from txlog.ids import MessageId

REASON: Final = "a frame that its writer did not continue from"
TRIES_MAX: Final = 64  # earlier frames of the same component that are tried for the cause
Frame = tuple[RawFrame, list[Op]]


@dataclass(frozen=True, slots=True)
class Conflict:
    """The first frame that cannot follow those before it; why: what its fold says."""

    raw: RawFrame
    key: Component
    why: str


@dataclass(slots=True)
class Reconciled:
    """A journal without contradiction: the frames as they will be, from the first changed one.

    removed: LSNs whose frames go; told: what becomes of each, for people
    moved:   (the frame, its op under its new entries); lost: messages that cannot be kept, by LSN
    """

    frames: list[Frame]
    removed: list[int] = field(default_factory=list)
    moved: list[tuple[RawFrame, Op]] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)
    told: list[tuple[int, str]] = field(default_factory=list)


class States:
    """Components at an LSN, loaded from the dumps of a manifest as ops ask for them."""

    def __init__(self, disk: Disk, manifest: Manifest) -> None:
        self._disk = disk
        self._dumps = {(ref.kind, ref.a, ref.b): ref for ref in manifest.dumps}
        self._loaded: dict[Component, Any] = {}
        self._unreadable: set[Component] = set()

    def follow(self, frames: Sequence[Frame]) -> Conflict | None:
        """Apply frames up to the first that cannot be; the states are invalid then."""
        for raw, ops in frames:
            found = self.apply(raw, ops)
            if found is not None:
                return found
        return None

    def apply(self, raw: RawFrame, ops: Sequence[Op]) -> Conflict | None:
        """Apply a frame, or say why it cannot be."""
        for op in ops:
            for key in op.components():
                if key is FILES or key in self._unreadable:
                    continue
                state = self._of(key)
                if state is None:
                    continue
                try:
                    FOLDS[key[0]].apply(state, raw.lsn, raw.time_ms, op)
                except TxlogError as error:
                    return Conflict(raw, key, error.message)
                except (LookupError, ValueError, TypeError, AssertionError) as error:
                    return Conflict(raw, key, f"frame {raw.lsn}: {key[0]}: {error!r}")
            if isinstance(op, TopicDeleted | SubscriptionDeleted):
                self._forget(op)
        return None

    def topic(self, partition: int) -> Topic | None:
        """What a partition holds; None: its dump is damaged."""
        state: Topic | None = self._of(("topic", partition, 0))
        return state

    def _of(self, key: Component) -> Any:
        """The state of a component; None: its dump is damaged, which is reported for its file."""
        state = self._loaded.get(key)
        if state is None:
            fold, ref = FOLDS[key[0]], self._dumps.get(key)
            try:
                state = fold.new() if ref is None else _loaded(self._disk, ref)
            except TxlogError:
                self._unreadable.add(key)
                return None
            self._loaded[key] = state
        return state

    def _forget(self, op: TopicDeleted | SubscriptionDeleted) -> None:
        for number in op.partitions:
            keys: list[Component] = [(kind, number, 0) for kind in OF_PARTITION]
            if isinstance(op, SubscriptionDeleted):
                keys = [("cursor", op.subscription, number)]
            for key in keys:
                self._dumps.pop(key, None)
                self._loaded.pop(key, None)


def _loaded(disk: Disk, ref: DumpRef) -> object:
    return load_dump(disk, FOLDS[ref.kind], ref)


def valid_frames(
    disk: Disk, salt: bytes, boot_id: str, generation: int
) -> tuple[Manifest, list[Frame]] | None:
    """A manifest and the frames after it, flushed or not; None: they cannot be read like that."""
    try:
        view = View.open(disk, salt, boot_id, generation=generation)
    except TxlogError:
        return None
    try:
        return view.manifest, decoded(view.journal.read_valid())
    except (TxlogError, JournalMoved):
        return None
    finally:
        view.close()


def decoded(raws: Sequence[RawFrame]) -> list[Frame]:
    """Frames with their ops; raises Corruption."""
    return [(raw, decode_ops(raw.ops, lsn=raw.lsn)) for raw in raws]


def first_conflict(disk: Disk, manifest: Manifest, frames: Sequence[Frame]) -> Conflict | None:
    """The first of the frames after a manifest that contradicts those before it."""
    return States(disk, manifest).follow(frames)


def reconcile(disk: Disk, manifest: Manifest, frames: list[Frame]) -> Reconciled:
    """Which frames must go, and what is kept of them; changes nothing."""
    out = Reconciled(list(frames))
    found = first_conflict(disk, manifest, out.frames)
    while found is not None:
        found = _remove_cause(disk, manifest, out, found)
    states = States(disk, manifest)
    states.follow(out.frames)
    gone = {raw.lsn: (raw, ops) for raw, ops in frames if raw.lsn in out.removed}
    for lsn in sorted(out.removed):
        _keep(states, out, *gone[lsn])
    return out


def _remove_cause(
    disk: Disk, manifest: Manifest, out: Reconciled, found: Conflict
) -> Conflict | None:
    """Take out the frame without which the replay gets furthest; returns the next conflict.

    That is the nearest earlier one with the same component; if none helps, the conflict itself.
    """
    at = next(n for n, (raw, _) in enumerate(out.frames) if raw.lsn == found.raw.lsn)
    near = [n for n in range(at - 1, -1, -1) if _concerns(out.frames[n][1], found.key)]
    for n in near[:TRIES_MAX]:
        rest = [*out.frames[:n], *out.frames[n + 1 :]]
        after = first_conflict(disk, manifest, rest)
        if after is None or after.raw.lsn > found.raw.lsn:
            out.removed.append(out.frames[n][0].lsn)
            out.frames = rest
            return after
    out.removed.append(found.raw.lsn)
    out.frames = [*out.frames[:at], *out.frames[at + 1 :]]
    return first_conflict(disk, manifest, out.frames)


def _concerns(ops: Sequence[Op], key: Component) -> bool:
    return any(key in op.components() for op in ops)


def _keep(states: States, out: Reconciled, raw: RawFrame, ops: Sequence[Op]) -> None:
    """Append the plain messages of a removed frame after the others, if they can follow."""
    lost, said = 0, []
    for op, behind in zip_longest(ops, ops[1:]):
        if isinstance(op, Appended):
            numbers = _numbers(op, behind)
            fresh = sequences.fresh(_sent(states, op), numbers) if numbers else []
            if numbers and not fresh:
                said.append(f"{_count(op.rows)}, which the producer has repeated since")
                continue
            moved = _moved(states, raw, op, behind, fresh)
            if moved is None:
                lost += op.rows
                said.append(f"{_count(op.rows)} that cannot follow the others")
                continue
            out.moved += [(raw, one) for one in moved]
            said.append(f"{_count(op.rows)} under new ids: {_span(moved[0])} for {_span(op)}")
        elif isinstance(op, BufferAppended):
            lost += op.rows
            said.append(f"{_count(op.rows)} of transaction {op.coordinator}:{op.sequence}")
        elif isinstance(op, ChunksAppended):
            lost += 1
            said.append(f"a large message of transaction {op.coordinator}:{op.sequence}")
        elif isinstance(op, Adopted):
            lost += op.file.rows
            said.append(f"{_count(op.file.rows)} of a batch of files")
    if lost:
        out.lost[raw.lsn] = lost
    out.told.append((raw.lsn, "; ".join(said) or "no messages"))


def _numbers(op: Appended, behind: Op | None) -> list[int]:
    """The sequences that plain messages stored, as runs; empty: none.

    behind: the op behind it, which says them unless each follows the one before
    """
    if isinstance(behind, SequencesStored):
        return behind.runs
    if op.producer is None or op.last_sequence < 0:
        return []
    return [max(0, op.last_sequence - op.rows + 1), op.last_sequence]


def _moved(
    states: States, raw: RawFrame, op: Appended, behind: Op | None, fresh: list[int]
) -> tuple[Appended, *tuple[Op, ...]] | None:
    """The op moved to the current end of its partition; None: it cannot be.

    fresh: those of its sequences that are not stored, which an op behind it says if it has to
    """
    topic = states.topic(op.partition)
    if topic is None or not topic.ledgers:
        return None  # deleted since
    end = topic.ledgers[-1]
    if end.sealed:
        return None
    moved = msgspec.structs.replace(op, ledger=end.ledger, first_entry=end.entries)
    out: tuple[Appended, *tuple[Op, ...]] = (moved,)
    is_next = op.last_sequence >= 0 and sequences.is_next(_sent(states, op), fresh)
    if fresh and not is_next:
        assert op.producer is not None
        row = behind.row if isinstance(behind, SequencesStored) else op.last_sequence
        noted = SequencesStored(op.partition, op.producer, fresh, row)
        out = (msgspec.structs.replace(moved, last_sequence=-1), noted)
    return None if states.apply(raw, out) is not None else out


def _sent(states: States, op: Appended) -> LastSent | None:
    """What the producer of messages has stored in their partition; None: nothing."""
    topic = states.topic(op.partition)
    return None if topic is None or op.producer is None else topic.producers.get(op.producer)


def _span(op: Appended) -> str:
    first, last = op.first_entry, op.first_entry + op.rows - 1
    only = str(MessageId(op.ledger, first))
    return only if op.rows == 1 else f"{only} to {MessageId(op.ledger, last)}"


def _count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"


def is_last_file(disk: Disk, first_lsn: int) -> bool:
    """True when no journal file begins after a frame, so that it can be written again."""
    return all(name.first_lsn <= first_lsn for name in list_journals(disk))


def rewrite(
    disk: Disk,
    salt: bytes,
    manifest: Manifest,
    frames: Sequence[Frame],
    found: Reconciled,
    uid: int,
) -> JournalName:
    """Publish the journal as it was reconciled; the caller holds both locks. Returns its name.

    frames: all of them, as they are after the manifest
    raises: StoreFull, DiskFailed, Corruption: nothing was changed
    """
    first = min(found.removed)
    start = next(n for n, (raw, _) in enumerate(frames) if raw.lsn == first)
    chain = frames[start - 1][0].crc if start else manifest.chain_crc
    out: list[Buffer] = []
    place, lsn = FILE_HEADER_BYTES, first
    previous = chain
    files: dict[JournalName, JournalFile] = {}

    def add(raw: RawFrame, ops: bytes, *, has_rows: bool) -> None:
        nonlocal place, lsn, previous
        rows: Buffer | None = None
        if has_rows and raw.rows_bytes:
            file = files.get(raw.journal)
            if file is None:
                file = files[raw.journal] = JournalFile(disk, raw.journal, salt)
            rows = file.file.pread(raw.rows_offset, raw.rows_bytes)
        parts, total, previous = encode(
            lsn=lsn,
            durable_lsn=min(raw.durable_lsn, lsn - 1),
            time_ms=raw.time_ms,
            offset=place,
            ops=ops,
            rows=rows,
            columns=raw.columns if rows is not None else 0,
            salt=salt,
            previous_crc=previous,
        )
        out.extend(parts)
        place, lsn = place + total, lsn + 1

    try:
        for raw, _ in frames[start:]:
            if raw.lsn in found.removed:
                lost = found.lost.get(raw.lsn, 0)
                ops: list[Op] = [LossAccepted(0, 0, raw.lsn, raw.lsn, lost, REASON, uid)]
                add(raw, encode_ops(ops if lost else []), has_rows=False)
            else:
                add(raw, raw.ops, has_rows=True)
        for raw in {one.lsn: one for one, _ in found.moved}.values():
            ops = [op for one, op in found.moved if one.lsn == raw.lsn]
            add(raw, encode_ops(ops), has_rows=True)
    finally:
        for file in files.values():
            file.close()
    same = [name.rewrite for name in list_journals(disk) if name.first_lsn == first]
    name = JournalName(first, max(same) + 1 if same else 0)
    _let_look(disk, salt)
    publish_journal(disk, name, salt, chain, out)
    return name


def _let_look(disk: Disk, salt: bytes) -> None:
    """Name no file in the witness, so that readers look for the newest."""
    witness = Witness(disk, salt)
    try:
        known = witness.read()
        if known is not None:
            witness.write(msgspec.structs.replace(known, journal=0))
    finally:
        witness.close()
