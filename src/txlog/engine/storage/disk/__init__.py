"""The disk: the one door to the operating system's files.

Contents:

    handle       a descriptor of this process, which a forked child closes
    libc         what the C library can do and Python's `os` cannot
    locks        how a lock is waited for, and who holds it
    pid_file     the file of a server outside any store, held while the server runs
    posix        every file effect: descriptors, flushes, publication, locks, free space
    protocol     what a disk is: its protocols, the rule for paths, OSError as our errors
    watch        the kernel tells when files of a store change
"""
