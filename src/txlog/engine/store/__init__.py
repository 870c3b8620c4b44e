"""An open store: following the journal, and the write path.

Contents:

    appender   from decisions to frames of the journal, which the folds then take
    ask        asking a store a question: settle, sweep, read
    counters   what this process counted, for its metrics
    follower   a store as far as it is read: a view that follows the journal
    identity   `txlog.toml`, and the making of a new store
    liveness   who holds a lock file now, by the kernel's word
    pins       files that a running reader needs stay
    space      room on the disk, and the reserve that lets cleaning finish
    store      Store: the write path, and group commit among threads
    sweeper    whether the sweep before a call has anything to look for
"""
