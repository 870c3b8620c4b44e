"""The sending side: access to a topic, queued sends, and values of any length.

Contents:

    access      one producer's access to its topic, shared or exclusive
    first_use   a store may create a missing topic when a producer or consumer first names it
    future      SendFuture: the answer to a message that was sent without waiting
    large       a value of any length: a file of chunks, then one frame that names the file
    outbox      Outbox: the queue of messages sent without waiting, and the thread that sends them
    receipt     the answers to a message, a batch, and a large message
"""
