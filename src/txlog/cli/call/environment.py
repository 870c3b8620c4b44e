"""Owns the tables of variables and of the user's settings, and the paths of the user's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLES: Final[dict[str, str]] = {
    "TXLOG_STORE": "the store, like -S",
    "TXLOG_PROFILE": "a section of the user's config.toml, as --profile",
    "TXLOG_TXN": "the transaction that produce, consume -s, sub ack, watermark set and idle join, "
    "and that txn commit, abort and show use when no id is given",
    "TXLOG_FORMAT": "shape of stdout, like -f; ignored by commands without that format",
    "TXLOG_READ_ONLY": "1: take no lock, write nothing",
    "TXLOG_LOCK_TIMEOUT": "how long to wait for the lock, as --lock-timeout",
    "TXLOG_DURABILITY": "sync or os, for this process",
    "TXLOG_NOW": "the clocks of this process stand still at this time, as --now",
    "TXLOG_NO_INPUT": "1: never ask",
    "TXLOG_NO_PROGRESS": "1: no progress bars",
    "TXLOG_LOG": "error, warning, info or debug: the lowest level of messages on stderr",
    "TXLOG_DEBUG": "1: a traceback after an error",
    "NO_COLOR": "no colours; also CLICOLOR=0. CLICOLOR_FORCE and FORCE_COLOR: colours everywhere",
    "COLUMNS": "width of tables on a terminal; also TERMINAL_WIDTH",
    "XDG_CONFIG_HOME": "directory of txlog/config.toml (~/.config)",
    "XDG_CACHE_HOME": "directory of txlog/, with recreatable files for Spark (~/.cache)",
    "XDG_STATE_HOME": "directory of txlog/places, the confirmed offload targets (~/.local/state)",
    "XDG_DATA_HOME": "directory of installed completions and man pages (~/.local/share)",
    "PAGER": "shows help topics and man pages on a terminal (less)",
    "JAVA_HOME": "the Java of Spark jobs; PYSPARK_PYTHON: their Python",
}

USER_SETTINGS: Final[dict[str, str]] = {
    "store": "the store, when no other is found",
    "format": "like -f, for commands with that format",
    "color": "auto, always or never",
    "utc": "true: times on a terminal in UTC",
    "log_format": "text or json",
    "log_file": "file for diagnostics",
    "lock_timeout": "how long to wait for the lock, unless the store sets it",
    "no_progress": "true: no progress bars",
    "no_pager": "true: no pager",
    "no_input": "true: never ask",
}
SWITCHES: Final = frozenset({"utc", "no_progress", "no_pager", "no_input"})


def data_home(environ: Mapping[str, str]) -> Path:
    """$XDG_DATA_HOME, or ~/.local/share."""
    return _home(environ, "XDG_DATA_HOME", ".local/share")


def config_home(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME, or ~/.config."""
    return _home(environ, "XDG_CONFIG_HOME", ".config")


def _home(environ: Mapping[str, str], name: str, otherwise: str) -> Path:
    # The XDG standard says to ignore a relative path.
    folder = environ.get(name, "")
    return Path(folder) if os.path.isabs(folder) else Path("~").expanduser() / otherwise
