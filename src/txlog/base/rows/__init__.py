"""The rows and answers that calls return, as types: one TypedDict each.

They are plain dicts, with these keys in this order; `txlog --json` prints the same. A docstring
`Of X` names the call or command X that returns the row. Only here a field has its type and its
meaning: `-f help`, man pages, the specification of the command line and relations of SQL read them
by `fields`. All other code uses the rows as annotations only, so no start-up loads them.

    from txlog.base.rows.topics import TopicRow

    def largest(rows: list[TopicRow]) -> TopicRow: ...

`Client.inspect` and `Client.query` have no row here: their fields depend on the call.

Contents:

    consuming      messages as records; subscriptions, their consumers, backlogs, dead letters
    delayed        delayed messages and the buckets of their index
    fields         fields that several rows share, and the reading of a row's fields
    files          segment files, journal frames, contents of a store's files
    jobs           bulk loads, imports, exports, replays, audits, benchmarks
    relations      relations of SQL that no listing of a command has
    sending        what producers and processing stored: messages, batches of files
    space          results of compacting, trimming, offloading and collecting garbage
    store          a whole store: status, checks, settings, locks, reports
    tool           what txlog prints about itself: settings of a call, tokens, installed files
    topics         topics, their partitions, policies and throughput
    transactions   transactions, their keys and coordinators, the messages they hold
    watermarks     asserted watermarks, and positions of subscriptions in event time
"""
