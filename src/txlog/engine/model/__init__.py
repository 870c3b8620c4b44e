"""The facts of a store: what a row is, what an op is, and how ops are folded into state.

Every module here has values and pure functions over values; none touches a file.

Contents:

    counters    what a process has read and handed out, for its metrics; never stored
    fold        the protocol of a fold
    idset       IdSet, a set of message ids, and ids as runs
    leases      which messages a consumer has leased, and which wait to be delivered again
    one_row     the row of a single message, which becomes bytes without Arrow
    ops         the closed set of ops, and their bytes
    ranges      the rows of a transaction in a sidecar, and how compaction moves them
    routes      which folds take which op
    schedule    delayed ids with their times, as columns
    schema      the Arrow schemas of messages
    sequences   which sequence numbers of a producer are stored
    tail        rows of ledgers that still lie only in journal frames
"""
