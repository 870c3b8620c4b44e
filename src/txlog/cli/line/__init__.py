"""From the words of a line to a command with its arguments.

Lines that are plainly right take a short path; all others, and help, go through Typer.

Contents:

    catalogue    the table of commands, from which help and suggestions come without loading them
    command      a command: its function, its fields, how a line of words is parsed and run
    declared     Option and Argument: what a command says it takes
    dispatch     one run: global flags, the command, its exit code
    flags        the global flags, and what is known of a line before it is parsed
    parameters   what a command takes, as data for man pages, completion and tests
    typer        the commands over Typer: help, and all other lines
"""
