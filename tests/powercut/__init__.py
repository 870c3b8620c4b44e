"""Real power cuts: txlog on real file systems in a virtual machine whose disk loses writes.

The machine is User-Mode Linux, a kernel that is a program of Debian's package `user-mode-linux`.
Its disks are files of the host; a small library (`device.c`), loaded before it, records every write
and every flush of its disks, in order, and makes no flush. One run of the machine therefore gives
as many power cuts as you like: `device.py` takes a position in the record, keeps the sectors that
were flushed by then and a random part of the others, and so makes a disk after a cut. A second run
of the machine mounts such disks, lets txlog recover, and writes down the contents of each store.
`compare.py` compares them with the answers that the programs had got before the cut.

Programs write the answers that they get to a second disk of the same machine. Its writes are in the
same record, so the record shows which answers came before a write.

Contents:

    device      the record of writes and flushes, and the disks that a power cut could leave
    machine     starts the virtual machine with disks and a program
    guest       the programs inside: workers on a store, and recovery of the disks of cuts
    workers     the work of the processes in the machine
    outside     stock clients of Apache Pulsar, outside of the machine, that use a server in it
    compare     compares a recovered store with the answers before the cut
    run         `scripts/powercut`: a run, its cuts and its figures
"""
