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
from txlog.engine.storage.frame import list_journals
from txlog.engine.storage.manifest import changes_of, manifest_path
from txlog.engine.store.identity import IDENTITY_PATH
from txlog.engine.upkeep.repair.files import SalvagedRows, led_to, rows_led_to, salvaged
from txlog.engine.upkeep.repair.journal import LostFrames, headless, lost_frames
from txlog.engine.upkeep.space.sweep import paths_of
from txlog.engine.upkeep.verify.findings import ERROR, Findings, Problem
from txlog.engine.upkeep.verify.verify import StoreEvidence, verify
from txlog.errors import Corruption

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
    """The findings and the actions to take; group: the group of the first action."""

    known: StoreEvidence | None
    findings: Findings
    actions: list[RepairStep] = field(default_factory=list)
    lost: LostFrames | None = None
    dumps: dict[Component, bytes] = field(default_factory=dict)
    rows: dict[str, pa.Table] = field(default_factory=dict)
    left: dict[str, SalvagedRows] = field(default_factory=dict)

    def close(self) -> None:
        """Close its files."""
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
    """Do not give up a journal that other permissions, or another try, could read.

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
    """Directories, links and the like in place of files; True: repair can move some away.

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
