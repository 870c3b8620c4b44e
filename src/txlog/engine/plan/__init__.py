"""Questions over a view: what is deliverable, where a range begins, what a name means.

A plan reads, answers and refuses; it never makes an op. Decisions ask here first.

Contents:

    ack_sets       acknowledged ids: which are valid, which pending, where mark-delete moves
    clock_trust    how far to believe the wall clock before destroying or delivering by it
    consuming/     which consumer gets which message
    damage         damaged files: what of a partition can still be shown
    delayed/       which delayed messages are due, and which are to come
    lookup         finding what a call names, or refusing what does not exist
    participants   what remains to be done to end a transaction, and where it can be done now
    policies       which policy holds: the topic's, else its namespace's, else the store's
    reading/       visible rows after a position
    records        what values are checked against, and values as columns
    route          which partition each message of a batch goes to
    runs           message ids as runs
    staging        rows written as staged files, by any process that sees the directory
    standing       where a consumer stands in a partition
    watermarks/    how far a partition is in event time
"""
