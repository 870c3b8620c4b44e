"""Owns the demo's worker process: `python -m txlog.cli.demo.worker STAGE ...`, made to be killed.

It reports to its supervisor in lines on standard output, each a word and a number of invoices:

    begun N   ready, N were committed before       done N   N are committed
    held N    about to commit beyond --allow; waits here, inside its transaction, to be killed

--allow limits the progress of a worker that will be killed, so that some work always remains.
"""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

import txlog
from txlog.cli.demo import pipeline


class PipeGate:
    """The gate of a worker process: writes reports to one stream, waits on another."""

    __slots__ = ("_allow", "_incoming", "_outgoing")

    def __init__(self, allow: int, outgoing: TextIO, incoming: TextIO) -> None:
        self._allow = allow
        self._outgoing = outgoing
        self._incoming = incoming

    def begun(self, done: int) -> None:
        """Report that the worker is ready."""
        self._say("begun", done)

    def before_commit(self, done: int) -> None:
        """Hold the worker if its commit is not allowed; the end of its supervisor ends it."""
        if done > self._allow:
            self._say("held", done)
            self._incoming.read()
            raise SystemExit("the supervisor has exited")

    def committed(self, done: int) -> None:
        """Report that done invoices are committed."""
        self._say("done", done)

    def _say(self, word: str, done: int) -> None:
        self._outgoing.write(f"{word} {done}\n")
        self._outgoing.flush()


def main(arguments: list[str] | None = None) -> None:
    """Run one stage on the store until it is finished."""
    parser = argparse.ArgumentParser(
        prog="txlog.cli.demo.worker", description="a worker of the demo"
    )
    parser.add_argument("stage", choices=pipeline.STAGES)
    parser.add_argument("--store", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--allow", type=int, required=True)
    options = parser.parse_args(arguments)
    gate = PipeGate(options.allow, sys.stdout, sys.stdin)
    with txlog.open(options.store) as client:
        if options.stage == pipeline.LOAD:
            pipeline.load(client, gate, options.source, options.limit)
        else:
            pipeline.invoicing(client, gate, options.batch)


if __name__ == "__main__":
    main()
