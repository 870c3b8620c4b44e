"""Owns repeating a listing: redrawn on a terminal, one JSON line after the other off it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from txlog.cli.call.call import Call

_CLEAR: Final = "\x1b[H\x1b[2J"


def repeat(call: Call, pause_ms: int | None, show: Callable[[], None]) -> None:
    """Call `show`; with a pause, again and again until a signal."""
    if pause_ms is None:
        show()
        return
    is_drawn = call.output.look.human
    if not is_drawn:
        call.output.form = "ndjson"
    while True:
        if is_drawn and call.output.form in ("table", "wide"):
            call.output.drawn(_CLEAR)
        show()
        call.output.out.flush()
        time.sleep(pause_ms / 1000)
