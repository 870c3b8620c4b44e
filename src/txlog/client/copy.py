"""Owns the copy of a store: as it is at one LSN, while others keep writing to it.

    for an instant  under the write lock: flush, and note the LSN, the end of the journal, and which
                    files are named
    for a while     under the maintenance lock, so that no checkpoint removes it: the journal
    then            the files, which are pinned (R18), so upkeep continues and spares them

The copy is the same store: it has the same uuid, the same ids, and the bytes of every file.
`copied` is written first and txlog.toml last: a copy that was cut short is not a store, and the
next copy to that place starts over. Its witness names a boot that never was, so its first writer
aborts whatever was open, as after a power cut: the programs that began it work with the original.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from txlog.base.startup.crc32c import crc32c
from txlog.client.answers import integrity
from txlog.engine.door import disk as posix
from txlog.engine.door import disk as remote
from txlog.engine.door import identity
from txlog.engine.door import space as pins
from txlog.engine.door.delayed import delayed_partitions
from txlog.engine.door.disk import Disk, PosixDisk, Stream, absolute
from txlog.engine.door.history import maintenance
from txlog.engine.door.journal import JournalName, Witness, Witnessed, boot_bytes, list_journals
from txlog.engine.door.segments import FileRef, Manifest, manifest_path, read_manifest
from txlog.engine.door.segments import generations as generations_of
from txlog.engine.door.space import leading, names_in, paths_of
from txlog.engine.door.store import Store, View
from txlog.errors import (
    AlreadyExists,
    Corruption,
    IntegrityError,
    InvalidArgument,
    MissingFile,
    NameTaken,
)

if TYPE_CHECKING:
    from txlog.base.rows.store import StoreCopied, StoreImage


Tell = Callable[[int, int], None]  # bytes so far, bytes in all
_PIECE_BYTES = 1 << 20


class Image(NamedTuple):
    """What a store is at one LSN.

    files: by path; the reference says length and checksum, where there is one
    """

    lsn: int
    generations: list[int]
    journals: list[JournalName]
    record: Witnessed
    files: dict[str, FileRef | None]


def silent(done_bytes: int, total_bytes: int) -> None:
    """Tell nobody."""


def copy_store(
    store: Store, dest: str, *, verify: bool = False, tell: Tell = silent
) -> StoreCopied:
    """Copy a store to a directory that is empty or new; durable when it returns.

    verify:  then read all of the copy, as `txlog verify --deep`
    returns: {path, uuid, lsn, files, size_bytes, offloaded, verified}; offloaded: files outside the
             store, which are named but not copied
    raises:  AlreadyExists, InvalidArgument (a place in the store itself), StoreLocked (another
             process copies to that place), Corruption, MissingFile, StoreFull, DiskFailed
    """
    store.need_writable()
    source, path = store.disk.description, absolute(dest)
    if Path(path).resolve().is_relative_to(Path(source).resolve()):
        raise InvalidArgument(f"{path} is in the store itself", code=203, path=path)
    if posix.is_there(path, identity.IDENTITY_PATH):
        raise AlreadyExists(f"{path} is a store already", hint="copy to a new directory", path=path)
    was_begun = posix.is_there(path, identity.COPIED)
    posix.create_root(path, may_hold=identity.MADE | {identity.COPIED} if was_begun else ())
    with ExitStack() as held:
        target = held.enter_context(closing(PosixDisk(path)))
        with suppress(NameTaken):
            target.write_fresh(identity.COPIED, _mark(source, store.identity.uuid))
        lock = held.enter_context(closing(target.lock_file(identity.LOCK)))
        lock.acquire(0)
        if target.exists(identity.IDENTITY_PATH):
            raise AlreadyExists(f"{path} is a store already", path=path)
        with closing(PosixDisk(path)) as cleaner:
            _clear(cleaner, "")
        answer = _copy(store, target, tell)
    if verify:
        found = integrity.verify(path, deep=True, clock=store.clock)
        if found["errors"]:
            first = next(one for one in found["problem_list"] if one["severity"] == "error")
            raise Corruption(f"the copy is not good: {first['message']}", path=path)
    return {"path": path, "uuid": store.identity.uuid, **answer, "verified": verify}


def _mark(source: str, uuid: str) -> bytes:
    note = "a copy; remove this file once the store it was made from is gone for good"
    said = {"source": source, "uuid": uuid, "note": note}
    return json.dumps(said, indent=1).encode() + b"\n"


def _clear(disk: Disk, path: str) -> None:
    """Remove what an interrupted copy left."""
    for name in disk.listdir(path):
        below = f"{path}/{name}" if path else name
        if below in (identity.COPIED, identity.LOCK):
            continue
        if names_in(disk, below) is None:
            disk.unlink(below)
        else:
            _clear(disk, below)
            disk.remove_dir(below)


def _copy(store: Store, target: PosixDisk, tell: Tell) -> StoreImage:
    source, salt = store.disk, store.identity.salt
    for directory in identity.DIRECTORIES:
        target.make_dirs(directory)
    with ExitStack() as held:
        with maintenance(store, wait=True):
            image = store.locked(_image)
            near = {path: ref for path, ref in image.files.items() if not remote.is_far(path)}
            own = PosixDisk(source.description)  # closed with the pin
            held.enter_context(closing(pins.pin(own, salt, near, store.lock_timeout_ms)))
            progress = _Progress(tell, near, source, image)
            for name in image.journals:
                is_last = name == image.journals[-1]
                length = image.record.end if is_last else source.size(name.path)
                progress.add(_publish(source, target, name.path, length))
            for generation in image.generations:
                progress.add(_publish(source, target, manifest_path(generation)))
        for path, ref in sorted(near.items()):
            progress.add(_publish(source, target, path, None, ref))
    target.write_fresh(identity.MAINTENANCE, b"")
    target.publish(identity.RESERVE, [bytes(identity.RESERVE_BYTES)])
    with closing(Witness(target, salt)) as witness:
        for _ in range(2):
            witness.write(image.record)
    target.publish(identity.IDENTITY_PATH, [source.read(identity.IDENTITY_PATH)])
    return {
        "lsn": image.lsn,
        "files": progress.files,
        "size_bytes": progress.done_bytes,
        "offloaded": len(image.files) - len(near),
    }


def _image(view: View) -> Image:
    """What to copy; the caller holds both locks."""
    journal, manifest = view.journal, view.manifest
    journal.flush()
    assert journal.last_lsn == view.lsn
    record = Witnessed(
        0,
        boot_bytes(""),
        manifest.generation,
        journal.current.name.first_lsn,
        view.lsn,
        journal.end,
        journal.chain_crc,
        0,
        0,
        False,
    )
    refs = [
        *(ref for known in manifest.files.values() for ref in known),
        *view.files.sealed_since().values(),
    ]
    files: dict[str, FileRef | None] = {ref.path: ref for ref in refs}
    for number in delayed_partitions(view):
        files |= dict.fromkeys(bucket.file.path for bucket in view.delayed(number).buckets)
    dropped = {path for path, _ in manifest.dropped}
    files |= dict.fromkeys(paths_of(manifest) - dropped - files.keys())
    before = _before(view)
    if before is not None:  # if the newest is lost, a store can be read from the one before
        for path in leading(before, manifest) - files.keys():
            if not remote.is_far(path) and view.disk.exists(path):
                files[path] = None
    since = manifest.cut_lsn if before is None else before.cut_lsn
    journals = [
        name for name in list_journals(view.disk) if since < name.first_lsn <= record.journal
    ]
    generations = [one.generation for one in (before, manifest) if one is not None]
    return Image(view.lsn, [one for one in generations if one], journals, record, files)


def _before(view: View) -> Manifest | None:
    """The manifest before that of a view, if it exists and is good."""
    older = [one for one in generations_of(view.disk) if one < view.manifest.generation]
    try:
        return read_manifest(view.disk, older[-1], view.salt) if older else None
    except (IntegrityError, MissingFile):
        return None


class _Progress:
    """Counts what was copied, and reports it."""

    def __init__(
        self, tell: Tell, files: dict[str, FileRef | None], source: Disk, image: Image
    ) -> None:
        self.files = self.done_bytes = 0
        self._tell = tell
        known = sum(source.size(path) if ref is None else ref.bytes for path, ref in files.items())
        self._total = known + image.record.end

    def add(self, size_bytes: int) -> None:
        """A file is there."""
        self.files += 1
        self.done_bytes += size_bytes
        self._tell(self.done_bytes, max(self._total, self.done_bytes))


def _publish(
    source: Disk, target: Disk, path: str, length: int | None = None, ref: FileRef | None = None
) -> int:
    """Copy a file, or its first bytes; returns how many. It is read back before it gets its name.

    raises: Corruption when it is not what its reference says; MissingFile
    """
    size = 0

    def pieces() -> Iterator[bytes]:
        nonlocal size
        crc = 0
        with closing(source.open(path)) as file:
            end = file.size() if length is None else length
            while size < end:
                piece = file.pread(size, min(_PIECE_BYTES, end - size))
                if not piece:
                    break
                crc = crc32c(piece, crc)
                size += len(piece)
                yield piece
        if ref is not None and (size, crc) != (ref.bytes, ref.crc):
            raise Corruption(
                f"{path} is damaged, so nothing was copied",
                path=path,
                hint="txlog verify, then txlog admin repair",
            )

    with target.publishing(path, Stream(pieces())):
        pass
    return size
