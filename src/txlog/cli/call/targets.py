"""Runs a command over several targets: continue after a failure, then list it; `-` reads stdin.

Source: spec/cli 5.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from txlog.errors import PartlyDone, TxlogError


def each_target(names: Sequence[str], act: Callable[[str], None]) -> None:
    """Call act with every name.

    raises: the first error if no call succeeded; PartlyDone (701) if some did
    """
    done: list[str] = []
    failed: list[tuple[str, TxlogError]] = []
    for name in names:
        try:
            act(name)
            done.append(name)
        except TxlogError as error:
            if error.exit == 10:
                raise  # an unknown outcome is not a failure to list
            failed.append((name, error))
    if not failed:
        return
    if not done:
        raise failed[0][1]
    raise PartlyDone(
        f"{len(failed)} of {len(names)} failed: {failed[0][1].message}",
        done=[{"name": name} for name in done],
        failed_list=[
            {"name": name, "code": f"TXL-{error.code}", "message": error.message}
            for name, error in failed
        ],
    )


def words_or_stdin(args: Sequence[str]) -> list[str]:
    """Return args, with each `-` replaced by the lines of stdin that are not blank."""
    out: list[str] = []
    for word in args:
        if word != "-":
            out.append(word)
        elif sys.stdin is not None:
            out.extend(line.strip() for line in sys.stdin if line.strip())
    return out
