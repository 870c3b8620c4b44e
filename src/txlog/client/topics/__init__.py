"""Handles of topics and subscriptions, for everything except sending and receiving.

Contents:

    created         topics that a job makes for itself, and deletes again if it fails
    delayed_index   merging or rebuilding the index of a topic's delayed messages
    schemas         TopicSchemas: the schema versions of a topic
    subscription    SubscriptionHandle: seek, skip, backlog, policies and deletion
    topic           TopicHandle: listing, promoting and cancelling a topic's delayed messages
    watermarks      TopicWatermarks: showing a topic's watermarks, or setting them by hand
"""
