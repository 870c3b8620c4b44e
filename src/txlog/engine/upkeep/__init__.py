"""Maintenance: everything that changes which files a store has and nothing that a reader sees.

It holds no lock that a producer needs while it works.

Contents:

    changes/      what keys, cursors and the catalog were told, kept as rows
    checkpoint/   the journal into files
    delayed/      the buckets of the delayed index
    repair/       a damaged store made whole, or as whole as its files allow
    service       when upkeep is due, and running it with all that belongs together
    space/        compacting, offloading, trimming, sweeping
    verify/       whether every byte and every component can be relied on
"""
