"""Logs of changes: what happened to keys, cursors and the catalog.

They are segment files, and stay after the journal they came from is gone.

Contents:

    log    the files, and writing them with a checkpoint
    rows   from ops of the journal to rows, one by one
"""
