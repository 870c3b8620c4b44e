"""One call of a command, and services that any command may need while it runs.

Flags, the environment and the user's settings are combined here.

Contents:

    ask           asks before an irreversible change: the plan, the question, the refusal
    call          Call: the global flags, the store, the clock, diagnostics
    environment   the environment variables and settings, and the paths of the user's files
    find          finds the user's settings and the store
    install       files that the user installs outside any store
    page          long texts through a pager, on a terminal only
    progress      progress on the last line of a terminal
    targets       several targets in one call: continue after a failure, then list it
    user_config   the user's config.toml: its settings and profiles
    version       the long answer to --version
"""
