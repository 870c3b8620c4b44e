"""Decisions that append to a topic.

Messages, large messages, watermarks, and files that others have written.

Contents:

    adopt       staged files become ledgers of a topic, in one frame
    large       an id for a large message's file, then the frame that names it
    producers   named producers: the newest fences the others; exclusive ones
    send        sending to a partition or to its sidecar, deduplication, the instant of delivery
    watermark   a producer's assertion, as a row in every partition
"""
