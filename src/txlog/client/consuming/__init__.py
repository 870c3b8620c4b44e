"""Consumers, from joining a subscription to leaving it.

They receive its messages, acknowledge them, and give up on those that fail again and again.

Contents:

    acknowledge    what can be acknowledged, as runs of messages, and the calls that do it
    ahead          messages taken before the application asks for them
    batches        how many messages, how many bytes and how long a batch waits for
    consumer       Consumer: receives a subscription's messages and acknowledges them
    dead_letters   moving messages off a subscription: given up, or put off
    in_memory      a consumer whose subscription lives in memory, as long as it does
    listeners      the thread of a client that calls message listeners
    many_topics    one subscription name on several topics, or on a pattern of them
    membership     joining a subscription, noticing which others have died, leaving
    open           opening a consumer of any of these kinds
    receive        what one consumer is handed, and where it stands in each partition
"""
