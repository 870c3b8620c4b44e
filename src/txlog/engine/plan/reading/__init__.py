"""Reading: from a position or a range to the visible rows after it.

Contents:

    batch_bytes   how many messages make a batch, by their bytes
    compacted     the compacted rows of a topic, for readers
    dispatch      which visible messages follow a position, and their rows
    fetch         messages by their ids
    newest        the newest message of each key, by columns
    ranges        from `-10`, `@-1h`, `17:4` or `sub=billing` to positions
    skip_sets     the ids that a plan leaves out, as bitmaps for each ledger
    uncommitted   READ_UNCOMMITTED: rows without a marker, after everything committed
"""
