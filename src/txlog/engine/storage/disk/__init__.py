"""The disk: the only way to the files of a store, and the locks on them.

Contents:

    libc         functions of the C library that Python's `os` lacks
    locks        waiting for a lock, its holder, acts under it, the pid file of a server
    posix        every file effect: descriptors, flushes, publication, locks, watches
    protocol     the protocols of a disk, the rule for paths, OSError as our errors
"""
