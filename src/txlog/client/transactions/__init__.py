"""Transactions, as a handle on an open one and as calls that name one by its id or key.

Contents:

    end           ending a transaction by its id, expiring those that are overdue, waiting for one
    transaction   Transaction: a handle on an open transaction, and its builder
"""
