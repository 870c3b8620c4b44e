"""The rows and answers that calls return, as types: a TypedDict for each listing.

They are plain dicts, with these keys in this order; `txlog --json` prints the same. Each field has
its type and its meaning here, and only here: `-f help`, man pages, the specification of the command
line and relations of SQL read them by `fields`. Everything else uses the rows as annotations only,
so no start-up loads them.

    from txlog.base.rows.topics import TopicRow

    def largest(rows: list[TopicRow]) -> TopicRow: ...

The answers of `Client.inspect` and of `Client.query` are open: the question decides their fields.

Contents:

    consuming      messages as records; subscriptions, their consumers, changes to a backlog
    delayed        delayed messages and the buckets of their index
    fields         fields that several rows share, and the reading of a row's fields
    files          segment files, journal frames, contents of a store's files
    jobs           bulk loads, imports, exports, replays, audits
    relations      relations of SQL that no listing of a command has
    sending        what producers and processing stored: messages, batches of files
    space          results of compacting, trimming, offloading and collecting garbage
    store          a whole store: status, checks, settings, locks
    tool           what txlog prints about itself: settings of a call, tokens, installed files
    topics         topics, their partitions, policies and throughput
    transactions   transactions, their keys and coordinators, the messages they hold
    watermarks     asserted watermarks, and positions of subscriptions in event time
"""
