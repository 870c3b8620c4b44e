"""Verifying published files: their bytes against what names them, and whatever nobody names.

Fast compares every byte with its checksum. Deep also decodes everything: rows, bitmaps, dumps, the
chunks of large messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from txlog import compute as pc
from txlog.engine.dumps import FOLDS, STATE_HEAD, STATE_MAGIC
from txlog.engine.folds.buffer import Chunked
from txlog.engine.liveness import WRITE_LOCK, holder_of
from txlog.engine.model.schema import KIND_DATA
from txlog.engine.pins import PINS_LOCK, pins
from txlog.engine.space import RESERVE_PATH
from txlog.engine.storage.bucket_reader import BucketFile
from txlog.engine.storage.checked import damaged
from txlog.engine.storage.chunks import reassembled
from txlog.engine.storage.crc import crc32c
from txlog.engine.storage.disk_protocol import TEMPORARY_PREFIX, Disk
from txlog.engine.storage.far import is_far, open_file
from txlog.engine.storage.manifest import DumpRef, HistoryRef
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.store import MAINTENANCE_PATH
from txlog.engine.upkeep.findings import Findings
from txlog.engine.upkeep.history import HISTORY
from txlog.engine.upkeep.quarantine import DIRECTORY as QUARANTINE_DIR
from txlog.errors import MissingFile, TxlogError

HINT: Final = "txlog admin repair says what can be made again"
UNNAMED_HINT: Final = "the next checkpoint removes it, or txlog admin gc --apply"
_READ_BYTES: Final = 1 << 20
_STATE_HEAD_BYTES: Final = STATE_HEAD.size
_FIXED: Final = {
    "": re.compile(
        r"txlog\.toml|lock|maintenance\.lock|pins\.lock|reserve|journal|manifest|state|topics|system"
        r"|consumers|quarantine|pins"
    ),
    "journal": re.compile(r"witness|\d{20}(\.r\d+)?\.journal"),
    "manifest": re.compile(r"\d{10}\.manifest"),
    "state": re.compile(r"\d{10}\.state"),
    "system/transaction_log": re.compile(r"\d{10}\.arrow"),
    "consumers": re.compile(r"\d+\.lock"),
    "quarantine": re.compile(r"\d{20}-[0-9a-f]{8}\.tail|.*\.damaged"),
    "pins": re.compile(r"[0-9a-f]{16}\.lock"),
}
_OF_TOPICS: Final = re.compile(
    r"_ledger-\d{12}\.\d{10}\.arrow|ledger-\d{12}\.\d{10}\.parquet|_txnlog|_delayed"
    r"|bucket-\d+-\d+-\d{10}\.parquet"
)
# Whether a path that is missing is still wanted: a checkpoint may have replaced it meanwhile.
IsWanted = Callable[[str], bool]


def check_segment(
    disk: Disk, ref: FileRef, findings: Findings, is_wanted: IsWanted, *,
    deep: bool = False, chunked: Chunked | None = None, partition: int | None = None,
) -> bool:  # fmt: skip
    """Every byte of a part, a sealed or adopted file, chunks, or a bucket; True: it is good."""
    try:
        file = open_file(disk, ref.path)
    except MissingFile as error:
        if is_wanted(ref.path):
            findings.caught(error, path=ref.path, ledger=ref.ledger or None, hint=HINT,
                            partition=partition)  # fmt: skip
            return False
        return True
    except TxlogError as error:
        findings.caught(error, path=ref.path, ledger=ref.ledger or None, partition=partition)
        return False
    try:
        findings.read(ref.bytes)
        reader = SegmentReader(file, ref)
        reader.check()
        if not deep:
            return True
        if ref.form == "bucket":
            BucketFile(file, ref).verify()
        elif ref.form == "chunks":
            if chunked is not None:
                reassembled(file, ref, chunked.value_bytes, chunked.crc)
        else:
            reader.verify()
            _check_counted(reader)
    except TxlogError as error:
        findings.caught(error, path=ref.path, ledger=ref.ledger or None, partition=partition,
                        hint=error.hint if is_far(ref.path) else HINT)  # fmt: skip
        return False
    finally:
        file.close()
    return True


def _check_counted(reader: SegmentReader) -> None:
    """What a FileRef says of the rows, by which engines leave out what they need not look at."""
    ref = reader.ref
    if ref.messages < 0:
        return
    kinds = reader.rows(0, ref.rows, ["kind"]).column("kind")
    found = int(pc.sum(pc.equal(kinds, KIND_DATA)).as_py() or 0)
    if found != ref.messages:
        raise damaged(ref.path, 0, ref.bytes, f"{ref.messages} messages", f"{found}", HINT)
    if "/_txnlog/" in ref.path:
        return
    said = {reader.statistics(number, "ledger") for number in range(len(ref.groups))}
    if said - {(ref.ledger, ref.ledger)}:
        raise damaged(ref.path, 0, ref.bytes, f"ledger {ref.ledger} in each row", "others", HINT)


def check_state(
    disk: Disk, salt: bytes, path: str, refs: Iterable[DumpRef], findings: Findings,
    is_wanted: IsWanted, *, deep: bool = False,
) -> list[DumpRef]:  # fmt: skip
    """A state file and the dumps that manifests name in it; returns those that are damaged."""
    wanted = list(refs)
    try:
        data = disk.read(path)
    except MissingFile as error:
        if not is_wanted(path):
            return []
        findings.caught(error, path=path, hint=HINT)
        return wanted
    except TxlogError as error:
        findings.caught(error, path=path)
        return wanted
    findings.read(len(data))
    if data[:_STATE_HEAD_BYTES] != STATE_HEAD.pack(STATE_MAGIC, salt):
        findings.error(601, f"the header of {path} is damaged", path=path, offset=0, hint=HINT)
        return wanted
    bad: list[DumpRef] = []
    for ref in wanted:
        blob = data[ref.offset : ref.offset + ref.length]
        where = f"{ref.kind} {ref.a}" + (f" {ref.b}" if ref.b else "")
        if len(blob) != ref.length or crc32c(blob) != ref.crc:
            end = ref.offset + ref.length
            findings.error(
                601, f"{path} is damaged, bytes {ref.offset} to {end}: the dump of {where}",
                path=path, offset=ref.offset, hint=HINT,
            )  # fmt: skip
            bad.append(ref)
        elif deep:
            try:
                FOLDS[ref.kind].load(blob)
            except (TxlogError, ValueError, TypeError, KeyError) as error:
                findings.error(
                    604, f"the dump of {where} in {path} cannot be read: {error}", path=path,
                    offset=ref.offset,
                )  # fmt: skip
                bad.append(ref)
    return bad


def check_history(
    disk: Disk, ref: HistoryRef, findings: Findings, is_wanted: IsWanted, *, deep: bool = False
) -> bool:
    """A part of the transaction log's history; returns whether it is good."""
    try:
        data = disk.read(ref.path)
    except MissingFile as error:
        if not is_wanted(ref.path):
            return True
        findings.caught(error, path=ref.path, hint=HINT)
        return False
    except TxlogError as error:
        findings.caught(error, path=ref.path)
        return False
    findings.read(len(data))
    try:
        if len(data) != ref.bytes or crc32c(data) != ref.crc:
            raise damaged(ref.path, 0, ref.bytes, f"{ref.crc:08x}", f"{crc32c(data):08x}", HINT)
        if deep:
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                table = reader.read_all()
            if table.num_rows != ref.rows or table.schema != HISTORY:
                raise damaged(ref.path, 0, ref.bytes, f"{ref.rows} rows of the history", "others")
    except TxlogError as error:
        findings.caught(error, path=ref.path)
        return False
    except (pa.ArrowException, OSError) as error:
        findings.error(601, f"{ref.path} cannot be read: {error}", path=ref.path, hint=HINT)
        return False
    return True


def check_fixed(disk: Disk, findings: Findings) -> None:
    """The reserve, the lock files, pins, what recovery cut off."""
    _check_reserve(disk, findings)
    for path in (WRITE_LOCK, MAINTENANCE_PATH, PINS_LOCK):
        if not disk.exists(path):
            if path != PINS_LOCK:  # made by the first who pins
                findings.warning("lock", f"{path} is missing", path=path,
                                 hint="the next writer makes it")  # fmt: skip
        elif disk.size(path):
            findings.warning("lock", f"{path} has bytes, and it is a lock", path=path, offset=0)
    for path in pins(disk):
        if not holder_of(disk, path)[0]:
            findings.warning("pin", f"{path} is of a process that is gone", path=path,
                             hint="upkeep removes it")  # fmt: skip
    for name in disk.listdir(QUARANTINE_DIR):
        path = f"{QUARANTINE_DIR}/{name}"
        findings.read(disk.size(path))
        findings.warning(
            "quarantine", f"{path} has {disk.size(path)} bytes that recovery cut off", path=path,
            hint="look at it with txlog inspect, then remove it",
        )  # fmt: skip


def _check_reserve(disk: Disk, findings: Findings) -> None:
    if not disk.exists(RESERVE_PATH):
        findings.warning("reserve", f"{RESERVE_PATH} is missing", path=RESERVE_PATH,
                         hint="the next checkpoint makes it, once there is room")  # fmt: skip
        return
    file = disk.open(RESERVE_PATH)
    try:
        size, at = file.size(), 0
        findings.read(size)
        while at < size:
            block = file.pread(at, min(_READ_BYTES, size - at))
            if not block:
                break
            if block != bytes(len(block)):
                findings.warning("reserve", f"{RESERVE_PATH} has bytes that are not zero",
                                 path=RESERVE_PATH, offset=at)  # fmt: skip
                break
            at += len(block)
    finally:
        file.close()


def check_names(
    disk: Disk, named: set[str], directories: Iterable[str], findings: Findings,
    is_wanted: IsWanted,
) -> None:  # fmt: skip
    """Files that nobody names, and such as a store does not have."""
    for directory, pattern in _FIXED.items():
        for name in disk.listdir(directory):
            path = f"{directory}/{name}" if directory else name
            _check_name(disk, path, name, pattern, named, findings, is_wanted)
    for directory in directories:
        for name in disk.listdir(directory):
            _check_name(disk, f"{directory}/{name}", name, _OF_TOPICS, named, findings, is_wanted)


def _check_name(
    disk: Disk, path: str, name: str, pattern: re.Pattern[str], named: set[str],
    findings: Findings, is_wanted: IsWanted,
) -> None:  # fmt: skip
    if name.startswith(TEMPORARY_PREFIX):
        if not holder_of(disk, path)[0]:
            findings.warning("temporary", f"{path} was left by a process that is gone", path=path,
                             hint="the next checkpoint removes it")  # fmt: skip
    elif pattern.fullmatch(name) is None:
        findings.warning("foreign", f"{path} is no file that a store has", path=path)
    elif (
        path.endswith((".state", ".arrow", ".parquet"))
        and path not in named
        and not holder_of(disk, path)[0]
        and not is_wanted(path)
        and disk.exists(path)
    ):
        findings.warning("unnamed", f"{path} is named by nobody", path=path, hint=UNNAMED_HINT)
