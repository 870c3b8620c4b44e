"""Producers: the handles that send messages, Arrow batches, bulk batches and watermarks.

Contents:

    bulk       Bulk: a batch of any size, written by any number of processes, stored once
    producer   Producer, MessageBuilder and WatermarkBuilder: handles over a ProducerSession
"""
