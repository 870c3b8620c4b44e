"""Delayed delivery: which messages are due by now, and which are still to come.

Contents:

    due               what of a partition is due for a subscription
    timetable         the delayed index of one partition, as a process holds it
    timetable_parts   its parts: sealed buckets, and the mutable one above them
    upcoming          delayed messages as columns, for listing, counting and picking
"""
