"""The frame: the atomic unit of the journal, its byte layout and its checks.

A frame is a 64-byte header, the ops (msgpack), optionally one Arrow record batch, and zero padding
to a multiple of eight. All integers are little-endian.

    off  size  field
      0     4  magic "TXLF"
      4     1  version, 1
      5     1  columns: bits 0 to 6, which optional user columns the record batch holds
                 (model/schema); bit 7, awaited: its writer answers only once it is durable
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
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from txlog.base.startup.crc32c import crc32c

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
    """The decoded header of an unchecked frame.

    Reading makes one for each frame: a frozen dataclass would take 2 us to build.
    """

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
    """The parts as one bytes object: a small frame is written by one plain pwrite."""
    return b"".join(parts)
