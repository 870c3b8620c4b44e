"""Decisions that append to a topic.

Messages, large messages, watermarks, and files that others have written.

Contents:

    adopt        staged files become ledgers of a topic, in one frame
    deliver_at   from a delay, a time or a policy to the instant of delivery
    exclusive    at most one producer of a topic, and the next one fences it
    large        an id for a large message's file, then the frame that names it
    producers    named producers: the newest fences the others; names are forgotten
    send         sending to a partition or to its sidecar, and deduplication
    watermark    a producer's assertion, as a row in every partition
"""
