"""Asks before an irreversible change: the plan, the question, the refusal (spec/cli 4)."""

from __future__ import annotations

import sys

from txlog.cli.call.call import Call, is_terminal
from txlog.errors import Refused


def confirm(call: Call, plan: str, *, word: str | None = None) -> None:
    """Return if the user agrees: -y, or y at the question on a terminal.

    word: the word to type instead of y

    raises: Refused (901) before anything was done
    """
    if call.flags.yes:
        return
    if call.flags.no_input or not is_terminal(0):
        raise Refused(f"not asked: {'; '.join(plan.splitlines())}", code=901, hint="--yes does it")
    question = "go on? [y/N]" if word is None else f"type {word} to continue:"
    sys.stderr.write(f"{plan}\n{question} ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not (answer.lower() in ("y", "yes") if word is None else answer == word):
        raise Refused("not confirmed, nothing was done", code=901, hint="--yes does not ask")
