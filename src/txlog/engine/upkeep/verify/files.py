"""Verifying the files of a store: named files, and other files next to them.

A named file is compared with its checksum; a deep check also decodes rows, bitmaps, dumps and the
chunks of large messages. It also checks files that no reader uses:

    fixed    the reserve, lock files, pins, files in the quarantine
    names    temporaries of dead processes, files that no manifest and no frame names, foreign files
    left     manifests before the two that are kept, locks of detached consumers
    staged   files of jobs that never ended

These are warnings: the next upkeep removes most such files, and a user should move foreign files.

The logs of changes are also compared with the state. The newest row of a key, a cursor, or a thing
of the catalog is its state at the cut of the checkpoint, as its dump has it: an extra, missing or
different row is a contradiction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.engine.folds.buffer import ChunkedMessage
from txlog.engine.model.schema import KIND_DATA
from txlog.engine.plan.staging import STAGE_DIR, job_time
from txlog.engine.storage.bucket import BucketFile
from txlog.engine.storage.checked import damaged, said_by_arrow
from txlog.engine.storage.chunks import reassembled
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, Disk
from txlog.engine.storage.journal import FLUSH_LOCK
from txlog.engine.storage.manifest import (
    ChangeRef,
    DumpRef,
    HistoryRef,
    Manifest,
    changes_of,
    generations,
    manifest_path,
)
from txlog.engine.storage.remote import is_far, open_file
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.store.appender import RESERVE_PATH
from txlog.engine.store.liveness import PINS_LOCK, WRITE_LOCK, holder_of, pins
from txlog.engine.store.store import MAINTENANCE_PATH
from txlog.engine.upkeep.changes.log import CURSORS_DIR, DIRECTORIES, decoded, newest, read
from txlog.engine.upkeep.changes.log import HINT as CHANGES_HINT
from txlog.engine.upkeep.changes.rows import KEYS, SCHEMAS, snapshot
from txlog.engine.upkeep.checkpoint.history import HISTORY
from txlog.engine.upkeep.checkpoint.quarantine import DIRECTORY as QUARANTINE_DIR
from txlog.engine.upkeep.space.sweep import below_topics, detached, every_directory, names_in
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.view import COMPACTED_DIR, FOLDS, STATE_HEAD, STATE_MAGIC, View
from txlog.errors import MissingFile, TxlogError

HINT: Final = "txlog admin repair says what can be rebuilt"
_STATE_HEAD_BYTES: Final = STATE_HEAD.size
# Whether a path is still named: a checkpoint may have replaced a missing file meanwhile.
IsWanted = Callable[[str], bool]


# --- named files -----------------------------------------------------------------------------


def check_segment(
    disk: Disk,
    ref: FileRef,
    findings: Findings,
    is_wanted: IsWanted,
    *,
    deep: bool = False,
    chunked: ChunkedMessage | None = None,
    partition: int | None = None,
) -> bool:
    """Check every byte of a file of rows or a bucket; returns whether it is good.

    A missing file is good if it is no longer named.
    chunked: the sidecar's record of a large message, to check its value in a deep check
    """
    try:
        file = open_file(disk, ref.path)
    except MissingFile as error:
        if is_wanted(ref.path):
            findings.caught(
                error, path=ref.path, ledger=ref.ledger or None, hint=HINT, partition=partition
            )
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
        findings.caught(
            error,
            path=ref.path,
            ledger=ref.ledger or None,
            partition=partition,
            hint=error.hint if is_far(ref.path) else HINT,
        )
        return False
    finally:
        file.close()
    return True


def _check_counted(reader: SegmentReader) -> None:
    """Check the fields of a FileRef about its rows; query engines use them to skip files."""
    ref = reader.ref
    if ref.messages < 0:
        return
    kinds = reader.rows(0, ref.rows, ["kind"]).column("kind")
    counted = int(pc.sum(pc.equal(kinds, KIND_DATA)).as_py() or 0)
    if counted != ref.messages:
        raise damaged(ref.path, 0, ref.bytes, f"{ref.messages} messages", f"{counted}", HINT)
    if "/_txnlog/" in ref.path or f"/{COMPACTED_DIR}/" in ref.path:
        return  # rows there are located by their markers
    bounds = {reader.statistics(number, "ledger") for number in range(len(ref.groups))}
    if bounds - {(ref.ledger, ref.ledger)}:
        raise damaged(ref.path, 0, ref.bytes, f"ledger {ref.ledger} in each row", "others", HINT)


def check_state(
    disk: Disk,
    salt: bytes,
    path: str,
    refs: Iterable[DumpRef],
    findings: Findings,
    is_wanted: IsWanted,
    *,
    deep: bool = False,
    is_whole: bool = False,
) -> list[DumpRef]:
    """Check a state file and the dumps that manifests name in it; returns the damaged dumps.

    is_whole: it was written with the manifest that names these dumps, so it has no others
    """
    refs_named = list(refs)
    try:
        data = disk.read(path)
    except MissingFile as error:
        if not is_wanted(path):
            return []
        findings.caught(error, path=path, hint=HINT)
        return refs_named
    except TxlogError as error:
        findings.caught(error, path=path)
        return refs_named
    findings.read(len(data))
    if data[:_STATE_HEAD_BYTES] != STATE_HEAD.pack(STATE_MAGIC, salt):
        findings.error(601, f"the header of {path} is damaged", path=path, offset=0, hint=HINT)
        return refs_named
    end = max((ref.offset + ref.length for ref in refs_named), default=_STATE_HEAD_BYTES)
    if is_whole and len(data) > end:
        findings.warning(
            "void",
            f"{path} has {len(data) - end} bytes after its last dump that nothing needs",
            path=path,
            offset=end,
        )
    bad: list[DumpRef] = []
    for ref in refs_named:
        blob = data[ref.offset : ref.offset + ref.length]
        where = f"{ref.kind} {ref.a}" + (f" {ref.b}" if ref.b else "")
        if len(blob) != ref.length or crc32c(blob) != ref.crc:
            end = ref.offset + ref.length
            findings.error(
                601,
                f"{path} is damaged, bytes {ref.offset} to {end}: the dump of {where}",
                path=path,
                offset=ref.offset,
                hint=HINT,
            )
            bad.append(ref)
        elif deep:
            try:
                FOLDS[ref.kind].read(blob)
            except (TxlogError, ValueError, TypeError, KeyError) as error:
                findings.error(
                    604,
                    f"the dump of {where} in {path} cannot be read: {error}",
                    path=path,
                    offset=ref.offset,
                )
                bad.append(ref)
    return bad


def check_history(
    disk: Disk, ref: HistoryRef, findings: Findings, is_wanted: IsWanted, *, deep: bool = False
) -> bool:
    """Check a part of the transaction log's history; returns whether it is good."""
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
        reason = said_by_arrow(error)
        findings.error(601, f"{ref.path} cannot be read: {reason}", path=ref.path, hint=HINT)
        return False
    return True


UNNAMED_HINT: Final = "the next checkpoint removes it, or txlog admin gc --apply"
_READ_BYTES: Final = 1 << 20
_CHANGES: Final = re.compile(r"(_part\.)?(\d+\.)?\d{10}\.(arrow|parquet)")
_FIXED: Final = {
    "": re.compile(
        r"txlog\.toml|copied|lock|(flush|maintenance|pins)\.lock|reserve|journal|manifest|state|topics"
        r"|system|consumers|quarantine|pins"
    ),
    "journal": re.compile(r"witness|\d{20}(\.r\d+)?\.journal"),
    "manifest": re.compile(r"\d{10}\.manifest"),
    "state": re.compile(r"\d{10}\.state"),
    "system": re.compile("transaction_log|__transaction_key|cursors|catalog"),
    "system/transaction_log": re.compile(r"\d{10}\.arrow"),
    **dict.fromkeys(DIRECTORIES.values(), _CHANGES),
    "consumers": re.compile(r"\d+(-\d+)?\.lock"),
    "quarantine": re.compile(r"\d{20}-[0-9a-f]{8}\.tail|.*\.damaged"),
    "pins": re.compile(r"[0-9a-f]{16}\.lock"),
}
_DIRECTORIES: Final = frozenset((
    "journal", "manifest", "state", "topics", "system", "consumers", "quarantine", "pins",
    "transaction_log", "_txnlog", "_delayed", "_cursors", "_compacted", "cursors", "catalog",
    "__transaction_key",
))  # fmt: skip
_OF_TOPICS: Final = re.compile(
    r"_ledger-\d{12}\.\d{10}\.arrow|ledger-\d{12}\.\d{10}\.parquet|_txnlog|_delayed|_cursors"
    r"|_compacted|bucket-\d+-\d+-\d{10}\.parquet"
)
_PARTITION: Final = re.compile(rf"partition=\d+|{STAGE_DIR}")
_PARTITION_LEVEL: Final = 4  # slashes in topics/<tenant>/<namespace>/<topic>/partition=<n>
_JOB: Final = re.compile(r"\d{15}-[\w-]+")
_STAGED: Final = re.compile(r"p\d+-[0-9a-f]+\.parquet")


def check_kinds(disk: Disk, findings: Findings) -> set[str]:
    """Report directories, links, unreadable files and the like in place of a store's files.

    returns: their paths
    """
    out: set[str] = set()
    for directory in (*_FIXED, *every_directory(disk)):
        if directory == QUARANTINE_DIR:
            continue  # irregular files are moved there
        for name in names_in(disk, directory) or ():
            path = f"{directory}/{name}" if directory else name
            kind = disk.kind(path)
            pattern = _FIXED.get(directory, _OF_TOPICS)
            is_known = pattern.fullmatch(name) or name.startswith(TEMPORARY_PREFIX)
            if kind in ("", "file") or name in _DIRECTORIES or not is_known:
                continue
            kind_text = "a file without read permission" if kind == "unreadable" else f"a {kind}"
            findings.warning(
                "irregular",
                f"{path} is {kind_text} where a store has a file",
                path=path,
                hint="move it away, or txlog admin repair --apply moves it to the quarantine",
            )
            out.add(path)
    return out


# --- other files -----------------------------------------------------------------------------


def check_fixed(disk: Disk, findings: Findings, irregular: Collection[str] = ()) -> None:
    """Check the reserve, the lock files, pins and the quarantine; irregular: paths to skip."""
    if RESERVE_PATH not in irregular:
        _check_reserve(disk, findings)
    for path in (WRITE_LOCK, MAINTENANCE_PATH, PINS_LOCK, FLUSH_LOCK):
        if path in irregular:
            continue
        if not disk.exists(path):
            if path not in (PINS_LOCK, FLUSH_LOCK):  # the first process that takes it creates it
                findings.warning(
                    "lock", f"{path} is missing", path=path, hint="the next writer makes it"
                )
        elif disk.size(path):
            findings.warning("lock", f"{path} is a lock, and has bytes", path=path, offset=0)
    for path in pins(disk):
        if path not in irregular and not holder_of(disk, path)[0]:
            findings.warning(
                "pin", f"{path} belongs to a dead process", path=path, hint="upkeep removes it"
            )
    for name in disk.listdir(QUARANTINE_DIR):
        path = f"{QUARANTINE_DIR}/{name}"
        if path in irregular:
            continue
        findings.read(disk.size(path))
        findings.warning(
            "quarantine",
            f"{path} has {disk.size(path)} bytes that recovery cut off",
            path=path,
            hint="look at it with txlog inspect, then remove it",
        )


def _check_reserve(disk: Disk, findings: Findings) -> None:
    if not disk.exists(RESERVE_PATH):
        findings.warning(
            "reserve",
            f"{RESERVE_PATH} is missing",
            path=RESERVE_PATH,
            hint="the next checkpoint makes it, once there is room",
        )
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
                findings.warning(
                    "reserve",
                    f"{RESERVE_PATH} has bytes that are not zero",
                    path=RESERVE_PATH,
                    offset=at,
                )
                break
            at += len(block)
    finally:
        file.close()


def check_names(
    disk: Disk,
    named_files: set[str],
    findings: Findings,
    is_wanted: IsWanted,
    irregular: Collection[str] = (),
) -> None:
    """Report unnamed files, and files that do not belong in a store; irregular: paths to skip."""
    for directory, pattern in _FIXED.items():
        for path, name in _names(disk, directory, findings):
            if path in irregular:
                continue
            _check_name(disk, path, name, pattern, named_files, findings, is_wanted)
    strays: list[str] = []
    for directory in every_directory(disk, strays):
        if f"/{STAGE_DIR}" in directory:
            continue  # no manifest ever names its files
        if directory.count("/") == _PARTITION_LEVEL and not _is_partition(directory):
            strays.append(directory)
        pattern = _CHANGES if f"/{CURSORS_DIR}/" in directory else _OF_TOPICS
        for path, name in _names(disk, directory, findings):
            if path in irregular:
                continue
            _check_name(disk, path, name, pattern, named_files, findings, is_wanted)
    for path in strays:
        _foreign(path, findings)


def _is_partition(path: str) -> bool:
    return _PARTITION.fullmatch(path.rpartition("/")[2]) is not None


def _names(disk: Disk, directory: str, findings: Findings) -> Iterator[tuple[str, str]]:
    """(path, name) of the entries of a directory of a store."""
    names = names_in(disk, directory)
    if names is None:
        _foreign(directory, findings)
    for name in names or ():
        yield f"{directory}/{name}" if directory else name, name


def _foreign(path: str, findings: Findings) -> None:
    findings.warning(
        "foreign",
        f"{path} is not a file of a store",
        path=path,
        hint="nothing uses it: move it away",
    )


def check_left(
    disk: Disk,
    view: View,
    generations_before: Sequence[int],
    findings: Findings,
    irregular: Collection[str] = (),
) -> None:
    """Report manifests that a checkpoint should have removed, and locks of detached consumers.

    generations_before: those when the check began; a checkpoint has removed one that is missing now
    """
    now = {*generations(disk)}
    for generation in generations_before[:-2]:
        if generation in now:
            path = manifest_path(generation)
            findings.warning(
                "unnamed",
                f"{path} is older than the two that are kept",
                path=path,
                hint="the next checkpoint removes it",
            )
    for path in detached(disk, view):
        if path in irregular:
            continue
        if not holder_of(disk, path)[0] and disk.exists(path):
            findings.warning(
                "unnamed", f"{path} is left from a closed consumer", path=path, hint=UNNAMED_HINT
            )


def check_stages(disk: Disk, oldest_ms: int, findings: Findings) -> None:
    """Report directories of jobs that never ended, and foreign files among staged ones.

    oldest_ms: a job that began at this time or before is not running any more
    """
    for topic in below_topics(disk, 3):
        stage = f"{topic}/{STAGE_DIR}"
        here = names_in(disk, topic) or ()
        for path, name in _names(disk, stage, findings) if STAGE_DIR in here else ():
            inside = names_in(disk, path)
            began = job_time(name)
            if inside is None or began is None or _JOB.fullmatch(name) is None:
                _foreign(path, findings)
                continue
            for other in inside:
                if not other.startswith(TEMPORARY_PREFIX) and _STAGED.fullmatch(other) is None:
                    _foreign(f"{path}/{other}", findings)
            if began <= oldest_ms:
                findings.warning(
                    "staged",
                    f"{path} has {len(inside)} files of a job that never ended",
                    path=path,
                    hint="the next checkpoint removes it",
                )


def _check_name(
    disk: Disk,
    path: str,
    name: str,
    pattern: re.Pattern[str],
    named_files: set[str],
    findings: Findings,
    is_wanted: IsWanted,
) -> None:
    if name.startswith(TEMPORARY_PREFIX):
        if not holder_of(disk, path)[0]:
            findings.warning(
                "temporary",
                f"{path} was left by a process that is gone",
                path=path,
                hint="the next checkpoint removes it",
            )
    elif pattern.fullmatch(name) is None:
        _foreign(path, findings)
    elif (
        path.endswith((".state", ".arrow", ".parquet"))
        and path not in named_files
        and not holder_of(disk, path)[0]
        and not is_wanted(path)
        and disk.exists(path)
    ):
        findings.warning("unnamed", f"{path} is named by nothing", path=path, hint=UNNAMED_HINT)


# --- logs of changes ------------------------------------------------------------------------------


# Columns about the change, and not about the state after it.
_OF_CHANGE: Final = frozenset(
    "lsn time change first_lsn changes messages ranges txn batch complete".split()
)
_SHOWN_MAX: Final = 5
Row = dict[str, Any]
States = dict[tuple[Any, ...], Row]


def check_changes(
    disk: Disk, ref: ChangeRef, findings: Findings, is_wanted: IsWanted, *, deep: bool = False
) -> bool:
    """Check one file of a log of changes; returns whether it is good."""
    try:
        data = disk.read(ref.path)
        findings.read(len(data))
        table = decoded(ref, data)
        if deep:
            table.validate(full=True)
    except MissingFile as error:
        if not is_wanted(ref.path):
            return True
        findings.caught(error, path=ref.path, hint=CHANGES_HINT)
        return False
    except TxlogError as error:
        findings.caught(error, path=ref.path, hint=CHANGES_HINT)
        return False
    except (pa.ArrowException, OSError) as error:
        findings.error(601, f"{ref.path} cannot be read: {error}", path=ref.path, hint=CHANGES_HINT)
        return False
    return True


def compare_changes(disk: Disk, manifest: Manifest, findings: Findings) -> None:
    """Compare the newest rows in the logs of a checkpoint with the state in its dumps."""
    logs = changes_of(manifest)
    if not logs.begun:
        return
    try:
        states = snapshot(disk, manifest.dumps, manifest.cut_lsn, manifest.time_ms)
        for kind, schema in SCHEMAS.items():
            tables = [read(disk, ref) for ref in logs.refs if ref.kind == kind]
            latest = newest(kind, pa.concat_tables([schema.empty_table(), *tables]))
            _compare(kind, _states(kind, latest), _states(kind, states[kind]), findings)
    except MissingFile:
        return  # a checkpoint has replaced the files meanwhile, or the loss is reported already
    except TxlogError:
        return  # a dump is damaged, which is reported already


def _compare(kind: str, from_logs: States, from_dumps: States, findings: Findings) -> None:
    """Compare two maps from key to state; reports the first differences."""
    wrong = sorted(
        key for key in {*from_logs, *from_dumps} if from_logs.get(key) != from_dumps.get(key)
    )
    for key in wrong[:_SHOWN_MAX]:
        why = (
            "has no row"
            if key not in from_logs
            else "is gone"
            if key not in from_dumps
            else (
                "differs in "
                + ", ".join(n for n, v in from_dumps[key].items() if from_logs[key][n] != v)
            )
        )
        name = " ".join(map(str, key))
        findings.error(604, f"the log of changes: {kind} {name} {why}", hint=_HINT)
    if len(wrong) > _SHOWN_MAX:
        findings.error(604, f"the log of changes: {len(wrong)} of {kind} are wrong", hint=_HINT)


_HINT: Final = "txlog admin repair --rebuild changes"


def _states(kind: str, rows: pa.Table) -> States:
    """The state of each key, as values that do not depend on how a bitmap is packed."""
    left_out = {*_OF_CHANGE, "topic"} if kind == "cursor" else _OF_CHANGE  # it may be renamed since
    names = [name for name in rows.column_names if name not in left_out]
    out: States = {}
    for row in rows.select(names).to_pylist():
        for bitmap in row.get("bitmaps") or ():
            load = BitMap64.deserialize if bitmap["entry"] is None else BitMap.deserialize
            bitmap["bitmap"] = load(bitmap["bitmap"])
        out[tuple(row[name] for name in KEYS[kind])] = row
    return out
