"""Owns the command line: parse, call the API, print. One file a noun, nothing but text and bytes.

main        entry: version, root help, dispatch, errors, signals, exit codes
catalogue   the table of commands, from which help and did-you-mean come without loading them
command     a command: its function, its fields, how a line of words is run
declared    what it takes: Option, Argument; plain: lines that are plainly right; typed: all others,
            and help, by Typer
options     one call: the global flags, the environment, the store, the clock, diagnostics
output      listings and single objects in every format; the writer of stdout
records     messages out (JSON record, envelope, lines, raw); percent: the %-formats
inputs      bytes in, Arrow tables out
store topic sub txn produce consume admin demo    the commands
"""
