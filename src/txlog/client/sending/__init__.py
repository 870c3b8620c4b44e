"""Producers, and everything that can be sent.

Single messages, Arrow batches, values of any length, bulk batches written by many processes, and
watermarks.

Contents:

    access              the place of one producer on its topic, shared or exclusive
    bulk                Bulk: a batch of any size, written by any number of processes, stored once
    first_use           a missing topic is made by who names it, where the store allows that
    future              SendFuture: the answer of a message that was sent without waiting
    large               a value of any length: a file of chunks, then one frame that names it
    message_builder     MessageBuilder: a message put together step by step
    outbox              Outbox: what is sent without waiting, and the thread that sends it
    producer            Producer: sends messages, plain or in a transaction
    receipt             what a producer is told of a message, a partition, a batch, a large message
    router              which partition a producer chooses for a message
    watermark_builder   a producer's promise that nothing older than a time will come
"""
