"""One consumer of a subscription: its leases, its places, and the calls it makes.

Contents:

    acknowledge         messages, ids and rows as runs, and the calls that acknowledge runs
    ahead               messages leased before the application asks for them
    consumer            ConsumerSession: one consumer of one topic, from joining to leaving
    dead_letter_retry   moving dead letters back to their topics
    dead_letters        moving messages off a subscription: to its dead-letter or its retry topic
    many_topics         TopicsSession: one subscription name on several topics, or a pattern
    membership          joining a subscription, noticing dead peers, leaving
    receive             leasing messages, and the consumer's place in each partition
    session             Session: the methods that the handle of a consumer calls
"""
