"""Reading: from a position or a range to the visible rows after it.

Contents:

    compacted     the compacted rows of a topic, for readers
    dispatch      which visible messages follow a position, and their rows; messages by their ids
    newest        the newest message of each key, by columns
    ranges        from `-10`, `@-1h`, `17:4` or `sub=billing` to positions
    uncommitted   READ_UNCOMMITTED: rows without a marker, after everything committed
    watermarks    how far a partition is in event time
"""
