"""The journal: the only file that is ever appended to.

Beside it, the witness says how much of it is known to be durable.

Contents:

    file      one journal file: its name, its header, its frames
    frame     the frame: the atomic unit, its layout and its checks
    journal   the chain of files: following, appending, flushing, recovering
    witness   two checksummed records that say what is known to be durable
"""
