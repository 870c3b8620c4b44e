"""Descriptions of a store as plain values.

Commands that show something print these answers, and the API methods of the same name return them.
`space`, `integrity.repair` and `topics_and_txns.expire` change a store; all else here only reads.

Contents:

    alerts            the thresholds that apply to subscriptions, and which are exceeded
    changes           the history of a key, a subscription or the catalog, as rows
    dead_letters      dead-letter topics and their messages
    delayed           delayed messages as rows and counts
    disk_usage        bytes on disk by topic and part, as `du -b` counts them
    health            what monitors and the doctor check of a store and the machine under it
    inspect           a topic, transaction, message or file, found by its name
    installation      the doctor on another package in place of txlog, and on missing bytecode
    integrity         verify and repair
    keys              transaction keys
    lag               how far subscriptions are behind; one subscription: its consumers, groups
    lists             Arrow tables with a row for each acknowledgement or frame
    locks             the locks of a store, and the processes that hold them
    metric_family     one metric as a plain value
    metrics           every metric of a store, computed from its state
    metrics_text      the metrics as text, by prometheus-client
    overview          the figures that `txlog report` draws, all as of one LSN
    partitions        sidecars, pending acknowledgements, one position
    rates             messages in and out by time, from the frames of the journal
    space             compaction, trims, offloading and garbage collection
    status            the status of a store, and its problems
    topics_and_txns   topics, subscriptions, transactions and the status of the store; expire
    transactions      coordinators and transactions
    watermarks        watermarks of topics and subscriptions, and the producers that assert them
"""
