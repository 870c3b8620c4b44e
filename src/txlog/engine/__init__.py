"""The store itself.

It logs nothing and prints nothing. Two threads work behind the calls: one sends the queued messages
of producers, one writes checkpoints. Other rooms import from `txlog.engine.door` alone.

Contents:

    decide/     decisions: from a view and a request to ops, rows and an answer
    door/       the names that other rooms may import, a module a subject
    folds/      state, as deterministic functions of ops
    model/      facts: rows, ops, sets of message ids
    plan/       questions over a view, which never make an op
    relation/   which files and rows hold a topic's committed messages
    session/    what a producer, consumer, reader or transaction keeps between calls
    storage/    bytes: disk, journal, segments, buckets, manifests
    store/      the write path
    upkeep/     checkpoints, the delayed index, space, verify and repair
    view        what a store holds at one LSN
"""
