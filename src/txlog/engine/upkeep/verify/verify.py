"""Verify: reads a store byte by byte, repairs nothing, and says how much of it can be relied on.

    fast   identity, witness, manifests, every journal frame and its chain, every named file against
           its checksums, what nothing names and what jobs left
    deep   the same, and: everything decodes; the state of the newest checkpoint is what the one
           before it and the journal lead to (Law 1); the components agree with each other and with
           the rows (`folds`)

It works without an open store, since there may be none to open, and takes no lock. What a
checkpoint replaces meanwhile is looked for again, so it is not a finding. Source: spec/reliability
2.3 (the table), promise 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from txlog.base.ids import TopicName
from txlog.base.settings import Settings
from txlog.base.startup.crc32c import crc32c
from txlog.clock import Instant
from txlog.engine.folds.buffer import Chunked
from txlog.engine.folds.catalog import has_partition, index_of, numbers, topic_of
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.file import JOURNAL_DIR, JournalName, list_journals
from txlog.engine.storage.journal.journal import JournalMoved
from txlog.engine.storage.journal.witness import Witness, WitnessRecord
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
from txlog.engine.upkeep.checkpoint.unlinking import leading
from txlog.engine.upkeep.delayed.buckets import delayed_partitions
from txlog.engine.upkeep.space.sweep import paths_of
from txlog.engine.upkeep.verify.changes import check_changes, compare_changes
from txlog.engine.upkeep.verify.files import (
    check_fixed,
    check_history,
    check_kinds,
    check_left,
    check_names,
    check_segment,
    check_stages,
    check_state,
)
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.upkeep.verify.folds import check_folds
from txlog.engine.upkeep.verify.journal import Chain, check_age, check_journals, check_witness
from txlog.engine.upkeep.verify.replay import Conflict, check_replay, first_conflict
from txlog.engine.view.view import View
from txlog.errors import Corruption, MissingFile, TxlogError

# How often everything is checked again if something was wrong and others wrote meanwhile.
TRIES_MAX: Final = 4


@dataclass(slots=True)
class Known:
    """What a store was found to consist of, as far as it can be read.

    manifests: the good ones of the two kept, oldest first; bad: the generations of the others
    view:      at the newest checkpoint and the frames after it; None: it cannot be opened
    """

    identity: Identity
    witnessed: WitnessRecord | None
    manifests: list[Manifest]
    bad: list[int]
    chain: Chain
    view: View | None
    generations: list[int] = field(default_factory=list)  # of manifests, good or not, at the look
    journals: list[JournalName] = field(default_factory=list)  # at the look
    bad_dumps: list[DumpRef] = field(default_factory=list)
    bad_history: list[HistoryRef] = field(default_factory=list)
    bad_changes: list[ChangeRef] = field(default_factory=list)
    bad_files: list[FileRef] = field(default_factory=list)
    conflict: Conflict | None = None
    irregular: set[str] = field(default_factory=set)  # not regular files where a store has some

    @property
    def newest(self) -> Manifest | None:
        """The newest good manifest."""
        return self.manifests[-1] if self.manifests else None

    def close(self) -> None:
        """Let go of its files."""
        if self.view is not None:
            self.view.close()


def verify(
    disk: Disk,
    now: Instant,
    findings: Findings,
    *,
    deep: bool = False,
    topics: Sequence[TopicName] = (),
) -> Known | None:
    """Check everything; returns what was found, for a repair, or None: no identity.

    topics: only the files and components of these, and what all have in common
    raises: TopicNotFound
    """

    def look(tried: Findings) -> Known | None:
        return _verify(disk, now, tried, deep, topics)

    return _while_still(disk, findings, look)


def glance(disk: Disk, boot_id: str, findings: Findings) -> Known | None:
    """Check only the files that opening needs; returns as verify."""

    def look(tried: Findings) -> Known | None:
        return survey(disk, boot_id, tried)

    return _while_still(disk, findings, look)


def _while_still(
    disk: Disk, findings: Findings, look: Callable[[Findings], Known | None]
) -> Known | None:
    """Check, and repeat while a finding may be due to others writing meanwhile."""
    for _ in range(TRIES_MAX):
        tried = Findings(findings.tell)
        known = look(tried)
        if not tried.errors or known is None or not _has_moved(disk, known):
            break
        known.close()
    else:  # never quiet for that long: report what is found now
        tried = Findings(findings.tell)
        known = look(tried)
    findings.take(tried)
    return known


def _verify(
    disk: Disk, now: Instant, findings: Findings, deep: bool, topics: Sequence[TopicName]
) -> Known | None:
    irregular = check_kinds(disk, findings)
    known = survey(disk, now.boot_id, findings, deep=deep)
    if known is None:
        return None
    known.irregular = irregular
    try:
        partitions = _partitions(known.view, topics)
        _check_frames(disk, known, now.boot_id, findings)
        _check_files(disk, known, findings, partitions, now.wall_ms, deep=deep)
        if deep and known.view is not None and known.conflict is None:
            findings.begin("replaying the journal")
            check_replay(disk, known.identity.salt, now.boot_id, known.manifests, findings)
            findings.begin("comparing components")
            check_folds(known.view, findings, partitions)
    except BaseException:  # nobody else can close it yet
        known.close()
        raise
    return known


def _check_frames(disk: Disk, known: Known, boot_id: str, findings: Findings) -> None:
    """Let the folds check the frames after the newest checkpoint: each follows from the last."""
    findings.begin("replaying the journal")
    newest = 0 if known.newest is None else known.newest.generation
    if known.chain.is_broken:
        return  # which is reported
    conflict = known.conflict = first_conflict(disk, known.identity.salt, boot_id, newest)
    if conflict is not None:
        findings.error(
            604,
            f"LSN {conflict.raw.lsn} contradicts what comes before it: {conflict.why}",
            path=conflict.raw.journal.path,
            offset=conflict.raw.offset,
            hint="restore a copy of the store",
        )


def _has_moved(disk: Disk, known: Known) -> bool:
    """True when others have written since the look began: what was missing may have been removed.

    Each durable frame raises the witness, whether or not the view opened on the way has it.
    """
    if generations(disk) != known.generations or list_journals(disk) != known.journals:
        return True
    return _witnessed(disk, known.identity.salt) != known.witnessed


def _partitions(view: View | None, topics: Sequence[TopicName]) -> set[int] | None:
    """The numbers of the partitions of topics; None: all."""
    if not topics or view is None:
        return None
    out: set[int] = set()
    for name in topics:
        every = numbers(find_topic(view, name))
        out |= {*every} if name.partition is None else {every[name.partition]}
    return out


def survey(disk: Disk, boot_id: str, findings: Findings, *, deep: bool = False) -> Known | None:
    """Check identity, witness, manifests and journals; with a view if one can be opened."""
    try:
        identity = read_identity(disk)
    except TxlogError as error:
        findings.caught(error, path=IDENTITY_PATH)
        return None
    findings.read(disk.size(IDENTITY_PATH))
    salt = identity.salt
    witnessed = _witnessed(disk, salt)  # before all else: any write from here on changes it
    found, journals = generations(disk), list_journals(disk)
    check_witness(disk, salt, findings)
    manifests, bad = _manifests(disk, salt, witnessed, findings)
    chain = check_journals(disk, salt, manifests, witnessed, findings, decode=deep)
    check_age(disk, salt, boot_id, chain, findings)
    view = None
    try:
        view = View.open(disk, salt, boot_id)
        view.take(view.journal.read_durable())
        assert view.catalog is not None  # nothing can be checked without it
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
    return Known(identity, witnessed, manifests, bad, chain, view, found, journals)


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
    """The good ones of the two newest, oldest first, and the generations of the bad ones."""
    found = generations(disk)
    newest = found[-1] if found else 0
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
    for generation in found[-2:]:
        path = manifest_path(generation)
        try:
            data = disk.read(path)
            findings.read(len(data))
            sums[generation] = crc32c(data)
            manifest = read_manifest(disk, generation, salt)
        except MissingFile:
            continue  # a checkpoint removed it meanwhile
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
    known: Known,
    findings: Findings,
    partitions: Collection[int] | None,
    wall_ms: int,
    *,
    deep: bool,
) -> None:
    """Check every file that a kept manifest or a frame names, and unnamed ones."""
    view = known.view
    is_wanted = _Wanted(disk, known)
    for ref, partition in _segments(known):
        if partitions is not None and partition not in partitions:
            continue
        chunked = _chunked(view, ref, partition)
        with findings.lowered(not is_wanted.by_newest(ref.path)):
            if not check_segment(
                disk, ref, findings, is_wanted, deep=deep, chunked=chunked, partition=partition
            ):
                known.bad_files.append(ref)
    _check_states(disk, known, findings, is_wanted, deep=deep)
    history = {ref.path: ref for manifest in known.manifests for ref in manifest.history}
    for one in history.values():
        is_newest = known.newest is not None and one in known.newest.history
        with findings.lowered(not is_newest):
            if not check_history(disk, one, findings, is_wanted, deep=deep) and is_newest:
                known.bad_history.append(one)
    if partitions is not None:
        return
    _check_changes(disk, known, findings, is_wanted, deep=deep)
    check_fixed(disk, findings, known.irregular)
    if view is not None:
        _unavailable(view, findings)
    if not known.bad and view is not None:
        check_names(disk, is_wanted.named, findings, is_wanted, known.irregular)
        check_left(disk, view, known.generations, findings, known.irregular)
        check_stages(
            disk, wall_ms - Settings.from_mapping(view.catalog.settings).stage_ttl_ms, findings
        )


def _chunked(view: View | None, ref: FileRef, partition: int | None) -> Chunked | None:
    """What the sidecar says of a large message; None: of others, and when it cannot be read."""
    if view is None or partition is None or ref.form != "chunks":
        return None
    try:
        return view.buffer(partition).chunked.get(ref.ledger)
    except TxlogError:
        return None  # its dump is damaged, which is reported for the state file


def _check_states(
    disk: Disk, known: Known, findings: Findings, is_wanted: _Wanted, *, deep: bool
) -> None:
    """The dumps of both checkpoints; those that the newest does not need are lowered."""
    salt = known.identity.salt
    dumps: dict[str, dict[int, DumpRef]] = {}
    for manifest in known.manifests:
        for dump in manifest.dumps:
            dumps.setdefault(dump.path, {})[dump.offset] = dump
    newest = {*known.newest.dumps} if known.newest is not None else set()
    own = "" if known.newest is None else f"state/{known.newest.generation:010d}.state"
    for path, refs in sorted(dumps.items()):
        for is_newest in (True, False):
            wanted = [ref for ref in refs.values() if (ref in newest) is is_newest]
            if wanted:
                with findings.lowered(not is_newest):
                    known.bad_dumps += check_state(
                        disk,
                        salt,
                        path,
                        wanted,
                        findings,
                        is_wanted,
                        deep=deep,
                        is_whole=is_newest and path == own,
                    )


def _check_changes(
    disk: Disk, known: Known, findings: Findings, is_wanted: _Wanted, *, deep: bool
) -> None:
    """The logs of both checkpoints; deep: the final state in the newer is that of its dumps."""
    newest = [] if known.newest is None else changes_of(known.newest).refs
    paths = {ref.path for ref in newest}
    refs = {ref.path: ref for one in known.manifests for ref in changes_of(one).refs}
    for ref in refs.values():
        with findings.lowered(ref.path not in paths):
            if not check_changes(disk, ref, findings, is_wanted, deep=deep):
                known.bad_changes.append(ref)
    if deep and known.newest is not None and not paths & {ref.path for ref in known.bad_changes}:
        findings.begin("comparing changes")
        compare_changes(disk, known.newest, findings)


def _unavailable(view: View, findings: Findings) -> None:
    """Report unavailable partitions, and what was accepted as lost."""
    for one in view.catalog.losses:
        what = f"entries {one.first} to {one.last} of ledger {one.ledger}"
        findings.warning(
            "loss",
            f"{one.messages} messages were accepted as lost: "
            f"{what if one.ledger else f'LSN {one.first} to {one.last}'}, {one.reason}",
            partition=one.partition or None,
            ledger=one.ledger or None,
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
                hint=f"once its files are good: txlog admin online {name}",
            )
        else:
            findings.warning(
                "offline",
                f"{name} was taken offline",
                partition=number,
                hint=f"txlog admin online {name}",
            )


def _segments(known: Known) -> list[tuple[FileRef, int | None]]:
    """The files of rows and the buckets, each with the partition it is of; None: not known."""
    found: dict[str, FileRef] = {}
    for manifest in known.manifests:
        for refs in manifest.files.values():
            found |= {ref.path: ref for ref in refs}
    view = known.view
    if view is None:
        return [(ref, None) for ref in found.values()]
    gone = view.files.gone_since()
    owners = view.catalog.owners
    for ref in view.files.sealed_since().values():
        found[ref.path] = ref
    out: list[tuple[FileRef, int | None]] = []
    for ref in found.values():
        if ref.ledger in gone:
            continue  # a frame has dropped it: nobody reads it
        owner = owners.get(ref.ledger)
        out.append((ref, None if owner is None else owner[0]))
    try:
        for number in delayed_partitions(view):
            if has_partition(view.catalog, number):
                out += [(bucket.file, number) for bucket in view.delayed(number).buckets]
    except TxlogError:
        pass  # its dump is damaged, which is reported for the state file
    return out


class _Wanted:
    """Whether anything names a path now; asked again after each checkpoint."""

    __slots__ = ("_disk", "_generation", "_let_go", "_newest", "_salt", "named")

    def __init__(self, disk: Disk, known: Known) -> None:
        self._disk = disk
        self._salt = known.identity.salt
        self._generation = generations(disk)
        self._newest = (
            {ref.path for refs in known.newest.files.values() for ref in refs}
            if (known.newest is not None)
            else set()
        )
        if known.view is not None:
            self._newest |= {ref.path for ref in known.view.files.sealed_since().values()}
        self._let_go: set[str] = set()
        self.named: set[str] = set()
        self._ask(known.manifests)
        self.named |= {ref.path for ref, _ in _segments(known)}
        if known.view is not None:
            self.named |= {*known.view.files.lost}

    def by_newest(self, path: str) -> bool:
        """True unless only the checkpoint before the newest names a file of rows."""
        return path in self._newest or "/_delayed/" in path

    def __call__(self, path: str) -> bool:
        if self._generation != (now := generations(self._disk)):
            self._generation = now
            found = []
            for generation in now[-2:]:
                try:
                    found.append(read_manifest(self._disk, generation, self._salt))
                except TxlogError:
                    continue
            self._ask(found)
        return path in self.named and path not in self._let_go

    def _ask(self, manifests: Sequence[Manifest]) -> None:
        """Note what manifests name, and the rows that the newest dropped without a grace.

        Frames after the one before lead to where these are, or say that they are gone.
        """
        self.named = {path for manifest in manifests for path in paths_of(manifest)}
        self._let_go = set()
        if len(manifests) == 2:
            before, newest = manifests
            rows = {ref.path for refs in before.files.values() for ref in refs}
            rows |= {ref.path for ref in before.history}
            rows |= {ref.path for ref in changes_of(before).refs}
            self._let_go = rows - paths_of(newest)
            # trimmed or deleted since: these may go at once
            self._let_go |= rows & {path for path, _ in newest.dropped} - leading(before, newest)
