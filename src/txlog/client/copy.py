"""Copying a store as of one LSN, while other processes keep writing to it.

    1. Under the write lock, for an instant: flush; note the LSN, the end of the journal, and the
       files that the manifest names.
    2. Under the maintenance lock, so that no checkpoint removes the journal: copy the journal.
    3. Without a lock: copy the files. They are pinned (R18), so upkeep goes on and spares them.

The copy is the same store: same uuid, same ids, same bytes in every file. The file `copied` is
written first and txlog.toml last, so an interrupted copy is not a store, and the next copy to that
place starts over. The copy's `journal/witness` names a boot id that never existed. So its first
writer aborts all open transactions, as after a power cut: their programs use the original.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
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
from txlog.engine.door.journal import JournalName, Witness, WitnessRecord, boot_bytes, list_journals
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
    from txlog.clock import Clock


Tell = Callable[[int, int], None]  # bytes so far, bytes in all
_PIECE_BYTES = 1 << 20


class Image(NamedTuple):
    """The parts of a store at one LSN.

    files: path -> reference, with length and checksum, if there is one
    """

    lsn: int
    generations: list[int]
    journals: list[JournalName]
    record: WitnessRecord
    files: dict[str, FileRef | None]

    @property
    def near(self) -> dict[str, FileRef | None]:
        """The files that are in the store itself."""
        return {path: ref for path, ref in self.files.items() if not remote.is_far(path)}


def silent(done_bytes: int, total_bytes: int) -> None:
    """Ignore the progress."""


def copy_store(
    store: Store, dest: str, *, verify: bool = False, tell: Tell = silent
) -> StoreCopied:
    """Copy a store to a directory that is empty or new; durable when it returns.

    verify:  then read all of the copy, as `txlog verify --deep`
    returns: {path, uuid, lsn, files, size_bytes, offloaded, verified}; offloaded: files outside the
             store, to which the copy refers without copying them
    raises:  AlreadyExists, InvalidArgument (`dest` is in the store), StoreLocked (another process
             copies to it), Corruption, MissingFile, StoreFull, DiskFailed
    """
    store.need_writable()
    source, path = store.disk.description, absolute(dest)
    if Path(path).resolve().is_relative_to(Path(source).resolve()):
        raise InvalidArgument(f"{path} is in the store itself", code=203, path=path)
    if posix.is_there(path, identity.IDENTITY_PATH):
        raise AlreadyExists(f"{path} is a store already", hint="copy to a new directory", path=path)
    was_begun = posix.is_there(path, identity.COPIED)
    posix.create_root(path, may_hold=identity.MADE | {identity.COPIED} if was_begun else ())
    with ExitStack() as resources:
        target = resources.enter_context(closing(PosixDisk(path)))
        with suppress(NameTaken):
            target.write_fresh(identity.COPIED, mark(source, store.identity.uuid))
        lock = resources.enter_context(closing(target.lock_file(identity.LOCK)))
        lock.acquire(0)
        if target.exists(identity.IDENTITY_PATH):
            raise AlreadyExists(f"{path} is a store already", path=path)
        with closing(PosixDisk(path)) as cleaner:
            clear(cleaner, "")
        answer = _copy(store, target, tell)
    if verify:
        check_good(path, store.clock)
    return {"path": path, "uuid": store.identity.uuid, **answer, "verified": verify}


def check_good(path: str, clock: Clock) -> None:
    """Read all of a copy; a damaged copy stops being a store, so no program can open it.

    raises: Corruption
    """
    problem: str | None = "it could not be read"
    try:
        report = integrity.verify(path, deep=True, clock=clock)
        errors = (row["message"] for row in report["problem_list"] if row["severity"] == "error")
        problem = next(errors, None) if report["errors"] else None
    finally:
        if problem is not None:  # an interrupt, too: the next copy to this place starts over
            with closing(PosixDisk(path)) as disk:
                disk.unlink(identity.IDENTITY_PATH)
    if problem is not None:
        raise Corruption(f"the copy is not good: {problem}", path=path)


def mark(source: str, uuid: str) -> bytes:
    note = "a copy; remove this file once the store it was made from is gone for good"
    fields = {"source": source, "uuid": uuid, "note": note}
    return json.dumps(fields, indent=1).encode() + b"\n"


def clear(disk: Disk, path: str, keep: Collection[str] = ()) -> None:
    """Remove the files of an interrupted copy; keep: but not these."""
    for name in disk.listdir(path):
        below = f"{path}/{name}" if path else name
        if below in (identity.COPIED, identity.LOCK, *keep):
            continue
        if names_in(disk, below) is None:
            disk.unlink(below)
        else:
            clear(disk, below, keep)
            disk.remove_dir(below)


def _copy(store: Store, target: PosixDisk, tell: Tell) -> StoreImage:
    source, salt = store.disk, store.identity.salt
    with ExitStack() as resources:
        with maintenance(store, wait=True):
            image = store.locked(_flushed_image)
            pin_disk = PosixDisk(source.description)  # closed with the pin
            pin = pins.pin(pin_disk, salt, image.near, store.lock_timeout_ms)
            resources.enter_context(closing(pin))
            progress = Progress(tell, source, image)
            copy_journal(source, target, image, progress)
        for path, ref in sorted(image.near.items()):
            progress.add(publish(source, target, path, None, ref))
    return finish(source, target, salt, image, progress)


def copy_journal(source: Disk, target: PosixDisk, image: Image, progress: Progress) -> None:
    """Copy the files that name the others: the journal, and the manifests."""
    for directory in identity.DIRECTORIES:
        target.make_dirs(directory)
    for name in image.journals:
        is_last = name == image.journals[-1]
        length = image.record.end if is_last else source.size(name.path)
        progress.add(publish(source, target, name.path, length))
    for generation in image.generations:
        progress.add(publish(source, target, manifest_path(generation)))


def finish(
    source: Disk, target: PosixDisk, salt: bytes, image: Image, progress: Progress
) -> StoreImage:
    """Make the copied files a store: its identity comes last."""
    with suppress(NameTaken):
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
        "offloaded": len(image.files) - len(image.near),
    }


def _flushed_image(view: View) -> Image:
    view.journal.flush()
    return image_of(view)


def image_of(view: View) -> Image:
    """The image of the store; the caller holds the write lock and the maintenance lock."""
    journal, manifest = view.journal, view.manifest
    assert journal.last_lsn == view.lsn
    record = WitnessRecord(
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
        *(ref for references in manifest.files.values() for ref in references),
        *view.files.sealed_since().values(),
    ]
    files: dict[str, FileRef | None] = {ref.path: ref for ref in refs}
    for number in delayed_partitions(view):
        files |= dict.fromkeys(bucket.file.path for bucket in view.delayed(number).buckets)
    dropped = {path for path, _ in manifest.dropped}
    files |= dict.fromkeys(paths_of(manifest) - dropped - files.keys())
    previous = _before(view)
    if previous is not None:  # if the newest manifest is lost, the store opens from `previous`
        for path in leading(previous, manifest) - files.keys():
            if not remote.is_far(path) and view.disk.exists(path):
                files[path] = None
    since = manifest.cut_lsn if previous is None else previous.cut_lsn
    journals = [
        name for name in list_journals(view.disk) if since < name.first_lsn <= record.journal
    ]
    generations = [each.generation for each in (previous, manifest) if each is not None]
    return Image(
        view.lsn, [generation for generation in generations if generation], journals, record, files
    )


def _before(view: View) -> Manifest | None:
    """The manifest before the view's, if it is readable."""
    older = [
        generation
        for generation in generations_of(view.disk)
        if generation < view.manifest.generation
    ]
    try:
        return read_manifest(view.disk, older[-1], view.salt) if older else None
    except (IntegrityError, MissingFile):
        return None


class Progress:
    """Counts the copied bytes, and reports them."""

    def __init__(self, tell: Tell, source: Disk, image: Image) -> None:
        self.files = self.done_bytes = 0
        self._tell = tell
        file_bytes = sum(
            source.size(path) if ref is None else ref.bytes for path, ref in image.near.items()
        )
        self._total = file_bytes + image.record.end

    def add(self, size_bytes: int) -> None:
        """Count a file."""
        self.files += 1
        self.done_bytes += size_bytes
        self._tell(self.done_bytes, max(self._total, self.done_bytes))


def publish(
    source: Disk, target: Disk, path: str, length: int | None = None, ref: FileRef | None = None
) -> int:
    """Copy a file, or its first `length` bytes, and read it back; returns how many bytes.

    raises: Corruption when length or checksum differ from `ref`; MissingFile
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
