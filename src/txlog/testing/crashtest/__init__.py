"""A crash test of a user's program: it is killed at each of its calls, and runs again to its end.

    prepare     a copy of the store, with messages to read
    reference   two runs without a kill: the expected output of the program
    disturb     for each point: a run that dies there, a run to the end, and the difference
    explain     the line of the program that is the cause

Every run is a process of its own, with a copy of the store and of its files. `txlog crashtest` is
the command; `assert_exactly_once` does the same with a function, within a test.

Contents:

    causes      which line of a program loses or doubles a message, and why
    child       the process of the program
    effects     calls of the program that change something outside of the store
    library     calls of txlog that record themselves
    recorder    the trace that a process writes, and the point at which it dies
    state       what a program left behind, in the store and in its files
    trace       the files between a test and its processes
    trials      the test itself: its points, its runs, its report
"""
