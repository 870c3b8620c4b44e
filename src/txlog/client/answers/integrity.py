"""Verifying and repairing a store.

It calls the engine's upkeep. The keys of the answers are the fields that `txlog verify` prints.
Source: spec/reliability 2.3, promise 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txlog.base.arguments import StrPath
from txlog.base.ids import MessageId, TopicName
from txlog.base.times import DurationLike, duration_ms
from txlog.clock import Clock, SystemClock
from txlog.engine.door.catalog import has_partition, index_of, topic_of
from txlog.engine.door.disk import Disk, PosixDisk
from txlog.engine.door.integrity import (
    ROUNDS_MAX,
    Findings,
    Problem,
    RepairStep,
    make_plan,
    perform,
    silent,
)
from txlog.engine.door.integrity import verify as look_over
from txlog.engine.door.store import View
from txlog.errors import InvalidArgument, Refused

if TYPE_CHECKING:
    from txlog.base.rows.store import RepairAction, Repaired, Verified, VerifyProblem


REBUILD = ("state", "delayed", "changes", "all")


def verify(
    path: StrPath,
    *,
    deep: bool = False,
    topics: Sequence[str] = (),
    clock: Clock | None = None,
    tell: Callable[[str, int], None] = silent,
) -> Verified:
    """Read every byte of a store and report damage; exported as txlog.verify.

    It also works on a store that cannot be opened. It takes no lock and writes nothing.

    deep:    also decode everything, replay the journal from the checkpoint before the newest, and
             compare all components with each other and with the rows
    topics:  check only their files and components, and the shared ones
    tell:    called now and then with the current step and the bytes read so far
    returns: {files, size_bytes, frames, errors, warnings, problem_list}; a problem has code,
             severity (error or warning), path, topic, partition, ledger, first and last (message
             ids), offset (byte), message and hint
    raises:  StoreNotFound, TopicNotFound, NoResources
    cost:    reads every byte once; deep about three times
    """
    disk = PosixDisk(str(Path(path).absolute()), read_only=True)
    try:
        return verify_disk(disk, clock or SystemClock(), deep=deep, topics=topics, tell=tell)
    finally:
        disk.close()


def verify_disk(
    disk: Disk,
    clock: Clock,
    *,
    deep: bool = False,
    topics: Sequence[str] = (),
    tell: Callable[[str, int], None] = silent,
) -> Verified:
    """Like verify, on a disk."""
    names = [TopicName.parse(name, allow_partition=True) for name in topics]
    findings = Findings(tell)
    evidence = look_over(disk, clock.now(), findings, deep=deep, topics=names)
    try:
        return told(findings, None if evidence is None else evidence.view)
    finally:
        if evidence is not None:
            evidence.close()


def told(findings: Findings, view: View | None) -> Verified:
    """Findings as the fields of `txlog verify`."""
    return {
        "files": findings.files,
        "size_bytes": findings.size_bytes,
        "frames": findings.frames,
        "errors": findings.errors,
        "warnings": findings.warnings,
        "problem_list": [_row(problem, view) for problem in findings.problems],
    }


def _row(problem: Problem, view: View | None) -> VerifyProblem:
    topic: str | None = None
    partition: int | None = None
    number = problem.partition
    if number is not None and view is not None and has_partition(view.catalog, number):
        record = topic_of(view.catalog, number)
        topic = TopicName.parse(record.name).short
        partition = index_of(record, number)
    return {
        "code": problem.code,
        "severity": problem.severity,
        "path": problem.path,
        "topic": topic,
        "partition": partition,
        "ledger": problem.ledger,
        "first": _id(problem.first),
        "last": _id(problem.last),
        "offset": problem.offset,
        "message": problem.message,
        "hint": problem.hint,
    }


def _id(position: tuple[int, int] | None) -> MessageId | None:
    return None if position is None else MessageId(position[0], max(0, position[1]))


def repair(
    path: StrPath,
    *,
    apply: bool = False,
    rebuild: str | None = None,
    ledger: int | None = None,
    accept_loss: bool = False,
    lock_timeout_ms: DurationLike = 30_000,
    clock: Clock | None = None,
) -> Repaired:
    """Plan the repair of a damaged store, or repair it; exported as txlog.repair.

    Files that can be built again from the journal or from older files are rebuilt without loss. Of
    other damaged files the good part can be kept: the journal up to the damage, and the good row
    groups of a file. The messages lost with the rest are counted and recorded. Lost messages of a
    file keep their ids, without key and value, with the property `txlog.lost`, so that every reader
    sees the loss.

    apply:       repair; otherwise only plan, which takes no lock and writes nothing
    rebuild:     "state", "delayed", "changes" or "all": rebuild this even if it is not damaged
    ledger:      only files of this ledger
    accept_loss: also take steps that lose messages
    returns:     {applied, messages_lost, action_list}; an action has action, path, ledger, first,
                 last (entries of the ledger, or LSNs), messages_lost, detail, done. messages_lost
                 is None if it includes unreadable frames; then `detail` has the known facts
    raises:      Refused (902: it would lose messages, and nothing was done), StoreNotFound,
                 StoreLocked, StoreFull, InvalidArgument
    """
    if rebuild is not None and rebuild not in REBUILD:
        raise InvalidArgument(f"rebuild is {rebuild!r}, it must be one of {', '.join(REBUILD)}")
    disk = PosixDisk(str(Path(path).absolute()), read_only=not apply)
    try:
        return repair_disk(
            disk,
            clock or SystemClock(),
            apply=apply,
            rebuild=rebuild,
            ledger=ledger,
            accept_loss=accept_loss,
            lock_timeout_ms=lock_timeout_ms,
        )
    finally:
        disk.close()


def repair_disk(
    disk: Disk,
    clock: Clock,
    *,
    apply: bool,
    rebuild: str | None = None,
    ledger: int | None = None,
    accept_loss: bool = False,
    lock_timeout_ms: DurationLike = 30_000,
) -> Repaired:
    """Like repair, on a disk."""
    rebuilds: Collection[str] = REBUILD[:-1] if rebuild == "all" else [rebuild] if rebuild else []
    done: list[RepairStep] = []
    for _ in range(ROUNDS_MAX):
        plan = make_plan(disk, clock, rebuilds, ledger)
        try:
            if not apply:
                return _repaired(False, plan.actions)
            if plan.losing and not accept_loss:
                if not done:
                    _refuse(plan.losing)
                return _repaired(True, done, plan.losing)
            step = perform(disk, clock, plan, duration_ms(lock_timeout_ms))
            if step is None:
                continue
            if not step:
                return _repaired(True, done, plan.actions)
            done += step
            rebuilds = [
                name for name in rebuilds if f"rebuild-{name}" not in {a.action for a in step}
            ]
        finally:
            plan.close()
    return _repaired(True, done, make_plan(disk, clock).actions)


def _refuse(losing: Sequence[RepairStep]) -> None:
    lost = _sum_lost(losing)
    how_many = (
        "an unknown number of messages"
        if lost is None
        else ("1 message" if lost == 1 else f"{lost} messages")
    )
    steps = "; ".join(f"{step.action} {step.path}" for step in losing)
    raise Refused(
        f"this would lose {how_many}: {steps}",
        code=902,
        hint="restore the file from a copy of the store, or give --accept-loss",
        path=losing[0].path,
    )


def _sum_lost(actions: Sequence[RepairStep]) -> int | None:
    """How many messages all steps lose; None if it is unknown for a step."""
    counts = [step.messages_lost for step in actions]
    return None if None in counts else sum(count for count in counts if count is not None)


def _repaired(
    applied: bool, actions: Sequence[RepairStep], remaining: Sequence[RepairStep] = ()
) -> Repaired:
    """The answer: first the steps taken, then the rest: for these a user restores a copy of a
    file or accepts the loss.
    """
    rows = [_action(step, applied) for step in actions] + [
        _action(step, False) for step in remaining
    ]
    return {"applied": applied, "messages_lost": _sum_lost(actions), "action_list": rows}


def _action(step: RepairStep, done: bool) -> RepairAction:
    return {
        "action": step.action,
        "detail": step.detail,
        "path": step.path,
        "ledger": step.ledger,
        "first": step.first,
        "last": step.last,
        "messages_lost": step.messages_lost,
        "done": done,
    }
