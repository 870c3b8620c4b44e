"""The state of a store at one LSN.

A view consists of the newest checkpoint, the frames after it, and the files of its ledgers. Every
question and every decision reads a view.

Contents:

    files   which files the ledgers have, their open readers, their rows
    paths   the paths of the files of a ledger
    view    View: the loaded folds, and ops that wait for folds no call has used yet
"""
