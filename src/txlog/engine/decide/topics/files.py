"""Switches of a ledger or a topic to other files, as frames, and the upkeep of sidecars.

    offload     a copy in another place replaces the file of a ledger
    compacted   compacted rows of a topic replace the earlier ones
    sidecar     a compacted or sealed file replaces ledgers of a sidecar; open ledgers roll over

Files are copied or made without the write lock, from a state that may be out of date by the time
they exist. So each decision checks again; if a file no longer fits, the answer is False and nothing
happens. One frame switches all partitions of a topic to compacted rows, so that they show the state
at one LSN.
Source: Pulsar's topic compaction; spec/transactions 12, R17.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.topics.trim import dead_ledgers
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import has_partition
from txlog.engine.model.ops import (
    Compacted,
    LedgerReserved,
    LedgerRolled,
    LedgerSealed,
    Offloaded,
    PartitionCompacted,
    PlaceAdded,
)
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import View


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


def switch_compacted(view: View, ops: Sequence[PartitionCompacted]) -> Decision[bool]:
    """Decide that files hold the compacted rows of partitions; answers whether they do."""
    for op in ops:
        if not has_partition(view.catalog, op.partition):
            return Decision([], None, True, False)
        compaction = view.topic(op.partition).compaction
        if ([] if compaction is None else compaction.ledgers) != op.old:
            return Decision([], None, True, False)
    return Decision([*ops], None, True, True)


# --- files of sidecars ----------------------------------------------------------------------------


RowMove = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class SidecarReplacement:
    """A published file and the ledgers that it replaces; old: (ledger, was it sealed)."""

    partition: int
    old: list[tuple[int, bool]]
    file: FileRef
    payload_bytes: int
    moved: list[RowMove]


def roll_dead(view: View, numbers: Iterable[int], draft: Draft) -> Decision[None]:
    """Decide to close the open ledgers of sidecars that hold dead rows."""
    for number in numbers:
        ends = view.buffer(number).ledgers
        if ends and ends[-1].dead_bytes:
            draft.ops.append(LedgerRolled(number, "s", ends[-1].ledger, draft.new_ledger()))
    return draft.decision()


def drop_dead(view: View, number: int) -> Decision[int]:
    """Decide to drop closed sidecar ledgers without a live row; answers how many."""
    ops = dead_ledgers(view, number, set())
    return Decision([*ops], None, True, len(ops))


def reserve_ledger(view: View, number: int) -> Decision[int]:
    """Decide the id of a new sidecar ledger; it is used by the switch, or never.

    returns: 0 when the topic was deleted since
    """
    if not has_partition(view.catalog, number):
        return Decision([], None, True, 0)
    ledger = view.catalog.next_ledger
    return Decision([LedgerReserved(number, "s", ledger)], None, True, ledger)


def switch_sidecar(view: View, compacted: SidecarReplacement) -> Decision[bool]:
    """Decide that a compacted file replaces its ledgers; answers whether it does.

    Transactions that ended since the file was written may be in either place: order comes from
    markers.
    """
    state = view.buffer(compacted.partition)
    closed = {end.ledger: end.sealed for end in state.ledgers[:-1]}
    if any(closed.get(ledger) is not sealed for ledger, sealed in compacted.old):
        return Decision([], None, True, False)
    old = [ledger for ledger, _ in compacted.old]
    op = Compacted(
        compacted.partition, old, compacted.file, compacted.payload_bytes, compacted.moved
    )
    return Decision([op], None, True, True)


def seal(view: View, op: LedgerSealed) -> Decision[bool]:
    """Decide that a sealed file replaces a ledger; answers whether it does.

    For a sidecar it compares the live rows, because a trim may have dropped some since the file was
    written.
    """
    number, ledger = op.partition, op.file.ledger
    state = view.topic(number) if op.role == "p" else view.buffer(number)
    if not any(end.ledger == ledger and not end.sealed for end in state.ledgers[:-1]):
        return Decision([], None, True, False)
    if op.role == "s":
        rows = buffers.live_rows(view.buffer(number)).get(ledger, 0)
        if rows != op.file.rows:
            return Decision([], None, True, False)
    return Decision([op], None, True, True)
