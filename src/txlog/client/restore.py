"""`restore`: a copy becomes a store, in a new place or in the place of another store.

    1. Copy the files of the copy to STORE.restoring, next to STORE. The copy is only read: its
       locks are held meanwhile, but nothing is written there.
    2. Write the file `restored` there: STORE.restoring is whole.
    3. Give it the name STORE, in one step. A store at STORE gets the other name in that step,
       and then the name STORE.replaced; nothing of it is removed.
    4. Remove the file `restored`.

A restore that was killed goes on when it is called again. Before step 3 it keeps the files that it
has copied, by length and checksum. After step 3 the store has the file `restored`; the call names
the old store STORE.replaced and ends. At any moment STORE is the old or the new store, or absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from txlog.base.arguments import StrPath, path_text
from txlog.base.startup.crc32c import crc32c
from txlog.client import copy as copying
from txlog.clock import Clock, SystemClock
from txlog.engine.door import disk as posix
from txlog.engine.door import identity
from txlog.engine.door.disk import PosixDisk, absolute, exchange_directories, move_directory
from txlog.engine.door.identity import read_identity
from txlog.engine.door.store import Store
from txlog.errors import (
    AlreadyExists,
    Corruption,
    InvalidArgument,
    MissingFile,
    NameTaken,
    NotAllowed,
    StoreLocked,
    StoreNotFound,
)

if TYPE_CHECKING:
    from txlog.base.rows.store import StoreImage, StoreRestored
    from txlog.engine.door.segments import FileRef

LOCK_MS = 30_000
_PIECE_BYTES = 1 << 20


def restore(
    copy: StrPath,
    dest: StrPath,
    *,
    replace: bool = False,
    verify: bool = False,
    tell: copying.Tell = copying.silent,
    clock: Clock | None = None,
) -> StoreRestored:
    """Make a store at `dest` from a copy; the copy stays as it is. Exported as txlog.restore.

    An interrupted restore does not change `dest`; call it again to go on.
    replace: a store at `dest` is moved to `dest`.replaced. Processes that have it open get
             StoreNotFound from their next call
    verify:  read all of the new store before it takes the place
    tell:    called with (bytes copied so far, bytes in all)
    raises:  StoreNotFound (`copy` is no store), AlreadyExists, InvalidArgument, StoreLocked,
             Corruption, NotAllowed (`dest` is a mount point, or its file system cannot exchange two
             directories)
    """
    source, place = absolute(path_text(copy)), absolute(path_text(dest))
    if Path(place).is_symlink():  # the link leads to the new store as it led to the old one
        place = str(Path(place).resolve())
    _check_apart(source, place)
    done = _ended(source, place)
    if done is not None:
        return done
    is_there = _check_place(place, replace=replace)
    stage = f"{place}.restoring"
    with ExitStack() as resources:
        target = _begun(source, stage, resources)
        image = _copied(source, target, tell, clock or SystemClock())
        if verify:
            copying.check_good(stage, clock or SystemClock())
        is_copy = not (is_there and _is_original(target, place))
        answer: StoreRestored = {
            "path": place,
            "uuid": read_identity(target).uuid,
            **image,
            "verified": verify,
            "replaced": f"{place}.replaced" if is_there else None,
            "copied": is_copy,
        }
        with suppress(NameTaken):
            target.write_fresh(identity.RESTORED, _noted(source, answer))
        if not is_copy:
            target.unlink(identity.COPIED)
        if is_there:
            with _locked(place):
                exchange_directories(stage, place)
        else:
            move_directory(stage, place)
        _ended(source, place)
    return answer


def replaces(copy: StrPath, dest: StrPath) -> bool:
    """Whether a restore with `replace` gives a store at `dest` another name.

    raises: as restore, if it would fail before it copies anything
    """
    source, place = absolute(path_text(copy)), absolute(path_text(dest))
    _check_apart(source, place)
    return posix.is_there(place, identity.RESTORED) or _check_place(place, replace=True)


def is_original(copy: StrPath) -> bool:
    """Whether a directory is a store that was not made by `copy`: processes may use it."""
    path = absolute(path_text(copy))
    has_identity = posix.is_there(path, identity.IDENTITY_PATH)
    return has_identity and not posix.is_there(path, identity.COPIED)


def _check_place(place: str, *, replace: bool) -> bool:
    """Whether `place` has a store, to be replaced. Raises AlreadyExists, NotAllowed."""
    if Path(place).is_mount():
        raise NotAllowed(
            f"{place} is where a file system is mounted, so no other directory can get its name",
            hint="restore to a directory below it",
            path=place,
        )
    is_there = posix.is_there(place, identity.IDENTITY_PATH)
    if is_there and not replace:
        raise AlreadyExists(
            f"{place} is a store already",
            hint="restore to a new place, or replace it: replace=True",
            path=place,
        )
    aside = f"{place}.replaced"
    if is_there and (Path(aside).exists() or Path(aside).is_symlink()):
        raise AlreadyExists(
            f"{aside} is there already: an earlier restore replaced it",
            hint="the store from before that restore is there: rename it, or delete it if you do "
            "not need it; then restore again",
            path=aside,
        )
    if not is_there and Path(place).is_dir() and any(Path(place).iterdir()):
        raise AlreadyExists(f"not an empty directory: {place}", path=place)
    return is_there


def _check_apart(source: str, place: str) -> None:
    first = Path(source).resolve()
    for name in (place, f"{place}.restoring"):  # a restore deletes files in the second
        second = Path(name).resolve()
        if first.is_relative_to(second) or second.is_relative_to(first):
            raise InvalidArgument(
                f"{name} and the copy {source} contain each other",
                hint=None if name == place else f"give the copy another name than {name}",
                path=place,
            )
    if not posix.is_there(source, identity.IDENTITY_PATH):
        raise StoreNotFound(
            f"{source} is no copy of a store: it has no {identity.IDENTITY_PATH}",
            hint="an interrupted copy is not one; to make one: txlog copy PATH",
            path=source,
        )


def _noted(source: str, answer: StoreRestored) -> bytes:
    return json.dumps({"source": source, "answer": answer}).encode() + b"\n"


def _ended(source: str, place: str) -> StoreRestored | None:
    """Do the last steps of a restore whose store is in place; its answer, if it had this source."""
    if not posix.is_there(place, identity.RESTORED):
        return None
    with closing(PosixDisk(place)) as disk:
        try:
            note = json.loads(disk.read(identity.RESTORED))
            answer: StoreRestored = note["answer"]
            was_of = note["source"]
        except (ValueError, KeyError, TypeError) as error:
            raise Corruption(f"{place}/{identity.RESTORED} is damaged", path=place) from error
        if answer["replaced"] is not None and Path(f"{place}.restoring").is_dir():
            move_directory(f"{place}.restoring", answer["replaced"])
        disk.unlink(identity.RESTORED)
        disk.sync_dir("")
    return answer if was_of == source else None


def _begun(source: str, stage: str, resources: ExitStack) -> PosixDisk:
    """The directory of an earlier try for the same copy, or a new one, under its lock.

    Another restore may have held the lock, and have given the directory the name of the store.
    raises: AlreadyExists (a store that no restore of this copy has made)
    """
    uuid = _uuid(source)
    names = {identity.COPIED, identity.RESTORED}
    was_begun = any(posix.is_there(stage, name) for name in names)
    posix.create_root(stage, may_hold=identity.MADE | names if was_begun else {identity.LOCK})
    disk = resources.enter_context(closing(PosixDisk(stage)))
    resources.enter_context(closing(lock := disk.lock_file(identity.LOCK)))
    lock.acquire(0)
    if disk.fate() != "there":
        raise StoreLocked(f"another process has just restored into {stage}", path=stage)
    wanted = copying.mark(source, uuid)
    is_ours = disk.exists(identity.COPIED) and disk.read(identity.COPIED) == wanted
    if disk.exists(identity.IDENTITY_PATH) and not (is_ours or disk.exists(identity.RESTORED)):
        raise AlreadyExists(
            f"{stage} is a store, and a restore needs that name", hint="rename it", path=stage
        )
    disk.unlink(identity.IDENTITY_PATH)  # it is no store before its end
    if not is_ours:
        copying.clear(disk, "", {identity.RESTORED})  # of another copy
        disk.unlink(identity.COPIED)
        disk.write_fresh(identity.COPIED, wanted)
    disk.unlink(identity.RESTORED)  # last: until here it tells whose directory this is
    return disk


def _uuid(source: str) -> str:
    with closing(PosixDisk(source, read_only=True)) as disk:
        return read_identity(disk).uuid


@contextmanager
def _locked(place: str) -> Iterator[None]:
    """Hold the locks of a store without writing to it: no process writes, and no upkeep runs."""
    with ExitStack() as resources:
        disk = resources.enter_context(closing(PosixDisk(place)))
        for name in (identity.MAINTENANCE, identity.LOCK):
            with suppress(MissingFile):
                lock = resources.enter_context(closing(disk.lock_file(name, create=False)))
                lock.acquire(LOCK_MS)
        yield


def _copied(source: str, target: PosixDisk, tell: copying.Tell, clock: Clock) -> StoreImage:
    """Copy the files that are missing; then the directory is a store."""
    with _locked(source), closing(PosixDisk(source, read_only=True)) as disk:
        store = Store(disk, clock, read_identity(disk), lock_timeout_ms=None, durability=None)
        try:
            image = store.read(copying.image_of)
            progress = copying.Progress(tell, disk, image)
            with closing(
                PosixDisk(target.description)
            ) as cleaner:  # `target` opens no directory yet
                whole = {path for path, ref in image.near.items() if _is_whole(cleaner, path, ref)}
                copying.clear(cleaner, "", whole)
            copying.copy_journal(disk, target, image, progress)
            for path, ref in sorted(image.near.items()):
                if ref is not None and path in whole:
                    progress.add(ref.bytes)
                else:
                    progress.add(copying.publish(disk, target, path, None, ref))
            return copying.finish(disk, target, store.identity.salt, image, progress)
        finally:
            store.close()


def _is_whole(disk: PosixDisk, path: str, ref: FileRef | None) -> bool:
    """True if an earlier try has copied a file, by its length and checksum."""
    if ref is None or not disk.exists(path):
        return False
    size = crc = 0
    with closing(disk.open(path)) as file:
        if file.size() != ref.bytes:
            return False
        while size < ref.bytes and (piece := file.pread(size, min(_PIECE_BYTES, ref.bytes - size))):
            crc, size = crc32c(piece, crc), size + len(piece)
    return (size, crc) == (ref.bytes, ref.crc)


def _is_original(target: PosixDisk, place: str) -> bool:
    """True if the store in the place is the one that was copied, not a copy itself.

    In that place the new store is that store again, so it removes offloaded files itself.
    """
    with closing(PosixDisk(place, read_only=True)) as old:
        is_same = read_identity(old).uuid == read_identity(target).uuid
        return is_same and not old.exists(identity.COPIED)
