"""From the words of a command line to a command with its arguments.

A small parser handles lines that are certainly correct; Typer handles all others, and help.

Contents:

    catalogue    the table of commands: help and suggestions without loading their modules
    command      a command: its function, its fields, how a line is parsed and run
    declared     Option and Argument: declarations of a command's parameters
    dispatch     one run: global flags, the command, its exit code
    flags        the global flags, and facts about a line before it is parsed
    parameters   parameters of a command as data, for man pages, completion and tests
    typer        the commands over Typer: help, and all other lines
"""
