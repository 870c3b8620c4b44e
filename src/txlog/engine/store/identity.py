"""The identity of a store: `txlog.toml`, written once at init. It also makes new stores.

A directory is a store when txlog.toml exists; it is published last, so a half-made store is not
one. If an init was killed or found no room, the next init there removes its files. It accepts only
files that an init writes, and no frame after the first. A process that makes a store holds `lock`.

A process uses a store through descriptors, which go on working when its directory is removed, moved
away or replaced. Then a send would be acknowledged into files that no other process can reach, and
a reader would wait for frames that are written elsewhere. So a handle compares an open file with
its name, looked up from the root of the file system, by device and inode:

    write   the journal file, under the write lock, before it decides (R34)
    flush   the witness, before a call returns that promised durability
    read    the witness, before it looks for new frames; a wait looks when it wakes

No other file can have the inode of one that is open. But a checkpoint may remove a journal file,
and a file system may number files as it likes: where the comparison fails, the handle looks more
closely before it refuses a call.
"""

from __future__ import annotations

import tomllib
import uuid
from contextlib import closing, suppress
from typing import Final

import msgspec

from txlog.base.settings import Settings
from txlog.base.startup.crc32c import crc32c
from txlog.clock import Clock
from txlog.engine.model.ops import ClockNoted, SettingSet, encode_ops
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, Disk, File, RootFate
from txlog.engine.storage.frame import (
    FILE_HEADER_BYTES,
    WITNESS_PATH,
    JournalName,
    Witness,
    WitnessRecord,
    boot_bytes,
    decode_header,
    encode,
    list_journals,
    publish_journal,
)
from txlog.errors import (
    AlreadyExists,
    Corruption,
    FormatMismatch,
    MissingFile,
    NameTaken,
    StoreNotFound,
)

IDENTITY_PATH = "txlog.toml"
FORMAT = 3  # docs/format.md 9
RESERVE_BYTES = 4 << 20
LOCK, MAINTENANCE = "lock", "maintenance.lock"
DIRECTORIES = ("journal", "manifest", "state", "topics", "system", "consumers", "quarantine")
RESERVE = "reserve"
COPIED = "copied"  # a store that is a copy of another; it must not remove anything outside itself
RESTORED = "restored"  # a restore has moved this store into its place, and still has to end
# The names that a root may hold when a store is made there: another init left or is making them.
MADE = frozenset({*DIRECTORIES, LOCK, MAINTENANCE, RESERVE, IDENTITY_PATH})
WAIT_MS = 30_000  # how long to wait for another process that makes a store here


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The content of txlog.toml."""

    format: int
    uuid: str
    created_ms: int

    @property
    def salt(self) -> bytes:
        """Eight bytes of the store's uuid: they mark every file and frame as this store's."""
        return uuid.UUID(self.uuid).bytes[:8]


def text_of(identity: Identity) -> str:
    """The text of the file that has an identity."""
    body = (
        "# a txlog store; this file is written once, settings are kept in the catalog\n"
        f"format = {identity.format}\n"
        f'uuid = "{identity.uuid}"\n'
        f"created_ms = {identity.created_ms}\n"
    )
    return f'{body}crc32c = "{crc32c(body.encode()):08x}"\n'


def read_identity(disk: Disk) -> Identity:
    """The identity of the store; raises StoreNotFound, FormatMismatch, Corruption."""
    try:
        data = disk.read(IDENTITY_PATH)
    except MissingFile as exc:
        raise StoreNotFound(
            f"{disk.description} is not a store", hint="make one: txlog init", path=disk.description
        ) from exc
    try:
        text = data.decode()
        parsed = tomllib.loads(text)
        identity = Identity(
            int(parsed["format"]), str(uuid.UUID(parsed["uuid"])), int(parsed["created_ms"])
        )
        body = text[: text.index("crc32c =")]
        good = parsed["crc32c"] == f"{crc32c(body.encode()):08x}"
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as exc:
        raise _damaged(len(data)) from exc
    if not good or text_of(identity) != text:
        raise _damaged(len(data))
    if not 1 <= identity.format <= FORMAT:
        raise FormatMismatch(
            f"{disk.description} has format {identity.format}, this txlog reads 1 to {FORMAT}",
            hint="use the txlog that wrote it, or a newer one",
            path=disk.description,
        )
    return identity


def raise_format(disk: Disk, identity: Identity) -> Identity:
    """Write the newest format into txlog.toml; the caller holds the write lock.

    This comes before the first byte of the new format: an older program that opens the store is
    refused (603), and one that has the store open meets a journal that it cannot read. It is one
    rename: after a crash the file has the old or the new format.
    """
    raised = msgspec.structs.replace(identity, format=FORMAT)
    temporary = TEMPORARY_PREFIX + disk.random_bytes(8).hex()
    disk.write_fresh(temporary, text_of(raised).encode())
    disk.move(temporary, IDENTITY_PATH)
    disk.sync_dir("")
    return raised


def _damaged(length: int) -> Corruption:
    return Corruption(
        f"{IDENTITY_PATH} is damaged, bytes 0 to {length}",
        path=IDENTITY_PATH,
        offset=0,
        hint="restore the file from a copy of the store",
    )


def make_store(disk: Disk, settings: Settings, clock: Clock) -> Identity:
    """Make a new store in a root directory that is empty, or has only an unfinished one; durable.

    raises: AlreadyExists when the root holds a store or anything else; StoreLocked while another
            process makes one there
    """
    _check_root(disk)
    with suppress(NameTaken):  # of an earlier or concurrent init
        disk.write_fresh(LOCK, b"")
    with closing(disk.lock_file(LOCK, create=False)) as lock:
        lock.acquire(WAIT_MS)
        _check_root(disk)
        _clear(disk)
        return _make(disk, settings, clock)


def _check_root(disk: Disk) -> None:
    """Raises AlreadyExists unless the root is empty, or holds only files of an unfinished init."""
    if disk.exists(IDENTITY_PATH):
        raise AlreadyExists(f"{disk.description} is a store already", path=disk.description)
    first = JournalName(1)
    is_left = True
    for directory in ("", *DIRECTORIES):
        names = [name for name in disk.listdir(directory) if not name.startswith(TEMPORARY_PREFIX)]
        paths = {f"{directory}/{name}" if directory else name for name in names}
        is_left = is_left and paths <= {*MADE, first.path, WITNESS_PATH}
    if is_left and disk.exists(first.path):
        data = disk.read(first.path)
        header = decode_header(data, FILE_HEADER_BYTES)
        is_left = header is not None and not any(data[FILE_HEADER_BYTES + header.total_bytes :])
    if not is_left:
        raise AlreadyExists(
            f"not an empty directory: {disk.description}",
            hint="choose an empty or a new directory",
            path=disk.description,
        )


def _clear(disk: Disk) -> None:
    """Remove the files that an unfinished init left, except the lock that this process holds."""
    for directory in ("", *DIRECTORIES):
        names = [f"{directory}/{name}" if directory else name for name in disk.listdir(directory)]
        for path in names:
            if path not in (*DIRECTORIES, LOCK):
                disk.unlink(path)
        if names:
            disk.sync_dir(directory)


def _make(disk: Disk, settings: Settings, clock: Clock) -> Identity:
    now = clock.now()
    identity = Identity(FORMAT, str(uuid.UUID(bytes=disk.random_bytes(16), version=4)), now.wall_ms)
    for path in DIRECTORIES:
        disk.make_dirs(path)
    disk.write_fresh(MAINTENANCE, b"")
    disk.publish(RESERVE, [bytes(RESERVE_BYTES)])
    setting_ops = [SettingSet(name, value) for name, value in settings.to_mapping().items()]
    ops = encode_ops([*setting_ops, ClockNoted(now.wall_ms, now.boot_id, now.boot_ms)])
    name = JournalName(1)
    parts, total, crc = encode(
        lsn=1,
        durable_lsn=0,
        time_ms=now.wall_ms,
        offset=FILE_HEADER_BYTES,
        ops=ops,
        rows=None,
        columns=0,
        salt=identity.salt,
        previous_crc=0,
    )
    publish_journal(disk, name, identity.salt, 0, parts)
    witness = Witness(disk, identity.salt)
    for _ in range(2):
        witness.write(
            WitnessRecord(
                0, boot_bytes(now.boot_id), 0, 1, 1, FILE_HEADER_BYTES + total, crc, 0, 0, False
            )
        )
    witness.close()
    disk.publish(IDENTITY_PATH, [text_of(identity).encode()])
    return identity


# --- whether the store is still there --------------------------------------------------------


_AGAIN: Final = "open it again to use what is there now"
_FATES: Final[dict[RootFate, tuple[str, str]]] = {
    "removed": ("was removed", "nothing more can be stored or read; open it again once it is back"),
    "moved": ("was moved away", "open it where it is now"),
    "replaced": ("was replaced: its name leads to another directory", _AGAIN),
}


def need_there(
    disk: Disk, identity: Identity, path: str = WITNESS_PATH, file: File | None = None
) -> None:
    """Raise StoreNotFound (301) if the store was removed, moved or replaced since it was opened.

    path, file: the witness or newest journal file as this process has it open, to compare; without
                a file, check directory and identity
    cost:       with a file, one stat
    """
    if file is not None and disk.leads_to(path, file):
        return
    fate = _fate(disk, identity, path, file)
    if fate is not None:
        problem, hint = fate
        store = disk.description
        raise StoreNotFound(f"the store {store} {problem}", hint=hint, path=store)


def _fate(disk: Disk, identity: Identity, path: str, file: File | None) -> tuple[str, str] | None:
    """What happened to the store, and a hint; None when the store is where it was."""
    fate = disk.fate()
    if fate != "there":
        return _FATES[fate]
    try:
        present = read_identity(disk)
    except StoreNotFound:
        return _FATES["removed"]
    if present.uuid != identity.uuid:
        return "was replaced: another store was made in its directory", _AGAIN
    if file is None:
        return None
    try:
        with closing(disk.open(path)) as other:
            has_changed = disk.leads_to(path, other)
    except MissingFile:
        if path == WITNESS_PATH or any(name.path > path for name in list_journals(disk)):
            return None  # a lost witness loses nothing (R7); a checkpoint removed the journal file
        return f"has lost its file {path}, which was removed", "txlog verify says what is left"
    return ("was replaced: its files are others, as of a copy", _AGAIN) if has_changed else None
