"""The bytes of the journal: the frame, the file of frames, and the witness file.

A frame is the atomic unit of the journal: a 64-byte header, the ops (msgpack), optionally rows (an
Arrow record batch, or one row in msgpack), and zero padding to a multiple of eight. All integers
are little-endian.

    off  size  field
      0     4  magic "TXLF"
      4     1  version, 1
      5     1  columns: bits 0 to 5, which optional user columns the rows have, bit 6, a single
                 row in msgpack (model/schema); bit 7, awaited: its writer answers only once it is
                 durable
      6     2  header bytes, 64
      8     8  lsn, from 1, without gaps
     16     8  durable_lsn: the newest LSN the writer knew to be durable (spec/reliability R8)
     24     8  time_ms, wall clock of the writer, signed
     32     8  offset of this frame in its journal file
     40     4  bytes of the ops
     44     4  bytes of the rows
     48     8  store salt
     56     4  CRC32C of the previous frame (the chain)
     60     4  CRC32C of bytes 0..59 and of everything after the header, padding included

Identity (salt, lsn, offset, previous CRC) makes a stale or foreign frame invalid even when its own
checksum is right. Law 2.

A file is `journal/<first-lsn, 20 digits>[.r<n>].journal`, with a 512-byte header. The name is the
cut: frames of an older file at or after the first LSN of a younger one are void. `.r<n>` is the
n-th rewriting of an unwitnessed tail that begins at the same LSN (R13, R14).

    off size field
      0    8  magic "TXLOGJNL"        24    8  first lsn
      8    4  version, 3              32    4  CRC32C of the frame before the first
     12    4  rewrite number          36    4  CRC32C of bytes 0..35
     16    8  store salt              40  472  zero

Version 2 means that writers flush under a lock of its own (`flush.lock`), and that frames have the
mark *awaited*. A program for version 1 would flush and mark the witness without that lock, so it
must not get further than this header. Version 3 means that files may belong to a store of format 3.
A program for version 2 that has such a store open may never meet a new op, if a checkpoint removes
the frames before it looks; it would then drop the new fields of the dumps. This program reads files
of older versions, and never appends to them: the first writer moves on to a new file (`journal`).

The witness, `journal/witness`, has two checksummed records of the newest LSN known to be durable:
record 0 at offset 0, record 1 at 4096, rewritten in turn and never flushed for their own sake: an
older copy is still true (spec/reliability R7). If both are lost, recovery cannot tell rot of the
last frames from a torn tail until the next frame; nothing else is lost.

    off size field                      off size field
      0    4  magic "TXLW"               64    8  end offset after the durable frame
      4    4  version, 1                 72    4  chain crc at that place
      8    8  seq, rises by one          76    4  journal rewrite number
     16    8  store salt                 80    8  flushing lsn (0: no flush is under way)
     24   16  boot id, 16 bytes          88    4  poisoned, 0 or 1
     40    8  manifest generation        92   32  zero
     48    8  journal file, first lsn   124    4  CRC32C of bytes 0..123
     56    8  durable lsn
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Sequence

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.errors import Corruption

MAGIC = b"TXLF"
VERSION = 1
HEADER = struct.Struct("<4sBBHQQqQII8sII")
HEADER_BYTES = HEADER.size
_CHECKED = struct.Struct("<4sBBHQQqQII8sI")  # the header without its own CRC
FRAME_BYTES_MAX = 1 << 30
# The limit for one decision; other decisions that join its frame get the remaining bytes.
DECISION_BYTES_MAX = FRAME_BYTES_MAX - (64 << 20)
AWAITED = 0x80
_ZEROS = bytes(8)
_CRC = struct.Struct("<I")

assert HEADER_BYTES == 64

Buffer = bytes | bytearray | memoryview


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """The decoded header of a frame that is not checked yet."""

    columns: int
    is_awaited: bool
    lsn: int
    durable_lsn: int
    time_ms: int
    offset: int
    ops_bytes: int
    rows_bytes: int
    salt: bytes
    previous_crc: int
    crc: int

    @property
    def total_bytes(self) -> int:
        """Length of the whole frame with its padding, in bytes."""
        return frame_bytes(self.ops_bytes, self.rows_bytes)


def frame_bytes(ops_bytes: int, rows_bytes: int) -> int:
    """Length of a frame with this many bytes of ops and rows, padding included."""
    return (HEADER_BYTES + ops_bytes + rows_bytes + 7) & ~7


def encode(
    *,
    lsn: int,
    durable_lsn: int,
    time_ms: int,
    offset: int,
    ops: bytes,
    rows: Buffer | None,
    columns: int,
    salt: bytes,
    previous_crc: int,
    is_awaited: bool = False,
) -> tuple[list[Buffer], int, int]:
    """Encode a frame; returns (buffers to write in order, total bytes, crc of the frame)."""
    rows_bytes = 0 if rows is None else len(memoryview(rows))
    body = HEADER_BYTES + len(ops) + rows_bytes
    total = (body + 7) & ~7
    head = _CHECKED.pack(
        MAGIC,
        VERSION,
        columns | AWAITED if is_awaited else columns,
        HEADER_BYTES,
        lsn,
        durable_lsn,
        time_ms,
        offset,
        len(ops),
        rows_bytes,
        salt,
        previous_crc,
    )
    crc = crc32c(ops, crc32c(head))
    parts: list[Buffer] = [head, b"", ops]
    if rows is not None and rows_bytes:
        crc = crc32c(rows, crc)
        parts.append(rows)
    if total != body:
        padding = _ZEROS[: total - body]
        crc = crc32c(padding, crc)
        parts.append(padding)
    parts[1] = _CRC.pack(crc)
    return parts, total, crc


def decode_header(data: Buffer, at: int = 0) -> FrameHeader | None:
    """Decode the first 64 bytes of a frame; None when they cannot be a header."""
    if len(data) < at + HEADER_BYTES:
        return None
    (
        magic,
        version,
        columns,
        header_bytes,
        lsn,
        durable_lsn,
        time_ms,
        offset,
        ops_bytes,
        rows_bytes,
        salt,
        previous_crc,
        crc,
    ) = HEADER.unpack_from(data, at)
    if magic != MAGIC or version != VERSION or header_bytes != HEADER_BYTES:
        return None
    if HEADER_BYTES + ops_bytes + rows_bytes > FRAME_BYTES_MAX:
        return None
    return FrameHeader(
        columns & ~AWAITED,
        bool(columns & AWAITED),
        lsn,
        durable_lsn,
        time_ms,
        offset,
        ops_bytes,
        rows_bytes,
        salt,
        previous_crc,
        crc,
    )


def is_genuine(header: FrameHeader, frame: memoryview, salt: bytes, offset: int) -> bool:
    """True when this store wrote this frame at this offset, whatever the chain."""
    total = (HEADER_BYTES + header.ops_bytes + header.rows_bytes + 7) & ~7
    return (
        header.salt == salt
        and header.offset == offset
        and len(frame) >= total
        and crc32c(frame[HEADER_BYTES:total], crc32c(frame[:60])) == header.crc
    )


def attested_lsn(data: bytes, base: int, salt: bytes) -> int:
    """Highest durable_lsn in any genuine frame within data, which starts at file offset base.

    Frames start at multiples of eight, so only those offsets are tried. Source: spec/reliability
    2.3, A.
    """
    view = memoryview(data)
    highest = 0
    at = data.find(MAGIC)
    while at >= 0:
        if (base + at) % 8 == 0:
            header = decode_header(view[at : at + HEADER_BYTES])
            if header is not None and is_genuine(header, view[at:], salt, base + at):
                highest = max(highest, header.durable_lsn)
        at = data.find(MAGIC, at + 1)
    return highest


def joined(parts: Sequence[Buffer]) -> bytes:
    """The parts as one bytes object, so that a single pwrite writes a small frame."""
    return b"".join(parts)


# --- files ----------------------------------------------------------------------------------------

JOURNAL_DIR = "journal"
FILE_HEADER_BYTES = 512
FILL_BYTES = 1 << 20
FILE_VERSION = 3
FILE_HEADER = struct.Struct("<8sII8sQI")
FILE_MAGIC = b"TXLOGJNL"
_NAME = re.compile(r"(\d{20})(?:\.r(\d+))?\.journal")
_WINDOW_BYTES = 4 << 10, 1 << 20  # from 4 KiB, growing to 1 MiB
_LARGE_BYTES = 128 << 10  # a frame of this size is read alone
_SCAN_BYTES = 4 << 20

assert FILE_HEADER.size == 36


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
    body = FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, name.rewrite, salt, name.first_lsn, chain_crc)
    return (body + struct.pack("<I", crc32c(body))).ljust(FILE_HEADER_BYTES, b"\0")


class RawFrame(msgspec.Struct, frozen=True, gc=False):
    """A checked frame of a journal file; ops and rows are still encoded."""

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
        """chain_crc: of the frame before the first; None: read, and check, the header."""
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
            magic, version, rewrite, salt, first, chain = FILE_HEADER.unpack_from(head)
            crc = int(struct.unpack_from("<I", head, 36)[0])
            good = (
                (magic, salt) == (FILE_MAGIC, self.salt)
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
            # usually the first look finds nothing, or there are one or two frames; in a window with
            # large frames, a part of the last frame would be read twice
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


# --- the witness ----------------------------------------------------------------------------------

WITNESS_PATH = "journal/witness"
RECORD = struct.Struct("<4sIQ8s16sQQQQIIQI32xI")
RECORD_BYTES = RECORD.size
_RECORD_CHECKED = struct.Struct("<4sIQ8s16sQQQQIIQI32x")  # the record without its CRC
_SLOT_BYTES = 4096
WITNESS_MAGIC = b"TXLW"

assert RECORD_BYTES == 128


def boot_bytes(boot_id: str) -> bytes:
    """The 16 bytes kept of a boot id: the UUID itself, or a name-based UUID of other text."""
    try:
        return uuid.UUID(boot_id).bytes
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, boot_id).bytes


class WitnessRecord(msgspec.Struct, gc=False):
    """One record of the witness."""

    seq: int
    boot: bytes
    generation: int
    journal: int
    durable_lsn: int
    end: int
    chain_crc: int
    rewrite: int
    flushing_lsn: int
    poisoned: bool


def encode_record(record: WitnessRecord, salt: bytes) -> bytes:
    """The 128 bytes of a record."""
    # the fields of WitnessRecord have the order of the bytes
    seq, *other_fields = msgspec.structs.astuple(record)
    body = _RECORD_CHECKED.pack(WITNESS_MAGIC, 1, seq, salt, *other_fields)
    return body + _CRC.pack(crc32c(body))


def decode_record(data: bytes, salt: bytes) -> WitnessRecord | None:
    """The record in these 128 bytes, or None when they are not a good record of this store."""
    if len(data) < RECORD_BYTES:
        return None
    (
        magic,
        version,
        seq,
        found_salt,
        boot,
        generation,
        journal,
        durable,
        end,
        chain,
        rewrite,
        flushing,
        poisoned,
        crc,
    ) = RECORD.unpack_from(data)
    if magic != WITNESS_MAGIC or version != 1 or found_salt != salt or crc != crc32c(data[:124]):
        return None
    return WitnessRecord(
        seq, boot, generation, journal, durable, end, chain, rewrite, flushing, bool(poisoned)
    )


class Witness:
    """Reads and raises the witness of one store."""

    __slots__ = ("_can_write", "_disk", "_file", "_raw", "_salt", "_slots", "is_damaged", "last")

    def __init__(self, disk: Disk, salt: bytes, *, is_reader: bool = False) -> None:
        self._disk = disk
        self._can_write = not (is_reader or disk.read_only)
        self._salt = salt
        self._file: File | None = None
        self._raw = b""  # the bytes of the last read
        self._slots = [b"", b""]  # the two records as they are in the file, where known
        self.last: WitnessRecord | None = None
        self.is_damaged = False  # one record is bad: the good one may be the older

    def _open(self) -> File | None:
        if self._file is None and self._disk.exists(WITNESS_PATH):
            self._file = self._disk.open(WITNESS_PATH, write=self._can_write)
        return self._file

    @property
    def file(self) -> File | None:
        """The open file, if there is one."""
        return self._file

    def read(self) -> WitnessRecord | None:
        """The newest good record; None when both are bad or the file is missing."""
        file = self._file or self._open()
        if file is None:
            return None
        data = file.pread(0, _SLOT_BYTES + RECORD_BYTES)
        if data == self._raw:
            return self.last
        self._raw = data
        slots = [data[:RECORD_BYTES], data[_SLOT_BYTES:]]
        if slots == self._slots:
            return self.last  # only our own writes
        self._slots = slots
        first = decode_record(slots[0], self._salt)
        second = decode_record(slots[1], self._salt)
        self.is_damaged = first is None or second is None
        if first is None or (second is not None and second.seq > first.seq):
            self.last = second
        else:
            self.last = first
        return self.last

    def is_last(self, record: WitnessRecord) -> bool:
        """True while the record is the newest: the other slot still has the bytes last read."""
        slot = (record.seq + 1) % 2
        written = self._slots[slot]
        return (
            record is self.last
            and len(written) == RECORD_BYTES
            and self._file is not None
            and self._file.pread(slot * _SLOT_BYTES, RECORD_BYTES) == written
        )

    def write(self, record: WitnessRecord, *, after: WitnessRecord | None = None) -> None:
        """Write the record with the next number, over the older of the two records.

        after: the newest record, for a thread that writes while another one may read
        """
        file = self._file or self._open()
        if file is None:
            self._disk.write_fresh(WITNESS_PATH, bytes(2 * _SLOT_BYTES))
            file = self._disk.open(WITNESS_PATH, write=True)
            self._file = file
        last, slots = after or self.last, self._slots
        seq = record.seq = (record if last is None else last).seq + 1
        slot = seq % 2
        data = encode_record(record, self._salt)
        slots[slot] = b""  # unknown, in case the write fails half way
        file.pwrite(slot * _SLOT_BYTES, data)
        slots[slot] = data
        self.last = record

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
