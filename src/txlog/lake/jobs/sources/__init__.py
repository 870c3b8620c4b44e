"""The files from which a load takes its messages, and the conversion of their rows.

Contents:

    loads   the source of a bulk load: its files, columns and envelopes; errors in them
    rows    columns of a source as columns of messages, in SQL
"""
