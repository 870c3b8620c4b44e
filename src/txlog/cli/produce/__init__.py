"""`produce`: from options and input to frames or transactions.

Contents:

    columns      what flags add to the records of the input, column by column
    command      the options
    request      what `produce` was asked to do
    totals       the summary, and a line per message for `--ack`
    typed        records of the input as values of a typed topic
    watermarks   watermarks asserted from the data itself
    work         input tables into batches, batches into frames or transactions
"""
