"""Verifying published files: their bytes against what names them.

Fast compares every byte with its checksum. Deep also decodes everything: rows, bitmaps, dumps, the
chunks of large messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from txlog.engine.folds.buffer import Chunked
from txlog.engine.model.schema import KIND_DATA
from txlog.engine.storage.bucket.reader import BucketFile
from txlog.engine.storage.checked import damaged, said_by_arrow
from txlog.engine.storage.chunks import reassembled
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import DumpRef, HistoryRef
from txlog.engine.storage.remote import is_far, open_file
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint.history import HISTORY
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.view.view import FOLDS, STATE_HEAD, STATE_MAGIC
from txlog.errors import MissingFile, TxlogError
from txlog.startup import compute as pc
from txlog.startup.crc32c import crc32c

HINT: Final = "txlog admin repair says what can be made again"
_STATE_HEAD_BYTES: Final = STATE_HEAD.size
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
    is_wanted: IsWanted, *, deep: bool = False, is_whole: bool = False,
) -> list[DumpRef]:  # fmt: skip
    """A state file and the dumps that manifests name in it; returns those that are damaged.

    is_whole: it was made along with the manifest that names these, so it has no others
    """
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
    end = max((ref.offset + ref.length for ref in wanted), default=_STATE_HEAD_BYTES)
    if is_whole and len(data) > end:
        findings.warning(
            "void", f"{path} has {len(data) - end} bytes behind its last dump that nothing needs",
            path=path, offset=end,
        )  # fmt: skip
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
        said = said_by_arrow(error)
        findings.error(601, f"{ref.path} cannot be read: {said}", path=ref.path, hint=HINT)
        return False
    return True
