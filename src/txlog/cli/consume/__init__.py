"""`consume` and `peek`: messages from a store to stdout, with and without a subscription.

Contents:

    command   the two commands: which options go together
    ends      where the last messages that a reader sees begin
    lasts     the last messages of a topic over all partitions, by visible time
    peek      the ends of a topic, or the neighbours of a message; changes nothing
    request   the options: for each its flag, its help and its value
    work      tables from a reader or consumer: filtered, printed, acknowledged
"""
