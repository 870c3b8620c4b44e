"""The formats of `produce`: bytes in, Arrow tables out, with the line number of each record.

Contents:

    blocks    blocks of bytes from a descriptor
    columns   clean blocks of records, turned into columns of messages at once
    inputs    the input formats, and the choice of one
    percent   %-formats of input
    rows      csv and tsv row by row: for bad rows and unusual spellings
"""
