"""The test suites that the authors of stock clients wrote, run against `txlog serve`.

    python -m tests.upstream                       today's part of each suite, six minutes at most
    python -m tests.upstream --client go --all     one suite, whole
    python -m tests.upstream --client go --all --update     write its verdicts anew

Package managers fetch the suites by name and version; this tree has no part of a suite. Each test
has a verdict in `verdicts`, and the run fails when one no longer holds.

    __main__    the command line: which tests run, and whether their verdicts hold
    verdicts    the files of verdicts, and the comparison with outcomes
    suite       the common interface of the three suites
    go          the tests in the module of the Go client
    java        the tests of the Java client, over a shim of the broker's base classes
    python      the tests in a checkout of the Python client
    crew        workers, each in a network of its own, and the queue of tests
    worker      a worker: it runs tests and reports their outcomes
    launcher    servers that start fast
"""
