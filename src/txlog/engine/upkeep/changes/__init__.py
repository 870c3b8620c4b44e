"""Logs of changes: what keys, cursors and the catalog were told.

They are segment files, and stay when the journal they came from is gone.

Contents:

    log    the files, and writing them with a checkpoint
    rows   from ops of the journal to rows, one by one
"""
