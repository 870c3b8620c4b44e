"""Repair: what a damaged store can be made to be again, as a plan, and doing it step by step.

    1 new-checkpoint   a manifest is bad, or the checkpoint before the newest is: one is written
      rebuild-journal  only the header of the journal is bad: its frames behind another one
      cut-journal      the same before damaged frames; what is behind them is lost
    2 rebuild-state    dumps that a replay leads to
    3 rebuild-file     parts and sealed files whose rows older files or frames still have
      salvage-file     what is left of the others; each message in it that is not is lost
      forget-history   a damaged part of the transaction log's history
    4 rebuild-delayed  buckets, from the log
      bring-online     a quarantined partition whose files are good
      settle           an unfinished frame, a damaged witness: what every writer does
      sweep            what nobody names
      restore          nothing can be made of it: a copy of the store is needed

Each round looks at the whole store, does the first group that has something to do, and looks again.
Every step makes new files first and then names them, by one manifest or one frame; so a death
anywhere leaves a store that the next repair goes on with. Two steps lose messages, and want a
consent: cut-journal and salvage-file; both leave a LossAccepted.
Source: RELIABILITY 2.3; R3, R13, R14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from txlog.clock import Clock
from txlog.engine.flow.availability import partition_number, set_online
from txlog.engine.flow.buckets import lose
from txlog.engine.flow.draft import Decision
from txlog.engine.folds.catalog import index_of, topic_of
from txlog.engine.liveness import WRITE_LOCK
from txlog.engine.model.ops import LossAccepted
from txlog.engine.storage.disk_protocol import Disk, LockFile
from txlog.engine.storage.manifest import (
    DumpRef,
    Manifest,
    encode_manifest,
    generations,
    manifest_path,
)
from txlog.engine.storage.segment import FileRef
from txlog.engine.store import MAINTENANCE_PATH, Store
from txlog.engine.upkeep.buckets import rebuild_now
from txlog.engine.upkeep.checkpoint import crc_of, next_generation, restore_reserve
from txlog.engine.upkeep.findings import Findings, Problem
from txlog.engine.upkeep.journal_loss import (
    Lost,
    cut_off,
    forget_before,
    headless,
    lost_frames,
    rewrite_header,
)
from txlog.engine.upkeep.mending import Salvaged, led_to, publish_like, rows_led_to, salvaged
from txlog.engine.upkeep.quarantine import check_files
from txlog.engine.upkeep.sweep import sweep_unnamed
from txlog.engine.upkeep.verify import Known, verify
from txlog.engine.view import STATE_HEAD, STATE_MAGIC, View
from txlog.errors import TxlogError
from txlog.ids import TopicName

ROUNDS_MAX: Final = 12
LOSING: Final = ("cut-journal", "salvage-file")
RECORD_APART: Final = 4096  # of the witness
_PREDECESSOR: Final = ("predecessor", "manifest")
_SETTLED: Final = ("tail", "witness", "reserve", "lock")
_SWEPT: Final = ("unnamed", "temporary", "pin")


@dataclass(frozen=True, slots=True)
class Action:
    """One step; first and last are entries of the ledger, of cut-journal LSNs."""

    action: str
    detail: str
    path: str | None = None
    ledger: int | None = None
    first: int | None = None
    last: int | None = None
    messages_lost: int = 0


@dataclass(slots=True)
class Plan:
    """What a look has found, and what would be done about it; group: of the first of them."""

    known: Known | None
    findings: Findings
    actions: list[Action] = field(default_factory=list)
    lost: Lost | None = None
    rows: dict[str, pa.Table] = field(default_factory=dict)
    left: dict[str, Salvaged] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of its files."""
        if self.known is not None:
            self.known.close()

    @property
    def losing(self) -> list[Action]:
        """The steps that want a consent."""
        return [one for one in self.actions if one.action in LOSING]


def make_plan(
    disk: Disk, clock: Clock, rebuild: Collection[str] = (), ledger: int | None = None
) -> Plan:
    """Look at the store, and say what would be done; changes nothing.

    rebuild: state, delayed: make these anew whether they are damaged or not
    ledger:  only the files of this one
    """
    findings = Findings()
    known = verify(disk, clock.now().boot_id, findings)
    plan = Plan(known, findings)
    if known is None:
        for one in findings.problems:
            plan.actions.append(Action("restore", one.message, one.path))
        return plan
    try:
        if ledger is None:
            _plan_chain(disk, plan, known)
            _plan_state(disk, clock, plan, known, "state" in rebuild)
        _plan_files(disk, clock, plan, known, ledger)
        if ledger is None:
            _plan_rest(plan, known, "delayed" in rebuild)
    except BaseException:
        plan.close()
        raise
    return plan


def _plan_chain(disk: Disk, plan: Plan, known: Known) -> None:
    if known.chain.is_broken:
        if known.chain.name is None:
            name = headless(disk, known)
            plan.actions.append(Action(
                "rebuild-journal", "its frames behind a new header", name.path
            ) if name is not None else Action(
                "restore", "no journal follows any checkpoint that can be read", "journal"
            ))  # fmt: skip
            return
        plan.lost = lost = lost_frames(disk, known.identity.salt, known.chain)
        plan.actions.append(Action(
            "cut-journal", f"go on behind LSN {lost.last} without LSN {lost.first} to {lost.last}; "
            "open transactions are aborted, every key gets a newer epoch",
            known.chain.name.path, None, lost.first, lost.last, lost.messages,
        ))  # fmt: skip
        return
    only_before = [one for one in plan.findings.problems if one.code in _PREDECESSOR]
    if known.bad or only_before:
        path = manifest_path(known.bad[0]) if known.bad else only_before[0].path
        plan.actions.append(Action("new-checkpoint", "write another checkpoint", path))


def _plan_state(disk: Disk, clock: Clock, plan: Plan, known: Known, everything: bool) -> None:
    newest = known.newest
    if newest is None or known.chain.is_broken:
        return
    wanted = [*newest.dumps] if everything else [r for r in newest.dumps if r in known.bad_dumps]
    if not wanted:
        return
    found = led_to(disk, known.identity.salt, clock.now().boot_id, known.manifests, wanted)
    for ref in wanted:
        name = f"{ref.kind} {ref.a}" + (f" {ref.b}" if ref.b else "")
        if (ref.kind, ref.a, ref.b) in found:
            plan.actions.append(
                Action("rebuild-state", f"the state of {name}, from the journal", ref.path)
            )
        elif ref in known.bad_dumps:
            plan.actions.append(
                Action("restore", f"the state of {name}: no older one, no journal", ref.path)
            )


def _plan_files(disk: Disk, clock: Clock, plan: Plan, known: Known, ledger: int | None) -> None:
    """Files of rows and the history; those of delayed ids are made from the log."""
    newest, view = known.newest, known.view
    for ref in known.bad_history:
        plan.actions.append(Action("forget-history", "txn log no longer tells of then", ref.path))
    if known.chain.is_broken or any(a.action == "rebuild-state" for a in plan.actions):
        return  # what is known of ledgers may change
    salt, boot_id = known.identity.salt, clock.now().boot_id
    live = set() if view is None else {
        one.path for number in view.catalog.owners for one in view.files.of(number)
    }  # fmt: skip
    named = set() if newest is None else {r.path for refs in newest.files.values() for r in refs}
    for file in known.bad_files:
        if file.form == "bucket" or ledger not in (None, file.ledger) or file.path not in live:
            continue
        if file.path not in named:  # a frame names it: it has to be in a checkpoint first
            plan.actions.append(Action("new-checkpoint", "name the file there", file.path))
            continue
        table = rows_led_to(disk, salt, boot_id, known.manifests, file)
        if table is not None:
            plan.rows[file.path] = table
            plan.actions.append(Action(
                "rebuild-file", f"{table.num_rows} rows, from older files and the journal",
                file.path, file.ledger,
            ))  # fmt: skip
            continue
        assert view is not None
        left = salvaged(disk, view, file, f"{file.path} was damaged")
        if left is None:
            plan.actions.append(Action("restore", f"a file of form {file.form}", file.path,
                                       file.ledger))  # fmt: skip
            continue
        plan.left[file.path] = left
        plan.actions.append(Action(
            "salvage-file", f"{file.rows} rows, {left.messages} messages of them without key and "
            "value", file.path, file.ledger, left.lost[0][0] if left.lost else None,
            left.lost[-1][1] if left.lost else None, left.messages,
        ))  # fmt: skip


def _plan_rest(plan: Plan, known: Known, everything: bool) -> None:
    """What needs an open store: the delayed index, partitions, what every writer does."""
    view = known.view
    if view is None:
        return
    bad = {ref.path for ref in known.bad_files}
    for key in sorted(view.known()):
        if key[0] == "delayed":
            for bucket in view.delayed(key[1]).buckets:
                if everything or bucket.file.path in bad:
                    plan.actions.append(Action("rebuild-delayed", "from the log", bucket.file.path))
    for number, why in sorted(view.catalog.unavailable.items()):
        if why.reason == "damage" and why.ledger not in {ref.ledger for ref in known.bad_files}:
            topic = topic_of(view.catalog, number)
            name = f"{TopicName.parse(topic.name).short}/{index_of(topic, number)}"
            plan.actions.append(Action("bring-online", f"{name}, its files are good", None,
                                       why.ledger))  # fmt: skip
    for action, codes in (("settle", _SETTLED), ("sweep", _SWEPT)):
        for one in plan.findings.problems:
            if one.code in codes and not _is_small(one):
                plan.actions.append(Action(action, one.message, one.path))


def _is_small(one: Problem) -> bool:
    """Bytes where nobody looks: in a lock, in the reserve, behind a record of the witness."""
    if one.code == "witness":
        return one.offset is not None and one.offset % RECORD_APART != 0
    return one.code in ("reserve", "lock") and one.offset is not None


# --- doing it --------------------------------------------------------------------------------


@contextmanager
def _locked(disk: Disk, timeout_ms: int, *, writing: bool) -> Iterator[None]:
    """Hold the maintenance lock, and the write lock for what is done without an open store."""
    held: list[LockFile] = []
    try:
        for path in (MAINTENANCE_PATH, WRITE_LOCK)[: 1 + writing]:
            lock = disk.lock_file(path)
            held.append(lock)
            lock.acquire(timeout_ms)
        yield
    finally:
        for lock in reversed(held):
            lock.close()


def perform(disk: Disk, clock: Clock, plan: Plan, timeout_ms: int) -> list[Action]:
    """Do the first group of a plan; returns what was done, nothing: nothing can be.

    raises: StoreLocked, StoreFull, DiskFailed, Corruption: what was done before stands
    """
    known = plan.known
    if known is None:
        return []
    by = {name: [a for a in plan.actions if a.action == name] for name in _order(plan)}
    if done := by.get("rebuild-journal", []):
        with _locked(disk, timeout_ms, writing=True):
            rewrite_header(disk, known)
        return done
    for name in ("cut-journal", "new-checkpoint"):
        done = by.get(name, [])
        if done:
            with _locked(disk, timeout_ms, writing=True):
                cut_off(disk, clock, known, plan.lost if name == "cut-journal" else None)
                for generation in known.bad:
                    _set_aside(disk, manifest_path(generation))
            _flush(disk, clock, known, timeout_ms)
            return done
    for names in (("rebuild-state", "forget-history"), ("rebuild-file", "salvage-file")):
        done = [a for name in names for a in by.get(name, [])]
        if done:
            _note_losses(disk, clock, known, done, timeout_ms)  # before: never lost unrecorded
            with _locked(disk, timeout_ms, writing=True):
                _republish(disk, clock, plan, known, done)
            _flush(disk, clock, known, timeout_ms)
            return done
    done = [a for a in plan.actions
            if a.action in ("rebuild-delayed", "bring-online", "settle", "sweep")]  # fmt: skip
    if done:
        _with_store(disk, clock, known, done, timeout_ms)
    return done


def _order(plan: Plan) -> list[str]:
    return list(dict.fromkeys(one.action for one in plan.actions))


def _republish(disk: Disk, clock: Clock, plan: Plan, known: Known, done: list[Action]) -> None:
    """A manifest of the same cut, with dumps and files of new names in the place of bad ones."""
    old, salt, now_ms = known.newest, known.identity.salt, clock.now().wall_ms
    assert old is not None
    generation = next_generation(disk, old)
    dumps, files = [*old.dumps], {ledger: [*refs] for ledger, refs in old.files.items()}
    dropped = [*old.dropped]
    kinds = {one.action for one in done}
    if "rebuild-state" in kinds:
        paths = {one.path for one in done if one.action == "rebuild-state"}
        wanted = [ref for ref in old.dumps if ref.path in paths]
        found = led_to(disk, salt, clock.now().boot_id, known.manifests, wanted)
        dumps = _state(disk, salt, generation, old, found)
    else:
        assert known.view is not None
        disk.publish(f"state/{generation:010d}.state", [STATE_HEAD.pack(STATE_MAGIC, salt)])
        for one in done:
            if one.ledger is None or one.path is None:
                continue
            at = next(n for n, r in enumerate(files[one.ledger]) if r.path == one.path)
            ref: FileRef = files[one.ledger][at]
            table = plan.rows.get(one.path)
            if table is None:
                table = plan.left[one.path].table
                _keep_copy(disk, one.path)
            files[one.ledger][at] = publish_like(disk, known.view, ref, table, generation)
            dropped.append((one.path, now_ms))
    bad = {ref.path for ref in known.bad_history} if "forget-history" in kinds else set()
    history = [ref for ref in old.history if ref.path not in bad]
    dropped += [(path, now_ms) for path in sorted(bad)]
    manifest = Manifest(
        generation, crc_of(disk, old.generation), old.cut_lsn, old.chain_crc, now_ms, files, dumps,
        dropped, history,
    )  # fmt: skip
    disk.publish(manifest_path(generation), [encode_manifest(manifest, salt)])
    forget_before(disk, old.generation)


def _state(
    disk: Disk, salt: bytes, generation: int, old: Manifest,
    found: dict[tuple[str, int, int], bytes],
) -> list[DumpRef]:  # fmt: skip
    path, at = f"state/{generation:010d}.state", STATE_HEAD.size
    out = [ref for ref in old.dumps if (ref.kind, ref.a, ref.b) not in found]
    blobs: list[bytes] = []
    for (kind, a, b), blob in sorted(found.items()):
        out.append(DumpRef(kind, a, b, path, at, len(blob), crc32c(blob)))
        blobs.append(blob)
        at += len(blob)
    disk.publish(path, [STATE_HEAD.pack(STATE_MAGIC, salt), *blobs])
    return out


def _keep_copy(disk: Disk, path: str) -> None:
    """Link a damaged file into the quarantine: who knows what can be read of it one day (R4)."""
    with suppress(TxlogError):
        if disk.exists(path):
            disk.link(path, _aside(path))
            disk.sync_dir("quarantine")


def _set_aside(disk: Disk, path: str) -> None:
    """Move a file that is in the way into the quarantine: linked there first, then unlinked."""
    if not disk.exists(path):
        return
    if not disk.exists(_aside(path)):
        disk.link(path, _aside(path))
        disk.sync_dir("quarantine")
    disk.unlink(path)
    disk.sync_dir(path.rpartition("/")[0])


def _aside(path: str) -> str:
    return f"quarantine/{path.replace('/', '+')}.damaged"


def _open(disk: Disk, clock: Clock, known: Known, timeout_ms: int) -> Store:
    return Store(disk, clock, known.identity, lock_timeout_ms=timeout_ms, durability=None)


def _flush(disk: Disk, clock: Clock, known: Known, timeout_ms: int) -> None:
    """Let the witness know of the newest manifest, and of what is durable."""
    try:
        store = _open(disk, clock, known, timeout_ms)
    except TxlogError:
        return  # the next round has something to do first
    try:
        newest = max(generations(disk), default=0)
        store.locked(lambda view: view.journal.note_generation(newest))
        store.flush()
    finally:
        store.close()


def _note_losses(
    disk: Disk, clock: Clock, known: Known, done: list[Action], timeout_ms: int
) -> None:
    """A LossAccepted for each file that is salvaged: every later reader may ask."""
    losses = [one for one in done if one.action == "salvage-file" and one.messages_lost]
    if not losses or known.view is None:
        return
    catalog, uid = known.view.catalog, disk.owner()[0]
    noted = {(one.ledger, one.first, one.last) for one in catalog.losses}  # by one that died
    owners = catalog.owners
    ops = [
        LossAccepted(owners[one.ledger or 0][0], one.ledger or 0, one.first or 0, one.last or 0,
                     one.messages_lost, f"{one.path} was damaged", uid)
        for one in losses if (one.ledger, one.first, one.last) not in noted
    ]  # fmt: skip
    store = _open(disk, clock, known, timeout_ms)
    try:
        store.write(lambda view, now: Decision([*ops], None, True))
    finally:
        store.close()


def _with_store(
    disk: Disk, clock: Clock, known: Known, done: list[Action], timeout_ms: int
) -> None:
    """What needs nothing but an open store."""
    store = _open(disk, clock, known, timeout_ms)
    try:
        paths = {one.path for one in done if one.action == "rebuild-delayed"}
        if paths:
            _rebuild_delayed(store, paths)
        for one in done:
            if one.action == "bring-online":
                _bring_online(store, one.detail.partition(",")[0])
        if any(one.action == "settle" for one in done):
            restore_reserve(store)
            newest = max(generations(disk), default=0)
            for _ in range(2):  # each record of the witness
                store.locked(lambda view: view.journal.note_generation(newest))
        store.flush()
        if any(one.action == "sweep" for one in done):
            with _locked(disk, timeout_ms, writing=False):
                sweep_unnamed(store)
    finally:
        store.close()


def _rebuild_delayed(store: Store, paths: set[str | None]) -> None:
    def affected(view: View) -> dict[int, list[int]]:
        return {
            key[1]: [b.gen for b in view.delayed(key[1]).buckets if b.file.path in paths]
            for key in view.known() if key[0] == "delayed"
        }  # fmt: skip

    for number, gens in store.read(affected).items():
        if gens:
            store.write(lambda view, now, n=number, g=gens: lose(view, n, g))  # type: ignore[misc]
            rebuild_now(store, number)


def _bring_online(store: Store, name: str) -> None:
    topic = TopicName.parse(name, allow_partition=True)
    number = store.read(lambda view: partition_number(view, topic))
    check_files(store, number)
    store.write(lambda view, now: set_online(view, store.settings, now, topic))
