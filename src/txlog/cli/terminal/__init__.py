"""What people see besides results: diagnostics, errors, tables; and the signals they send.

Contents:

    errors    how an error looks, as text or as one JSON object
    escapes   control characters of stored text, written out for a terminal
    fields    the fields of results: their types by name, their meaning, their JSON form
    say       diagnostics: to stderr, or to the log file
    screen    what rich draws on a terminal: tables, fields with their values, bars
    signals   SIGINT, SIGTERM and SIGHUP as exceptions, held back while a frame is written
    tables    rows and objects for people, readable sizes and ages; aligned text between programs
"""
