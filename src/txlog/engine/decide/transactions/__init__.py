"""Decisions about transactions and the keys they run under.

Contents:

    end       beginning a transaction, and ending it: the decision table
    enter     the first step of every operation in a transaction
    keys      transaction keys: connecting, beginning under one, fencing, deleting
    resolve   the ops of a commit and of an abort, also late ones and those of recovery
    sweep     what each call does first: expire, drive on, forget
"""
