"""Owns the demo command: the exactly-once run on real invoices, with kills, checked at the end."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

from txlog.cli.command import command
from txlog.cli.declared import Argument, Option
from txlog.cli.options import Call, is_terminal
from txlog.errors import InvalidArgument, ReadOnlyStore


@command(
    "demo",
    examples=("txlog demo", "txlog demo /tmp/demo --kills 3 --limit 2000"),
    fields=("path lines invoices refunds quantity value kills transactions exact elapsed_ms"),
)
def demo(
    call: Call,
    path: Annotated[str, Argument(metavar="PATH", show_default=False)] = "./txlog-demo",
    kills: Annotated[int, Option("--kills", metavar="N", min=0, help="a stage")] = 5,
    seed: Annotated[int, Option("--seed", metavar="N")] = 1,
    limit: Annotated[int | None, Option("--limit", metavar="N", min=1, help="invoices")] = None,
) -> None:
    """Process real invoices exactly once while the worker is killed again and again.

    The store is made in PATH (./txlog-demo) and stays there. The result is computed a second time
    by DuckDB from the source; a difference ends with 6.
    """
    if not path:
        raise InvalidArgument("the path of the demo is empty")
    if call.read_only:
        raise ReadOnlyStore("demo makes a store, and --read-only writes nothing")
    work = importlib.import_module("txlog.demo")
    show = is_terminal(2) and not call.flags.quiet and not call.flags.no_progress

    def progress(text: object) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    answer = work.run(
        os.fspath(path), kills=kills, seed=seed, limit=limit, progress=progress if show else None
    )
    call.output.single({"elapsed_ms": call.elapsed_ms(), **answer})
    if not answer["exact"]:
        call.exit = 6
