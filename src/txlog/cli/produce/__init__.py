"""`produce`: from options and input to frames or transactions.

Contents:

    columns   values that flags add to the records of the input, and values of a typed topic
    command   the command: which options go together
    request   the options: for each its flag, its help and its value
    totals    the summary, and a line per message for `--ack`
    work      input tables into batches, batches into frames or transactions; their watermarks
"""
