"""Scenarios that measure txlog and its peers in turns, or kill its processes and check the store.

`python -m bench` lists them; `python -m bench SCENARIO` runs one.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def scratch_folder(text: str) -> Path:
    """The value of --folder; made if it is missing."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror}") from error
    return path
