"""The files that a load takes its messages from, and what their rows become.

Contents:

    envelopes   files of envelopes as columns of messages
    loads       the source of a bulk load: which files, which columns
    refused     which line of a file DuckDB rejected, and why
    rows        columns of a source as columns of messages, in SQL
"""
