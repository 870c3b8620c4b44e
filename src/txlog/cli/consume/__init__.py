"""`consume` and `peek`: messages out of a store, with and without a subscription.

Contents:

    command   the options of both commands
    peek      the ends of a topic, or the neighbours of a message; changes nothing
    request   what `consume` was asked to do
    where     `--where`: a condition in SQL over the columns of a record
    work      tables from a reader or consumer: filtered, printed, acknowledged
"""
