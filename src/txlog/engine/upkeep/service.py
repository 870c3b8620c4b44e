"""When a checkpoint is due, and running one with everything that belongs to it.

policies expire and trim (frames) · delayed indexes are tended
· checkpoint · sidecars past the ratio are compacted · ledgers are sealed
· a second checkpoint lets go of what those replaced · files that nobody names are swept, and what
jobs staged that never ended
"""

from __future__ import annotations

import time

from txlog.engine.store import Store
from txlog.engine.upkeep import adoption, checkpoint, compact, expiry, retention, seal, sweep
from txlog.engine.upkeep.buckets import tend_held
from txlog.engine.view import View
from txlog.values import as_dict

# An automatic checkpoint looks for files that nobody names in so many directories, not in more.
SWEPT_DIRECTORIES_MAX = 64


def due(store: Store) -> bool:
    """True when the journal behind the newest checkpoint has grown past its settings."""
    frames, size = store.tail_bytes()
    return frames >= store.settings.checkpoint_frames or size >= store.settings.checkpoint_bytes


def _changed_sidecars(view: View) -> list[int]:
    return [key[1] for key in view.changed() if key[0] == "buffer"]


def run_checkpoint(store: Store, *, wait: bool) -> dict[str, int | bool]:
    """Write a checkpoint and seal what can be sealed.

    wait:    for a checkpoint of another process; else give way to it
    returns: the fields of `txlog admin checkpoint`; skipped when there was nothing to do
    raises:  StoreLocked, StoreFull, DiskFailed, Corruption
    """
    began = time.monotonic()
    report = checkpoint.CheckpointReport()
    store.need_writable()
    lock = checkpoint.maintenance_lock(store, wait=wait)
    if lock is None:
        report.skipped = True
    else:
        try:
            store.expire()  # it knows every coordinator: the bound on ended ones is exact here
            changed = store.read(_changed_sidecars)  # only there may a share have grown
            expiry.expire_due(store)
            retention.trim_by_policies(store)
            report.freed_bytes += sweep.free_gone(store)
            tend_held(store)
            manifest = checkpoint.checkpoint(store, report, far=wait)
            ratio = store.settings.sidecar_garbage_ratio
            compacted = compact.compact_sidecars(
                store, changed, compact.CompactReport(), ratio=ratio
            )
            report.sealed_ledgers = seal.seal_ledgers(store, manifest)
            if report.sealed_ledgers or compacted:
                report.freed_bytes += sweep.free_gone(store)
                checkpoint.checkpoint(store, report, far=wait)
                report.skipped = False
            # asked for by a person: the time to look at every directory is there
            most = None if wait else SWEPT_DIRECTORIES_MAX
            report.freed_bytes += sweep.sweep_unnamed(store, directories_max=most)
            report.freed_bytes += adoption.sweep_stages(store, topics_max=most)
        finally:
            lock.close()  # frees it, and unlike an unlock it cannot fail
    answer = as_dict(report)
    answer["elapsed_ms"] = round((time.monotonic() - began) * 1000)
    return answer
