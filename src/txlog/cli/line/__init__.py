"""From the words of a command line to a command with its arguments.

A small parser handles lines that are certainly correct; Typer handles all others, and help.

Contents:

    catalogue    the table of commands, and the command that a line names, without loading it
    command      a command: its function, the declarations of its parameters, how a line is parsed
    dispatch     one run: global flags, the command, its exit code
    forms        flags and orders of words of other tools, for commands that we have
    parameters   parameters of a command as data, and their meanings, for help and completion
    synonyms     words of other tools: the command that each means, or a hint
    typer        the commands over Typer: help, and all other lines
    usage        the help of a command as text: examples, arguments, flags by group
"""
