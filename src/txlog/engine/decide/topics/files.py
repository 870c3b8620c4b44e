"""The switch of a ledger or a topic to other files, as frames: offloading, and compaction by key.

Files are copied or made without the write lock, so the decision looks again: the ledger must still
have the file that was copied; a topic that was deleted, or that another process has compacted, is
left alone. One frame switches all partitions of a topic to compacted rows, so that they show the
state at one LSN. Source: Pulsar's topic compaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import has_partition
from txlog.engine.model.ops import LedgerReserved, Offloaded, PartitionCompacted, PlaceAdded
from txlog.engine.storage.segment import FileRef
from txlog.engine.view.view import View


def add_place(view: View, location: str) -> Decision[None]:
    """Decide that files may be in a place; durable before the first file is there."""
    if location in view.catalog.places:
        return Decision([], None, True)
    return Decision([PlaceAdded(location)], None, True)


def offload(view: View, partition: int, old: FileRef, new: FileRef) -> Decision[bool]:
    """Decide that a copy replaces its file; answers whether it does."""
    is_same = has_partition(view.catalog, partition) and view.files.of(old.ledger) == [old]
    if not is_same:
        return Decision([], None, True, False)
    return Decision([Offloaded(partition, new)], None, True, True)


# --- compaction by key -----------------------------------------------------------------------


def reserve(view: View, partition: int) -> Decision[int]:
    """Decide the id of a ledger of compacted rows; 0 when the topic was deleted since."""
    if not has_partition(view.catalog, partition):
        return Decision([], None, True, 0)
    ledger = view.catalog.next_ledger
    return Decision([LedgerReserved(partition, "c", ledger)], None, True, ledger)


def switch(view: View, ops: Sequence[PartitionCompacted]) -> Decision[bool]:
    """Decide that files hold the compacted rows of partitions; answers whether they do."""
    for op in ops:
        if not has_partition(view.catalog, op.partition):
            return Decision([], None, True, False)
        compaction = view.topic(op.partition).compaction
        if ([] if compaction is None else compaction.ledgers) != op.old:
            return Decision([], None, True, False)
    return Decision([*ops], None, True, True)
