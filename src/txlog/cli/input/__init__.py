"""The formats of `produce`: bytes in, Arrow tables out, with the line each record came from.

Contents:

    blocks    blocks of bytes from a descriptor, cut into records
    inputs    the input formats, and which one a call names
    percent   %-formats of input
    rows      formats that must be parsed record by record: envelopes, csv, tsv
"""
