"""The formats of `produce`: bytes in, Arrow tables out; names that other commands printed.

Contents:

    columns   the fast path: a whole block of records becomes columns of messages
    inputs    the input formats, the choice of one, and blocks of bytes from a descriptor
    names     `-` as an argument: names and ids of rows that another command printed
    percent   %-formats of input
    rows      csv and tsv row by row: for bad rows and unusual spellings
"""
