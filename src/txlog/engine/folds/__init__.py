"""State: each module is one fold, a deterministic function of its ops.

A fold has no effects and reads no clock, and none imports another. So the same ops lead to the same
state in every process and after every crash.

Contents:

    buffer            the sidecar of one partition: transactions and where their messages lie
    catalog           topics, partitions, subscriptions, settings, and who owns which ledger
    coordinator       one coordinator: a counter, and the status of its transactions
    cursor            what one subscription has acknowledged in one partition
    delayed           when the delayed messages of one partition are due
    topic             the ends of one partition, and what its producers sent last
    transaction_key   who holds which key of one coordinator, since which epoch
    watermark         how far each producer of a partition has come in event time
"""
