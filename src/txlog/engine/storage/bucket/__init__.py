"""A bucket: a file of delayed message ids, sorted by time, one row group per snapshot segment.

Contents:

    bitmaps   the ids of a snapshot segment as bitmaps
    file      the layout of a bucket, and writing one
    reader    reading a footer, some segments, or the bitmaps
"""
