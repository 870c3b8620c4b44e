"""`run` and `transform`: a function, or a program, between topics.

Contents:

    command     the options of both commands
    log         what a running function says on stderr
    request     what was asked for
    transform   the user's program: a batch on its stdin, messages on its stdout
    work        one process: load, create what is missing, run, report
    workers     the processes of `--parallelism`: started, watched, restarted
"""
