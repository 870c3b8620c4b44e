"""Owns the checking of files before others read them by path, and which this process has checked.

DuckDB and Spark take flipped bits in silence, so every byte is compared with the manifest's
checksums first. A file is never changed once it is published; one that is found with the same
checksum, length, time and inode as it was checked with is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from txlog.engine.storage.disk_protocol import Disk
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader

_KNOWN_MAX: Final = 100_000  # some 20 MB; then it begins anew
Stamp = tuple[int, int, int, int]  # CRC, bytes, time of the last change in ns, inode


class Source(Protocol):
    """A file of a relation."""

    @property
    def ref(self) -> FileRef: ...


_known: dict[str, Stamp] = {}


def check_files(disk: Disk, sources: Iterable[Source]) -> int:
    """Compare every byte of files with its checksum; returns how many were read for it.

    raises: Corruption (path, offset); MissingFile
    """
    count = 0
    for source in sources:
        ref = source.ref
        path = Path(disk.description, ref.path)
        stamp = _stamp(path, ref.crc)
        if stamp is not None and _known.get(str(path)) == stamp:
            continue
        file = disk.open(ref.path)
        try:
            SegmentReader(file, ref).check()
        finally:
            file.close()
        count += 1
        if stamp is not None and stamp == _stamp(path, ref.crc):
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[str(path)] = stamp
    return count


def _stamp(path: Path, crc: int) -> Stamp | None:
    """What a file would change with; None: there is none by this path."""
    try:
        found = path.lstat()
    except OSError:
        return None  # opening it says what is wrong
    return (crc, found.st_size, found.st_mtime_ns, found.st_ino)


def forget() -> None:
    """Read every file again, as a new process would; for measurements."""
    _known.clear()
