"""Upkeep of the delayed index: its buckets are built, merged, pruned and rebuilt here.

Contents:

    buckets   when a step is due, and taking it
    builder   building one bucket
    sources   where a bucket's ids come from: the mutable bucket, other buckets, the log
"""
