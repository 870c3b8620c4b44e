"""Decisions about topics and subscriptions themselves.

Creating and deleting them, their policies, and the files that hold them.

Contents:

    availability   taking a partition away, and bringing it back with all waiting ends
    buckets        which changes upkeep of the delayed index may make
    create         new topics, subscriptions and coordinators
    deletion       deleting subscriptions and topics
    files          the switch to a copy elsewhere, or to rows compacted by key
    policies       policies of a subscription, and those that topic, namespace and store share
    schemas        adding a schema that fits those before it, and deleting all
    sidecar        rolling a sidecar, and switching to its compacted ledger
    trim           removing the oldest ledgers of a partition
    update         more partitions, other policies, other settings
"""
