"""Verify: checks how much of a store is intact.

It reads every byte, takes no lock and changes nothing.

Contents:

    files      published files, and other files in the directories
    findings   Findings: how much was read, and the problems found
    folds      the components, compared with each other and with the rows
    journal    every file, every frame, the chain, the zeros after it
    verify     the whole check, fast or deep
"""
