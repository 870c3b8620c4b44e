"""State: each module is one fold, a deterministic function of its ops.

A fold has no effects and reads no clock, and none imports another. So the same ops lead to the same
state in every process and after every crash.

Contents:

    buffer            the sidecar of one partition: transactions and the locations of their messages
    catalog           topics, partitions, subscriptions, settings, and the owner of each ledger
    coordinator       one coordinator: a counter, and the status of its transactions
    cursor            the acknowledgements of one subscription in one partition
    delayed           when the delayed messages of one partition are due
    topic             the ends of one partition, and the last sequences of its producers
    transaction_key   the keys of one coordinator, their holders and epochs
    watermark         how far each producer of a partition has come in event time
"""
