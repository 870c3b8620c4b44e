"""Reading published files with every byte checked; segment files and buckets share this.

pyarrow accepts flipped bits without an error (R5), so a reader compares the CRC32C of a range
before it gives pyarrow a window on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.disk.protocol import File, is_of_handler
from txlog.errors import Corruption

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

# A large file is checked in blocks of this size: little more than the bytes that a caller reads.
BLOCK_BYTES = 256 << 10
HINT = "txlog admin repair says what can be kept, else restore the file from a copy of the store"


def damaged(
    path: str, offset: int, length: int, expected: str, found: str, hint: str = HINT
) -> Corruption:
    """The error for a range whose bytes have changed."""
    return Corruption(
        f"{path} is damaged in bytes {offset} to {offset + length}: "
        f"expected {expected}, found {found}",
        hint=hint,
        path=path,
        offset=offset,
        length=length,
        expected=expected,
        found=found,
    )


def said_by_arrow(error: Exception) -> str:
    """The reason why Arrow refuses some bytes; raises an error that came from a signal handler."""
    if is_of_handler(error):
        raise error
    return str(error)


def checked_bytes(
    file: File, path: str, offset: int, length: int, crc: int, hint: str = HINT
) -> bytes:
    """The bytes of a range, after comparing their checksum; raises Corruption."""
    data = file.pread(offset, length)
    if len(data) != length:
        raise damaged(path, offset, length, f"{length} bytes", f"{len(data)} bytes", hint)
    actual = crc32c(data)
    if actual != crc:
        raise damaged(path, offset, length, f"{crc:08x}", f"{actual:08x}", hint)
    return data


def check_size(file: File, path: str, expected: int, hint: str = HINT) -> None:
    """Raise Corruption, for the whole difference, if a file was cut or grew."""
    size = file.size()
    if size != expected:
        low, high = sorted((size, expected))
        raise damaged(path, low, high - low, f"{expected} bytes", f"{size} bytes", hint)


def group_bounds(footer: FileMetaData) -> list[tuple[int, int, int]]:
    """(rows, start, end) of each row group, without gaps; the first starts at 0, with the magic."""
    out: list[tuple[int, int, int]] = []
    start = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        end = start
        for at in range(group.num_columns):
            column = group.column(at)
            begin = column.data_page_offset
            if column.dictionary_page_offset is not None:
                begin = min(begin, column.dictionary_page_offset)
            end = max(end, begin + column.total_compressed_size)
        out.append((group.num_rows, start, end))
        start = end
    return out


class Window:
    """A read-only file object with the length of a file; only one range can be read.

    pyarrow asks for absolute offsets. An offset outside the checked range means that the footer and
    the FileRef disagree.
    """

    closed = False

    def __init__(self, path: str, size: int, offset: int = 0, data: bytes = b"") -> None:
        self._path = path
        self._size = size
        self._position = 0
        self.show(offset, data)

    def show(self, offset: int, data: bytes) -> None:
        """Replace the range."""
        self._offset = offset
        self._data = memoryview(data)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._size)[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> memoryview:
        start = self._position - self._offset
        if start < 0 or size < 0 or start + size > len(self._data):
            raise Corruption(
                f"{self._path}: its footer points outside of the row group",
                path=self._path,
                offset=self._position,
            )
        self._position += size
        return self._data[start : start + size]

    def close(self) -> None:
        self.closed = True


class CheckedFile:
    """A read-only file object over a whole file, which holds only the blocks being read in memory.

    The file has one checksum, over all bytes. So the constructor reads all bytes once, compares
    them, and notes the checksum of each block; a block read later is compared with its own.
    raises: Corruption
    """

    closed = False

    def __init__(self, file: File, path: str, size: int, crc: int) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._position = 0
        self._blocks: list[int] = []
        whole = 0
        for offset in range(0, size, BLOCK_BYTES):
            data = self._pread(offset, min(BLOCK_BYTES, size - offset))
            whole = crc32c(data, whole)
            self._blocks.append(crc32c(data))
        if whole != crc:
            raise damaged(path, 0, size, f"{crc:08x}", f"{whole:08x}")

    def _pread(self, offset: int, length: int) -> bytes:
        data = self._file.pread(offset, length)
        if len(data) != length:
            raise damaged(self._path, offset, length, f"{length} bytes", f"{len(data)} bytes")
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._size)[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> memoryview:
        start = self._position
        stop = self._size if size < 0 else min(start + size, self._size)
        if stop <= start:
            return memoryview(b"")
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        begin = first * BLOCK_BYTES
        end = min((last + 1) * BLOCK_BYTES, self._size)
        data = memoryview(self._pread(begin, end - begin))
        for number in range(first, last + 1):
            at = (number - first) * BLOCK_BYTES
            block = data[at : at + BLOCK_BYTES]
            expected, actual = self._blocks[number], crc32c(block)
            if actual != expected:
                at += begin
                raise damaged(self._path, at, len(block), f"{expected:08x}", f"{actual:08x}")
        self._position = stop
        return data[start - begin : stop - begin]

    def close(self) -> None:
        self.closed = True
