"""The facts of a store: what a row is, what an op is, and how ops are folded into state.

Every module here has values and pure functions over values; none touches a file.

Contents:

    counters    what a process has read and handed out, for its metrics; never stored
    idset       IdSet, a set of message ids, and ids as runs
    leases      which messages a consumer has leased, and which wait to be delivered again
    ops         the closed set of ops, the folds that take them, the protocol of a fold
    ranges      the rows of a transaction in a sidecar, and how compaction moves them
    schedule    delayed ids with their times, as columns
    schema      the Arrow schemas of messages, and a single row without Arrow
    sequences   which sequence numbers of a producer are stored
    tail        rows of ledgers that are still only in journal frames
"""
