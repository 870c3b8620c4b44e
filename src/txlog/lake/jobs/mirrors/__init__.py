"""Mirrors: a topic as a table beside the store, that any engine reads right without txlog.

Contents:

    delta     a Delta table
    hive      directories of days
    iceberg   an Iceberg table, in a catalog of SQLite
    mirror    a run: writes the files of what is new, and lets the table have them
    table     what a run asks of a table
"""
