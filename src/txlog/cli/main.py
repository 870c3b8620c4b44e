"""Owns the way in and the way out: `main()`, root help, dispatch, errors, exit codes.

    argv ── --version ──────────────────────────────► one line, nothing imported
         ── global flags, noun, verb ── catalogue ──► load one module, run one command
         ── whatever is raised ─────────────────────► one error on stderr, one exit code (CLI.md 5)

No traceback ever, unless TXLOG_DEBUG=1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


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

    return run(words)


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
    sys.exit(main())
