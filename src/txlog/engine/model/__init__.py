"""The facts of a store: what a row is, what an op is, and how ops are folded into state.

Everything here is a value or a pure function over values; no module touches a file.

Contents:

    fold        the protocol of a fold
    idset       IdSet, a set of message ids, and ids as runs
    large_row   the row of a large message, from its file and its fold
    leases      which messages a consumer holds, and which wait to come back
    one_row     the row of a single message, which becomes bytes without Arrow
    ops         the closed set of ops, and their bytes
    ranges      where a transaction's messages lie in a sidecar, and how compaction moves them
    routes      which folds take which op
    schedule    delayed ids with their times, as columns
    schema      the Arrow schemas of messages
    sequences   which sequence numbers of a producer are stored
    tail        rows of ledgers that still lie only in journal frames
    tally       what one client has read and handed out; never stored
"""
