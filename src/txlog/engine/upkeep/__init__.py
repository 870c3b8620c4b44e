"""Maintenance of a store's files: checkpoints, compaction, trimming, offloading, verify, repair.

One process at a time does it, under the maintenance lock; verify takes no lock. Producers wait only
for its short steps under the write lock, and for a repair of files. Code outside the engine imports
it from `engine/door`.

Contents:

    changes/      changes of keys, cursors and the catalog, kept as rows
    checkpoint/   the checkpoint and recovery: the journal becomes files
    delayed/      the buckets of the delayed index
    repair/       repairing a damaged store, as far as its files allow
    service       when a checkpoint is due, and running one with all of its upkeep
    space/        adopting, compacting, offloading, trimming, sweeping
    verify/       whether every byte and every component is intact
"""
