"""One call of a command, and services that any command may need while it runs.

Flags, the environment and the user's settings are combined here.

Contents:

    call          Call: the global flags, the store, the clock, diagnostics; services of commands
    databases     connections to databases that decide prepared transactions
    environment   the environment variables, the user's files, the settings in config.toml
    progress      progress on the last line of a terminal
    repetition    a listing that is shown again and again
    version       the long answer to --version
"""
