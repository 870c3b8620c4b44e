"""The command line: parse, call the API, print. No command decides anything about a store.

Contents:

    benchmark   `txlog bench`: how fast a store is on this disk, one call after another
    call/       one call of a command: its flags, environment, store and clock
    commands/   the commands, a module a noun
    consume/    `consume` and `peek`
    demo/       `txlog demo`: real invoices, exactly once, while workers are killed
    help/       help, man pages, completion and the shell
    input/      bytes in, Arrow tables out
    line/       from the words of a line to a command with its arguments
    main        the way in and the way out: root help, dispatch, errors, exit codes
    output/     results and messages, in every format, to stdout
    produce/    `produce`
    run/        `run` and `transform`
    terminal/   diagnostics, errors, signals and tables for people
"""
