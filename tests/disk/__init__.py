"""A disk in memory, for tests: it fails, is killed or loses power at a call of the test's choice.

Contents:

    faults       any disk, with points at which a call fails or something happens
    memory       a disk in memory, with faults, kills and power cuts
    power_loss   the states of files and directories after a power cut
    watch        its reports of changed files
"""
