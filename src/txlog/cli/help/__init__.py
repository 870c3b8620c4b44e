"""Help in all its forms, built from the declarations of the commands.

Completion and the shell are here too: they use the same declarations.

Contents:

    codes        each error code and exit code: meaning, cause, remedy, an example
    completion   candidates for the last word of a command line, names in the store included
    fields       the part of `-f help` after a command's own fields
    help         the command `help`
    man_pages    the man pages
    markup       the small markup of help topics: parsed once, shown as text or as mdoc
    page         pages of help drawn by rich on a terminal
    prompt       lines and statements at a terminal, by prompt_toolkit
    shell        `txlog shell`: many commands in one process
    topics       the help topics: texts from texts/, tables from the program
"""
