"""Consumers: the handle that receives and acknowledges the messages of a subscription.

Contents:

    batches     limits of one batch: messages, bytes, and how long to wait for more
    consumer    Consumer: receives a subscription's messages and acknowledges them
    in_memory   the session of a subscription in memory, which ends with its consumer
    listeners   the thread of a client that calls message listeners
    open        opening a consumer: of one topic, of several, of a pattern, or in memory
"""
