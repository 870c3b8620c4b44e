"""Owns asking before what cannot be taken back: the plan, the question, the refusal (CLI.md 4)."""

from __future__ import annotations

import sys

from txlog.cli.options import Call, is_terminal
from txlog.errors import Refused


def confirm(call: Call, plan: str) -> None:
    """Return when the user agrees: -y, or y at the question on a terminal.

    raises: Refused (901), and nothing was done
    """
    if call.flags.yes:
        return
    if call.flags.no_input or not is_terminal(0):
        raise Refused(f"not asked: {plan}", code=901, hint="--yes does it")
    sys.stderr.write(f"{plan}\ngo on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("not confirmed, nothing was done", code=901, hint="--yes does not ask")
