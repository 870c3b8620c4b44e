"""The consuming side: what one consumer holds, and the calls it makes on its subscription.

Contents:

    acknowledge    messages, ids and rows as runs, and the calls that acknowledge runs
    ahead          messages leased before the application asks for them
    dead_letters   moving messages off a subscription: to its dead-letter or its retry topic
    membership     joining a subscription, noticing dead peers, leaving
    receive        what one consumer is handed, and its place in each partition
"""
