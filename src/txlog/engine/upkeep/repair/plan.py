"""Repair: how to restore a damaged store, as a plan, and running it step by step.

    1 rebuild-state    dumps that a replay produces
      forget-history   a damaged part of the transaction log's history
    2 rebuild-journal  only the header of the journal is bad: its frames after another one
      cut-journal      the same before damaged frames; the frames after them are lost
    3 rebuild-file     parts and sealed files whose rows older files or frames still have
      salvage-file     the good rows of other files; every other message in it is lost, and so
                       is a large message that lacks a byte
      rebuild-changes  a file of the logs of changes: rows of the state in its place
    4 new-checkpoint   a manifest is bad, or the previous checkpoint is: write one
    5 rebuild-delayed  buckets, from the log
      bring-online     a quarantined partition whose files are good
      settle           an unfinished frame, a damaged witness: the cleanup of every writer
      sweep            unnamed files, and files that jobs left
      set-aside        before all others: a directory, link or pipe in place of a file that can be
                       rebuilt; for a lock file no other process may run then (R26)
      restore          no repair is possible: a copy of the store is needed, or of a file
                       outside the store

Each round checks the whole store, runs the first group that has actions, and checks again. Every
step first makes new files and then names them, by one manifest or one frame; so after a crash
anywhere the next repair can finish. No step removes files that a later one needs: a checkpoint
comes last, and never replaces a missing dump. Two steps lose messages and need
consent: cut-journal, salvage-file; each leaves a LossAccepted.

A step that works on files alone holds the maintenance and the write lock, because the store may not
open; the other steps open the store. Source: spec/reliability 2.3; R3, R13, R14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.startup.crc32c import crc32c
from txlog.clock import Clock
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.availability import partition_number, set_online
from txlog.engine.decide.topics.buckets import lose
from txlog.engine.folds.catalog import index_of, topic_of
from txlog.engine.model.ops import Component, LossAccepted
from txlog.engine.storage.disk.protocol import Disk, LockFile
from txlog.engine.storage.frame import list_journals
from txlog.engine.storage.journal import FLUSH_LOCK
from txlog.engine.storage.manifest import (
    DumpRef,
    Manifest,
    changes_of,
    encode_manifest,
    generations,
    manifest_path,
    raw_changes,
)
from txlog.engine.storage.remote import is_far
from txlog.engine.storage.segment import FileRef
from txlog.engine.store.identity import IDENTITY_PATH
from txlog.engine.store.liveness import WRITE_LOCK
from txlog.engine.store.store import MAINTENANCE_PATH, Store
from txlog.engine.upkeep.changes.log import again
from txlog.engine.upkeep.checkpoint.checkpoint import (
    crc_of,
    need_states,
    next_generation,
    restore_reserve,
)
from txlog.engine.upkeep.checkpoint.quarantine import check_files
from txlog.engine.upkeep.delayed.buckets import rebuild_now
from txlog.engine.upkeep.repair.files import (
    LostFrames,
    SalvagedRows,
    cut_off,
    forget_before,
    headless,
    led_to,
    lost_frames,
    publish_like,
    rewrite_header,
    rows_led_to,
    salvaged,
)
from txlog.engine.upkeep.space.adopt import sweep_stages
from txlog.engine.upkeep.space.sweep import paths_of, sweep_unnamed
from txlog.engine.upkeep.verify.findings import ERROR, Findings, Problem
from txlog.engine.upkeep.verify.verify import StoreEvidence, verify
from txlog.engine.view import STATE_HEAD, STATE_MAGIC, View
from txlog.errors import Corruption, TxlogError

ROUNDS_MAX: Final = 12
LOSING: Final = ("cut-journal", "salvage-file")
RECORD_APART: Final = 4096  # of the witness
_PREDECESSOR: Final = ("predecessor", "manifest")
_SETTLED: Final = ("tail", "witness", "reserve", "lock")
_SWEPT: Final = ("unnamed", "temporary", "pin", "staged")


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One step; first and last are entries of the ledger, or LSNs if it is about frames.

    messages_lost: None: unknown, because the frames cannot be read
    """

    action: str
    detail: str
    path: str | None = None
    ledger: int | None = None
    first: int | None = None
    last: int | None = None
    messages_lost: int | None = 0


@dataclass(slots=True)
class RepairPlan:
    """The findings, and the steps to take.

    known: None: the store has no identity; lost: the frames that cut-journal gives up
    dumps, rows, left: contents for rebuild-state, rebuild-file and salvage-file, the last by path
    """

    known: StoreEvidence | None
    findings: Findings
    actions: list[RepairStep] = field(default_factory=list)
    lost: LostFrames | None = None
    dumps: dict[Component, bytes] = field(default_factory=dict)
    rows: dict[str, pa.Table] = field(default_factory=dict)
    left: dict[str, SalvagedRows] = field(default_factory=dict)

    def close(self) -> None:
        """Close the files of the evidence."""
        if self.known is not None:
            self.known.close()

    @property
    def losing(self) -> list[RepairStep]:
        """The steps that need consent."""
        return [action for action in self.actions if action.action in LOSING]


def make_plan(
    disk: Disk, clock: Clock, rebuild: Collection[str] = (), ledger: int | None = None
) -> RepairPlan:
    """Examine the store and plan its repair; changes nothing.

    rebuild: state, delayed, changes: rebuild these even if they are good
    ledger: only the files of this ledger
    raises:  DiskFailed: a file of the journal may be good, but this caller cannot read it
    """
    _need_journals(disk)
    findings = Findings()
    evidence = verify(disk, clock.now(), findings)
    plan = RepairPlan(evidence, findings)
    if evidence is None:
        for problem in [problem for problem in findings.problems if problem.severity == ERROR]:
            plan.actions.append(RepairStep("restore", problem.message, problem.path))
        return plan
    try:
        if ledger is None and _plan_irregular(plan, evidence):
            return plan  # they block all other actions
        if ledger is None:
            _plan_state(disk, clock, plan, evidence, "state" in rebuild)
            if evidence.conflict is not None:
                if not plan.actions:  # a rebuilt state may end the contradiction
                    detail = f"LSN {evidence.conflict.raw.lsn} contradicts what comes before it"
                    path = evidence.conflict.raw.journal.path
                    plan.actions.append(RepairStep("restore", detail, path))
                return plan  # the other evidence may be wrong
            _plan_chain(disk, plan, evidence)
            _plan_changes(plan, evidence, "changes" in rebuild)
        _plan_files(disk, clock, plan, evidence, ledger)
        if ledger is None:
            _plan_rest(plan, evidence, "delayed" in rebuild)
    except BaseException:  # no caller has the plan yet, so close it here
        plan.close()
        raise
    return plan


def _need_journals(disk: Disk) -> None:
    """Raise DiskFailed for a journal that other permissions, or another try, could read.

    Repair can rebuild everything else, but only the journal has its contents.
    """
    for name in list_journals(disk):
        with suppress(Corruption):  # verify reports it
            disk.open(name.path).close()


def _plan_chain(disk: Disk, plan: RepairPlan, evidence: StoreEvidence) -> None:
    if any(action.action == "restore" for action in plan.actions):
        return  # a checkpoint without a dump would drop the files to rebuild it from
    if evidence.chain.is_broken:
        if evidence.chain.name is None:
            plan.actions.append(_without_journal(disk, evidence))
            return
        plan.lost = lost = lost_frames(disk, evidence.identity.salt, evidence.chain)
        plan.actions.append(
            RepairStep(
                "cut-journal",
                f"continue after LSN {lost.last} without LSN {lost.first} to {lost.last}; "
                f"open transactions are aborted, every key gets a newer epoch; {lost.words}",
                evidence.chain.name.path,
                None,
                lost.first,
                lost.last,
                None if lost.unread else lost.messages,
            )
        )
        return
    only_before = [problem for problem in plan.findings.problems if problem.code in _PREDECESSOR]
    if evidence.bad or only_before:
        path = manifest_path(evidence.bad[0]) if evidence.bad else only_before[0].path
        plan.actions.append(RepairStep("new-checkpoint", "write another checkpoint", path))


def _plan_irregular(plan: RepairPlan, evidence: StoreEvidence) -> bool:
    """Plan to move directories, links and the like in place of files; True: there are such steps.

    Paths that a checkpoint or the journal names are not moved; they are repaired as damaged files
    first.
    """
    named_files = {path for manifest in evidence.manifests for path in paths_of(manifest)}
    named_files -= (
        {path for path, _ in evidence.newest.dropped} if evidence.newest is not None else set()
    )
    for path in sorted(evidence.irregular):
        if (
            path not in named_files
            and path.partition("/")[0] != "manifest"
            and not (path.endswith(".journal") or path == IDENTITY_PATH)
        ):
            plan.actions.append(
                RepairStep("set-aside", "not a regular file: moved to the quarantine", path)
            )
    return bool(plan.actions)


def _without_journal(disk: Disk, evidence: StoreEvidence) -> RepairStep:
    """The action if no file with a good header follows the newest checkpoint."""
    name = headless(disk, evidence)
    if name is not None:
        return RepairStep("rebuild-journal", "its frames after a new header", name.path)
    if evidence.newest is None:
        return RepairStep("restore", "there is neither a checkpoint nor a journal", "journal")
    cut, witnessed = evidence.newest.cut_lsn, evidence.witnessed
    durable = cut if witnessed is None else witnessed.durable_lsn
    if durable > cut:
        return RepairStep(
            "cut-journal",
            f"continue without LSN {cut + 1} to {durable}, whose file is missing; "
            "what was in them is unknown",
            "journal",
            None,
            cut + 1,
            durable,
            None,
        )
    return RepairStep(
        "rebuild-journal", "an empty one: nothing was durable after the checkpoint", "journal"
    )


def _plan_state(
    disk: Disk, clock: Clock, plan: RepairPlan, evidence: StoreEvidence, everything: bool
) -> None:
    newest = evidence.newest
    if newest is None:
        return
    everything = everything and not evidence.chain.is_broken
    selected = (
        [*newest.dumps] if everything else [r for r in newest.dumps if r in evidence.bad_dumps]
    )
    if not selected:
        return
    rebuilt = led_to(
        disk, evidence.identity.salt, clock.now().boot_id, evidence.manifests, selected
    )
    plan.dumps = rebuilt
    for ref in selected:
        name = f"{ref.kind} {ref.a}" + (f" {ref.b}" if ref.b else "")
        if (ref.kind, ref.a, ref.b) in rebuilt:
            plan.actions.append(
                RepairStep("rebuild-state", f"the state of {name}, from the journal", ref.path)
            )
        elif ref in evidence.bad_dumps:
            plan.actions.append(
                RepairStep("restore", f"the state of {name}: no older one, no journal", ref.path)
            )


def _plan_changes(plan: RepairPlan, evidence: StoreEvidence, everything: bool) -> None:
    """Plan the files of the logs of changes, unless a dump that they need is itself damaged."""
    newest = evidence.newest
    if (
        newest is None
        or evidence.chain.is_broken
        or any(action.action in ("rebuild-state", "restore") for action in plan.actions)
    ):
        return
    bad = {ref.path for ref in evidence.bad_changes}
    if everything:
        plan.actions.append(RepairStep("rebuild-changes", "rows of the state replace all"))
        return
    for ref in changes_of(newest).refs:
        if ref.path in bad:
            detail = f"{ref.rows} changes of {ref.kind} are lost, rows of the state replace them"
            plan.actions.append(RepairStep("rebuild-changes", detail, ref.path))


def _plan_files(
    disk: Disk, clock: Clock, plan: RepairPlan, evidence: StoreEvidence, ledger: int | None
) -> None:
    """Plan the files of rows and the history; files of delayed ids are rebuilt from the log."""
    newest, view = evidence.newest, evidence.view
    for ref in evidence.bad_history:
        plan.actions.append(RepairStep("forget-history", "txn log no longer covers then", ref.path))
    if evidence.chain.is_broken or any(a.action == "rebuild-state" for a in plan.actions):
        return  # the ledgers may change
    salt, boot_id = evidence.identity.salt, clock.now().boot_id
    live = (
        set()
        if view is None
        else {ref.path for number in view.catalog.owners for ref in view.files.of(number)}
    )
    named_files = (
        set() if newest is None else {r.path for refs in newest.files.values() for r in refs}
    )
    for file in evidence.bad_files:
        if file.form == "bucket" or ledger not in (None, file.ledger) or file.path not in live:
            continue
        # only a frame names it, so a checkpoint must name it first
        if file.path not in named_files:
            plan.actions.append(RepairStep("new-checkpoint", "name the file there", file.path))
            continue
        table = rows_led_to(disk, salt, boot_id, evidence.manifests, file)
        if table is not None:
            plan.rows[file.path] = table
            plan.actions.append(
                RepairStep(
                    "rebuild-file",
                    f"{table.num_rows} rows, from older files and the journal",
                    file.path,
                    file.ledger,
                )
            )
            continue
        assert view is not None
        rescued = salvaged(disk, view, file, f"{file.path} was damaged")
        if rescued is None:
            plan.actions.append(
                RepairStep("restore", "a file outside the store", file.path, file.ledger)
            )
            continue
        plan.left[file.path] = rescued
        plan.actions.append(
            RepairStep(
                "salvage-file",
                rescued.what,
                file.path,
                file.ledger,
                rescued.lost[0][0] if rescued.lost else None,
                rescued.lost[-1][1] if rescued.lost else None,
                rescued.messages,
            )
        )


def _plan_rest(plan: RepairPlan, evidence: StoreEvidence, everything: bool) -> None:
    """Plan the actions on an open store: the delayed index, partitions, the cleanup of writers."""
    view = evidence.view
    if view is None:
        return
    bad = {ref.path for ref in evidence.bad_files}
    for key in sorted(view.known()):
        if key[0] == "delayed":
            for bucket in view.delayed(key[1]).buckets:
                if everything or bucket.file.path in bad:
                    plan.actions.append(
                        RepairStep("rebuild-delayed", "from the log", bucket.file.path)
                    )
    for number, why in sorted(view.catalog.unavailable.items()):
        if why.reason == "damage" and why.ledger not in {ref.ledger for ref in evidence.bad_files}:
            topic = topic_of(view.catalog, number)
            name = f"{TopicName.parse(topic.name).short}/{index_of(topic, number)}"
            plan.actions.append(
                RepairStep("bring-online", f"{name}, its files are good", None, why.ledger)
            )
    for action, codes in (("settle", _SETTLED), ("sweep", _SWEPT)):
        for problem in plan.findings.problems:
            if problem.code in codes and not _is_small(problem):
                plan.actions.append(RepairStep(action, problem.message, problem.path))


def _is_small(problem: Problem) -> bool:
    """True for bytes that nothing reads: in a lock, in the reserve, after a record of the
    witness.
    """
    if problem.code == "witness":
        return problem.offset is not None and problem.offset % RECORD_APART != 0
    return problem.code in ("reserve", "lock") and problem.offset is not None


# --- taking a step --------------------------------------------------------------------------------

_OF_JOURNAL: Final = ("rebuild-journal", "cut-journal")
_AT_LAST: Final = ("new-checkpoint",)
# One group per round. Files that the newest checkpoint names are rebuilt before another checkpoint
# is written: the new one would push out the older one, from which they are rebuilt.
_GROUPS: Final = (
    ("rebuild-state", "forget-history"), _OF_JOURNAL,
    ("rebuild-file", "salvage-file", "rebuild-changes"), _AT_LAST,
)  # fmt: skip


@contextmanager
def _locked(
    disk: Disk, timeout_ms: int, *, writing: bool, without: Collection[str] = ()
) -> Iterator[None]:
    """Hold the maintenance lock, and all other locks for steps without an open store.

    without: paths that are not lock files and cannot be locked
    """
    locks: list[LockFile] = []
    try:
        for path in (MAINTENANCE_PATH, WRITE_LOCK, FLUSH_LOCK)[: 3 if writing else 1]:
            if path in without:
                continue
            lock = disk.lock_file(path)
            locks.append(lock)
            lock.acquire(timeout_ms)
        yield
    finally:
        for lock in reversed(locks):
            lock.close()


def perform(disk: Disk, clock: Clock, plan: RepairPlan, timeout_ms: int) -> list[RepairStep] | None:
    """Do the steps of the first group of a plan that has any.

    returns: the steps done, empty if no step is possible; None: the plan is out of date, because a
             checkpoint was written since
    raises:  StoreLocked, StoreFull, DiskFailed, Corruption: earlier steps stay done
    """
    evidence = plan.known
    if evidence is None:
        return []
    done = [a for a in plan.actions if a.action == "set-aside"]
    if done:
        with _locked(disk, timeout_ms, writing=True, without=evidence.irregular):
            for path in [action.path for action in done if action.path is not None]:
                _move_aside(disk, path)
        return done
    for names in _GROUPS:
        done = [a for name in names for a in plan.actions if a.action == name]
        if not done:
            continue
        return _perform(disk, clock, plan, evidence, (names, done), timeout_ms)
    done = [
        a
        for a in plan.actions
        if a.action in ("rebuild-delayed", "bring-online", "settle", "sweep")
    ]
    if done:
        _with_store(disk, clock, evidence, done, timeout_ms)
    return done


def _perform(
    disk: Disk,
    clock: Clock,
    plan: RepairPlan,
    evidence: StoreEvidence,
    group: tuple[tuple[str, ...], list[RepairStep]],
    timeout_ms: int,
) -> list[RepairStep] | None:
    """Do a group of steps that work on files alone; returns as perform."""
    names, done = group
    if evidence.chain.name is None and done[0].action in _OF_JOURNAL:
        with _locked(disk, timeout_ms, writing=True):
            if _is_past(disk, evidence):
                return None
            path = rewrite_header(disk, evidence).path  # the next round handles the later steps
        return [a for a in done if a.action == "rebuild-journal"] or [
            RepairStep("rebuild-journal", "an empty one", path)
        ]
    _note_losses(disk, clock, evidence, done, timeout_ms)  # first, so that no loss stays unrecorded
    with _locked(disk, timeout_ms, writing=True):
        if _is_past(disk, evidence):
            return None
        if names in (_OF_JOURNAL, _AT_LAST):
            cut_off(disk, clock, evidence, plan.lost if names is _OF_JOURNAL else None)
            for generation in evidence.bad:
                _set_aside(disk, manifest_path(generation))
        else:
            _republish(disk, clock, plan, evidence, done)
    _flush(disk, clock, evidence, timeout_ms)
    return done


def _is_past(disk: Disk, evidence: StoreEvidence) -> bool:
    """True when a checkpoint came since the plan was made; called under the locks."""
    return generations(disk) != evidence.generations


def _republish(
    disk: Disk, clock: Clock, plan: RepairPlan, evidence: StoreEvidence, done: list[RepairStep]
) -> None:
    """Publish a manifest of the same cut, with new dumps and files in place of bad ones.

    It replaces the newest manifest; the previous one stays, from which it can be rebuilt. Without a
    previous one the newest stays too, until the next checkpoint.
    raises: Corruption: a file that it would still name disappeared since the plan was made; nothing
            was changed
    """
    old, salt, now_ms = evidence.newest, evidence.identity.salt, clock.now().wall_ms
    assert old is not None
    near = [ref.path for refs in old.files.values() for ref in refs if not is_far(ref.path)]
    generation = next_generation(disk, old, {path.rpartition("/")[0] for path in near})
    dumps, files = [*old.dumps], {ledger: [*refs] for ledger, refs in old.files.items()}
    dropped = [*old.dropped]
    kinds = {action.action for action in done}
    # a dump that cannot be rebuilt is as bad in the previous manifest, so naming it still loses
    # nothing
    bad_dumps = {*evidence.bad_dumps}
    need_states(disk, [ref for ref in old.dumps if ref not in bad_dumps])
    if "rebuild-state" in kinds:
        dumps = _state(disk, salt, generation, old, plan.dumps)
    else:
        assert evidence.view is not None
        disk.publish(f"state/{generation:010d}.state", [STATE_HEAD.pack(STATE_MAGIC, salt)])
        for action in done:
            if action.ledger is None or action.path is None:
                continue
            at = next(n for n, r in enumerate(files[action.ledger]) if r.path == action.path)
            ref: FileRef = files[action.ledger][at]
            table = plan.rows.get(action.path)
            if table is None:
                table = plan.left[action.path].table
                _keep_copy(disk, action.path)
            files[action.ledger][at] = publish_like(disk, evidence.view, ref, table, generation)
            dropped.append((action.path, now_ms))
    bad = {ref.path for ref in evidence.bad_history} if "forget-history" in kinds else set()
    history = [ref for ref in old.history if ref.path not in bad]
    change_logs = changes_of(old)
    if "rebuild-changes" in kinds:
        lost = {action.path for action in done if action.action == "rebuild-changes"}
        wrong = [ref for ref in change_logs.refs if ref.path in lost or None in lost]  # None: all
        change_logs = again(disk, change_logs, wrong, dumps, old.cut_lsn, generation, now_ms)
        bad |= {ref.path for ref in wrong}
    dropped += [(path, now_ms) for path in sorted(bad)]
    older = evidence.manifests[:-1]
    # 0: the predecessor is left open, because three manifests exist until one is unlinked
    follows = 0 if older else crc_of(disk, old.generation)
    manifest = Manifest(
        generation,
        follows,
        old.cut_lsn,
        old.chain_crc,
        now_ms,
        files,
        dumps,
        dropped,
        history,
        raw_changes(change_logs),
    )
    disk.publish(manifest_path(generation), [encode_manifest(manifest, salt)])
    forget_before(disk, (older or [old])[-1].generation)
    if older:
        disk.unlink(manifest_path(old.generation))


def _state(
    disk: Disk,
    salt: bytes,
    generation: int,
    old: Manifest,
    rebuilt: dict[tuple[str, int, int], bytes],
) -> list[DumpRef]:
    path, at = f"state/{generation:010d}.state", STATE_HEAD.size
    out = [ref for ref in old.dumps if (ref.kind, ref.a, ref.b) not in rebuilt]
    blobs: list[bytes] = []
    for (kind, a, b), blob in sorted(rebuilt.items()):
        out.append(DumpRef(kind, a, b, path, at, len(blob), crc32c(blob)))
        blobs.append(blob)
        at += len(blob)
    disk.publish(path, [STATE_HEAD.pack(STATE_MAGIC, salt), *blobs])
    return out


def _keep_copy(disk: Disk, path: str) -> None:
    """Link a damaged file into the quarantine: parts may become readable later (R4)."""
    if disk.kind(path) == "file" and not disk.exists(_aside(path)):
        disk.link(path, _aside(path))
        disk.sync_dir("quarantine")


def _set_aside(disk: Disk, path: str) -> None:
    """Move a file into the quarantine: link it there first, then unlink it."""
    if not disk.exists(path):
        return
    if disk.kind(path) != "file":
        _move_aside(disk, path)
        return
    _keep_copy(disk, path)
    disk.unlink(path)
    disk.sync_dir(path.rpartition("/")[0])


def _move_aside(disk: Disk, path: str) -> None:
    """Move a path that is not a regular file into the quarantine."""
    target = _aside(path)
    if disk.exists(target):
        target = target.removesuffix(".damaged") + f".{disk.random_bytes(4).hex()}.damaged"
    disk.move(path, target)
    disk.sync_dir("quarantine")
    disk.sync_dir(path.rpartition("/")[0])


def _aside(path: str) -> str:
    return f"quarantine/{path.replace('/', '+')}.damaged"


def _open(disk: Disk, clock: Clock, evidence: StoreEvidence, timeout_ms: int) -> Store:
    return Store(disk, clock, evidence.identity, lock_timeout_ms=timeout_ms, durability=None)


def _flush(disk: Disk, clock: Clock, evidence: StoreEvidence, timeout_ms: int) -> None:
    """Record the newest manifest and the durable LSN in the witness."""
    try:
        store = _open(disk, clock, evidence, timeout_ms)
    except TxlogError:
        return  # the next round must repair something else first
    try:
        newest = max(generations(disk), default=0)
        store.locked(lambda view: view.journal.note_generation(newest))
        store.flush()
    finally:
        store.close()


def _note_losses(
    disk: Disk, clock: Clock, evidence: StoreEvidence, done: list[RepairStep], timeout_ms: int
) -> None:
    """Write a LossAccepted for each salvaged file, for later readers."""
    losses = [action for action in done if action.action == "salvage-file" and action.messages_lost]
    if not losses or evidence.view is None:
        return
    catalog, uid = evidence.view.catalog, disk.owner()[0]
    # by a repair that died
    noted = {(loss.ledger, loss.first, loss.last) for loss in catalog.losses}
    owners = catalog.owners
    ops = [
        LossAccepted(
            owners[action.ledger or 0][0],
            action.ledger or 0,
            action.first or 0,
            action.last or 0,
            action.messages_lost or 0,
            f"{action.path} was damaged",
            uid,
        )
        for action in losses
        if (action.ledger, action.first, action.last) not in noted
    ]
    store = _open(disk, clock, evidence, timeout_ms)
    try:
        store.write(lambda view, now: Decision([*ops], None, True))
    finally:
        store.close()


def _with_store(
    disk: Disk, clock: Clock, evidence: StoreEvidence, done: list[RepairStep], timeout_ms: int
) -> None:
    """Do the actions that need an open store."""
    store = _open(disk, clock, evidence, timeout_ms)
    try:
        paths = {action.path for action in done if action.action == "rebuild-delayed"}
        if paths:
            _rebuild_delayed(store, paths)
        for action in done:
            if action.action == "bring-online":
                _bring_online(store, action.detail.partition(",")[0])
        if any(action.action == "settle" for action in done):
            restore_reserve(store)
            disk.lock_file(MAINTENANCE_PATH).close()  # creates a missing file
            newest = max(generations(disk), default=0)
            for _ in range(2):  # each record of the witness
                store.locked(lambda view: view.journal.note_generation(newest))
        store.flush()
        if any(action.action == "sweep" for action in done):
            with _locked(disk, timeout_ms, writing=False):
                sweep_unnamed(store)
                sweep_stages(store)
                if evidence.generations[:-2]:
                    forget_before(disk, evidence.generations[-2])
    finally:
        store.close()


def _rebuild_delayed(store: Store, paths: set[str | None]) -> None:
    def affected(view: View) -> dict[int, list[int]]:
        return {
            key[1]: [b.gen for b in view.delayed(key[1]).buckets if b.file.path in paths]
            for key in view.known()
            if key[0] == "delayed"
        }

    for number, gens in store.read(affected).items():
        if gens:
            store.write(lambda view, now, n=number, g=gens: lose(view, n, g))  # type: ignore[misc]
            rebuild_now(store, number)


def _bring_online(store: Store, name: str) -> None:
    topic = TopicName.parse(name, allow_partition=True)
    number = store.read(lambda view: partition_number(view, topic))
    check_files(store, number)
    store.write(lambda view, now: set_online(view, store.settings, now, topic))
