"""Readers, which follow committed messages without a subscription and change nothing.

Also what readers and consumers share: the message, waiting, watermarks.

Contents:

    message             Message, made from a row: the one place with an object per message
    pause               waiting: look, rest until something may have changed, look again
    reader              Reader and Readers
    table_view          the newest value of each key, in memory
    unread              what a reader has read ahead: messages, or rows again
    watermark_ground    what a session's watermark is computed from
    watermark_session   the watermark that one consumer was handed, and the next one
"""
