"""Real power cuts: txlog on real file systems in a virtual machine whose disk loses writes.

The machine is User-Mode Linux, a kernel that is a program of Debian's package `user-mode-linux`.
Its disks are files of the host; a small library (`device.c`), loaded before it, records every write
and every flush of its disks, in order, and makes no flush. One run of the machine therefore gives
as many power cuts as you like: `device.py` takes a position in the record, keeps what was flushed
there and any of the sectors that were not, and that is a disk after a cut. A second run of the
machine mounts such disks, lets txlog recover, and says what it has; `compare.py` compares it with
what the programs had been told before the cut.

Programs say what they were told on a second disk of the same machine. Its writes are in the same
record, so that what was told before a write stands before it.

Contents:

    device      the record of writes and flushes, and the disks that a power cut could leave
    machine     starts the virtual machine with disks and a program
    guest       the programs inside: workers on a store, and recovery of the disks of cuts
    workers     what the workers in the machine do with a store
    outside     stock clients of Apache Pulsar, outside of the machine, that use a server in it
    compare     what a recovered store has, compared with what had been told
    run         `scripts/powercut`: a run, its cuts and its figures
"""
