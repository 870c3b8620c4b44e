"""One call of a command, and what any command may need while it runs.

What the flags, the environment and the user's settings make of a call is decided here.

Contents:

    ask           asking before what cannot be undone: the plan, the question, the refusal
    call          Call: the global flags, the store, the clock, diagnostics
    environment   the environment variables and settings, and where the user's files are
    find          what a call finds by itself: the user's settings, the store
    install       files written outside any store because the user asked for it
    page          long texts through a pager, on a terminal only
    progress      progress on the last line of a terminal
    targets       several targets in one call: continue after a failure, then list it
    user_config   the user's config.toml: its settings and profiles
    version       the long answer to --version
"""
