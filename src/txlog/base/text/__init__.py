"""Columns as text: what records and rows are written from, a batch at a time.

Contents:

    columns     the kernels: JSON strings, cells, numbers, instants; columns joined into bytes
    envelopes   lines that say all of a message, as columns of messages
    grammar     what is JSON, for whoever reads lines of it
    messages    the fields of messages as columns of text, and the records made of them
    records     bytes cut into records, and the columns that they become
"""
