"""Transactions: a handle on an open one, and calls that name one by its id or key.

Contents:

    end           ending a transaction by its id, waiting for its end, connecting a key
    transaction   Transaction: a handle on an open transaction, and its builder
"""
