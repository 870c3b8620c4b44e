"""Compaction by key, as frames: ids for the files, and the switch of a whole topic to them.

Files are made without the write lock, so the decision looks again: a topic that is gone, or was
compacted by somebody else, is left alone. All partitions switch in one frame, which stands for one
LSN of all of them. Source: Pulsar's topic compaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import has_partition
from txlog.engine.model.ops import LedgerReserved, PartitionCompacted
from txlog.engine.view.view import View


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
        known = view.topic(op.partition).compaction
        if ([] if known is None else known.ledgers) != op.old:
            return Decision([], None, True, False)
    return Decision([*ops], None, True, True)
