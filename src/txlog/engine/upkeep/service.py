"""When a checkpoint is due, and running one with all of its upkeep.

    policies expire and trim (frames) · delayed indexes are tended
    · checkpoint · sidecars past the ratio are compacted · ledgers are sealed
    · a second checkpoint drops the replaced files · unnamed files are swept, and staged files of
    jobs that never ended
    · topics past their threshold are compacted by key

An automatic checkpoint runs in its own thread; writers wait only for the cut and the dumps. It has
no caller, so a failure becomes a note, and the next try waits. Nothing depends on it: a process
that ends during one leaves files that are swept.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from txlog.base.logs import log_event
from txlog.engine.storage.disk.posix import call_in_child
from txlog.engine.storage.manifest import (
    Changes,
    Manifest,
    changes_of,
    encode_manifest,
    manifest_path,
    raw_changes,
)
from txlog.engine.store.store import Store
from txlog.engine.upkeep.changes import log
from txlog.engine.upkeep.checkpoint import checkpoint, seal
from txlog.engine.upkeep.delayed.buckets import tend_held
from txlog.engine.upkeep.space import adopt, compact, retention, sweep, topic_compaction
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, StoreFull, TxlogError, may_be_of_handler

if TYPE_CHECKING:
    from txlog.base.rows.space import CheckpointWritten

# An automatic checkpoint looks for files that nothing names in at most this many directories.
SWEPT_DIRECTORIES_MAX = 64
# The pause after a failure, doubled with each further one; also while another process writes a
# checkpoint.
REST_MS_MIN, REST_MS_MAX = 1_000, 60_000
GIVEN_WAY_MS = 100
# Blocks of ended transactions whose times are read under one lock, in about a millisecond.
BLOCKS = 8
# How long a writer pauses for a running checkpoint: normally, and if it is due LONG times over.
ROOM_S, ROOM_LONG_S, LONG = 0.0002, 0.005, 2
# How long the checkpoint's thread may keep the interpreter from a waiting caller.
SWITCH_S = 0.0005
# False: the caller runs it itself, so that tests are deterministic.
IN_BACKGROUND = True


def due(store: Store) -> bool:
    """True when the journal after the newest checkpoint has grown past its settings."""
    frames, size = store.tail_bytes()
    return frames >= store.settings.checkpoint_frames or size >= store.settings.checkpoint_bytes


def _changed_sidecars(view: View) -> list[int]:
    return [key[1] for key in view.changed() if key[0] == "buffer"]


class FastThreadSwitching:
    """A context in which the interpreter switches threads more often, while a checkpoint runs.

    A commit releases the interpreter lock for about ten system calls. After each it may wait as
    long as another thread may keep the lock: 5 ms by default. A value that the program sets
    meanwhile stays.
    """

    __slots__ = ("_before", "_count", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._before = 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._before = sys.getswitchinterval()
                if self._before > SWITCH_S:
                    sys.setswitchinterval(SWITCH_S)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            self._give_back()

    def _give_back(self) -> None:
        if not self._count and sys.getswitchinterval() == SWITCH_S:
            sys.setswitchinterval(self._before + 5e-7)  # it truncates to whole microseconds

    def begin_in_child(self) -> None:
        """Reset in a forked child: it has no checkpoint thread, and none to release the lock."""
        self._lock = threading.Lock()
        if self._count:
            self._count = 0
            self._give_back()


_SHARING = FastThreadSwitching()
call_in_child(_SHARING.begin_in_child)


class Checkpoints:
    """The automatic checkpoints of one open store, which owns it.

    look()    after a write, if the journal is long: start a checkpoint, unless one is running
    finish()  wait for the running checkpoint
    close()   the same, and write a checkpoint if one is due
    """

    __slots__ = (
        "_again_ms",
        "_failures",
        "_is_compacting",
        "_over",
        "_owner",
        "_pid",
        "_starting",
        "_thread",
        "is_on",
    )

    def __init__(self, *, is_on: bool) -> None:
        self._again_ms = 0
        self._failures = 0
        # by key: a writer need not wait, because this frees nothing for it
        self._is_compacting = False
        self._starting = threading.Lock()  # never waited for
        self._thread: threading.Thread | None = None
        # of that thread; after an interrupted `join` a live thread counts as ended (Python 3.11)
        self._over = threading.Event()
        self._over.set()
        self._pid: Callable[[], int] = int
        self._owner = 0
        self.is_on = is_on

    @property
    def is_running(self) -> bool:
        """True while this process's checkpoint thread is working."""
        return not self._over.is_set() and self._owner == self._pid()  # a fork copies no thread

    def look(self, store: Store) -> None:
        """Start a checkpoint, unless one is running or the last one failed a moment ago.

        While one runs, the caller pauses for a moment. Otherwise a thread that writes without pause
        would keep the checkpoint from the mutex, and the journal would grow without bound.
        """
        if self.is_running:
            is_behind = not self._is_compacting or store.length >= LONG
            if is_behind and self._thread is not threading.current_thread():
                self._wait(ROOM_S if store.length < LONG else ROOM_LONG_S)
            return
        if not self.is_on or self._is_resting(store):
            return
        if not self._starting.acquire(blocking=False):
            return  # another thread is here, or this is a write of the checkpoint itself
        try:
            if not IN_BACKGROUND:
                self._run(store)
            elif not self.is_running:
                self._begin(store)
        except RuntimeError:  # no more threads, or the interpreter is ending: `close` does it
            self._rest(store, REST_MS_MIN)
        finally:
            self._starting.release()

    def finish(self) -> None:
        """Wait for the checkpoint under way, if this is not its own thread."""
        if self.is_running and self._thread is not threading.current_thread():
            self._wait(None)

    def _begin(self, store: Store) -> None:
        over = threading.Event()

        def run() -> None:
            try:
                with _SHARING:
                    self._run(store)
            finally:
                over.set()

        self._thread = threading.Thread(target=run, name="txlog-checkpoint")
        self._thread.start()
        self._pid, self._owner = store.disk.pid, store.disk.pid()
        self._over = over  # only now: one that did not start would never be over

    def _wait(self, seconds: float | None) -> None:
        self._over.wait(seconds)

    def close(self, store: Store) -> None:
        """Wait for the running checkpoint; write one if it is due and this store wrote anything."""
        is_on, self.is_on = self.is_on, False
        self.finish()
        if is_on and store.has_changed and due(store) and not self._is_resting(store):
            self._run(store)

    def _run(self, store: Store) -> None:
        try:
            answer = run_checkpoint(store, wait=False)
            self._is_compacting = True
            compact_due(store, wait=False)
        except AlreadyClosed:
            return
        except Exception as error:  # earlier calls have succeeded, so do not raise
            if may_be_of_handler(error):
                raise
            self._failures += 1
            self._rest(store, min(REST_MS_MIN << min(self._failures - 1, 16), REST_MS_MAX))
            reason = str(error) if isinstance(error, TxlogError) else repr(error)
            line = f"a checkpoint failed and is due again: {reason}"
            log_event("checkpoint", "warning", "%s", line)
            if line not in store.reports:
                store.note(line)
            return
        finally:
            self._is_compacting = False
        self._failures = 0
        if answer["skipped"]:
            self._rest(store, GIVEN_WAY_MS)

    def _rest(self, store: Store, ms: int) -> None:
        self._again_ms = store.clock.now().boot_ms + ms

    def _is_resting(self, store: Store) -> bool:
        return bool(self._again_ms) and store.clock.now().boot_ms < self._again_ms


def _with_reserve(store: Store, report: checkpoint.CheckpointReport, *, far: bool) -> Manifest:
    """Write a checkpoint; on a full disk try once more, using the reserve (R30).

    A checkpoint frees space, so it may use the reserve.
    """
    try:
        return checkpoint.checkpoint(store, report, far=far)
    except StoreFull:
        # the failed checkpoint's files have no name and take up the space
        with suppress(TxlogError):
            sweep.sweep_unnamed(store)
        if not store.release_reserve():
            raise
        return checkpoint.checkpoint(store, report, far=far)


def run_checkpoint(store: Store, *, wait: bool) -> CheckpointWritten:
    """Write a checkpoint and seal ledgers.

    wait:    for maintenance by another process, and search every directory; otherwise give way
    returns: the fields of `txlog admin checkpoint`; skipped: nothing to do, or it gave way
    raises:  StoreLocked, StoreFull, DiskFailed, Corruption
    """
    began = time.monotonic()
    report = checkpoint.CheckpointReport()
    store.need_writable()
    with checkpoint.maintenance(store, wait=wait) as is_held:
        if not is_held:
            report.skipped = True
        else:
            _load_coordinators(store)
            store.expire()  # with every coordinator: the bound on ended transactions is exact here
            # the ratio can have grown only in changed sidecars
            changed = store.read(_changed_sidecars)
            retention.expire_due(store)
            retention.trim_by_policies(store)
            report.freed_bytes += sweep.free_gone(store)
            tend_held(store)
            manifest = _with_reserve(store, report, far=wait)
            ratio = store.settings.sidecar_garbage_ratio
            compacted = compact.compact_sidecars(
                store, changed, compact.CompactReport(), ratio=ratio
            )
            report.sealed_ledgers = seal.seal_ledgers(store, manifest)
            if report.sealed_ledgers or compacted:
                report.freed_bytes += sweep.free_gone(store)
                checkpoint.checkpoint(store, report, far=wait)
                report.skipped = False
            # a user asked, so there is time to search every directory
            most = None if wait else SWEPT_DIRECTORIES_MAX
            report.freed_bytes += sweep.sweep_unnamed(store, directories_max=most)
            report.freed_bytes += adopt.sweep_stages(store, topics_max=most)
            sweep.write_notes(store, topics_max=most)
    answer: CheckpointWritten = {
        "generation": report.generation,
        "lsn": report.lsn,
        "frames": report.frames,
        "rows": report.rows,
        "parts": report.parts,
        "sealed_ledgers": report.sealed_ledgers,
        "journals_deleted": report.journals_deleted,
        "freed_bytes": report.freed_bytes,
        "skipped": report.skipped,
        "elapsed_ms": round((time.monotonic() - began) * 1000),
    }
    if not report.skipped:
        text = "checkpoint %(generation)d at LSN %(lsn)d: %(rows)d rows, %(elapsed_ms)d ms"
        log_event("checkpoint", "info", text, answer)
    return answer


def _load_coordinators(store: Store) -> None:
    """Load the coordinators in pieces, so that other calls use the store in between."""
    for number in store.read(lambda view: view.known_coordinators()):
        while store.read(partial(_survey, number)):
            pass


def _survey(number: int, view: View) -> bool:
    return view.coordinator(number).ended.survey(BLOCKS)


def compact_due(store: Store, *, wait: bool) -> int:
    """Compact the topics past their threshold by key; returns how many; raises as run_checkpoint.

    wait: for maintenance by another process; otherwise leave it to that process
    """
    with checkpoint.maintenance(store, wait=wait) as is_held:
        return topic_compaction.compact_due(store) if is_held else 0


def compact_changes(store: Store) -> tuple[Changes, Changes]:
    """Reduce every log of changes to the newest row of each key, in a manifest of its own.

    returns: the files after a checkpoint, and the files now
    raises:  StoreLocked, StoreFull, DiskFailed, Corruption (a file of a log)
    """
    store.need_writable()
    with checkpoint.maintenance(store, wait=True):
        report = checkpoint.CheckpointReport()
        old = checkpoint.checkpoint(store, report)
        old_logs = changes_of(old)
        if log.is_compact(old_logs):
            return old_logs, old_logs
        generation = checkpoint.next_generation(store.disk, old, ())
        new_logs = log.compacted(store.disk, old, generation)
        _publish_changes(store, old, generation, new_logs)
        report.generation = generation
        checkpoint.settle(store, old, [], report)
        return old_logs, new_logs


def _publish_changes(store: Store, old: Manifest, generation: int, changes: Changes) -> None:
    """Publish a manifest of the same cut, with other files of the logs of changes."""
    disk, now_ms = store.disk, store.clock.now().wall_ms
    new_paths = {ref.path for ref in changes.refs}
    dropped = [(ref.path, now_ms) for ref in changes_of(old).refs if ref.path not in new_paths]
    manifest = msgspec.structs.replace(
        old,
        generation=generation,
        files={n: [*refs] for n, refs in old.files.items()},
        previous_crc=checkpoint.crc_of(disk, old.generation),
        time_ms=now_ms,
        dropped=[*old.dropped, *dropped],
        changes=raw_changes(changes),
    )
    disk.publish(manifest_path(generation), [encode_manifest(manifest, store.identity.salt)])
