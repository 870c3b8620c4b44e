"""Columns as text: from them records and rows are written, a batch at a time.

Contents:

    columns     the kernels: JSON strings, cells, numbers, instants; columns joined into bytes
    envelopes   lines that contain all of a message, as columns of messages
    grammar     the definition of JSON for readers of lines
    messages    the fields of messages as columns of text, and the records made of them
    records     bytes cut into records, and the columns that they become
"""
