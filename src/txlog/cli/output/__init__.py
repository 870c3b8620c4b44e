"""Results and messages to stdout, in every format.

Contents:

    output       the format of a call, listings and single objects, the writer of stdout
    percent      %-formats of output: compiled once, applied to columns
    query_rows   the rows of a query, printed or written to a file
    records      messages as JSON records, envelopes, lines or raw bytes
"""
