"""Consumers: the handles that receive and acknowledge the messages of a subscription.

Contents:

    batches       limits of one batch: messages, bytes, and how long to wait for more
    consumer      Consumer: receives a subscription's messages and acknowledges them
    in_memory     a consumer whose subscription lives in memory, as long as the consumer
    listeners     the thread of a client that calls message listeners
    many_topics   one subscription name on several topics, or on a pattern of them
    open          opening a consumer of any of these kinds
"""
