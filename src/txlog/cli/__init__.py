"""The command line: parse, call the API, print. No command decides anything about a store itself.

Door: main.

Contents:

    benchmark   `txlog bench`: the speed of a store on this disk, one call after another
    call/       one call of a command: its flags, environment, store and clock
    commands/   the commands, one module per noun
    consume/    `consume` and `peek`
    demo/       `txlog demo`: real invoices, exactly once, while workers are killed
    help/       help, man pages, completion and the shell
    input/      bytes in, Arrow tables out
    line/       from the words of a command line to a command with its arguments
    main        entry and exit of the process: root help, dispatch, errors, exit codes
    output/     results and messages, in every format, to stdout
    produce/    `produce`
    run/        `run` and `transform`
    terminal/   diagnostics, errors, signals and tables for people
"""
