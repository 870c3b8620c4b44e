"""Producers: the handles that send messages, Arrow batches, bulk batches and watermarks.

Contents:

    bulk                Bulk: a batch of any size, written by any number of processes, stored once
    message_builder     MessageBuilder: a message put together step by step
    producer            Producer: sends messages, plain or in a transaction
    router              the partition that a producer chooses for a message
    watermark_builder   a producer's promise to send nothing older than a given event time
"""
