"""The facts of a store: rows, ops, and how ops are folded into state.

Modules here have values and pure functions over values; only `tail` reads, from the journal.

Contents:

    idset       IdSet, a set of message ids, and ids as runs
    leases      which messages a consumer has leased, and which wait to be delivered again
    ops         the closed set of ops, the folds that take them, the protocol of a fold
    schema      the Arrow schemas of messages, and a single row without Arrow
    sequences   which sequence numbers of a producer are stored
    tail        rows of ledgers that are still only in journal frames
"""
