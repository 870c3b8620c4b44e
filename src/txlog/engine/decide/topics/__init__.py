"""Decisions about topics and subscriptions themselves.

Creating and deleting them, their policies, and the files that hold them.

Contents:

    availability   taking a partition away; bringing it back with the transactions that wait for it
    buckets        which changes upkeep of the delayed index may make
    catalog        topics, subscriptions, coordinators, settings: created, changed, deleted; schemas
    ledgers        trimming the oldest; switches to other files
    policies       policies of a subscription, and those that topic, namespace and store share
    rename         another name for a topic, and for the topics with names derived from it
"""
