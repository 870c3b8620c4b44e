"""Owns what becomes of a store under a handle: whether its name still leads to what is open.

A store is used through descriptors, which work on when its directory is removed, moved away or
replaced. Then a send would be acknowledged into files that nobody can reach, and a reader would
wait for what is written elsewhere. So a handle compares device and inode of an open file with those
of its name, from the root of the file system on:

    write   the journal file, under the write lock, before it decides (R34)
    flush   the witness, before a call is told that it is on the disk
    read    the witness, before it looks for what is new; a wait looks when it wakes

No other file can have the inode of one that is open. But a journal file may go by a checkpoint, and
a file system may number files as it likes: where the comparison fails, it is looked at more closely
before anybody is refused.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from txlog.engine.storage.disk.protocol import Disk, Fate, File
from txlog.engine.storage.journal.file import list_journals
from txlog.engine.storage.journal.witness import WITNESS_PATH
from txlog.engine.store.identity import Identity, read_identity
from txlog.errors import MissingFile, StoreNotFound

_AGAIN: Final = "open it again to use what is there now"
_SAID: Final[dict[Fate, tuple[str, str]]] = {
    "removed": ("was removed", "nothing more can be stored or read; open it again once it is back"),
    "moved": ("was moved away", "open it where it is now"),
    "replaced": ("was replaced: its name leads to another directory", _AGAIN),
}


def need_there(
    disk: Disk, identity: Identity, path: str = WITNESS_PATH, file: File | None = None
) -> None:
    """Raise StoreNotFound (301) if the store was removed, moved away or replaced since it was open.

    path, file: its witness or newest journal file as it is open, to compare; None: look closely
    cost:       with a file, one stat
    """
    if file is not None and disk.leads_to(path, file):
        return
    said = _fate(disk, identity, path, file)
    if said is not None:
        what, hint = said
        store = disk.description
        raise StoreNotFound(f"the store {store} {what}", hint=hint, path=store)


def _fate(disk: Disk, identity: Identity, path: str, file: File | None) -> tuple[str, str] | None:
    """What has become of the store, and what helps; None when it is there after all."""
    fate = disk.fate()
    if fate != "there":
        return _SAID[fate]
    try:
        found = read_identity(disk)
    except StoreNotFound:
        return _SAID["removed"]
    if found.uuid != identity.uuid:
        return "was replaced: another store was made in its directory", _AGAIN
    if file is None:
        return None
    try:
        with closing(disk.open(path)) as other:
            is_told = disk.leads_to(path, other)
    except MissingFile:
        if path == WITNESS_PATH or any(one.path > path for one in list_journals(disk)):
            return None  # nothing is lost with it (R7); a checkpoint has removed it
        return f"has lost its file {path}, which was removed", "txlog verify says what is left"
    return ("was replaced: its files are others, as of a copy", _AGAIN) if is_told else None
