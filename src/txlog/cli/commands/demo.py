"""Owns the command `demo`: real invoices processed exactly once despite kills, then checked."""

from __future__ import annotations

import importlib
import os
import shlex
from typing import Annotated, Final

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Bar, Sight
from txlog.cli.line.command import Argument, Option, command, exclusive
from txlog.cli.terminal.tables import counted
from txlog.errors import InvalidArgument, ReadOnlyStore

_TOUR: Final = (
    "status",
    "consume orders -f '%o  %k  %v\\n'",
    "consume orders -f '%x{state}  %v\\n' --isolation uncommitted -o -1",
    "txn list --all --columns txn,state,transaction_key,messages",
    "sub list",
    "delay list orders --columns message_id,deliver_at,key",
    "watermark show orders --columns watermark,holder",
    "consume orders -s billing --watermarks --ack none --json --columns message_id,late,value",
    'query "SELECT text(key) AS till, count(*) AS orders FROM orders GROUP BY 1 ORDER BY 1"',
    "inspect key:importer",
)


@command(
    "demo",
    "exactly once on real invoices while workers are killed",
    examples=(
        "txlog demo",
        "txlog demo /tmp/demo --kills 3 --limit 2000",
        "txlog demo /tmp/small --small",
        "txlog demo /tmp/small --tour",
    ),
    rows="jobs.DemoRun",
    loses="nothing",
)
def demo(
    call: Call,
    path: Annotated[str, Argument(metavar="PATH", show_default=False)] = "./txlog-demo",
    kills: Annotated[int, Option("--kills", metavar="N", min=0, help="kills in each stage")] = 5,
    seed: Annotated[int, Option("--seed", metavar="N")] = 1,
    limit: Annotated[int | None, Option("--limit", metavar="N", min=1, help="invoices")] = None,
    small: Annotated[
        bool, Option("--small", help="instead, a few messages of every kind to look at")
    ] = False,
    tour: Annotated[
        bool, Option("--tour", help="the same, and run commands that show them")
    ] = False,
) -> None:
    """Process real invoices exactly once while the worker is killed again and again.

    It makes a store in PATH (./txlog-demo) and leaves it there. DuckDB computes the result a second
    time from the source; if the results differ, the command ends with 6.

    A small store has an open and an aborted transaction, a delayed message and a late one.
    """
    exclusive(small=small, tour=tour)
    exclusive(small=small, tour=tour, limit=limit)
    if not path:
        raise InvalidArgument("the path of the demo is empty")
    if call.read_only:
        raise ReadOnlyStore("demo makes a store, and --read-only writes nothing")
    if small or tour:
        _small(call, path, tour=tour)
        return
    work = importlib.import_module("txlog.cli.demo")
    stages = _Stages(call)
    with stages:
        answer = work.run(os.fspath(path), kills=kills, seed=seed, limit=limit, progress=stages)
    call.output.single({"elapsed_ms": call.elapsed_ms(), **answer})
    if not answer["exact"]:
        call.exit = 6


class _Stages(Bar):
    """Shows the progress of the workers; the demo calls it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, self._stage)
        self._at = ("", 0, 0, 0)

    def __call__(self, stage: str, done: int, total: int, kills: int) -> None:
        """Show the number of invoices done, and the number of kills in this stage."""
        self._at = (stage, done, total, kills)

    def _stage(self) -> Sight:
        stage, done, total, kills = self._at
        if not total:
            return Sight("reading the invoices")
        progress = f"{done:,} of {counted(total, 'invoice')}, {kills} killed"
        return Sight(f"stage {stage}", progress, min(1.0, done / total))


def _small(call: Call, path: str, *, tour: bool) -> None:
    """Make the small store; for a tour, also show the output of some commands."""
    summary = importlib.import_module("txlog.cli.demo.small").make(os.fspath(path), call.clock)
    if not tour:
        call.output.fields = ["path", "topics", "messages"]
        call.output.single(summary)
        return
    run = importlib.import_module("txlog.cli.line.dispatch").run
    more = [] if call.flags.now is None else ["--now", call.flags.now]
    for line in _TOUR:
        call.output.text(f"$ txlog -S {shlex.quote(path)} {line}\n")
        call.output.out.flush()
        call.exit = max(call.exit, run(["-S", path, *shlex.split(line), *more]))
        call.output.text("\n")
