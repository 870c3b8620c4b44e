"""The rows and answers that calls return, as types: a TypedDict for each listing.

They are plain dicts, with these keys in this order; `txlog --json` prints the same. For annotations
only: nothing in the package loads these modules while it runs. What a field means is in
`txlog -f help`.

    from txlog.base.rows.topics import TopicRow

    def largest(rows: list[TopicRow]) -> TopicRow: ...

Open are the answers of `Client.inspect` and of `Client.query`: what is asked decides their fields.

Contents:

    consuming      subscriptions, their consumers, and what is done to a backlog
    delayed        delayed messages and the buckets of their index
    files          segment files, journal frames, what a file of a store holds
    jobs           bulk loads, imports, exports, replays, audits
    sending        a batch of files that is stored once
    space          what compacting, trimming, offloading and collecting garbage did
    store          a whole store: status, checks, settings, locks
    topics         topics, their partitions, policies and throughput
    transactions   transactions, their keys and coordinators, what they hold
    watermarks     what producers asserted, and where subscriptions are in event time
"""
