"""`produce`: from options and input to frames or transactions.

Contents:

    columns      values that flags add to the records of the input, column by column
    command      the options
    request      the checked options of `produce`
    totals       the summary, and a line per message for `--ack`
    typed        records of the input as values of a typed topic
    watermarks   watermarks asserted from the event times of the data
    work         input tables into batches, batches into frames or transactions
"""
