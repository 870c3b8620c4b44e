"""When a checkpoint is due, and running one with everything that belongs to it."""

from __future__ import annotations

import time
from dataclasses import asdict

from txlog.engine.store import Store
from txlog.engine.upkeep.checkpoint import CheckpointReport, checkpoint, maintenance_lock
from txlog.engine.upkeep.seal import seal_ledgers
from txlog.engine.upkeep.sweep import sweep_unnamed


def due(store: Store) -> bool:
    """True when the journal behind the newest checkpoint has grown past its settings."""
    frames, size = store.tail_bytes()
    return frames >= store.settings.checkpoint_frames or size >= store.settings.checkpoint_bytes


def run_checkpoint(store: Store, *, wait: bool) -> dict[str, int | bool]:
    """Write a checkpoint and seal what can be sealed.

    wait:    for a checkpoint of another process; else give way to it
    returns: the fields of `txlog admin checkpoint`; skipped when there was nothing to do
    raises:  StoreLocked, StoreFull, DiskFailed, Corruption
    """
    began = time.monotonic()
    report = CheckpointReport()
    store.need_writable()
    lock = maintenance_lock(store, wait=wait)
    if lock is None:
        report.skipped = True
    else:
        try:
            store.expire()  # it knows every coordinator: the bound on ended ones is exact here
            manifest = checkpoint(store, report)
            report.sealed_ledgers = seal_ledgers(store, manifest)
            if report.sealed_ledgers:
                checkpoint(store, report)
                report.skipped = False
            if wait:  # asked for by a person: the time to look at every directory is there
                report.freed_bytes += sweep_unnamed(store)
        finally:
            lock.close()  # frees it, and unlike an unlock it cannot fail
    answer = asdict(report)
    answer["elapsed_ms"] = round((time.monotonic() - began) * 1000)
    return answer
