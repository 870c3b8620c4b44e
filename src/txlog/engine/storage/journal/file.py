"""One journal file: its name, its header, and reading frames out of it.

Owns the names `journal/<first-lsn, 20 digits>[.r<n>].journal` and the 512-byte file header. The
name is the cut: frames of an older file at or after the first LSN of a younger one are void.
`.r<n>` is the n-th rewriting of an unwitnessed tail that begins at the same LSN (R13, R14).

    off size field
      0    8  magic "TXLOGJNL"        24    8  first lsn
      8    4  version, 2              32    4  CRC32C of the frame before the first
     12    4  rewrite number          36    4  CRC32C of bytes 0..35
     16    8  store salt              40  472  zero

Version 2 means that writers flush under a lock of its own (`flush.lock`), and that frames have the
mark *awaited*. A program for version 1 would flush and mark the witness without that lock, so it
must not get further than this header. This program reads a file of version 1, and never appends to
it: the first writer moves on to a new file (journal/journal).
"""

from __future__ import annotations

import re
import struct

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.engine.storage.journal.frame import (
    AWAITED,
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Buffer,
    FrameHeader,
    decode_header,
)
from txlog.errors import Corruption

JOURNAL_DIR = "journal"
FILE_HEADER_BYTES = 512
FILL_BYTES = 1 << 20
FILE_VERSION = 2
_HEADER = struct.Struct("<8sII8sQI")
_MAGIC = b"TXLOGJNL"
_NAME = re.compile(r"(\d{20})(?:\.r(\d+))?\.journal")
_WINDOW_BYTES = 4 << 10, 1 << 20  # from 4 KiB, growing to 1 MiB
_LARGE_BYTES = 128 << 10  # a frame of this size is read alone
_SCAN_BYTES = 4 << 20

assert _HEADER.size == 36


class JournalName(msgspec.Struct, frozen=True, order=True, gc=False):
    """The parts of a journal file's name; ordered as the files follow each other."""

    first_lsn: int
    rewrite: int = 0

    @property
    def path(self) -> str:
        """Path below the store's root."""
        suffix = f".r{self.rewrite}" if self.rewrite else ""
        return f"{JOURNAL_DIR}/{self.first_lsn:020d}{suffix}.journal"


def list_journals(disk: Disk) -> list[JournalName]:
    """Every journal file, in order."""
    matches = (_NAME.fullmatch(name) for name in disk.listdir(JOURNAL_DIR))
    return sorted(JournalName(int(m[1]), int(m[2] or 0)) for m in matches if m)


def file_header(name: JournalName, salt: bytes, chain_crc: int) -> bytes:
    """The first 512 bytes of a journal file."""
    body = _HEADER.pack(_MAGIC, FILE_VERSION, name.rewrite, salt, name.first_lsn, chain_crc)
    return (body + struct.pack("<I", crc32c(body))).ljust(FILE_HEADER_BYTES, b"\0")


class RawFrame(msgspec.Struct, frozen=True, gc=False):
    """A checked frame as it lies in a journal file; ops and rows are still encoded."""

    lsn: int
    time_ms: int
    durable_lsn: int
    columns: int
    ops: bytes
    journal: JournalName
    offset: int
    total_bytes: int
    rows_offset: int
    rows_bytes: int
    crc: int
    is_awaited: bool = False
    rows: memoryview | None = None  # only within the budget of JournalFile.keep_rows


def frame_nowhere(name: JournalName, lsn: int, time_ms: int) -> RawFrame:
    """A frame without bytes, for a dry run: a view may take it, but it cannot be read."""
    return RawFrame(lsn, time_ms, 0, 0, b"", name, 0, 0, 0, 0, 0)


class JournalFile:
    """An open journal file; reads frames through a window and checks each."""

    __slots__ = (
        "_ahead",
        "_disk",
        "_rows_budget",
        "_window",
        "_window_at",
        "chain_crc",
        "file",
        "name",
        "path",
        "salt",
        "size",
        "version",
    )

    def __init__(
        self, disk: Disk, name: JournalName, salt: bytes, *, chain_crc: int | None = None
    ) -> None:
        """chain_crc: of the frame before the first, overriding the header; None: the header's."""
        self._disk = disk
        self.salt = salt
        self._rows_budget = 0
        self.name = name
        self.path = name.path
        self.file: File = disk.open(self.path, write=not disk.read_only)
        self.size = self.file.size()
        self._window = memoryview(b"")
        self._window_at = -1
        self._ahead = 0
        self.version = FILE_VERSION
        if chain_crc is not None:
            self.chain_crc = chain_crc
            return
        try:
            self.chain_crc = self._check_header(self.file.pread(0, FILE_HEADER_BYTES))
        except BaseException:  # no other code can close it yet
            self.file.close()
            raise

    def _check_header(self, head: bytes) -> int:
        good = len(head) == FILE_HEADER_BYTES and not any(head[40:])
        if good:
            magic, version, rewrite, salt, first, chain = _HEADER.unpack_from(head)
            crc = int(struct.unpack_from("<I", head, 36)[0])
            good = (
                (magic, salt) == (_MAGIC, self.salt)
                and 1 <= version <= FILE_VERSION
                and (first, rewrite) == (self.name.first_lsn, self.name.rewrite)
                and crc == crc32c(head[:36])
            )
            if good:
                self.version = version
                return int(chain)
        raise Corruption(
            f"the header of {self.name.path} is damaged, bytes 0 to {FILE_HEADER_BYTES}",
            hint=HINT,
            path=self.name.path,
            offset=0,
            lsn=self.name.first_lsn,
        )

    def _bytes(self, offset: int, length: int) -> memoryview:
        at = offset - self._window_at
        if at < 0 or at + length > len(self._window):
            # the first look mostly finds nothing, and then come mostly a frame or two; in a window
            # with large frames, a part of the last frame would be read twice
            ahead = self._ahead if length < _LARGE_BYTES else length + HEADER_BYTES
            self._window = memoryview(self.file.pread(offset, max(length, ahead)))
            self._window_at = offset
            self._ahead = min(max(4 * self._ahead, _WINDOW_BYTES[0]), _WINDOW_BYTES[1])
            at = 0
        return self._window[at : at + length]

    def forget_window(self) -> None:
        """Drop cached bytes: others may append to the file between two calls."""
        self._window = memoryview(b"")
        self._window_at = -1
        self._ahead = 0

    def keep_rows(self, budget_bytes: int) -> None:
        """Let frames read from now on carry their checked rows, up to this many bytes in all."""
        self._rows_budget = budget_bytes

    def read_header(self, offset: int) -> FrameHeader | None:
        """The unchecked header at offset, None if there is none."""
        return decode_header(self._bytes(offset, HEADER_BYTES))

    def ends_at(self, offset: int) -> bool:
        """True when no frame follows in the file as it is now: only zeros, or its end.

        Bypasses the window: others may append to the file between two calls.
        """
        return not any(self.file.pread(offset, HEADER_BYTES))

    def is_blank(self, offset: int) -> bool:
        """True when the 64 bytes at offset are zeros or lie after the end of the file."""
        return not any(self._bytes(offset, HEADER_BYTES))

    def written_until(self, start: int) -> int:
        """The offset after the last non-zero byte from start on; start, if all bytes are zero."""
        self.size = self.file.size()
        stop = at = start
        while at < self.size:
            block = self.file.pread(at, min(_SCAN_BYTES, self.size - at))
            if not block:
                break
            # comparing first: stripping a blank MiB takes 4 ms
            stripped = b"" if block == bytes(len(block)) else block.rstrip(b"\0")
            if stripped:
                stop = at + len(stripped)
            at += len(block)
        return stop

    def zero(self, start: int, length: int) -> None:
        """Write zeros over a range; not flushed."""
        done = 0
        while done < length:
            step = min(FILL_BYTES, length - done)
            self.file.pwrite(start + done, bytes(step))
            done += step

    def read_frame(self, offset: int, lsn: int, previous_crc: int) -> RawFrame | None:
        """The frame at offset if it is whole, genuine and next in the chain, else None."""
        at = offset - self._window_at
        if at < 0 or at + HEADER_BYTES > len(self._window):
            if len(self._bytes(offset, HEADER_BYTES)) < HEADER_BYTES:
                return None
            at = 0
        # runs for each frame, so decode_header and is_genuine in one; all but six fields have known
        # values
        (
            magic,
            version,
            columns,
            header_bytes,
            found_lsn,
            durable_lsn,
            time_ms,
            found_offset,
            ops_bytes,
            rows_bytes,
            salt,
            previous,
            crc,
        ) = HEADER.unpack_from(self._window, at)
        ops_end = HEADER_BYTES + ops_bytes
        body = ops_end + rows_bytes
        if (
            (magic, version, header_bytes) != (MAGIC, VERSION, HEADER_BYTES)
            or (found_lsn, previous, found_offset) != (lsn, previous_crc, offset)
            or salt != self.salt
            or body > FRAME_BYTES_MAX
        ):
            return None
        total = (body + 7) & ~7
        if at + total > len(self._window):
            if len(self._bytes(offset, total)) < total:
                return None
            at = 0
        view = self._window[at : at + total]
        if crc32c(view[HEADER_BYTES:], crc32c(view[:60])) != crc:
            return None
        rows: memoryview | None = None
        if rows_bytes and total <= self._rows_budget:
            self._rows_budget -= total
            rows = view[ops_end:body]
        return RawFrame(
            lsn,
            time_ms,
            durable_lsn,
            columns & ~AWAITED,
            bytes(view[HEADER_BYTES:ops_end]),
            self.name,
            offset,
            total,
            offset + ops_end,
            rows_bytes,
            crc,
            columns >= AWAITED,
            rows,
        )

    def close(self) -> None:
        """Close the descriptor."""
        self.file.close()


def publish_journal(
    disk: Disk, name: JournalName, salt: bytes, chain_crc: int, frames: list[Buffer]
) -> None:
    """Publish a journal file with these encoded frames, then zeros (R3, R6)."""
    head = file_header(name, salt, chain_crc)
    disk.publish(name.path, [head, *frames, bytes(FILL_BYTES - FILE_HEADER_BYTES)])
