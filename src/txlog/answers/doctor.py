"""Doctor: whether a store and the machine under it are well, as the API answers it.

There is a row for each question, asked on its own: what it raises is its answer. Doctor takes no
lock and changes nothing. It reads only the bytes that opening needs; `txlog verify` reads them all.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from txlog.clock import Clock, SystemClock
from txlog.engine.folds.catalog import index_of, topic_of
from txlog.engine.plan.participants import hanging
from txlog.engine.storage.disk.posix import PosixDisk, filesystem
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.flusher import FLUSH_LOCK
from txlog.engine.store.identity import Identity, read_identity
from txlog.engine.store.liveness import WRITE_LOCK, holder_of
from txlog.engine.store.store import MAINTENANCE_PATH, Store
from txlog.engine.upkeep.checkpoint.quarantine import DIRECTORY
from txlog.engine.upkeep.service import due
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.upkeep.verify.verify import glance
from txlog.engine.view.view import View
from txlog.errors import TxlogError
from txlog.ids import TopicName
from txlog.settings import HOUR_MS

if TYPE_CHECKING:
    from txlog.rows.store import DoctorAnswer, DoctorRow


OK, WARN, FAIL = "ok", "warn", "fail"
IN_MEMORY: Final = ("tmpfs", "ramfs", "overlay")
NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph")
HANGING_MS: Final = 900_000
PACKAGES: Final = ("pyarrow", "duckdb", "msgspec", "crc32c", "pyroaring", "pyspark")
_REPAIR: Final = "txlog admin repair says what can be done"
_FREE_TIMES: Final = 4  # times the bound at which sends stop: then it is time to look


def doctor(path: str, *, clock: Clock | None = None) -> list[DoctorRow]:
    """Check what may be wrong with a store; exported as txlog.answers.doctor.

    returns: rows of {name, status, detail, fix}; status is ok, warn or fail
    raises:  StoreNotFound, NoResources
    """
    root = str(Path(path).absolute())
    disk = PosixDisk(root, read_only=True)
    try:
        return [*_answers(disk, root, clock or SystemClock())]
    finally:
        disk.close()


def _answers(disk: Disk, root: str, clock: Clock) -> Iterator[DoctorRow]:
    yield from _asked("python", _python)
    yield from _asked("packages", _packages)
    yield from _asked("file system", lambda: _filesystem(root))
    yield from _asked("permissions", lambda: _permissions(root))
    try:
        identity = read_identity(disk)
    except TxlogError as error:
        yield _row("identity", FAIL, error.message, error.hint)
        return
    yield _row("identity", OK, f"store {identity.uuid}, format {identity.format}")
    yield from _asked("journal", lambda: _journal(disk, clock))
    yield from _asked("locks", lambda: _locks(disk))
    try:
        store = Store(disk, clock, identity, lock_timeout_ms=0, durability=None)
    except TxlogError as error:
        yield _row("store", FAIL, error.message, _REPAIR)
        return
    try:
        try:
            store.refresh()
        except TxlogError as error:
            yield _row("store", FAIL, error.message, _REPAIR)
            return
        yield from _of_store(store, disk, identity, clock)
    finally:
        store.close()


def _of_store(store: Store, disk: Disk, identity: Identity, clock: Clock) -> Iterator[DoctorRow]:
    questions: list[tuple[str, Callable[[], DoctorAnswer]]] = [
        ("space", lambda: _space(store, disk)),
        ("durability", lambda: _durability(store)),
        ("clock", lambda: _clock(store, clock)),
        ("checkpoint", lambda: _checkpoint(store, clock)),
        ("partitions", lambda: store.read(_partitions)),
        ("transactions", lambda: store.read(lambda view: _transactions(view, clock))),
        ("losses", lambda: store.read(_losses)),
        ("quarantine", lambda: _quarantine(disk)),
    ]
    for name, question in questions:
        yield from _asked(name, question)


def _asked(name: str, question: Callable[[], DoctorAnswer]) -> Iterator[DoctorRow]:
    try:
        answer = question()
    except TxlogError as error:
        answer = {"status": FAIL, "detail": error.message, "fix": error.hint}
    yield {"name": name, **answer}


def _row(name: str, status: str, detail: str, fix: str | None = None) -> DoctorRow:
    return {"name": name, **_said(status, detail, fix)}


def _said(status: str, detail: str, fix: str | None = None) -> DoctorAnswer:
    return {"status": status, "detail": detail, "fix": fix}


# --- the machine -----------------------------------------------------------------------------


def _python() -> DoctorAnswer:
    return _said(OK, f"Python {platform.python_version()} on {platform.platform()}")


def _packages() -> DoctorAnswer:
    found = {name: _installed(name) for name in PACKAGES}
    there = ", ".join(f"{name} {known}" for name, known in found.items() if known)
    if found["pyspark"] is None:
        return _said(OK, f"{there}; no pyspark: jobs run on DuckDB")
    return _said(OK, there)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _filesystem(root: str) -> DoctorAnswer:
    kind = filesystem(root)
    if sys.platform == "darwin":
        return _said(WARN, "durability is not verified on macOS", "use Linux for data that counts")
    if kind in NETWORK:
        return _said(
            FAIL,
            f"{kind} is a network file system: locks and flushes cannot be relied on",
            "move the store to a local disk",
        )
    if kind in IN_MEMORY[:2]:
        return _said(WARN, f"nothing is durable here: {kind} is memory", "move it to a disk")
    return _said(OK, kind or "unknown")


def _permissions(root: str) -> DoctorAnswer:
    at = Path(root).stat()
    mode = at.st_mode & 0o7777
    if mode & 0o002:
        return _said(WARN, f"everyone can write here, mode {mode:04o}", f"chmod o-w {root}")
    return _said(OK, f"mode {mode:04o}, owner {at.st_uid}")


def _locks(disk: Disk) -> DoctorAnswer:
    said = []
    for name, path in (
        ("writer", WRITE_LOCK),
        ("flush", FLUSH_LOCK),
        ("maintenance", MAINTENANCE_PATH),
    ):
        held, pid, command = holder_of(disk, path)
        if held:
            said.append(f"{name}: process {pid} ({command})")
    return _said(OK, "; ".join(said) or "none is held")


# --- the store -------------------------------------------------------------------------------


def _journal(disk: Disk, clock: Clock) -> DoctorAnswer:
    findings = Findings()
    known = glance(disk, clock.now().boot_id, findings)
    try:
        detail = f"{findings.frames} frames in {findings.files} files are good"
        if findings.errors:
            return _said(FAIL, findings.problems[0].message, _REPAIR)
        if findings.warnings:
            return _said(WARN, findings.problems[0].message, findings.problems[0].hint)
        return _said(OK, detail)
    finally:
        if known is not None:
            known.close()


def _space(store: Store, disk: Disk) -> DoctorAnswer:
    free, least = disk.free_bytes(), store.settings.free_bytes_min
    detail = f"{free >> 20:,} MiB free, sends stop at {least >> 20} MiB"
    if free < least:
        return _said(FAIL, detail, "free space, or acknowledge and trim")
    return _said(
        WARN if free < _FREE_TIMES * least else OK,
        detail,
        "free space" if free < _FREE_TIMES * least else None,
    )


def _durability(store: Store) -> DoctorAnswer:
    word = store.settings.durability
    if word == "os":
        return _said(
            WARN,
            "os: what is acknowledged survives a process's death, but not a power cut",
            "txlog init --durability sync makes a store that flushes",
        )
    return _said(OK, "sync: what is acknowledged is on disk")


def _clock(store: Store, clock: Clock) -> DoctorAnswer:
    last = store.read(lambda view: view.manifest.time_ms)
    ahead = last - clock.now().wall_ms
    if ahead > HOUR_MS:
        return _said(
            WARN,
            f"the last checkpoint is {ahead // HOUR_MS} hours in the future",
            "set the clock: delays and retention depend on it",
        )
    return _said(OK, "no checkpoint is in the future")


def _checkpoint(store: Store, clock: Clock) -> DoctorAnswer:
    frames, size = store.tail_bytes()
    detail = f"{frames} frame{'' if frames == 1 else 's'}, {size >> 10} KiB since the last one"
    if due(store) and frames > 2 * store.settings.checkpoint_frames:
        return _said(WARN, detail, "txlog admin checkpoint")
    return _said(OK, detail)


def _partitions(view: View) -> DoctorAnswer:
    away = view.catalog.unavailable
    names = []
    for number in sorted(away):
        topic = topic_of(view.catalog, number)
        names.append(f"{TopicName.parse(topic.name).short}/{index_of(topic, number)}")
    damaged = [
        name
        for name, why in zip(names, [away[n] for n in sorted(away)], strict=True)
        if why.reason == "damage"
    ]
    if damaged:
        return _said(FAIL, f"quarantined: {', '.join(damaged)}", "txlog admin repair")
    if names:
        return _said(WARN, f"offline: {', '.join(names)}", f"txlog admin online {names[0]}")
    return _said(OK, "all are available")


def _transactions(view: View, clock: Clock) -> DoctorAnswer:
    found = hanging(view, clock.now(), HANGING_MS, [*view.catalog.topics.values()])
    corrupt = [one for one in found if one.cause == "corrupt"]
    if corrupt:
        return _said(FAIL, f"{len(corrupt)} contradict the journal", "txlog verify --deep")
    if found:
        return _said(WARN, f"{len(found)} will not end by themselves", "txlog txn find-hanging")
    return _said(OK, "none hangs")


def _losses(view: View) -> DoctorAnswer:
    lost = view.catalog.losses
    if lost:
        return _said(
            WARN,
            f"{sum(one.messages for one in lost)} messages in {len(lost)} places "
            "were accepted as lost",
            "txlog status says where",
        )
    return _said(OK, "none was accepted")


def _quarantine(disk: Disk) -> DoctorAnswer:
    names = disk.listdir(DIRECTORY)
    if names:
        return _said(
            WARN,
            f"files cut off by recovery and repairs: {len(names)}",
            "look at them with txlog inspect, then remove them",
        )
    return _said(OK, "empty")
