"""The files from which a load takes its messages, and the conversion of their rows.

Contents:

    envelopes   files of envelopes as columns of messages
    loads       the source of a bulk load: its files and columns
    refused     errors for a line of a file that DuckDB rejected
    rows        columns of a source as columns of messages, in SQL
"""
