"""Recording a damaged file that a process found, and checking it before the partition's return.

A damaged file makes its partition unavailable; the rest of the store keeps working. A process that
cannot write this down only raises its error. The next process finds the same damage.
"""

from __future__ import annotations

from txlog.engine.decide.topics.availability import quarantine
from txlog.engine.plan.damage import partition_files
from txlog.engine.storage.remote import is_far, open_file
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.store.store import Store
from txlog.errors import TxlogError

DIRECTORY = "quarantine"


def record_damage(store: Store, partition: int, ledger: int, row: int) -> None:
    """Quarantine a partition; a failure is only reported, because the caller raises its own error.

    Files outside the store are not quarantined: a missing file may be back after the next mount.
    """
    if store.disk.read_only:
        return
    try:
        if store.read(lambda view: any(is_far(ref.path) for ref in view.files.of(ledger))):
            return
        store.write(lambda view, now: quarantine(view, partition, ledger, row))
    except TxlogError as error:
        store.reports.append(f"ledger {ledger} is damaged, and that could not be recorded: {error}")


def check_files(store: Store, partition: int) -> None:
    """Read every byte of a partition's files. Raises Corruption naming the damaged one."""
    refs: list[FileRef] = store.read(lambda view: partition_files(view, partition))
    for ref in refs:
        file = open_file(store.disk, ref.path)
        try:
            SegmentReader(file, ref).verify()
        finally:
            file.close()
