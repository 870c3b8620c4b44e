"""`run` and `transform`: a function, or a program, between topics; `crashtest` of a program.

Contents:

    command     the two commands: which options go together
    crashtest   `crashtest`: a program that is killed at each of its calls
    log         diagnostics of a running function on stderr
    request     the checked options
    work        one process: load, create missing topics, run, report
    workers     the processes of `--parallelism`: started, watched, restarted
"""
