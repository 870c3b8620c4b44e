"""Logs of the changes of keys, cursors and the catalog.

They are segment files, and stay after their journal is deleted.

Contents:

    log    the files, and writing them with a checkpoint
    rows   from ops of the journal to rows, one by one
"""
