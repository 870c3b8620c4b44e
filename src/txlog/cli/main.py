"""Owns the way in and the way out: `main()`, root help, dispatch, errors, exit codes.

    argv ── --version ──────────────────────────────► one line, nothing imported
         ── global flags, noun, verb ── catalogue ──► load one module, run one command
         ── whatever is raised ─────────────────────► one error on stderr, one exit code (CLI.md 5)

No traceback ever, unless TXLOG_DEBUG=1.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

# New objects before the collector looks: imports make thousands, and none of them is garbage.
OBJECTS_MAX = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-V"]):
        # The fast path: no Typer, no parsing, nothing but the constant.
        from txlog import __version__

        return _write_plain(f"txlog {__version__}\n")
    if words[:1] == ["__complete"]:
        from txlog.cli.candidates import answer

        return answer(words[1:])
    from txlog.cli.dispatch import run
    from txlog.engine.storage import spec

    if argv is not None:
        return run(words)
    gc.set_threshold(OBJECTS_MAX)
    spec.load()
    return run(words)


def script() -> NoReturn:
    """Run the command line of this process, and end it.

    Taking an interpreter apart takes a sixth of `produce`, and what is in it goes with the process
    all the same. What was registered for the end is called; where threads are left, which may be
    those of a user's function or of Spark, the interpreter ends as usual.
    """
    try:
        code = main()
    except KeyboardInterrupt:  # while modules are loaded: nothing is begun
        code = 130
    threads = sys.modules.get("threading")
    if threads is None or threads.active_count() == 1:
        atexit._run_exitfuncs()
        with suppress(OSError, AttributeError, ValueError):  # what exit functions wrote
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _write_plain(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (OSError, AttributeError, ValueError):
        return 1
    return 0


if __name__ == "__main__":
    script()
