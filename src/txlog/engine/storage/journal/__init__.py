"""The journal: the only file that is ever appended to.

The witness next to it records how much of the journal is known to be durable.

Contents:

    file      one journal file: its name, its header, its frames
    frame     the frame: the atomic unit, its layout and its checks
    journal   the chain of files: following, appending, flushing, recovering
    witness   two checksummed records of the newest LSN known to be durable
"""
