"""Owns how a process of ours gets msgspec: without typing_extensions, which it does not need.

msgspec asks typing_extensions for three names that typing has since 3.11, and takes typing's where
the other is missing. Importing it takes a fifth of the time of Arrow. So it is missing for the
moment of the import; nobody else may import then, so only the command line does this, as it starts.
"""

from __future__ import annotations

import sys
from typing import Any, Final

EXTENSIONS: Final = "typing_extensions"


def load() -> None:
    """Import msgspec, if nobody has."""
    if "msgspec" in sys.modules or EXTENSIONS in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules[EXTENSIONS] = None  # by which an import fails
    try:
        import msgspec  # noqa: F401
    finally:
        del modules[EXTENSIONS]
