"""Files of another writer that wait to be adopted: what is in them, every byte looked at.

Spark's own Parquet writer makes them, with the columns of MESSAGE. Between its memory and here lie
a disk and nothing that checks, so what it says itself is compared: the checksums that Hadoop's
local file system keeps beside each file (`.NAME.crc`: a CRC32 of every 512 bytes). Then the file
is described as one that was staged here, and it has to be what readers rely on: the columns and
types of MESSAGE, `kind` 0, `entry` from 0 without a gap, `publish_time` that of the job.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from txlog import compute as pc
from txlog.engine.storage.checked import Window, damaged, group_bounds
from txlog.engine.storage.columns import MESSAGE
from txlog.engine.storage.crc import crc32c
from txlog.engine.storage.disk_protocol import File
from txlog.engine.storage.segment import FileRef, Group, arrow_module
from txlog.errors import Corruption

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

HINT: Final = "write the batch again"
_MAGIC: Final = b"PAR1"
_SUMS: Final = struct.Struct(">4sI")
_SUMS_MAGIC: Final = b"crc\0"
_READ_BYTES: Final = 1 << 20
_SIZED: Final = ("key", "value")


class Described(msgspec.Struct, frozen=True, gc=False):
    """What is to be known of a file; ref: without ledger; times: as in StagedBytes."""

    ref: FileRef
    payload_bytes: int
    times: pa.ChunkedArray | None


def check_sums(file: File, path: str, sums: bytes) -> None:
    """Compare a file with the checksums that its writer kept; raises Corruption.

    sums: the whole of `.NAME.crc`
    """
    if len(sums) < _SUMS.size or sums[:4] != _SUMS_MAGIC:
        raise damaged(path, 0, 0, "checksums of its writer", "none", HINT)
    step = _SUMS.unpack_from(sums)[1]
    size = file.size()
    known = memoryview(sums)[_SUMS.size :]
    if step < 1 or len(known) != 4 * -(-size // step):
        raise damaged(path, 0, size, f"{len(known) // 4} checksums", f"{size} bytes", HINT)
    expected = struct.unpack(f">{len(known) // 4}I", known)
    crc32, at = zlib.crc32, 0
    for start in range(0, size, step * max(1, _READ_BYTES // step)):
        piece = memoryview(file.pread(start, step * max(1, _READ_BYTES // step)))
        found = [crc32(piece[one : one + step]) for one in range(0, len(piece), step)]
        if expected[at : at + len(found)] != (*found,):
            raise damaged(path, start, len(piece), "the bytes of its writer", "others", HINT)
        at += len(found)
    if at != len(expected):
        raise damaged(path, 0, size, f"{len(expected)} checksums", f"{at} pieces", HINT)


def describe(file: File, path: str, time_ms: int) -> Described:
    """What is in a file, for its adoption; in memory is a row group.

    time_ms: the publish_time that its rows have
    raises:  Corruption: it is not what readers rely on
    """
    try:
        return _Description(file, path, time_ms).made()
    except (pa.ArrowException, OSError) as error:
        raise _strange(path, "a file that decodes", str(error)) from error


class _Description:
    """One file while it is looked at."""

    def __init__(self, file: File, path: str, time_ms: int) -> None:
        self._file = file
        self._path = path
        self._time_ms = time_ms
        self._size = file.size()
        self._crc = 0
        self._rows = 0
        self._payload_bytes = 0
        self._times: list[pa.ChunkedArray] = []

    def made(self) -> Described:
        footer = self._footer()
        self._check_columns(footer)
        groups: list[Group] = []
        at = 0
        for number, (rows, start, end) in enumerate(group_bounds(footer)):
            data = self._taken(start, end)
            groups.append((rows, start, end - start, crc32c(data)))
            self._look(footer, number, rows, Window(self._path, self._size, start, data))
            at = end
        tail = self._taken(at, self._size)
        ref = FileRef(
            self._path, 0, self._rows, 0, self._rows - 1, self._size, self._crc, len(tail),
            crc32c(tail), groups, 0, 0, "adopted",
        )  # fmt: skip
        times = pa.chunked_array(
            [chunk for each in self._times for chunk in each.chunks],
            MESSAGE.field("deliver_at").type,
        )
        has_times = times.null_count < len(times)
        return Described(ref, self._payload_bytes, times.cast(pa.int64()) if has_times else None)

    def _footer(self) -> FileMetaData:
        end = self._file.pread(max(0, self._size - 8), 8)
        length = int.from_bytes(end[:4], "little") + 8
        if end[4:] != _MAGIC or length > self._size:
            raise _strange(self._path, "a Parquet file", f"{self._size} bytes of another kind")
        tail = self._file.pread(self._size - length, length)
        return arrow_module("pyarrow.parquet").read_metadata(pa.BufferReader(tail))

    def _check_columns(self, footer: FileMetaData) -> None:
        schema = footer.schema.to_arrow_schema()
        if schema.names != MESSAGE.names or schema.types != MESSAGE.types:
            raise _strange(self._path, "the columns of messages", schema.to_string())

    def _taken(self, start: int, end: int) -> bytes:
        """The next bytes of the file, which follow those before."""
        data = self._file.pread(start, end - start)
        if len(data) != end - start:
            raise _strange(self._path, f"{self._size} bytes", f"{start + len(data)}")
        self._crc = crc32c(data, self._crc)
        return data

    def _look(self, footer: FileMetaData, number: int, rows: int, window: Window) -> None:
        """Check and count the rows of a group."""
        if not rows:
            return
        group = footer.row_group(number)
        chunks = {
            group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)
        }
        for name, wanted in (("kind", 0), ("publish_time", self._time_ms)):
            found = chunks[name].statistics
            if found is None or not found.has_min_max or found.null_count:
                raise _strange(self._path, f"statistics of {name}", "none")
            if (found.min_raw, found.max_raw) != (wanted, wanted):
                raise _strange(self._path, f"{name} {wanted}", f"{found.min_raw}")
        with arrow_module("pyarrow.parquet").ParquetFile(
            pa.PythonFile(window, "r"), metadata=footer, page_checksum_verification=True
        ) as parquet:
            table = parquet.read_row_group(number, columns=["entry", "deliver_at", *_SIZED])
        entries = table.column("entry").combine_chunks()
        if entries.null_count or not entries.equals(pa.arange(self._rows, self._rows + rows)):
            raise _strange(
                self._path, f"entries from {self._rows} to {self._rows + rows}", "others"
            )
        self._rows += rows
        self._times.append(table.column("deliver_at"))
        self._payload_bytes += sum(_bytes_of(table.column(name)) for name in _SIZED)


def _bytes_of(column: pa.ChunkedArray) -> int:
    """Bytes of all values of a column."""
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def _strange(path: str, expected: str, found: str) -> Corruption:
    return Corruption(
        f"{path} is not what is adopted: expected {expected}, found {found}",
        hint=HINT, path=path, expected=expected, found=found,
    )  # fmt: skip
