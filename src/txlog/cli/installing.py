"""Owns files that txlog writes outside of a store because it was told to: man pages, completions.

They go where the user's programs look for them, and only bytes that differ are written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from txlog.cli.options import Call
from txlog.cli.replacing import replace_file
from txlog.errors import DiskFailed


def data_home(environ: Mapping[str, str]) -> Path:
    """$XDG_DATA_HOME, or ~/.local/share."""
    return _home(environ, "XDG_DATA_HOME", ".local/share")


def config_home(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME, or ~/.config."""
    return _home(environ, "XDG_CONFIG_HOME", ".config")


def install(call: Call, path: Path, text: str) -> bool:
    """Write a file unless it is so already; print its result object; tell whether it changed.

    raises: DiskFailed
    """
    data = text.encode("utf-8")
    try:
        changed = not path.is_file() or path.read_bytes() != data
        if changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(path), data)
    except OSError as error:
        raise DiskFailed(f"{path}: {error.strerror or error}", path=str(path)) from error
    call.output.result({"path": str(path), "changed": changed})
    return changed


def _home(environ: Mapping[str, str], name: str, otherwise: str) -> Path:
    # By the standard a relative path there is to be ignored.
    named = environ.get(name, "")
    return Path(named) if os.path.isabs(named) else Path("~").expanduser() / otherwise
