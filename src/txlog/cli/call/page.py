"""Shows long texts: through the pager on a terminal, printed elsewhere."""

from __future__ import annotations

import os
import shlex
import subprocess

from txlog.cli.call.call import Call, is_terminal


def show_text(call: Call, text: str) -> None:
    """Print text; on a terminal through PAGER, or less, unless --no-pager."""
    pager_command = shlex.split(os.environ.get("PAGER", "less"))
    if call.flags.no_pager or not pager_command or not (is_terminal(0) and is_terminal(1)):
        call.output.drawn(text)
        return
    # less ends by itself when the text fits the screen, and leaves the text there.
    environment = {"LESS": "FRX", **os.environ}
    try:
        pager = subprocess.Popen(pager_command, stdin=subprocess.PIPE, env=environment)
    except OSError:
        call.output.drawn(text)
        return
    pager.communicate(text.encode("utf-8", "surrogateescape"))
