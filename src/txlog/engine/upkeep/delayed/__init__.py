"""Upkeep of the delayed index: its buckets are built, merged, pruned and rebuilt here.

Contents:

    buckets   the steps of upkeep, the ids of a new bucket, and when the steps run
"""
