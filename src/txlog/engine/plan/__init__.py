"""Questions over a view: which messages are deliverable, where a range begins, what a name means.

A plan reads the view, and answers or raises; it never makes an op. Decisions call it first. Code
outside the engine gets these names from `engine/door`.

Contents:

    ack_sets       message ids as runs; which ids may be acknowledged, where mark-delete moves
    clock_trust    how far to trust the wall clock before deleting or delivering by it
    consuming/     which consumer gets which message
    damage         damaged files: the first unreadable row, and which messages readers still get
    delayed/       which delayed messages are due, and which are to come
    derived        names of topics and keys that come from a topic's name, and whose they are
    lookup         finding what a call names, or refusing what does not exist
    participants   the work left to end a transaction, and where it can be done now
    policies       which policy applies: the topic's, else its namespace's, else the store's
    reading/       visible rows after a position
    records        the schemas of values, and values as columns
    route          which partition each message of a batch goes to
    staging        rows written as staged files, by any process that sees the directory
    standing       the position of a consumer in a partition, also after messages were returned
"""
