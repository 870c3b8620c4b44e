"""Watermarks: how far a partition is in event time.

Contents:

    rows    the rows that move a partition's watermark, and the messages that came late
    value   the watermark at a position
"""
