"""Columns as text: what records and rows are written from, a batch at a time.

Contents:

    columns    the kernels: JSON strings, cells, numbers, instants; columns joined into bytes
    messages   the fields of messages as columns of text, and the records made of them
"""
