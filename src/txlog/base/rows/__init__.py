"""The rows and answers that calls return, as types: a TypedDict for each listing.

They are plain dicts, with these keys in this order; `txlog --json` prints the same. They serve only
as annotations: the package loads none of these modules at run time. `txlog -f help` explains each
field.

    from txlog.base.rows.topics import TopicRow

    def largest(rows: list[TopicRow]) -> TopicRow: ...

The answers of `Client.inspect` and of `Client.query` are open: the question decides their fields.

Contents:

    consuming      subscriptions, their consumers, and changes to a backlog
    delayed        delayed messages and the buckets of their index
    files          segment files, journal frames, contents of a store's files
    jobs           bulk loads, imports, exports, replays, audits
    sending        a batch of files that is stored once
    space          results of compacting, trimming, offloading and collecting garbage
    store          a whole store: status, checks, settings, locks
    topics         topics, their partitions, policies and throughput
    transactions   transactions, their keys and coordinators, the messages they hold
    watermarks     asserted watermarks, and positions of subscriptions in event time
"""
