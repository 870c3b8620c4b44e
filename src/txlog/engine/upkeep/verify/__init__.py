"""Verify: checks how much of a store is intact.

It reads every byte, takes no lock and changes nothing.

Contents:

    changes     the logs of changes, compared with the state
    files       published files, and other files in the directories
    findings    Findings: how much was read, and the problems found
    folds       the components, compared with each other and with the rows
    journal     every file, every frame, the chain, the zeros after it
    replay      a checkpoint and the later frames give one state
    rows        the rows of a partition and its sidecar, against the folds
    verify      the whole check, fast or deep
"""
