"""Decisions about topics and subscriptions themselves.

Creating and deleting them, their policies, and the files that hold them.

Contents:

    availability   taking a partition away, and bringing it back with all waiting ends
    buckets        which changes upkeep of the delayed index may make
    create         new topics, subscriptions and coordinators; more partitions, other settings
    deletion       deleting subscriptions and topics
    files          switches to a copy elsewhere, to compacted rows, to a new file of a sidecar
    policies       policies of a subscription, and those that topic, namespace and store share
    schemas        adding a schema that fits those before it, and deleting all
    trim           removing the oldest ledgers of a partition
"""
