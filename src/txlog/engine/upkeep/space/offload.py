"""Offloading: sealed files move to a directory or an object store, and are read from there.

    1 the place   this user confirms it (store/confirmed); a frame records it, before anything is
                  copied there
    2 copy        checked against its checksum on the way, and read back from its new location
    3 switch      one frame per file, checked again under the write lock; readers then use the copy
    4 remove      the next checkpoint no longer names the local file; after the grace period it is
                  removed by the first checkpoint whose predecessor does not name it either,
                  because repair uses the predecessor

A crash before the frame leaves a copy that nothing names; the next offload overwrites it, or
`txlog admin gc` removes it. A crash between the frame and its flush leaves a frame that readers do
not see and the next writer makes durable; so an offload lists its files under the write lock. Only
clean files of sidecars are moved; the others need compacting first. The caller holds the
maintenance lock. Source: spec/analytics 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics import ledgers as deciding
from txlog.engine.storage import remote
from txlog.engine.storage.checked import damaged
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.segment import FileRef
from txlog.engine.store.confirmed import HINT, confirm, confirmed, place_in
from txlog.engine.store.identity import COPIED
from txlog.engine.store.liveness import pinned
from txlog.engine.store.store import Store
from txlog.engine.upkeep.space.sweep import named_paths
from txlog.engine.view import View
from txlog.errors import DiskFailed


@dataclass(slots=True)
class OffloadReport:
    """The counts of an offload, or of a dry run; ledgers_left: ledgers that stay in the store."""

    files: int = 0
    size_bytes: int = 0
    ledgers_left: int = 0


def offloadable(view: View, numbers: list[int], report: OffloadReport) -> list[FileRef]:
    """The files of partitions (by store-wide number) that can be offloaded; counts the others."""
    out: list[FileRef] = []
    for number in numbers:
        ledgers = [("p", end.ledger) for end in view.topic(number).ledgers]
        ledgers += [("s", end.ledger) for end in view.buffer(number).ledgers]
        if (compaction := view.topic(number).compaction) is not None:
            ledgers += [("c", ledger) for ledger in compaction.ledgers]
        for role, ledger in ledgers:
            refs = view.files.of(ledger)
            if refs and remote.is_far(refs[0].path):
                continue
            if refs and _may_go(role, refs[0]):
                out.append(refs[0])
            else:
                report.ledgers_left += 1
    return out


def _may_go(role: str, ref: FileRef) -> bool:
    return ref.form in ("chunks", "adopted") or (
        ref.form == "sealed" and (role == "p" or ref.clean)
    )


def offload_files(store: Store, location: str, refs: list[FileRef], report: OffloadReport) -> None:
    """Move files to a place, each whole before the next.

    raises: DiskFailed when the place cannot be written, Corruption when a local file is damaged;
            files moved before stay moved
    """
    confirm(store, location, removes=True)
    store.write(lambda view, now: deciding.add_place(view, location))
    for ref in refs:
        at = remote.address(location, ref.path)
        remote.put(location, ref.path, _pieces(store.disk, ref))
        remote.check(at, ref.bytes, ref.crc)
        moved = msgspec.structs.replace(ref, path=at)
        if store.write(lambda view, now, old=ref, new=moved: _switch(view, old, new)):  # type: ignore[misc]
            report.files += 1
            report.size_bytes += ref.bytes
        else:
            remote.delete(location, at)  # the ledger was trimmed or compacted meanwhile


def _switch(view: View, old: FileRef, new: FileRef) -> Decision[bool]:
    owner = view.catalog.owners.get(old.ledger)
    return deciding.offload(view, 0 if owner is None else owner[0], old, new)


def _pieces(disk: Disk, ref: FileRef) -> Iterator[bytes]:
    """The bytes of a file; raises Corruption after the last if they differ from the checksum."""
    file = disk.open(ref.path)
    try:
        at = crc = 0
        while piece := file.pread(at, remote.PIECE_BYTES):
            crc = crc32c(piece, crc)
            at += len(piece)
            yield piece
    finally:
        file.close()
    if (at, crc) != (ref.bytes, ref.crc):
        raise damaged(ref.path, 0, ref.bytes, f"{ref.crc:08x}", f"{crc:08x}")


def far_unnamed(store: Store) -> Iterator[tuple[str, str]]:
    """(path, "unnamed") for files in the places of a store that nothing names.

    It reports a place that it cannot reach. It also reports, and does not read, a place that this
    user has not confirmed, because any user may have named it. A caller that will remove the files
    holds the maintenance lock, because a copy may be running.
    """
    if store.disk.exists(COPIED):
        return  # the original store names them
    is_free = pinned(store.disk, store.identity.salt)
    ours = confirmed(store)
    for location in store.read(lambda view: list(view.catalog.places)):
        if location not in ours:
            where = remote.without_options(location)
            store.reports.append(
                f"{where} is not looked at: this user has not offloaded from this store to there;"
                f" {HINT}"
            )
            continue
        try:
            files = remote.listed(location)
        except DiskFailed as error:
            store.reports.append(str(error))
            continue
        paths = store.read(lambda view: named_paths(store, view))
        if paths is not None:
            yield from (
                (path, "unnamed")
                for path, _ in files
                if path not in paths
                and place_in([location], store.identity.uuid, path)
                and is_free(path)
            )
