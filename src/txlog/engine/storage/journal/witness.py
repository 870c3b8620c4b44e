"""The witness: two checksummed records of the newest LSN known to be durable.

Owns the file `journal/witness`: record 0 at offset 0, record 1 at 4096, rewritten in turn and never
flushed for their own sake: an older copy is still true (spec/reliability R7). If both are lost,
recovery cannot tell rot of the last frames from a torn tail until the next frame; nothing else is
lost.

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

import struct
import uuid

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.disk.protocol import Disk, File

WITNESS_PATH = "journal/witness"
RECORD = struct.Struct("<4sIQ8s16sQQQQIIQI32xI")
RECORD_BYTES = RECORD.size
_CHECKED = struct.Struct("<4sIQ8s16sQQQQIIQI32x")  # the record without its CRC
_CRC = struct.Struct("<I")
_SLOT_BYTES = 4096
_MAGIC = b"TXLW"

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
    body = _CHECKED.pack(_MAGIC, 1, seq, salt, *other_fields)
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
    if magic != _MAGIC or version != 1 or found_salt != salt or crc != crc32c(data[:124]):
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
        """True while the record is the newest: the next write replaces the other record."""
        slot = (record.seq + 1) % 2
        written = self._slots[slot]
        return (
            record is self.last
            and len(written) == RECORD_BYTES
            and self._file is not None
            and self._file.pread(slot * _SLOT_BYTES, RECORD_BYTES) == written
        )

    def write(self, record: WitnessRecord) -> None:
        """Write the record with the next number, over the older of the two records."""
        file = self._file or self._open()
        if file is None:
            self._disk.write_fresh(WITNESS_PATH, bytes(2 * _SLOT_BYTES))
            file = self._disk.open(WITNESS_PATH, write=True)
            self._file = file
        last, slots = self.last, self._slots
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
