"""Help in all its forms, made from what the commands declare.

Completion and the shell are here too, since they need the same words.

Contents:

    codes        each error code and exit code: what happened, what to do, an example
    completion   the words that may end a command line, names in the store included
    fields       what `-f help` prints besides a command's fields
    help         the command `help`
    man_pages    the man pages
    markup       the small markup of help topics: parsed once, shown as text or as mdoc
    page         how rich draws a page of help on a terminal
    shell        `txlog shell`: many commands in one process
    topics       the help topics: texts from texts/, tables from the program
"""
