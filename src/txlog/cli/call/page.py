"""Owns long texts: on a terminal they go through the pager, elsewhere they are printed."""

from __future__ import annotations

import os
import shlex
import subprocess

from txlog.cli.call.call import Call, is_terminal


def show_text(call: Call, text: str) -> None:
    """Print text; on a terminal by PAGER, or less, unless --no-pager."""
    words = shlex.split(os.environ.get("PAGER", "less"))
    if call.flags.no_pager or not words or not (is_terminal(0) and is_terminal(1)):
        call.output.drawn(text)
        return
    # less ends by itself when the text fits, and leaves it on the screen.
    environment = {"LESS": "FRX", **os.environ}
    try:
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
    except OSError:
        call.output.drawn(text)
        return
    pager.communicate(text.encode("utf-8", "surrogateescape"))
