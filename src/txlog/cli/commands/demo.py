"""Owns the command `demo`: real invoices processed exactly once despite kills, then checked."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from txlog.cli.call.call import Call, is_terminal
from txlog.cli.call.progress import Bar, Sight
from txlog.cli.line.command import Argument, Option, command, exclusive
from txlog.cli.terminal.say import is_colored, say
from txlog.cli.terminal.tables import counted
from txlog.errors import InvalidArgument, ReadOnlyStore

_PATH: Final = "./txlog-demo"
_TOUR_PATH: Final = "./txlog-tour"


@command(
    "demo",
    "exactly once on real invoices while workers are killed",
    examples=(
        "txlog demo",
        "txlog demo /tmp/demo --kills 3 --limit 2000",
        "txlog demo /tmp/small --small",
        "txlog demo --tour",
    ),
    rows="jobs.DemoRun",
    loses="nothing",
)
def demo(
    call: Call,
    path: Annotated[str, Argument(metavar="PATH", show_default=False)] = _PATH,
    kills: Annotated[int, Option("--kills", metavar="N", min=0, help="kills in each stage")] = 5,
    seed: Annotated[int, Option("--seed", metavar="N")] = 1,
    limit: Annotated[int | None, Option("--limit", metavar="N", min=1, help="invoices")] = None,
    small: Annotated[
        bool, Option("--small", help="instead, a few messages of every kind to look at")
    ] = False,
    tour: Annotated[
        bool, Option("--tour", help="instead, a guided walk: commands, and what they do")
    ] = False,
) -> None:
    """Process real invoices exactly once while the worker is killed again and again.

    It makes a store in PATH (./txlog-demo) and leaves it there. DuckDB computes the result a second
    time from the source; if the results differ, the command ends with 6.

    A small store has an open and an aborted transaction, a delayed message and a late one. The tour
    runs the first commands that a new user needs, on real order lines; on a terminal it waits for
    Enter after each step. Its directory is ./txlog-tour unless PATH names another.
    """
    exclusive(small=small, tour=tour)
    exclusive(small=small, tour=tour, limit=limit)
    if not path:
        raise InvalidArgument("the path of the demo is empty")
    if call.read_only:
        raise ReadOnlyStore("demo makes a store, and --read-only writes nothing")
    if small:
        call.output.fields = ["path", "topics", "messages"]
        work = importlib.import_module("txlog.cli.demo.small")
        call.output.single(work.make(os.fspath(path), call.clock))
        return
    if tour:
        _walk(call, _TOUR_PATH if path == _PATH else path)
        return
    work = importlib.import_module("txlog.cli.demo")
    stages = _Stages(call)
    with stages:
        answer = work.run(os.fspath(path), kills=kills, seed=seed, limit=limit, progress=stages)
    call.output.single({"elapsed_ms": call.elapsed_ms(), **answer})
    call.output.out.flush()
    if not call.flags.quiet:
        say(verdict(answer))
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


def verdict(answer: Mapping[str, Any]) -> str:
    """The result in words: the numbers killed, lost and doubled, and commands to try next."""
    invoices = counted(answer["invoices"] + answer["refunds"], "invoice")
    store = shlex.quote(answer["path"])
    line = (
        f"{counted(answer['kills'], 'worker')} killed; {invoices}: "
        f"{answer['lost']:,} lost, {answer['doubled']:,} doubled\n"
    )
    for check in answer["check_list"]:
        if not check["ok"]:
            line += f"differs: {check['name']}: {check['found']}, expected {check['expected']}\n"
    return (
        f"{line}next: txlog demo --tour, the commands one by one; txlog -S {store} report, "
        f"a page about this store; rm -r {store} removes it\n"
    )


def _walk(call: Call, path: str) -> None:
    """Guide through the steps of the tour; on a terminal, wait for Enter between two steps."""
    work = importlib.import_module("txlog.cli.demo.tour")
    asks = is_terminal(0) and is_terminal(1) and not call.flags.no_input

    def show(text: str) -> None:
        call.output.text(text)
        call.output.out.flush()

    def goes_on() -> bool:
        if not asks:
            return True
        show("\nEnter goes on, q ends the tour: ")
        answer = sys.stdin.readline()
        return bool(answer) and answer.strip().lower() not in ("q", "quit")

    folder = Path(path)
    work.prepare(folder)
    bright = is_colored(call.flags.color or "auto", is_terminal(1), os.environ)
    heading = "\x1b[1m{}\x1b[0m".format if bright else str
    complete = work.walk(folder, show, goes_on, heading)
    place = shlex.quote(path)
    show(
        f"\n{'That was the tour' if complete else 'The tour ends here'}; its store is yours:\n"
        f"  cd {place} && export TXLOG_STORE={work.STORE} && txlog shell\n"
        f"  rm -r {place}   # removes all of it\n"
        "  txlog demo   # all invoices, while ten workers are killed\n"
    )
