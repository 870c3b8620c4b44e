"""Owns entry and exit of the process: `main()`, root help, dispatch, errors, exit codes.

    argv ── --version ──────────────────────────────► one line, nothing imported
         ── global flags, noun, verb ── catalogue ──► load one module, run one command
         ── any exception ──────────────────────────► one error on stderr, an exit code (spec/cli 5)

It never prints a traceback, unless TXLOG_DEBUG=1. So it handles interrupts before it imports much
else. While the interpreter starts and this module imports, it cannot; hence the few imports here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than all imports here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

# Commands that may run long over many rows, and start no other program.
STREAMS = frozenset(
    ["produce", "import", "query", "report", "serve", "views", "audit", "compact-topic"]
)

# New objects before a garbage collection: imports create thousands, and none is garbage.
OBJECTS_MAX = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args in (["--version"], ["-V"]):
        # The fast path: no Typer, no parsing, only the constant.
        from txlog import __version__

        return _write_plain(f"txlog {__version__}\n")
    if argv is None:
        _prepare(args)
    if args[:1] == ["__complete"]:
        from txlog.cli.help.completion import answer

        return answer(args[1:])
    from txlog.cli.line.dispatch import run

    return run(args)


def _prepare(args: Sequence[str]) -> None:
    """Set up the process for a command, before anything imports msgspec or Arrow."""
    import gc

    is_stream = not STREAMS.isdisjoint(args)
    if (is_stream or "export" in args) and "-m" not in args:
        from txlog.engine.door.disk import share_heap

        # Otherwise threads and Arrow each keep freed memory, and a long stream grows by that.
        share_heap()
        if is_stream:  # an export chooses Arrow's memory pool itself
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from txlog.base.startup import messagepack

    gc.set_threshold(OBJECTS_MAX)
    messagepack.load()


def script() -> NoReturn:
    """Run the command line of this process, and end it.

    Tearing down an interpreter takes a sixth of the time of `produce`, and the kernel frees its
    memory anyway, so this skips it. Exit functions still run. If threads remain, of a user's
    function or of Spark, the interpreter ends as usual.
    """
    try:
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _interrupted)
        code = main()
    except KeyboardInterrupt:  # the handler was not installed yet
        os._exit(130)
    import atexit
    from contextlib import suppress

    threads = sys.modules.get("threading")
    if threads is None or threads.active_count() == 1:
        atexit._run_exitfuncs()
        with suppress(OSError, AttributeError, ValueError):  # flushes the output of exit functions
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End the process while no command runs: it has not begun, or only the exit is left."""
    os._exit(130)


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
