"""Verify: how much of a store can be relied on.

It reads every byte, takes no lock and changes nothing.

Contents:

    changes     the logs of changes, against the state they lead to
    files       published files, and what else lies in the directories
    findings    Findings: what was read, and what was found to be wrong
    folds       that the components agree with each other and with the rows
    journal     every file, every frame, the chain, the zeros after it
    replay      a checkpoint and the frames after it lead to one state
    rows        the rows of a partition and its sidecar, against the folds
    verify      the whole look, fast or deep
"""
