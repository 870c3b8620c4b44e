"""Maintenance: changes to the files of a store that readers do not see.

It holds no lock that a producer needs while it works.

Contents:

    changes/ changes of keys, cursors and the catalog, kept as rows
    service       when upkeep is due, and running its steps space/        compacting, offloading,
    trimming, sweeping verify/       whether every byte and every component can be relied on
"""
