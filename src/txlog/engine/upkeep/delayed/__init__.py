"""Upkeep of the delayed index: its buckets are built, merged, pruned and rebuilt here.

Contents:

    buckets   when a step is due, where a new bucket's ids come from, and taking the step
"""
