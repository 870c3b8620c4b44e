"""Verify: reads every byte of a store, and reports what is damaged or contradicts something else.

It takes no lock and changes nothing.

Contents:

    files      named files, and other files in the directories
    findings   Findings: how much was read, and the problems found
    folds      the components, compared with each other and with the stored rows
    journal    every file, every frame, the chain, the zeros after it
    verify     the whole check, fast or deep
"""
