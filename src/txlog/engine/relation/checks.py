"""Checking files before others read them by path, and remembering which this process has checked.

DuckDB and Spark accept flipped bits without an error, so every byte is first checked against the
manifest's checksums. A published file never changes; a file with the same checksum, length, time
and inode as at the last check is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from txlog.base.ranges import SQL_MS_MAX, SQL_MS_MIN
from txlog.engine.model.schema import MESSAGE
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.remote import is_remote, local_path, open_far, open_file
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader

_INSTANTS: Final = [field.name for field in MESSAGE if pa.types.is_timestamp(field.type)]
_KNOWN_MAX: Final = 100_000  # some 20 MB; then it starts over
Stamp = tuple[int, int, int, int]  # CRC, bytes, time of the last change in ns, inode


class HasFile(Protocol):
    """A file of a relation."""

    @property
    def ref(self) -> FileRef: ...


_known: dict[str, Stamp] = {}
_fitting: dict[tuple[str, int], bool] = {}  # by path and CRC


def fits(disk: Disk, ref: FileRef) -> bool:
    """Whether SQL can represent all instants of a sealed file, according to its footer.

    raises: Corruption; MissingFile
    """
    is_fitting = _fitting.get((ref.path, ref.crc))
    if is_fitting is None:
        file = open_far(ref.path) if is_remote(ref.path) else open_file(disk, ref.path)
        try:
            is_fitting = _note(SegmentReader(file, ref))
        finally:
            file.close()
    return is_fitting


def _note(reader: SegmentReader) -> bool:
    ref = reader.ref
    bounds = [
        ends
        for number in range(len(ref.groups))
        for name in _INSTANTS
        if (ends := reader.statistics(number, name)) is not None
    ]
    is_fitting = all(least >= SQL_MS_MIN and most <= SQL_MS_MAX for least, most in bounds)
    if len(_fitting) >= _KNOWN_MAX:
        _fitting.clear()
    _fitting[ref.path, ref.crc] = is_fitting
    return is_fitting


def check_files(disk: Disk, sources: Iterable[HasFile]) -> int:
    """Check every byte of files against their checksums; returns how many files were read.

    raises: Corruption (path, offset); MissingFile
    """
    count = 0
    for source in sources:
        ref = source.ref
        if is_remote(ref.path):
            _check_remote(ref)
            continue
        path = Path(local_path(ref.path) or Path(disk.description, ref.path))
        stamp = _stamp(path, ref.crc)
        if stamp is not None and _known.get(str(path)) == stamp:
            continue
        file = open_file(disk, ref.path)
        try:
            reader = SegmentReader(file, ref)
            reader.check()
            _note(reader)
        finally:
            file.close()
        count += 1
        if stamp is not None and stamp == _stamp(path, ref.crc):
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[str(path)] = stamp
    return count


def _check_remote(ref: FileRef) -> None:
    """Check only the footer of a remote file: its reader checks the pages."""
    file = open_far(ref.path)
    try:
        reader = SegmentReader(file, ref)
        reader.check_footer()
        _note(reader)
    finally:
        file.close()


def _stamp(path: Path, crc: int) -> Stamp | None:
    """A stamp that changes when the file changes; None: the file does not exist."""
    try:
        status = path.lstat()
    except OSError:
        return None  # opening it raises the right error
    return (crc, status.st_size, status.st_mtime_ns, status.st_ino)


def forget() -> None:
    """Read every file again, as a new process would; for measurements."""
    _known.clear()
