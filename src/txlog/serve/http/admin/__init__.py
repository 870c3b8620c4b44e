"""The endpoints of Pulsar's admin API that mean something on one node, and ours beside them.

Each is a few lines over a call of the client; its arguments and OpenAPI come from its signature.

Contents:

    absent          what Pulsar has and a store has not
    broker_stats    figures of all topics, and sums of them
    places          ids of messages, as clients of the binary protocol get them
    policies        retention, time to live, delayed delivery, compaction, schema checks
    schemas         versions of a topic's schema
    store           cluster, tenants, namespaces, lookup
    subscriptions   creating, skipping, seeking, peeking
    times           delayed messages, their buckets, watermarks
    topics          creating, figures, compaction, offload
    transactions    coordinators, transactions, transaction keys
"""
