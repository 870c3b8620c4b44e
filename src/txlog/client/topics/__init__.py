"""Handles of topics and subscriptions, for everything except sending and receiving.

Contents:

    created         topics that a job makes for itself, and deletes again if it fails
    delayed_index   merging or rebuilding the index of a topic's delayed messages
    schemas         TopicSchemas: the versions of what a topic's values are
    subscription    SubscriptionHandle
    throughput      messages, bytes and transactions that became visible, by time
    topic           TopicHandle: a topic's delayed messages, looked at and decided
    watermarks      TopicWatermarks: a topic's watermarks, shown, or set without a producer
"""
