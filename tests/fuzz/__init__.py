"""Fuzzing with coverage feedback over everything that reads bytes from elsewhere (decision 291).

    scripts/fuzz                       all targets, a minute each
    scripts/fuzz frames wire --minutes 10 --seed 7

mutation   random changes of an input: bits, numbers, lengths, words, pieces of other inputs
trace      counts the lines that run, and notes which line followed which: the feedback
engine     runs one input under all checks, and a campaign over one target
corpus     the inputs that are kept in the tree: `corpus/`, and `found/` with one file per finding
targets    what is fuzzed: a function of bytes, seeds from real runs, a repair of checksums
"""
