"""Health checks of a store: `check` for monitors, and `doctor` for people.

A monitor gets values with bounds; a value above a bound is a warning, or critical:

    partitions     how many are unavailable; quarantined is critical, taken offline a warning
    space          bytes free on the file system; below free_bytes_min nothing can be produced
    hanging        transactions that will not end by themselves; critical if the cause is corrupt
    clock          only while the store does not trust the wall clock
    txn-age        age of the oldest unfinished transaction, ms
    backlog T/S    messages in the backlog of each subscription
    lag T          for each topic with a watermark: ms from it until now; null while it has no
                   value, which is unknown if the watermark is unavailable and there is a bound
    alert A T/S    for each threshold of a policy (`alerts`); above it is a warning

The doctor answers questions about the store and its machine, a row each, with advice. An error
becomes the answer to its question, and the next question follows; only a store that cannot be
opened ends the rows. The doctor takes no lock, changes nothing, and reads only the files that
opening a store reads; `txlog verify` reads every byte.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from txlog.base.arguments import StrPath
from txlog.base.ids import TopicName
from txlog.base.settings import HANGING_MS, HOUR_MS
from txlog.base.suggest import command_line
from txlog.client.answers import alerts, installation, lag, topics_and_txns, watermarks
from txlog.client.answers import status as at_a_glance
from txlog.clock import Clock, SystemClock
from txlog.engine.door.catalog import Topic, number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.disk import Disk, PosixDisk, filesystem
from txlog.engine.door.identity import Identity, read_identity
from txlog.engine.door.integrity import DIRECTORY, Findings, glance
from txlog.engine.door.journal import FLUSH_LOCK
from txlog.engine.door.liveness import WRITE_LOCK, holder_of
from txlog.engine.door.store import MAINTENANCE_PATH, Store, View, due
from txlog.engine.door.transactions import HangingTxn, hanging
from txlog.errors import InvalidArgument, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.store import AlertRow, Check, CheckRow, DoctorAnswer, DoctorRow


OK, WARNING, CRITICAL, UNKNOWN = "ok", "warning", "critical", "unknown"
# The same statuses in the words of the doctor.
_IN_SHORT: Final = {OK: "ok", WARNING: "warn", CRITICAL: "fail"}
# Less free space than this many times free_bytes_min is a warning. The doctor warns early, so that
# a person can make room in time; a monitor warns late, as its alarm interrupts people.
_FREE_TIMES_CHECK, _FREE_TIMES_DOCTOR = 2, 4
_MEMORY: Final = ("tmpfs", "ramfs")
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph")
_PACKAGES: Final = ("pyarrow", "duckdb", "msgspec", "crc32c", "pyroaring", "pyspark")
_REPAIR: Final = "txlog admin repair says what can be done"


# --- thresholds ------------------------------------------------------------------------------


def _unavailable(view: View, partitions: Collection[int]) -> tuple[str, dict[str, str]]:
    """The status of `partitions`, and {name: reason} of the unavailable ones."""
    away = view.catalog.unavailable
    reasons = {
        topics_and_txns.partition_name(view, number): away[number].reason
        for number in partitions
        if number in away
    }
    if "damage" in reasons.values():
        return CRITICAL, reasons
    return WARNING if reasons else OK, reasons


def _stuck(view: View, clock: Clock, topics: Sequence[Topic]) -> tuple[str, list[HangingTxn]]:
    """Transactions that will not end by themselves, with a status."""
    stuck = hanging(view, clock.now(), HANGING_MS, [*topics])
    if any(finding.cause == "corrupt" for finding in stuck):
        return CRITICAL, stuck
    return WARNING if stuck else OK, stuck


def _free(store: Store, times: int) -> tuple[str, int, int]:
    """(status of the free space, free bytes, the bound below which sends are refused)."""
    free, least = store.disk.free_bytes(), store.settings.free_bytes_min
    status = CRITICAL if free < least else WARNING if free < times * least else OK
    return status, free, least


# --- what monitors check ---------------------------------------------------------------------


class Bounds(NamedTuple):
    """A value above warn is a warning, a value above crit is critical; None: no bound."""

    warn: int | None = None
    crit: int | None = None

    def judge(self, value: int | None) -> str:
        """The status of a value; None: it is unknown."""
        if value is None:
            return OK if self.warn is None and self.crit is None else UNKNOWN
        if self.crit is not None and value > self.crit:
            return CRITICAL
        return WARNING if self.warn is not None and value > self.warn else OK


_NOT_ONE: Final = Bounds(0)


def check(
    view: View,
    store: Store,
    topics: Sequence[str],
    backlog: Bounds,
    txn_age_ms: Bounds,
    lag_ms: Bounds,
) -> Check:
    """Check a store, or some topics of it.

    returns: {status, check_list: [{name, status, value, warn, crit, detail}]}; status is the worst
    raises:  TopicNotFound, InvalidArgument (warn is above crit)
    cost:    loads every fold, reads no message
    """
    for name, bounds in (("backlog", backlog), ("txn-age", txn_age_ms), ("lag", lag_ms)):
        if bounds.warn is not None and bounds.crit is not None and bounds.warn > bounds.crit:
            raise InvalidArgument(
                f"{name}: {bounds.warn} for a warning is above {bounds.crit} for critical"
            )
    records = sorted(view.catalog.topics.values(), key=lambda topic: topic.name)
    names = [TopicName.parse(name) for name in topics]
    chosen = [find_topic(view, name) for name in names] or records
    rows = [*_shared(view, store, chosen)]
    rows += [
        _row("clock", 1, _NOT_ONE, problem["message"])
        for problem in at_a_glance.clock_problem(view, store)
    ]
    rows.append(_txn_age(view, store, chosen, txn_age_ms))
    lag_rows = lag.lag(view, store)
    chosen_names = {topics_and_txns.short(topic) for topic in chosen}
    rows += [
        _alert(alert)
        for alert in alerts.judged(view, store, lag_rows)
        if alert["topic"] in chosen_names
    ]
    for topic in chosen:
        name = topics_and_txns.short(topic)
        rows += [
            _row(
                f"backlog {row['topic']}/{row['subscription']}",
                row["backlog"],
                backlog,
                f"{row['consumers']} consumers, {row['delayed']} delayed",
            )
            for row in lag_rows
            if row["topic"] == name
        ]
        rows += _lag(view, store, topic, lag_ms)
    statuses = {row["status"] for row in rows}
    worst = next((status for status in (CRITICAL, WARNING, UNKNOWN) if status in statuses), OK)
    return {"status": worst, "check_list": rows}


def _alert(alert: AlertRow) -> CheckRow:
    """A threshold of a policy as a check; if reached, it is a warning: nothing is broken."""
    words = {alerts.OK: OK, alerts.FIRING: WARNING, alerts.UNKNOWN: UNKNOWN}
    name = f"alert {alert['alert']} {alert['topic']}/{alert['subscription']}"
    bounds = Bounds(alert["threshold"])
    return _row(name, alert["value"], bounds, alert["message"], words[alert["status"]])


def _row(
    name: str, value: int | None, bounds: Bounds, detail: str, status: str | None = None
) -> CheckRow:
    return {
        "name": name,
        "status": status or bounds.judge(value),
        "value": value,
        "warn": bounds.warn,
        "crit": bounds.crit,
        "detail": detail,
    }


def _shared(view: View, store: Store, topics: Sequence[Topic]) -> Iterator[CheckRow]:
    """The rows partitions, space and hanging; the doctor judges these by the same functions."""
    numbers = [number_of(topic, index) for topic in topics for index in range(topic.partitions)]
    status, reasons = _unavailable(view, numbers)
    detail = ", ".join(f"{name} ({reason})" for name, reason in reasons.items()) or "all there"
    yield _row("partitions", len(reasons), _NOT_ONE, detail, status)

    # Bounds of free bytes are lower bounds: a value below warn is a warning, below crit critical.
    status, free, least = _free(store, _FREE_TIMES_CHECK)
    bound = f"{least >> 20:,} MiB" if least >= 1 << 20 else f"{least:,} bytes"
    bounds = Bounds(_FREE_TIMES_CHECK * least, least)
    yield _row("space", free, bounds, f"nothing can be produced below {bound}", status)

    status, stuck = _stuck(view, store.clock, topics)
    names = [f"{txn.coordinator}:{txn.sequence} ({txn.cause})" for txn in stuck[:5]]
    yield _row("hanging", len(stuck), _NOT_ONE, ", ".join(names) or "none", status)


def _txn_age(view: View, store: Store, topics: Sequence[Topic], bounds: Bounds) -> CheckRow:
    names = {topics_and_txns.short(topic) for topic in topics}
    everything = len(topics) == len(view.catalog.topics)
    rows = [
        row
        for row in topics_and_txns.transactions(view, store, False, None)
        if everything or names & {*row["topic_list"]}
    ]
    oldest = max(rows, key=lambda row: row["age_ms"], default=None)
    if oldest is None:
        return _row("txn-age", 0, bounds, "no unfinished transaction")
    return _row(
        "txn-age",
        oldest["age_ms"],
        bounds,
        f"{oldest['txn']} is {oldest['state']}, {len(rows)} unfinished",
    )


def _lag(view: View, store: Store, topic: Topic, bounds: Bounds) -> list[CheckRow]:
    standings = [*watermarks.standings(view, topic, range(topic.partitions))]
    watermark = watermarks.show(view, topic, standings, store.clock.now().wall_ms)
    if watermark["status"] == "unknown":
        return []
    name, lag_ms = f"lag {watermark['topic']}", watermark["lag_ms"]
    if lag_ms is None:
        detail = str(watermark["status"])
        unavailable = detail == watermarks.UNAVAILABLE
        return [_row(name, None, bounds, detail, None if unavailable else OK)]
    return [_row(name, max(0, lag_ms), bounds, f"held by {watermark['holder']}")]


# --- the doctor ------------------------------------------------------------------------------


def doctor(path: StrPath, *, clock: Clock | None = None) -> list[DoctorRow]:
    """Check a store and its machine for common problems; exported as txlog.doctor.

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
    yield from _asked("installation", installation.package)
    yield from _asked("bytecode", installation.bytecode)
    yield from _asked("file system", lambda: _filesystem(root))
    yield from _asked("permissions", lambda: _permissions(root))
    try:
        identity = read_identity(disk)
    except TxlogError as error:
        yield {"name": "identity", **_said(CRITICAL, error.message, error.hint)}
        return
    yield from _asked(
        "identity", lambda: _said(OK, f"store {identity.uuid}, format {identity.format}")
    )
    yield from _asked("journal", lambda: _journal(disk, clock))
    yield from _asked("locks", lambda: _locks(disk))
    try:
        store = Store(disk, clock, identity, lock_timeout_ms=0, durability=None)
    except TxlogError as error:
        yield {"name": "store", **_said(CRITICAL, error.message, _REPAIR)}
        return
    try:
        try:
            store.refresh()
        except TxlogError as error:
            yield {"name": "store", **_said(CRITICAL, error.message, _REPAIR)}
            return
        yield from _of_store(store, disk, identity, clock)
    finally:
        store.close()


def _of_store(store: Store, disk: Disk, identity: Identity, clock: Clock) -> Iterator[DoctorRow]:
    questions: list[tuple[str, Callable[[], DoctorAnswer]]] = [
        ("space", lambda: _space(store)),
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
        answer = _said(CRITICAL, error.message, error.hint)
    yield {"name": name, **answer}


def _said(status: str, detail: str, fix: str | None = None) -> DoctorAnswer:
    return {"status": _IN_SHORT[status], "detail": detail, "fix": fix}


# --- the machine -----------------------------------------------------------------------------


def _python() -> DoctorAnswer:
    return _said(OK, f"Python {platform.python_version()} on {platform.platform()}")


def _packages() -> DoctorAnswer:
    releases = {name: _installed(name) for name in _PACKAGES}
    installed = ", ".join(f"{name} {release}" for name, release in releases.items() if release)
    if releases["pyspark"] is None:
        return _said(OK, f"{installed}; no pyspark: jobs run on DuckDB")
    return _said(OK, installed)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _filesystem(root: str) -> DoctorAnswer:
    kind = filesystem(root)
    if sys.platform == "darwin":
        return _said(
            WARNING, "durability is not verified on macOS", "use Linux for data that counts"
        )
    if kind in _NETWORK:
        return _said(
            CRITICAL,
            f"{kind} is a network file system: locks and flushes cannot be relied on",
            "move the store to a local disk",
        )
    if kind in _MEMORY:
        return _said(WARNING, f"nothing is durable here: {kind} is memory", "move it to a disk")
    return _said(OK, kind or "unknown")


def _permissions(root: str) -> DoctorAnswer:
    at = Path(root).stat()
    mode = at.st_mode & 0o7777
    if mode & 0o002:
        return _said(WARNING, f"everyone can write here, mode {mode:04o}", f"chmod o-w {root}")
    return _said(OK, f"mode {mode:04o}, owner {at.st_uid}")


def _locks(disk: Disk) -> DoctorAnswer:
    holders = []
    for name, path in (
        ("writer", WRITE_LOCK),
        ("flush", FLUSH_LOCK),
        ("maintenance", MAINTENANCE_PATH),
    ):
        is_held, pid, command = holder_of(disk, path)
        if is_held:
            holders.append(f"{name}: process {pid} ({command})")
    return _said(OK, "; ".join(holders) or "none is held")


# --- the store, to the doctor -----------------------------------------------------------------


def _journal(disk: Disk, clock: Clock) -> DoctorAnswer:
    findings = Findings()
    evidence = glance(disk, clock.now().boot_id, findings)
    try:
        detail = f"{findings.frames} frames in {findings.files} files are good"
        if findings.errors:
            return _said(CRITICAL, findings.problems[0].message, _REPAIR)
        if findings.warnings:
            return _said(WARNING, findings.problems[0].message, findings.problems[0].hint)
        return _said(OK, detail)
    finally:
        if evidence is not None:
            evidence.close()


def _space(store: Store) -> DoctorAnswer:
    status, free, least = _free(store, _FREE_TIMES_DOCTOR)
    detail = f"{free >> 20:,} MiB free, sends stop at {least >> 20} MiB"
    fixes = {CRITICAL: "free space, or acknowledge and trim", WARNING: "free space"}
    return _said(status, detail, fixes.get(status))


def _durability(store: Store) -> DoctorAnswer:
    word = store.settings.durability
    if word == "os":
        return _said(
            WARNING,
            "os: what is acknowledged survives a process's death, but not a power cut",
            "txlog init --durability sync makes a store that flushes",
        )
    return _said(OK, "sync: what is acknowledged is on disk")


def _clock(store: Store, clock: Clock) -> DoctorAnswer:
    last = store.read(lambda view: view.manifest.time_ms)
    ahead = last - clock.now().wall_ms
    if ahead > HOUR_MS:
        return _said(
            WARNING,
            f"the last checkpoint is {ahead // HOUR_MS} hours in the future",
            "set the clock: delays and retention depend on it",
        )
    return _said(OK, "no checkpoint is in the future")


def _checkpoint(store: Store, clock: Clock) -> DoctorAnswer:
    frames, size = store.tail_bytes()
    detail = f"{frames} frame{'' if frames == 1 else 's'}, {size >> 10} KiB since the last one"
    if due(store) and frames > 2 * store.settings.checkpoint_frames:
        return _said(WARNING, detail, "txlog admin checkpoint")
    return _said(OK, detail)


def _partitions(view: View) -> DoctorAnswer:
    status, reasons = _unavailable(view, sorted(view.catalog.unavailable))
    damaged = [name for name, reason in reasons.items() if reason == "damage"]
    if damaged:
        return _said(status, f"quarantined: {', '.join(damaged)}", "txlog admin repair")
    if reasons:
        first = next(iter(reasons))
        return _said(status, f"offline: {', '.join(reasons)}", command_line("admin online", first))
    return _said(status, "all are available")


def _transactions(view: View, clock: Clock) -> DoctorAnswer:
    status, stuck = _stuck(view, clock, [*view.catalog.topics.values()])
    if status == CRITICAL:
        corrupt = sum(txn.cause == "corrupt" for txn in stuck)
        return _said(status, f"{corrupt} contradict the journal", "txlog verify --deep")
    if stuck:
        return _said(status, f"{len(stuck)} will not end by themselves", "txlog txn find-hanging")
    return _said(status, "none hangs")


def _losses(view: View) -> DoctorAnswer:
    lost = view.catalog.losses
    if lost:
        return _said(
            WARNING,
            f"{sum(loss.messages for loss in lost)} messages in {len(lost)} places "
            "were accepted as lost",
            "txlog status says where",
        )
    return _said(OK, "none was accepted")


def _quarantine(disk: Disk) -> DoctorAnswer:
    names = disk.listdir(DIRECTORY)
    if names:
        return _said(
            WARNING,
            f"files cut off by recovery and repairs: {len(names)}",
            "look at them with txlog inspect, then remove them",
        )
    return _said(OK, "empty")
