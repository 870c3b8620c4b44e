"""The formats of `produce`: bytes in, Arrow tables out, with the line each record came from.

Contents:

    blocks    blocks of bytes from a descriptor
    columns   clean blocks of records, made columns of messages at once
    inputs    the input formats, and which one a call names
    percent   %-formats of input
    rows      csv and tsv row by row: where one is bad, or not written as all others
"""
