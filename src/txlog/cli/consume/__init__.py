"""`consume` and `peek`: messages from a store to stdout, with and without a subscription.

Contents:

    command   the options of both commands
    peek      the ends of a topic, or the neighbours of a message; changes nothing
    request   the checked options of `consume`
    where     `--where`: a condition in SQL over the columns of a record
    work      tables from a reader or consumer: filtered, printed, acknowledged
"""
