"""Whether a store can be relied on, as the API answers it: verify.

Calls the engine's upkeep; the keys of the answers are the fields that `txlog verify` prints.
Source: RELIABILITY 2.3, promise 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txlog.clock import Clock, SystemClock
from txlog.engine.folds.catalog import has_partition, index_of, topic_of
from txlog.engine.storage.disk import PosixDisk
from txlog.engine.storage.disk_protocol import Disk
from txlog.engine.upkeep.findings import Findings, Problem
from txlog.engine.upkeep.verify import verify as look_over
from txlog.engine.view import View
from txlog.ids import MessageId, TopicName

Answer = dict[str, Any]


def verify(
    path: str, *, deep: bool = False, topics: Sequence[str] = (), clock: Clock | None = None
) -> Answer:
    """Read every byte of a store and repair nothing; exported as txlog.verify.

    It works on a store that cannot be opened, takes no lock and writes nothing.

    deep:    also decode everything, replay the journal from the checkpoint before the newest, and
             compare all components with each other and with the rows
    topics:  only the files and components of these, and what all topics share
    returns: {files, size_bytes, frames, errors, warnings, problem_list}; a problem has code,
             severity (error or warning), path, topic, partition, ledger, first and last (message
             ids), offset (byte), message and hint
    raises:  StoreNotFound, TopicNotFound, NoResources
    cost:    reads every byte once, deep about three times
    """
    disk = PosixDisk(str(Path(path).absolute()), read_only=True)
    try:
        return verify_disk(disk, clock or SystemClock(), deep=deep, topics=topics)
    finally:
        disk.close()


def verify_disk(
    disk: Disk, clock: Clock, *, deep: bool = False, topics: Sequence[str] = ()
) -> Answer:
    """As verify, on a disk."""
    names = [TopicName.parse(name, allow_partition=True) for name in topics]
    findings = Findings()
    known = look_over(disk, clock.now().boot_id, findings, deep=deep, topics=names)
    try:
        return told(findings, None if known is None else known.view)
    finally:
        if known is not None:
            known.close()


def told(findings: Findings, view: View | None) -> Answer:
    """Findings as the fields of `txlog verify`."""
    return {
        "files": findings.files, "size_bytes": findings.size_bytes, "frames": findings.frames,
        "errors": findings.errors, "warnings": findings.warnings,
        "problem_list": [_row(one, view) for one in findings.problems],
    }  # fmt: skip


def _row(problem: Problem, view: View | None) -> Answer:
    topic: str | None = None
    partition: int | None = None
    number = problem.partition
    if number is not None and view is not None and has_partition(view.catalog, number):
        found = topic_of(view.catalog, number)
        topic = TopicName.parse(found.name).short
        partition = index_of(found, number)
    return {
        "code": problem.code, "severity": problem.severity, "path": problem.path, "topic": topic,
        "partition": partition, "ledger": problem.ledger, "first": _id(problem.first),
        "last": _id(problem.last), "offset": problem.offset, "message": problem.message,
        "hint": problem.hint,
    }  # fmt: skip


def _id(place: tuple[int, int] | None) -> MessageId | None:
    return None if place is None else MessageId(place[0], max(0, place[1]))
