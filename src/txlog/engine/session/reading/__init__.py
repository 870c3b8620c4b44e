"""What readers and consumers share: the message, waiting, and watermarks.

Contents:

    message             Message, made from a row: the only place with an object per message
    pause               waiting: look, sleep until something may have changed, look again
    unread              rows that a reader fetched and its application has not received
    watermark_ground    the positions that a session's watermark is computed from
    watermark_session   the last watermark that a consumer got, and the next watermark
"""
