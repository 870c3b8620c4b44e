"""Everything on a terminal besides results: diagnostics, errors, tables, signals.

Contents:

    fields    the fields of results: their types by name, their meaning, their JSON form
    say       diagnostics and errors: to stderr, or to the log file; escapes of stored text
    screen    drawings by rich on a terminal: tables, fields with their values, bars
    signals   SIGINT, SIGTERM and SIGHUP as exceptions, held back while a frame is written
    tables    rows and objects for people, readable sizes and ages; aligned text for programs
"""
