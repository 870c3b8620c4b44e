"""Offloading, as frames: a place to copy to, and a copy that replaces a file.

Files are copied without the write lock, so the decision checks again that the ledger still has the
file that was copied.
"""

from __future__ import annotations

from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import has_partition
from txlog.engine.model.ops import Offloaded, PlaceAdded
from txlog.engine.storage.segment import FileRef
from txlog.engine.view.view import View


def add_place(view: View, place: str) -> Decision[None]:
    """Decide that files may be in a place; durable before the first file is."""
    if place in view.catalog.places:
        return Decision([], None, True)
    return Decision([PlaceAdded(place)], None, True)


def offload(view: View, partition: int, old: FileRef, new: FileRef) -> Decision[bool]:
    """Decide that a copy replaces its file; answers whether it does."""
    is_same = has_partition(view.catalog, partition) and view.files.of(old.ledger) == [old]
    if not is_same:
        return Decision([], None, True, False)
    return Decision([Offloaded(partition, new)], None, True, True)
