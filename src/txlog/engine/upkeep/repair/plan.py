"""Repair: what a damaged store can be restored to, as a plan, and doing it step by step.

    1 rebuild-state    dumps that a replay leads to
      forget-history   a damaged part of the transaction log's history
    2 rebuild-journal  only the header of the journal is bad: its frames after another one
      cut-journal      the same before damaged frames; what is after them is lost
    3 rebuild-file     parts and sealed files whose rows older files or frames still have
      salvage-file     what is left of the others; every other message in it is lost, and so is a
                       large one that lacks a byte
      rebuild-changes  a file of the logs of changes: rows of the state in its place
    4 new-checkpoint   a manifest is bad, or the checkpoint before the newest is: one is written
    5 rebuild-delayed  buckets, from the log
      bring-online     a quarantined partition whose files are good
      settle           an unfinished frame, a damaged witness: what every writer does
      sweep            what nothing names, and what jobs left
      set-aside        before all others: a directory, link or pipe in place of a file that can be
                       made again; for a lock file no process may be at work then (R26)
      restore          nothing can be done: a copy of the store is needed, or of the file where it
                       lies outside

Each round looks at the whole store, does the first group that has something to do, and looks again.
Every step first makes new files and then names them, by one manifest or one frame; so a death
anywhere leaves a store that the next repair can finish. No step gives up what a later one needs:
a checkpoint comes last, and none is written over a missing dump. Two steps lose messages and need
consent: cut-journal, salvage-file; each leaves a LossAccepted. Source: spec/reliability 2.3; R3,
R13, R14.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.clock import Clock
from txlog.engine.folds.catalog import index_of, topic_of
from txlog.engine.model.ops import Component
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.file import list_journals
from txlog.engine.storage.manifest import changes_of, manifest_path
from txlog.engine.store.identity import IDENTITY_PATH
from txlog.engine.upkeep.repair.files import Salvaged, led_to, rows_led_to, salvaged
from txlog.engine.upkeep.repair.journal import Lost, headless, lost_frames
from txlog.engine.upkeep.space.sweep import paths_of
from txlog.engine.upkeep.verify.findings import ERROR, Findings, Problem
from txlog.engine.upkeep.verify.verify import Known, verify
from txlog.errors import Corruption

ROUNDS_MAX: Final = 12
LOSING: Final = ("cut-journal", "salvage-file")
RECORD_APART: Final = 4096  # of the witness
_PREDECESSOR: Final = ("predecessor", "manifest")
_SETTLED: Final = ("tail", "witness", "reserve", "lock")
_SWEPT: Final = ("unnamed", "temporary", "pin", "staged")


@dataclass(frozen=True, slots=True)
class Action:
    """One step; first and last are entries of the ledger, of what is done to frames LSNs.

    messages_lost: None: unknown, as what they were in cannot be read
    """

    action: str
    detail: str
    path: str | None = None
    ledger: int | None = None
    first: int | None = None
    last: int | None = None
    messages_lost: int | None = 0


@dataclass(slots=True)
class Plan:
    """What a look found, and what would be done about it; group: that of the first action."""

    known: Known | None
    findings: Findings
    actions: list[Action] = field(default_factory=list)
    lost: Lost | None = None
    dumps: dict[Component, bytes] = field(default_factory=dict)
    rows: dict[str, pa.Table] = field(default_factory=dict)
    left: dict[str, Salvaged] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of its files."""
        if self.known is not None:
            self.known.close()

    @property
    def losing(self) -> list[Action]:
        """The steps that need consent."""
        return [one for one in self.actions if one.action in LOSING]


def make_plan(
    disk: Disk, clock: Clock, rebuild: Collection[str] = (), ledger: int | None = None
) -> Plan:
    """Examine the store, and say what would be done; changes nothing.

    rebuild: state, delayed, changes: rebuild these, damaged or not
    ledger:  only the files of this one
    raises:  DiskFailed: a file of the journal may be good, but this caller cannot read it
    """
    _need_journals(disk)
    findings = Findings()
    known = verify(disk, clock.now(), findings)
    plan = Plan(known, findings)
    if known is None:
        for one in [one for one in findings.problems if one.severity == ERROR]:
            plan.actions.append(Action("restore", one.message, one.path))
        return plan
    try:
        if ledger is None and _plan_irregular(plan, known):
            return plan  # they block everything else
        if ledger is None:
            _plan_state(disk, clock, plan, known, "state" in rebuild)
            if known.conflict is not None:
                if not plan.actions:  # a rebuilt state may end the contradiction
                    detail = f"LSN {known.conflict.raw.lsn} contradicts what comes before it"
                    path = known.conflict.raw.journal.path
                    plan.actions.append(Action("restore", detail, path))
                return plan  # what is known of the rest may be wrong
            _plan_chain(disk, plan, known)
            _plan_changes(plan, known, "changes" in rebuild)
        _plan_files(disk, clock, plan, known, ledger)
        if ledger is None:
            _plan_rest(plan, known, "delayed" in rebuild)
    except BaseException:  # nobody else can close it yet
        plan.close()
        raise
    return plan


def _need_journals(disk: Disk) -> None:
    """Do not give up a journal that other permissions, or another try, could read.

    Everything else can be rebuilt; what is in the journal is nowhere else.
    """
    for name in list_journals(disk):
        with suppress(Corruption):  # verify says so
            disk.open(name.path).close()


def _plan_chain(disk: Disk, plan: Plan, known: Known) -> None:
    if any(one.action == "restore" for one in plan.actions):
        return  # a checkpoint without a dump would drop what is left of it
    if known.chain.is_broken:
        if known.chain.name is None:
            plan.actions.append(_without_journal(disk, known))
            return
        plan.lost = lost = lost_frames(disk, known.identity.salt, known.chain)
        plan.actions.append(
            Action(
                "cut-journal",
                f"continue after LSN {lost.last} without LSN {lost.first} to {lost.last}; "
                f"open transactions are aborted, every key gets a newer epoch; {lost.words}",
                known.chain.name.path,
                None,
                lost.first,
                lost.last,
                None if lost.unread else lost.messages,
            )
        )
        return
    only_before = [one for one in plan.findings.problems if one.code in _PREDECESSOR]
    if known.bad or only_before:
        path = manifest_path(known.bad[0]) if known.bad else only_before[0].path
        plan.actions.append(Action("new-checkpoint", "write another checkpoint", path))


def _plan_irregular(plan: Plan, known: Known) -> bool:
    """Directories, links and the like in place of files; True: some can be moved away.

    Not what a checkpoint or the journal names: that is first repaired as a damaged file.
    """
    named = {path for manifest in known.manifests for path in paths_of(manifest)}
    named -= {path for path, _ in known.newest.dropped} if known.newest is not None else set()
    for path in sorted(known.irregular):
        if (
            path not in named
            and path.partition("/")[0] != "manifest"
            and not (path.endswith(".journal") or path == IDENTITY_PATH)
        ):
            plan.actions.append(
                Action("set-aside", "not a regular file: moved to the quarantine", path)
            )
    return bool(plan.actions)


def _without_journal(disk: Disk, known: Known) -> Action:
    """No file with a good header follows the newest checkpoint."""
    name = headless(disk, known)
    if name is not None:
        return Action("rebuild-journal", "its frames after a new header", name.path)
    if known.newest is None:
        return Action("restore", "there is neither a checkpoint nor a journal", "journal")
    cut, witnessed = known.newest.cut_lsn, known.witnessed
    durable = cut if witnessed is None else witnessed.durable_lsn
    if durable > cut:
        return Action(
            "cut-journal",
            f"continue without LSN {cut + 1} to {durable}, whose file is missing; "
            "what was in them is unknown",
            "journal",
            None,
            cut + 1,
            durable,
            None,
        )
    return Action(
        "rebuild-journal", "an empty one: nothing was durable after the checkpoint", "journal"
    )


def _plan_state(disk: Disk, clock: Clock, plan: Plan, known: Known, everything: bool) -> None:
    newest = known.newest
    if newest is None:
        return
    everything = everything and not known.chain.is_broken
    wanted = [*newest.dumps] if everything else [r for r in newest.dumps if r in known.bad_dumps]
    if not wanted:
        return
    found = led_to(disk, known.identity.salt, clock.now().boot_id, known.manifests, wanted)
    plan.dumps = found
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


def _plan_changes(plan: Plan, known: Known, everything: bool) -> None:
    """Files of the logs of changes, unless a dump that they are made from is itself damaged."""
    newest = known.newest
    if (
        newest is None
        or known.chain.is_broken
        or any(one.action in ("rebuild-state", "restore") for one in plan.actions)
    ):
        return
    bad = {ref.path for ref in known.bad_changes}
    if everything:
        plan.actions.append(Action("rebuild-changes", "rows of the state replace all"))
        return
    for ref in changes_of(newest).refs:
        if ref.path in bad:
            detail = f"{ref.rows} changes of {ref.kind} are lost, rows of the state replace them"
            plan.actions.append(Action("rebuild-changes", detail, ref.path))


def _plan_files(disk: Disk, clock: Clock, plan: Plan, known: Known, ledger: int | None) -> None:
    """Files of rows and the history; those of delayed ids are made from the log."""
    newest, view = known.newest, known.view
    for ref in known.bad_history:
        plan.actions.append(Action("forget-history", "txn log no longer covers then", ref.path))
    if known.chain.is_broken or any(a.action == "rebuild-state" for a in plan.actions):
        return  # what is known of ledgers may change
    salt, boot_id = known.identity.salt, clock.now().boot_id
    live = (
        set()
        if view is None
        else {one.path for number in view.catalog.owners for one in view.files.of(number)}
    )
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
            plan.actions.append(
                Action(
                    "rebuild-file",
                    f"{table.num_rows} rows, from older files and the journal",
                    file.path,
                    file.ledger,
                )
            )
            continue
        assert view is not None
        left = salvaged(disk, view, file, f"{file.path} was damaged")
        if left is None:
            plan.actions.append(
                Action("restore", "a file outside the store", file.path, file.ledger)
            )
            continue
        plan.left[file.path] = left
        plan.actions.append(
            Action(
                "salvage-file",
                left.what,
                file.path,
                file.ledger,
                left.lost[0][0] if left.lost else None,
                left.lost[-1][1] if left.lost else None,
                left.messages,
            )
        )


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
            plan.actions.append(
                Action("bring-online", f"{name}, its files are good", None, why.ledger)
            )
    for action, codes in (("settle", _SETTLED), ("sweep", _SWEPT)):
        for one in plan.findings.problems:
            if one.code in codes and not _is_small(one):
                plan.actions.append(Action(action, one.message, one.path))


def _is_small(one: Problem) -> bool:
    """Bytes that nothing reads: in a lock, in the reserve, after a record of the witness."""
    if one.code == "witness":
        return one.offset is not None and one.offset % RECORD_APART != 0
    return one.code in ("reserve", "lock") and one.offset is not None
