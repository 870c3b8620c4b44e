"""What a store looks like, as plain values.

The answers behind the commands that show something, and the API methods of the same name. Nothing
here changes a store.

Contents:

    changes           the history of a key, a subscription or the catalog, as rows
    consumers         one subscription: its consumers, its partitions, what is in its backlog
    delayed           delayed messages as rows and counts
    health            what monitors and the doctor check of a store and the machine under it
    inspect           what a word means in a store, and what a file holds
    integrity         whether the bytes of a store can be relied on
    keys              transaction keys
    lists             lists with a row for each message or frame, as Arrow tables
    locks             who holds which lock of a store
    metric_family     one metric as a plain value
    metrics           every metric of a store, computed from its state
    metrics_text      the metrics as text, by prometheus-client
    overview          the figures that `txlog report` draws, all at one moment
    partitions        sidecars, pending acknowledgements, one position
    space             what compaction, trims and garbage collection freed
    topics_and_txns   list, describe, show and status
    transactions      coordinators and transactions
    watermarks        what producers asserted, and where subscriptions are in event time
"""
