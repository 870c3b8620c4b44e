"""Repairing: carries out one group of a plan (`plan`), under the locks it needs.

A step that works on files alone holds the maintenance and the write lock, because the store may not
open; the other steps open the store. New files get new names; then one manifest or frame names
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from txlog.base.ids import TopicName
from txlog.base.startup.crc32c import crc32c
from txlog.clock import Clock
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.availability import partition_number, set_online
from txlog.engine.decide.topics.buckets import lose
from txlog.engine.model.ops import LossAccepted
from txlog.engine.storage.disk.protocol import Disk, LockFile
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
from txlog.engine.upkeep.repair.files import publish_like
from txlog.engine.upkeep.repair.journal import cut_off, forget_before, rewrite_header
from txlog.engine.upkeep.repair.plan import RepairPlan, RepairStep
from txlog.engine.upkeep.space.adopt import sweep_stages
from txlog.engine.upkeep.space.sweep import sweep_unnamed
from txlog.engine.upkeep.verify.verify import StoreEvidence
from txlog.engine.view import STATE_HEAD, STATE_MAGIC, View
from txlog.errors import TxlogError

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
    """Do the first group of a plan. Returns the actions done; empty if none is possible.

    returns: None when a checkpoint was written since the plan was made: it is out of date

    raises: StoreLocked, StoreFull, DiskFailed, Corruption: earlier steps stay done
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
    """One group that works on files alone."""
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

    It replaces the newest manifest; the previous one, which leads to it, stays. Without a previous
    one the newest stays too, until the next checkpoint.
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
