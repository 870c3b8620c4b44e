"""Mirrors: a topic as a table outside the store, which any engine reads correctly without txlog.

Contents:

    delta     a Delta table
    hive      directories of days
    iceberg   an Iceberg table, in a catalog of SQLite
    mirror    a run: writes files with the new messages, and adds them to the table
    table     the interface of a table
"""
