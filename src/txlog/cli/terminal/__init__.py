"""Output on a terminal: diagnostics and errors, tables and bars, the form of fields; signals.

Contents:

    fields    fields of results: their JSON form, and the lines of -f help
    say       diagnostics and errors: to stderr, or to the log file; escapes of stored text
    screen    drawings by rich on a terminal: tables, fields with their values, bars
    signals   SIGINT, SIGTERM and SIGHUP as exceptions, held back while a frame is written
    tables    rows and objects for people, readable sizes and ages; aligned text for programs
    top       the screen of `top`, by prompt_toolkit
"""
