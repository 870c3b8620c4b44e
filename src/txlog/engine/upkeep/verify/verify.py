"""Verify: the whole check of a store, fast or deep; reads every byte and repairs nothing.

    fast   identity, witness, manifests, every journal frame and its chain, every named file against
           its checksums, unnamed files and files that jobs left
    deep   the same, and: everything decodes; the previous checkpoint and the journal give the
           state of the newest checkpoint (Law 1); the components agree with each other and with
           the rows (`folds`)

It works without an open store, because the store may not open, and takes no lock. If it finds
errors and other processes wrote meanwhile, it checks again: a checkpoint may have replaced files.
Source: spec/reliability 2.3 (the table), promise 5.

Law 1 says that a checkpoint and the frames after it give one state. `check_replay` compares two
checkpoints; `first_conflict` applies the frames after the newest one. State is compared as
values: the packing of a bitmap and the order of a dict make no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from txlog.base.ids import TopicName
from txlog.base.settings import Settings
from txlog.base.startup.crc32c import crc32c
from txlog.base.suggest import command_line
from txlog.clock import Instant
from txlog.engine.folds.buffer import ChunkedMessage
from txlog.engine.folds.catalog import has_partition, index_of, numbers, topic_of
from txlog.engine.folds.coordinator import Coordinator, EndedTxns
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.ops import Component
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.frame import (
    JOURNAL_DIR,
    JournalName,
    RawFrame,
    Witness,
    WitnessRecord,
    list_journals,
)
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.storage.late_values import LazyDict
from txlog.engine.storage.manifest import (
    ChangeRef,
    DumpRef,
    HistoryRef,
    Manifest,
    changes_of,
    generations,
    manifest_path,
    read_manifest,
)
from txlog.engine.storage.segment import FileRef
from txlog.engine.store.identity import IDENTITY_PATH, Identity, read_identity
from txlog.engine.upkeep.checkpoint.checkpoint import leading
from txlog.engine.upkeep.delayed.buckets import delayed_partitions
from txlog.engine.upkeep.space.sweep import paths_of
from txlog.engine.upkeep.verify.files import (
    check_changes,
    check_fixed,
    check_history,
    check_kinds,
    check_left,
    check_names,
    check_segment,
    check_stages,
    check_state,
    compare_changes,
)
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.upkeep.verify.folds import check_folds
from txlog.engine.upkeep.verify.journal import (
    JournalChain,
    check_age,
    check_journals,
    check_witness,
)
from txlog.engine.view import FOLDS, View, load_dump
from txlog.errors import Corruption, MissingFile, TxlogError

# --- Law 1 ----------------------------------------------------------------------------------------


FRAMES_AT_ONCE: Final = 4096
_VALUES_OF_DUMP: Final = ("delayed", "watermark")


@dataclass(frozen=True, slots=True)
class ReplayConflict:
    """The first frame with an op that its fold cannot apply; why: the reason from the fold."""

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
    state: Any = FOLDS[key[0]].read(blob)
    if isinstance(state, Cursor):
        return _plain_cursor(state)
    for name in state.__struct_fields__:
        if isinstance(late := getattr(state, name), LazyDict):  # an older dump lacks newer fields
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


# --- the whole check ------------------------------------------------------------------------------


# How often the check repeats if it found problems while other processes wrote.
TRIES_MAX: Final = 4


@dataclass(slots=True)
class StoreEvidence:
    """The parts of a store that the check could read.

    manifests: the good manifests of the two kept, oldest first; bad: the generations of the others
    view:      at the newest checkpoint and the later frames; None: it cannot be opened
    """

    identity: Identity
    witnessed: WitnessRecord | None
    manifests: list[Manifest]
    bad: list[int]
    chain: JournalChain
    view: View | None
    # of all manifests when the check began
    generations: list[int] = field(default_factory=list)
    journals: list[JournalName] = field(default_factory=list)  # when the check began
    bad_dumps: list[DumpRef] = field(default_factory=list)
    bad_history: list[HistoryRef] = field(default_factory=list)
    bad_changes: list[ChangeRef] = field(default_factory=list)
    bad_files: list[FileRef] = field(default_factory=list)
    conflict: ReplayConflict | None = None
    irregular: set[str] = field(default_factory=set)  # paths that should be regular files

    @property
    def newest(self) -> Manifest | None:
        """The newest good manifest."""
        return self.manifests[-1] if self.manifests else None

    def close(self) -> None:
        """Close its files."""
        if self.view is not None:
            self.view.close()


def verify(
    disk: Disk,
    now: Instant,
    findings: Findings,
    *,
    deep: bool = False,
    topics: Sequence[TopicName] = (),
) -> StoreEvidence | None:
    """Check the store, and add the problems to findings.

    topics:  only their files and components, and the shared ones
    returns: the parts that it could read, for a repair; None: the identity cannot be read
    raises:  TopicNotFound
    """

    def look(tried: Findings) -> StoreEvidence | None:
        return _verify(disk, now, tried, deep, topics)

    return _while_still(disk, findings, look)


def glance(disk: Disk, boot_id: str, findings: Findings) -> StoreEvidence | None:
    """Check only the files that opening needs; returns as verify."""

    def look(tried: Findings) -> StoreEvidence | None:
        return survey(disk, boot_id, tried)

    return _while_still(disk, findings, look)


def _while_still(
    disk: Disk, findings: Findings, look: Callable[[Findings], StoreEvidence | None]
) -> StoreEvidence | None:
    """Check, and repeat while a finding may come from other processes writing meanwhile."""
    for _ in range(TRIES_MAX):
        tried = Findings(findings.tell)
        evidence = look(tried)
        if not tried.errors or evidence is None or not _has_moved(disk, evidence):
            break
        evidence.close()
    else:  # other processes never paused: report the last findings
        tried = Findings(findings.tell)
        evidence = look(tried)
    findings.take(tried)
    return evidence


def _verify(
    disk: Disk, now: Instant, findings: Findings, deep: bool, topics: Sequence[TopicName]
) -> StoreEvidence | None:
    irregular = check_kinds(disk, findings)
    evidence = survey(disk, now.boot_id, findings, deep=deep)
    if evidence is None:
        return None
    evidence.irregular = irregular
    try:
        partitions = _partitions(evidence.view, topics)
        _check_frames(disk, evidence, now.boot_id, findings)
        _check_files(disk, evidence, findings, partitions, now.wall_ms, deep=deep)
        if deep and evidence.view is not None and evidence.conflict is None:
            findings.begin("replaying the journal")
            check_replay(disk, evidence.identity.salt, now.boot_id, evidence.manifests, findings)
            findings.begin("comparing components")
            check_folds(evidence.view, findings, partitions)
    except BaseException:  # no caller has it yet, so close it here
        evidence.close()
        raise
    return evidence


def _check_frames(disk: Disk, evidence: StoreEvidence, boot_id: str, findings: Findings) -> None:
    """Check that the folds can apply the frames after the newest checkpoint."""
    findings.begin("replaying the journal")
    newest = 0 if evidence.newest is None else evidence.newest.generation
    if evidence.chain.is_broken:
        return  # reported already
    conflict = evidence.conflict = first_conflict(disk, evidence.identity.salt, boot_id, newest)
    if conflict is not None:
        findings.error(
            604,
            f"LSN {conflict.raw.lsn} contradicts what comes before it: {conflict.why}",
            path=conflict.raw.journal.path,
            offset=conflict.raw.offset,
            hint="restore a copy of the store",
        )


def _has_moved(disk: Disk, evidence: StoreEvidence) -> bool:
    """True when other processes wrote since the check began, and so may have removed files.

    Each durable frame changes the witness, even if the view of this check does not have the frame.
    """
    if generations(disk) != evidence.generations or list_journals(disk) != evidence.journals:
        return True
    return _witnessed(disk, evidence.identity.salt) != evidence.witnessed


def _partitions(view: View | None, topics: Sequence[TopicName]) -> set[int] | None:
    """The numbers of the partitions of topics; None: all."""
    if not topics or view is None:
        return None
    out: set[int] = set()
    for name in topics:
        partitions = numbers(find_topic(view, name))
        out |= {*partitions} if name.partition is None else {partitions[name.partition]}
    return out


def survey(
    disk: Disk, boot_id: str, findings: Findings, *, deep: bool = False
) -> StoreEvidence | None:
    """Check identity, witness, manifests and journals; with a view if one can be opened."""
    try:
        identity = read_identity(disk)
    except TxlogError as error:
        findings.caught(error, path=IDENTITY_PATH)
        return None
    findings.read(disk.size(IDENTITY_PATH))
    salt = identity.salt
    witnessed = _witnessed(disk, salt)  # first, because any later write changes it
    manifest_generations, journals = generations(disk), list_journals(disk)
    check_witness(disk, salt, findings)
    manifests, bad = _manifests(disk, salt, witnessed, findings)
    chain = check_journals(disk, salt, manifests, witnessed, findings, decode=deep)
    check_age(disk, salt, boot_id, chain, findings)
    view = None
    try:
        view = View.open(disk, salt, boot_id)
        view.take(view.journal.read_durable())
        assert view.catalog is not None  # every check needs the catalog
    except (TxlogError, JournalMoved) as error:
        if view is not None:
            view.close()
        view = None
        if not findings.errors:
            findings.caught(
                error
                if isinstance(error, TxlogError)
                else Corruption("the journal was removed while it was being read", path=JOURNAL_DIR)
            )
    return StoreEvidence(
        identity, witnessed, manifests, bad, chain, view, manifest_generations, journals
    )


def _witnessed(disk: Disk, salt: bytes) -> WitnessRecord | None:
    """The newest good record of the witness; None: unreadable, which check_witness reports."""
    witness = Witness(disk, salt)
    try:
        return witness.read()
    except TxlogError:
        return None
    finally:
        witness.close()


def _manifests(
    disk: Disk, salt: bytes, witnessed: WitnessRecord | None, findings: Findings
) -> tuple[list[Manifest], list[int]]:
    """The good manifests of the two newest, oldest first, and the generations of the bad ones."""
    manifest_generations = generations(disk)
    newest = manifest_generations[-1] if manifest_generations else 0
    bad: list[int] = []
    if witnessed is not None and witnessed.generation > newest:
        path = manifest_path(witnessed.generation)
        findings.error(
            601,
            f"{path} is missing: the one before is used",
            path=path,
            hint="txlog admin repair writes a new one",
        )
        bad.append(witnessed.generation)
    out: list[Manifest] = []
    sums: dict[int, int] = {}
    for generation in manifest_generations[-2:]:
        path = manifest_path(generation)
        try:
            data = disk.read(path)
            findings.read(len(data))
            sums[generation] = crc32c(data)
            manifest = read_manifest(disk, generation, salt)
        except MissingFile:
            continue  # a checkpoint has removed it meanwhile
        except TxlogError as error:
            findings.caught(error, path=path)
            bad.append(generation)
            continue
        out.append(manifest)
    if len(out) == 2 and out[1].previous_crc not in (0, sums[out[0].generation]):
        path = manifest_path(out[1].generation)
        findings.error(604, f"{path} does not follow {manifest_path(out[0].generation)}", path=path)
    if len(out) == 1 and not bad and out[0].previous_crc:
        findings.warning(
            "manifest",
            f"the manifest before {manifest_path(out[0].generation)} is missing",
            path="manifest",
            hint="it is not needed; txlog admin checkpoint makes a second one again",
        )
    return out, bad


def _check_files(
    disk: Disk,
    evidence: StoreEvidence,
    findings: Findings,
    partitions: Collection[int] | None,
    wall_ms: int,
    *,
    deep: bool,
) -> None:
    """Check every file that a kept manifest or a frame names, and unnamed ones."""
    view = evidence.view
    is_wanted = _NamedPaths(disk, evidence)
    for ref, partition in _segments(evidence):
        if partitions is not None and partition not in partitions:
            continue
        chunked = _chunked(view, ref, partition)
        with findings.lowered(not is_wanted.by_newest(ref.path)):
            if not check_segment(
                disk, ref, findings, is_wanted, deep=deep, chunked=chunked, partition=partition
            ):
                evidence.bad_files.append(ref)
    _check_states(disk, evidence, findings, is_wanted, deep=deep)
    history = {ref.path: ref for manifest in evidence.manifests for ref in manifest.history}
    for history_ref in history.values():
        is_newest = evidence.newest is not None and history_ref in evidence.newest.history
        with findings.lowered(not is_newest):
            if not check_history(disk, history_ref, findings, is_wanted, deep=deep) and is_newest:
                evidence.bad_history.append(history_ref)
    if partitions is not None:
        return
    _check_changes(disk, evidence, findings, is_wanted, deep=deep)
    check_fixed(disk, findings, evidence.irregular)
    if view is not None:
        _unavailable(view, findings)
    if not evidence.bad and view is not None:
        check_names(disk, is_wanted.named, findings, is_wanted, evidence.irregular)
        check_left(disk, view, evidence.generations, findings, evidence.irregular)
        check_stages(
            disk, wall_ms - Settings.from_mapping(view.catalog.settings).stage_ttl_ms, findings
        )


def _chunked(view: View | None, ref: FileRef, partition: int | None) -> ChunkedMessage | None:
    """The sidecar's record of a large message; None: of other files, and when it cannot be read."""
    if view is None or partition is None or ref.form != "chunks":
        return None
    try:
        return view.buffer(partition).chunked.get(ref.ledger)
    except TxlogError:
        return None  # its dump is damaged, which is reported for the state file


def _check_states(
    disk: Disk, evidence: StoreEvidence, findings: Findings, is_wanted: _NamedPaths, *, deep: bool
) -> None:
    """Check the dumps of both checkpoints; the newest does not need a dump: only a warning."""
    salt = evidence.identity.salt
    dumps: dict[str, dict[int, DumpRef]] = {}
    for manifest in evidence.manifests:
        for dump in manifest.dumps:
            dumps.setdefault(dump.path, {})[dump.offset] = dump
    newest = {*evidence.newest.dumps} if evidence.newest is not None else set()
    own_path = "" if evidence.newest is None else f"state/{evidence.newest.generation:010d}.state"
    for path, refs in sorted(dumps.items()):
        for is_newest in (True, False):
            selected = [ref for ref in refs.values() if (ref in newest) is is_newest]
            if selected:
                with findings.lowered(not is_newest):
                    evidence.bad_dumps += check_state(
                        disk,
                        salt,
                        path,
                        selected,
                        findings,
                        is_wanted,
                        deep=deep,
                        is_whole=is_newest and path == own_path,
                    )


def _check_changes(
    disk: Disk, evidence: StoreEvidence, findings: Findings, is_wanted: _NamedPaths, *, deep: bool
) -> None:
    """Check the logs of both checkpoints.

    deep: also compare the final state in the newer with its dumps.
    """
    newest = [] if evidence.newest is None else changes_of(evidence.newest).refs
    paths = {ref.path for ref in newest}
    refs = {ref.path: ref for manifest in evidence.manifests for ref in changes_of(manifest).refs}
    for ref in refs.values():
        with findings.lowered(ref.path not in paths):
            if not check_changes(disk, ref, findings, is_wanted, deep=deep):
                evidence.bad_changes.append(ref)
    if (
        deep
        and evidence.newest is not None
        and not paths & {ref.path for ref in evidence.bad_changes}
    ):
        findings.begin("comparing changes")
        compare_changes(disk, evidence.newest, findings)


def _unavailable(view: View, findings: Findings) -> None:
    """Report unavailable partitions, and accepted losses."""
    for loss in view.catalog.losses:
        extent = f"entries {loss.first} to {loss.last} of ledger {loss.ledger}"
        findings.warning(
            "loss",
            f"{loss.messages} messages were accepted as lost: "
            f"{extent if loss.ledger else f'LSN {loss.first} to {loss.last}'}, {loss.reason}",
            partition=loss.partition or None,
            ledger=loss.ledger or None,
        )
    for number, why in sorted(view.catalog.unavailable.items()):
        topic = topic_of(view.catalog, number)
        name = f"{TopicName.parse(topic.name).short}/{index_of(topic, number)}"
        if why.reason == "damage":
            findings.warning(
                "quarantined",
                f"{name} is quarantined: readers get what comes before row "
                f"{why.row} of ledger {why.ledger}",
                partition=number,
                ledger=why.ledger,
                hint=f"once its files are good: {command_line('admin online', name)}",
            )
        else:
            findings.warning(
                "offline",
                f"{name} was taken offline",
                partition=number,
                hint=command_line("admin online", name),
            )


def _segments(evidence: StoreEvidence) -> list[tuple[FileRef, int | None]]:
    """The files of rows and the buckets, each with its partition; None: unknown."""
    refs_by_path: dict[str, FileRef] = {}
    for manifest in evidence.manifests:
        for refs in manifest.files.values():
            refs_by_path |= {ref.path: ref for ref in refs}
    view = evidence.view
    if view is None:
        return [(ref, None) for ref in refs_by_path.values()]
    dropped = view.files.gone_since()
    owners = view.catalog.owners
    for ref in view.files.sealed_since().values():
        refs_by_path[ref.path] = ref
    out: list[tuple[FileRef, int | None]] = []
    for ref in refs_by_path.values():
        if ref.ledger in dropped:
            continue  # a frame has dropped it, so no reader uses it
        owner = owners.get(ref.ledger)
        out.append((ref, None if owner is None else owner[0]))
    try:
        for number in delayed_partitions(view):
            if has_partition(view.catalog, number):
                out += [(bucket.file, number) for bucket in view.delayed(number).buckets]
    except TxlogError:
        pass  # its dump is damaged, which is reported for the state file
    return out


class _NamedPaths:
    """Whether a manifest or frame names a path now; reads the manifests again if new ones came."""

    __slots__ = ("_disk", "_generation", "_let_go", "_newest", "_salt", "named")

    def __init__(self, disk: Disk, evidence: StoreEvidence) -> None:
        self._disk = disk
        self._salt = evidence.identity.salt
        self._generation = generations(disk)
        self._newest = (
            {ref.path for refs in evidence.newest.files.values() for ref in refs}
            if (evidence.newest is not None)
            else set()
        )
        if evidence.view is not None:
            self._newest |= {ref.path for ref in evidence.view.files.sealed_since().values()}
        self._let_go: set[str] = set()
        self.named: set[str] = set()
        self._ask(evidence.manifests)
        self.named |= {ref.path for ref, _ in _segments(evidence)}
        if evidence.view is not None:
            self.named |= {*evidence.view.files.lost}

    def by_newest(self, path: str) -> bool:
        """True unless only the checkpoint before the newest names a file of rows."""
        return path in self._newest or "/_delayed/" in path

    def __call__(self, path: str) -> bool:
        if self._generation != (now := generations(self._disk)):
            self._generation = now
            manifests = []
            for generation in now[-2:]:
                try:
                    manifests.append(read_manifest(self._disk, generation, self._salt))
                except TxlogError:
                    continue
            self._ask(manifests)
        return path in self.named and path not in self._let_go

    def _ask(self, manifests: Sequence[Manifest]) -> None:
        """Note the named files, and files of the previous manifest that may be removed by now.

        No repair needs these: frames lead to the new files of their rows, or record that the rows
        are dropped.
        """
        self.named = {path for manifest in manifests for path in paths_of(manifest)}
        self._let_go = set()
        if len(manifests) == 2:
            previous, newest = manifests
            rows = {ref.path for refs in previous.files.values() for ref in refs}
            rows |= {ref.path for ref in previous.history}
            rows |= {ref.path for ref in changes_of(previous).refs}
            self._let_go = rows - paths_of(newest)
            # rows that were trimmed or deleted since may be removed at once
            self._let_go |= rows & {path for path, _ in newest.dropped} - leading(previous, newest)
