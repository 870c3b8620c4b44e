"""What a store holds at one LSN.

The newest checkpoint, the frames since, and the files of its ledgers. Every question and every
decision is asked of a view.

Contents:

    files   which files the ledgers have, their open readers, their rows
    paths   where the files of a ledger lie
    view    View: the loaded folds, and ops that wait for folds nobody has used yet
"""
