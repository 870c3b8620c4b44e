"""Maintenance: changes to the files of a store that readers do not see.

It holds no lock that a producer needs while it works.

Contents:

    changes/      changes of keys, cursors and the catalog, kept as rows
    checkpoint/   the journal into files
    delayed/      the buckets of the delayed index
    repair/       repairing a damaged store, as far as its files allow
    service       when upkeep is due, and running its steps
    space/        compacting, offloading, trimming, sweeping
    verify/       whether every byte and every component is intact
"""
