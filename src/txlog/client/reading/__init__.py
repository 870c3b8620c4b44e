"""Readers, which follow committed messages without a subscription and change nothing.

Contents:

    reader       Reader and Readers
    table_view   the newest value of each key, in memory
"""
