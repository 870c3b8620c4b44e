"""The endpoints of Pulsar's admin API that make sense on a single node, and our own ones.

Each endpoint is a few lines over a call of the client. Its arguments and its OpenAPI entry come
from its signature.

Contents:

    absent          features of Pulsar that a store does not have
    broker_stats    figures of all topics, and their sums
    policies        retention, time to live, delayed delivery, compaction, schema checks
    schemas         versions of a topic's schema
    store           cluster, tenants, namespaces, lookup
    subscriptions   creating, skipping, seeking, peeking
    times           delayed messages, their buckets, watermarks
    topics          creating, figures, compaction, offload; message ids as Pulsar writes them
    transactions    coordinators, transactions, transaction keys
"""
