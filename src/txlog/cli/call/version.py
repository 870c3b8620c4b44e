"""Owns the answers to --version; --json adds versions of packages, without importing them."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version

from txlog import __version__

FORMAT_MIN = 1
FORMAT_MAX = 1


def as_text() -> str:
    """Return `txlog VERSION`, with a newline."""
    return f"txlog {__version__}\n"


def as_json() -> str:
    """Return the object of `--version --json`, with a newline."""
    answer = {
        "txlog": __version__,
        "format_min": FORMAT_MIN,
        "format_max": FORMAT_MAX,
        "python": platform.python_version(),
        "pyarrow": _installed("pyarrow"),
        "duckdb": _installed("duckdb"),
        "pyspark": _installed("pyspark"),
        "platform": platform.platform(),
    }
    return json.dumps(answer) + "\n"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
