"""The manifest: the published file that names every live file of a checkpoint.

Owns `manifest/<generation, 10 digits>.manifest`. A generation is never used twice; the two newest
are kept, with the journals the older one needs, so that losing the newest costs time only.

    off size field
      0    8  magic "TXLOGMAN"       16    4  CRC32C of bytes 0..15 and of everything from byte 20
      8    8  store salt             20    4  version, 1
                                     24    8  bytes of the body
                                     32    …  body: msgpack of Manifest
Source: spec/reliability R16.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.late_values import LazyDict
from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption, FormatMismatch, MissingFile

T = TypeVar("T")
HINT: Final = "the one before is used while it exists; txlog admin checkpoint writes a new one"
MANIFEST_DIR = "manifest"
MAGIC = b"TXLOGMAN"
HEAD = struct.Struct("<8s8sIIQ")
_NAME = re.compile(r"(\d{10})\.manifest")
VERSION = 1

assert HEAD.size == 32


class DumpRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The dump of the component (kind, a, b): a slice of a published state file."""

    kind: str
    a: int
    b: int
    path: str
    offset: int
    length: int
    crc: int


class HistoryRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of the transaction log's history, with the range of its LSNs and wall-clock ms."""

    path: str
    rows: int
    lsn_first: int
    lsn_last: int
    time_first: int
    time_last: int
    bytes: int
    crc: int


class ChangeRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment of the changes of keys, cursors, or the catalog, with its range of LSNs and times.

    kind:      key, cursor, catalog
    subscription, partition: for a segment of one cursor alone, else 0
    newest:    it has only the newest row of each key of the segments before it
    """

    kind: str
    path: str
    rows: int
    lsn_first: int
    lsn_last: int
    time_first: int
    time_last: int
    bytes: int
    crc: int
    subscription: int = 0
    partition: int = 0
    newest: bool = False


class Changes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The segments of changes, of each kind oldest first.

    begun: the last row of a key there is its state at the cut; else the next checkpoint writes a
           row of the state of every key
    """

    begun: bool = False
    refs: list[ChangeRef] = []


_NO_CHANGES = msgspec.Raw(msgspec.msgpack.encode(Changes()))


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a checkpoint. Frames above cut_lsn are in the journals."""

    generation: int
    previous_crc: int
    cut_lsn: int
    chain_crc: int
    time_ms: int
    files: dict[int, list[FileRef]]
    dumps: list[DumpRef]
    dropped: list[tuple[str, int]]  # files no longer named, and since when, until they are unlinked
    history: list[HistoryRef] = []
    changes: msgspec.Raw = _NO_CHANGES  # of Changes: opening a store needs none of it


class _Stored(Manifest, frozen=True, array_like=True):
    """A manifest as it is read: a call needs the files of only a few ledgers."""

    files: dict[int, msgspec.Raw]  # type: ignore[assignment]


assert _Stored.__struct_fields__ == Manifest.__struct_fields__


def raw_changes(changes: Changes) -> msgspec.Raw:
    """Changes as a manifest has them."""
    return msgspec.Raw(msgspec.msgpack.encode(changes))


EMPTY = Manifest(0, 0, 0, 0, 0, {}, [], [], [], raw_changes(Changes(True)))


def _decoder(kind: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    """A function that decodes a part of a manifest whose bytes have been compared.

    It raises Corruption.
    """
    decode = msgspec.msgpack.Decoder(kind).decode

    def decoded(data: bytes | msgspec.Raw) -> T:
        try:
            return decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corruption(f"a manifest cannot be read: {error}", hint=HINT) from error

    return decoded


_stored_decoder, _refs_decoder = _decoder(_Stored), _decoder(list[FileRef])
_changes_decoder = _decoder(Changes)


def changes_of(manifest: Manifest) -> Changes:
    """The segments of changes that a manifest names."""
    return _changes_decoder(manifest.changes)


def manifest_path(generation: int) -> str:
    """Path of a generation below the store's root."""
    return f"{MANIFEST_DIR}/{generation:010d}.manifest"


def generations(disk: Disk) -> list[int]:
    """Every generation that has a file, rising."""
    matches = (_NAME.fullmatch(name) for name in disk.listdir(MANIFEST_DIR))
    return sorted(int(match[1]) for match in matches if match)


def encode_manifest(manifest: Manifest, salt: bytes) -> bytes:
    """The bytes of the file."""
    body = msgspec.msgpack.encode(manifest)
    tail = struct.pack("<IQ", VERSION, len(body)) + body
    head = MAGIC + salt
    return head + struct.pack("<I", crc32c(tail, crc32c(head))) + tail


def read_manifest(disk: Disk, generation: int, salt: bytes) -> Manifest:
    """The checked manifest of a generation; raises Corruption, MissingFile, FormatMismatch."""
    path = manifest_path(generation)
    data = disk.read(path)
    if len(data) >= HEAD.size:
        magic, found_salt, crc, version, length = HEAD.unpack_from(data)
        if magic == MAGIC and found_salt == salt and crc == crc32c(data[20:], crc32c(data[:16])):
            if version != VERSION:
                raise FormatMismatch(
                    f"{path} has version {version}, this txlog reads {VERSION}", path=path
                )
            if length == len(data) - HEAD.size:
                stored = _stored_decoder(data[HEAD.size :])
                if stored.generation == generation:
                    return Manifest(
                        stored.generation,
                        stored.previous_crc,
                        stored.cut_lsn,
                        stored.chain_crc,
                        stored.time_ms,
                        LazyDict(stored.files, _refs_decoder),
                        stored.dumps,
                        stored.dropped,
                        stored.history,
                        stored.changes,
                    )
    raise Corruption(
        f"{path} is damaged, bytes 0 to {len(data)}",
        path=path,
        offset=0,
        hint=HINT,
    )


def newest_manifest(disk: Disk, salt: bytes, known_generation: int) -> tuple[Manifest, list[str]]:
    """The newest good manifest, and a report for each one that had to be skipped.

    known_generation: the newest that the witness knows; its loss must not go unnoticed
    raises: Corruption when neither of the newest two is good
    """
    numbers = generations(disk)
    reports: list[str] = []
    last: Corruption | None = None
    if known_generation > (numbers[-1] if numbers else 0):
        reports.append(f"{manifest_path(known_generation)} is missing: its predecessor is used")
    for generation in reversed(numbers[-2:]):
        try:
            return read_manifest(disk, generation, salt), reports
        except MissingFile as exc:
            last = exc
        except Corruption as exc:
            reports.append(f"{exc.message}: its predecessor is used")
            last = exc
    if last is not None:
        raise last
    if known_generation:
        raise Corruption(f"no manifest is left of {known_generation}", path=MANIFEST_DIR)
    return EMPTY, reports
