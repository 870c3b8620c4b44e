"""Owns rolling forward: frames of a journal file encoded for another one.

The journal decides when, under the write lock; it is loaded when there is something to mend.
"""

from __future__ import annotations

from txlog.engine.storage.checked import HINT
from txlog.engine.storage.journal.file import FILE_HEADER_BYTES, JournalFile
from txlog.engine.storage.journal.frame import Buffer, encode
from txlog.errors import Corruption


def place_of(opened: JournalFile, lsn: int) -> tuple[int, int]:
    """(offset of frame lsn, chain CRC before it) in a journal file; raises Corruption."""
    at, chain, number = FILE_HEADER_BYTES, opened.chain_crc, opened.name.first_lsn
    while number < lsn:
        frame = opened.read_frame(at, number, chain)
        if frame is None:
            raise broken(opened, at, number, lsn)
        at, chain, number = at + frame.total_bytes, frame.crc, number + 1
    return at, chain


def rebased(
    opened: JournalFile, span: tuple[int, int], lsn: int, chain: int
) -> tuple[list[Buffer], int]:
    """The frames of a span encoded for a new file, where offsets and CRCs differ.

    lsn, chain: the number of the first, and the CRC before it
    returns: their bytes, and the CRC of the last; raises Corruption
    """
    out: list[Buffer] = []
    start, end = span
    frames = opened.file.pread(start, end - start)
    at, target, previous = 0, FILE_HEADER_BYTES, chain
    while at < len(frames):
        frame = opened.read_frame(start + at, lsn, chain)
        if frame is None:
            raise broken(opened, start + at, lsn, lsn)
        rows_at = frame.rows_offset - start
        parts, total, crc = encode(
            lsn=lsn, durable_lsn=frame.durable_lsn, time_ms=frame.time_ms, offset=target,
            ops=frame.ops, rows=frames[rows_at : rows_at + frame.rows_bytes],
            columns=frame.columns, salt=opened.salt, previous_crc=previous,
        )  # fmt: skip
        out.extend(parts)
        chain, previous = frame.crc, crc
        at, target, lsn = at + frame.total_bytes, target + total, lsn + 1
    return out, previous


def broken(opened: JournalFile, at: int, first: int, last: int) -> Corruption:
    """The error of a journal file where frames that were durable cannot be read."""
    path = opened.name.path
    return Corruption(
        f"{path} is damaged at byte {at}: LSN {first} to {last} were durable and cannot be read",
        hint=HINT,
        path=path, offset=at, lsn=first, last_lsn=last,
    )  # fmt: skip
