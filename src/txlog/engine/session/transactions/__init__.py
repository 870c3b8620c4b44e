"""Transactions: a handle on an open one, and calls that name one by its id or key.

Contents:

    buffer        Buffer: the messages that wait in an open transaction
    commits       CommitQueue: commits in flight and their thread; Pipeline: a loop of transactions
    end           calls by id or key: end a transaction, wait for its end, connect a key, begin
    transaction   Transaction: a handle on an open transaction, and its builder
"""
