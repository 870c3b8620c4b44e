"""A disk in memory, for tests: it fails, is killed and loses power at a call that the test chooses.

Contents:

    memory       a disk in memory, with faults, kills and power cuts
    power_loss   what a power cut may leave of files and directories
"""
