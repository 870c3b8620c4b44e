"""Columns as text: from them records and rows are written, a batch at a time.

Contents:

    columns     the kernels: JSON strings, cells, numbers, instants; columns joined into bytes
    envelopes   lines that contain all of a message, as columns of messages
    messages    the fields of messages as columns of text, and the records made of them
    records     bytes cut into records, the columns that they become, the definition of JSON
"""
