"""Logs of the changes of keys, cursors and the catalog, which outlive their journal.

They are files that anything can read; the store itself never needs them.

Contents:

    log    the files, and writing them with a checkpoint
    rows   from ops of the journal to rows, one by one
"""
