"""Imports msgspec without typing_extensions, which it does not need.

msgspec reads three names from typing_extensions that typing has since 3.11, and uses typing if the
package is missing. Importing that package takes a fifth of the time of Arrow, so `load` hides it
while it imports msgspec. No other thread may import meanwhile: only the command line calls `load`,
at its start.
"""

from __future__ import annotations

import sys
from typing import Any, Final

EXTENSIONS: Final = "typing_extensions"


def load() -> None:
    """Import msgspec, unless it or typing_extensions is imported already."""
    if "msgspec" in sys.modules or EXTENSIONS in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules[EXTENSIONS] = None  # makes an import fail
    try:
        import msgspec  # noqa: F401
    finally:
        del modules[EXTENSIONS]
