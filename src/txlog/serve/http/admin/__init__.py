"""The endpoints of Pulsar's admin API that make sense on a single node, and our own ones.

Each endpoint is a few lines over a call of the client. Its arguments and its OpenAPI entry come
from its signature.

Contents:

    absent          features of Pulsar that a store does not have
    policies        retention, time to live, delayed delivery, compaction; schemas and their checks
    store           cluster, tenants, namespaces, lookup
    subscriptions   creating, skipping, seeking, peeking
    topics          creating, figures, delayed messages, watermarks; message ids as Pulsar has them
    transactions    coordinators, transactions, transaction keys
"""
