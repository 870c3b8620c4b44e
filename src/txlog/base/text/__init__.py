"""Converts Arrow columns to the text of records and rows, and records to columns, in batches.

Contents:

    amounts     durations and sizes as people read them
    columns     the kernels: JSON strings, cells, numbers, instants; columns joined into bytes
    envelopes   lines that contain all of a message, as columns of messages
    formats     suffixes and formats of files; files that are compressed
    html        a few rows as HTML, for notebooks
    messages    the fields of messages as columns of text, joined into records
    previews    the beginning of a key or a value on one line
    records     bytes cut into records, the columns that they become, the definition of JSON
    structs     records of typed topics as JSON
"""
